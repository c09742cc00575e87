"""What a fold carries from one entry to later rows: conversations, open runs, turns that wait, of one partition."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

# What the usage objects of models' interfaces call their counts.
TOKENS_IN: Final = ("input_tokens", "prompt_tokens", "inputTokens", "promptTokens")
TOKENS_OUT: Final = ("output_tokens", "completion_tokens", "outputTokens", "completionTokens")


@dataclass(slots=True)
class Asked:
    """A turn whose answer is wanted: since when, and by which agent channels that have no group yet."""

    seq: int
    at: int | None
    invocation: str | None
    channels: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Run:
    """An open run, as far as its row will tell of it. Times are committed_at, ms."""

    turn_seq: int
    group: str
    turn_at: int | None
    invocation: str | None
    epoch: int
    member: str | None = None
    first_member: str | None = None
    lost: str | None = None
    """The member that lost it, while it waits for the next one."""
    given_at: int | None = None
    started_at: int | None = None
    first_frame_at: int | None = None
    takeovers: int = 0
    continued: int = 0
    frames: int = 0
    interrupts: int = 0
    superseded: int = 0
    tokens_in: int | None = None
    tokens_out: int | None = None

    def give(self, member: str | None, at: int) -> None:
        """It is with `member` from now on."""
        self.member = member
        if member is not None and self.first_member is None:
            self.first_member, self.given_at = member, at


@dataclass(slots=True)
class Conversation:
    """A conversation, as far as later rows will tell of it."""

    channel: str | None = None
    participant: str | None = None
    external_id: str | None = None
    metadata: str | None = None
    opened_at: int | None = None
    version: int = 0
    turns: int = 0
    frames: int = 0
    last_seq: int = 0
    latest: Asked | None = None
    """Its latest turn, or the wish for another answer to it."""
    waiting: list[Asked] = field(default_factory=list)
    """Earlier and latest turns that wait for an agent channel's first group."""


@dataclass(slots=True)
class State:
    """What is carried from one increment to the next, of one partition."""

    conversations: dict[str, Conversation] = field(default_factory=dict)
    runs: dict[str, Run] = field(default_factory=dict)


def count_tokens(run: Run, text: str | None) -> None:
    """Add what a `usage` object in a frame's JSON says, at its top or one level below."""
    if text is None or '"usage"' not in text:
        return
    try:
        document = json.loads(text)
    except ValueError:
        return
    if not isinstance(document, dict):
        return
    for holder in (document, *(value for value in document.values() if isinstance(value, dict))):
        usage = holder.get("usage")
        if isinstance(usage, dict):
            read, written = _number(usage, TOKENS_IN), _number(usage, TOKENS_OUT)
            run.tokens_in = run.tokens_in if read is None else (run.tokens_in or 0) + read
            run.tokens_out = run.tokens_out if written is None else (run.tokens_out or 0) + written


def _number(usage: Mapping[str, Any], names: tuple[str, ...]) -> int | None:
    found = (usage[name] for name in names if isinstance(usage.get(name), int) and not isinstance(usage[name], bool))
    return next(found, None)
