"""`turnlog chat`: a link to the chat page, for one person."""

from __future__ import annotations

import asyncio
import webbrowser
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlencode

import typer

from ops.cli.common import Output, OutputOption, emit, progress
from ops.cli.errors import USAGE, CommandFailed

if TYPE_CHECKING:
    from turnlog.tokens import Token

PAGE = "/chat/"


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("chat", rich_help_panel="Look")(chat)


def chat(
    user: Annotated[
        str | None, typer.Option("--user", help="Who it is for; without it, a guest with an id of its own.")
    ] = None,
    gateway: Annotated[
        str, typer.Option("--gateway", envvar="TURNLOG_GATEWAY", help="Base URL of a gateway.")
    ] = "http://127.0.0.1:8080",
    secret: Annotated[
        str | None,
        typer.Option("--secret", envvar="TURNLOG_CHANNEL_SECRET", help="Login secret of the people's channel."),
    ] = None,
    open_it: Annotated[bool, typer.Option("--open", help="Open it in this machine's browser.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Print a link to the chat page that the gateway serves, with a fresh token in it.

    Who has the link is that person, in one conversation, for as long as the token lives (30 minutes unless
    TURNLOG_TOKEN_TTL_S says otherwise; an open page renews it). The token is behind the `#`, which browsers send to
    nobody.

    Examples:

      turnlog chat --user ana

      turnlog chat --open
    """
    if not secret:
        raise CommandFailed("TURNLOG_CHANNEL_SECRET is not set, nor --secret: `turnlog up` prints it", USAGE)
    from turnlog import TurnlogError, Unavailable

    try:
        link = asyncio.run(chat_link(gateway, secret, user))
    except TurnlogError as error:
        way_out = (
            "\nis a gateway there? `--gateway` or TURNLOG_GATEWAY names it" if isinstance(error, Unavailable) else ""
        )
        raise CommandFailed(f"{error.code}: {error}{way_out}") from error
    except ValueError as error:
        raise CommandFailed(str(error), USAGE) from error
    if output is Output.TABLE:
        typer.echo(link)
    else:
        emit({"link": link})
    if open_it and not webbrowser.open(link):
        progress("no browser was found to open it in")


async def chat_link(gateway: str, secret: str, user: str | None = None) -> str:
    """The page's address for a person of the channel that `secret` is of. Raises `TurnlogError`."""
    from turnlog.tokens import SecretToken
    from turnlog.wire import base_url

    token: Token = await SecretToken(secret, scope="conversation", user=user).get(gateway)
    return f"{base_url(gateway)}{PAGE}#{urlencode({'token': token.value})}"
