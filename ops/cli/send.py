"""`turnlog send`: say something in a conversation, as its user."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from ops.cli.common import Output, OutputOption, emit, progress
from ops.cli.errors import NEGATIVE, USAGE, CommandFailed

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from turnlog import Conversation, Message

NEW = "new"
# The client tries on by itself for some time; a person should know that it does.
SILENCE_S = 3.0


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("send", rich_help_panel="Look")(send)


def send(
    conversation: Annotated[
        str, typer.Argument(metavar="CONVERSATION", help="Id of the conversation, or `new` to open one.")
    ],
    text: Annotated[str, typer.Argument(metavar="TEXT", help="What to say.")],
    key: Annotated[
        str | None, typer.Option("--key", help="Idempotency key: however often it is sent, it is stored once.")
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the agent's answer and print it.")] = False,
    timeout: Annotated[float, typer.Option("--timeout", min=0, help="Seconds to wait for the answer.")] = 60.0,
    gateway: Annotated[
        str, typer.Option("--gateway", envvar="TURNLOG_GATEWAY", help="Base URL of a gateway.")
    ] = "http://127.0.0.1:8080",
    secret: Annotated[
        str | None,
        typer.Option("--secret", envvar="TURNLOG_CHANNEL_SECRET", help="Login secret of the people's channel."),
    ] = None,
    user: Annotated[
        str, typer.Option("--user", help="Who says it: a conversation is seen by the person who opened it.")
    ] = "operator",
    output: OutputOption = Output.TABLE,
) -> None:
    """Say something in a conversation, as a person of a channel. Returns once it is committed.

    `turnlog up` prints the channel's secret. Exit code 1 if `--wait` saw no answer in time; the turn is committed then
    all the same.

    Examples:

      turnlog send new "Where is my order?" --wait

      turnlog send 6f9619ff-8b86-d011 "And now?" --key question-2
    """
    if not secret:
        raise CommandFailed("TURNLOG_CHANNEL_SECRET is not set, nor --secret: `turnlog up` prints it", USAGE)
    if not text.strip():
        raise CommandFailed("TEXT is blank: there is nothing to say", USAGE)
    from turnlog import TurnlogError, Unavailable

    try:
        document = asyncio.run(_send(gateway, secret, user, conversation, text, key, timeout if wait else None))
    except TurnlogError as error:
        lost = isinstance(error, Unavailable)
        way_out = "\nis a gateway there? `--gateway` or TURNLOG_GATEWAY names it" if lost else ""
        raise CommandFailed(f"{error.code}: {error}{way_out}") from error
    except ValueError as error:
        raise CommandFailed(str(error), USAGE) from error
    if output is Output.TABLE:
        progress(f"committed in conversation {document['conversation']} as {document['id']} (key {document['key']})")
        if answer := document.get("answer"):
            typer.echo(answer["text"])
    else:
        emit(document)
    if wait and document["answer"] is None:
        progress(f"no answer within {timeout:g} s")
        raise typer.Exit(NEGATIVE)


async def _send(
    gateway: str, secret: str, user: str, name: str, text: str, key: str | None, wait_s: float | None
) -> dict[str, Any]:
    from turnlog import Client

    waiting = asyncio.get_running_loop().call_later(SILENCE_S, progress, f"{gateway} has not taken it yet: trying on")
    async with Client(gateway, channel_secret=secret, user=user, insist=True) as client:
        try:
            conversation = await client.open() if name == NEW else await client.conversation(name)
            sent = await conversation.send(text, key=key)
        finally:
            waiting.cancel()
        document: dict[str, Any] = {"conversation": conversation.id, "id": sent.id, "key": sent.key}
        if wait_s is not None:
            answer = await _answer(conversation, sent.id, wait_s)
            document["answer"] = None if answer is None else {"seq": answer.seq, "id": answer.id, "text": answer.text}
        return document


async def _answer(conversation: Conversation, turn_id: str, wait_s: float) -> Message | None:
    """The first whole message of an agent after the turn; None: none came in time."""
    said = False
    try:
        async with asyncio.timeout(wait_s), aclosing(_messages(conversation)) as messages:
            async for message in messages:
                if message.id == turn_id:
                    said = True
                elif said and message.role not in {"user", "system"}:
                    return message
    except TimeoutError:
        return None
    return None


def _messages(conversation: Conversation) -> AsyncGenerator[Message]:
    return cast("AsyncGenerator[Message]", conversation.messages())
