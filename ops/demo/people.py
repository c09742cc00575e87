"""The people of the demo: each says its lines over HTTP and reads what it is answered, as any client would."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from ops.demo.dialogues import Dialogue
from turnlog import Client, Messages

ANSWER_WITHIN_S = 60.0


@dataclass(frozen=True, slots=True)
class Wrong:
    """An answer that is missing, or is not the dialogue's."""

    dialogue: int
    exchange: int
    what: str


@dataclass(frozen=True, slots=True)
class Slowly:
    """The exchange whose first owner is to take its time."""

    dialogue: int
    exchange: int


async def replay(
    client: Client,
    dialogue: Dialogue,
    *,
    performance: str,
    opened: Callable[[str, Dialogue], None],
    slowly: Slowly,
    think_s: float,
) -> list[Wrong]:
    """Say the dialogue's lines, each once the one before is answered. Returns what was wrong.

    `performance`: makes the keys of this demo its own, so that a second one on the same servers is not a repeat.
    """
    conversation = await client.open(key=f"demo-{performance}-{dialogue.number}")
    opened(conversation.id, dialogue)
    messages = conversation.messages()
    wrong: list[Wrong] = []
    for number, exchange in enumerate(dialogue.exchanges):
        await asyncio.sleep(think_s)
        metadata = {"dialogue": dialogue.number, "exchange": number}
        if slowly == Slowly(dialogue.number, number):
            metadata["slowly"] = True
        await conversation.send(exchange.said, key=f"demo-{performance}-{dialogue.number}-{number}", metadata=metadata)
        try:
            async with asyncio.timeout(ANSWER_WITHIN_S):
                problem = await _answered(messages, exchange.said, exchange.answer)
        except TimeoutError:
            return [*wrong, Wrong(dialogue.number, number, f"no answer within {ANSWER_WITHIN_S:g} s")]
        if problem is not None:
            wrong.append(Wrong(dialogue.number, number, problem))
    return wrong


async def _answered(messages: Messages, said: str, answer: str) -> str | None:
    """Read on: first the own line, then one answer to it. None: as it should be."""
    own, reply = await anext(messages), await anext(messages)
    if (own.role, own.text) != ("user", said):
        return f"seq {own.seq} is {own.text!r} of {own.role}, not the line that was sent"
    if reply.role == "user" or reply.text != answer:
        return f"seq {reply.seq} answers {reply.text!r} instead of {answer!r}"
    return None
