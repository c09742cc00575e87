"""A partition's journal for the audit's tests: made by the core's own decisions, and then broken on purpose."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from streams.core.commands import (
    ApplyConfig,
    Command,
    CommitBatch,
    CommitFrame,
    CommitTurn,
    Drain,
    GatewayExpired,
    Join,
    Leave,
    OpenConversation,
    OpenWriter,
)
from streams.core.events import Entry, Event, Frame, Turn
from streams.core.fold import step
from streams.core.state import Partition

GATEWAY = "gw-1"
GROUP = "agents/bots"
CONVERSATION = "conversation-1"
DOCUMENT = json.dumps(
    {
        "version": 1,
        "channels": [
            {"id": "web", "kind": "web"},
            {"id": "agents", "kind": "websocket", "group_settle_ms": 0},
        ],
        "routes": [{"from": "web", "to": ["agents"]}],
    }
)


@dataclass(slots=True)
class Journal:
    """Entries, and the state after them."""

    state: Partition = field(default_factory=lambda: Partition(0))
    entries: list[Entry] = field(default_factory=list)
    epoch: int = 0
    at: int = 1_000
    joined: int = 0
    refs: int = 0

    def take(self, command: Command) -> list[Entry]:
        new = step(self.state, command, self.epoch)
        self.entries += new
        return new

    def open_writer(self) -> None:
        self.epoch += 1
        self.take(OpenWriter(at=self.at, timestamp=self.at, writer_epoch=self.epoch, worker=f"wk-{self.epoch}"))

    def ref(self) -> str:
        self.refs += 1
        return f"ref-{self.refs}"

    def join(self, member: str, *, continues: bool = False) -> None:
        self.joined += 1
        self.take(
            Join(
                at=self.at,
                timestamp=self.at,
                gateway=GATEWAY,
                n=self.joined,
                member=member,
                channel="agents",
                group=GROUP,
                continues=continues,
            )
        )

    def drain(self, member: str) -> None:
        self.take(Drain(at=self.at, timestamp=self.at, member=member, by=GATEWAY, reason="deploy"))

    def leave(self, member: str) -> None:
        self.joined += 1
        self.take(Leave(at=self.at, timestamp=self.at, gateway=GATEWAY, n=self.joined, member=member, reason="closed"))

    def expire(self) -> None:
        self.take(GatewayExpired(at=self.at, timestamp=self.at, gateway=GATEWAY))

    def open(self, conversation: str = CONVERSATION) -> None:
        self.take(
            OpenConversation(
                at=self.at, timestamp=self.at, ref=self.ref(), conversation_id=conversation, channel="web", key="open"
            )
        )

    def say(self, text: str = "hello", *, key: str | None = None, conversation: str = CONVERSATION) -> list[Entry]:
        ref = self.ref()
        turn = Turn(id=f"turn-{ref}", sender="ana", channel="web", type="text", text=text, key=key)
        return self.take(CommitTurn(at=self.at, timestamp=self.at, ref=ref, conversation_id=conversation, turn=turn))

    def frame(self, member: str, type_: str = "text", *, status: str | None = None, **more: object) -> list[Entry]:
        ref = self.ref()
        return self.take(
            msgspec.structs.replace(
                CommitFrame(
                    at=self.at,
                    timestamp=self.at,
                    ref=ref,
                    conversation_id=CONVERSATION,
                    frame=Frame(id=f"frame-{ref}", type=type_, status=status, text="hi", client_id=ref),
                    sender="bot",
                    channel="agents",
                    group=GROUP,
                    member=member,
                    gateway=GATEWAY,
                    delivered_seq=1_000,
                ),
                **more,
            )
        )

    def batch(self, turns: int, frames: int = 0, membership: int = 0) -> None:
        self.take(CommitBatch(at=self.at, timestamp=self.at, turns=turns, frames=frames, membership=membership))

    @property
    def owner(self) -> str:
        return self.state.conversations[CONVERSATION].owners[GROUP]

    def other(self, member: str) -> str:
        return next(name for name in self.state.groups[GROUP].members if name != member)


def ready(*, continues: bool = False) -> Journal:
    """A writer, the channels, two members, one conversation."""
    journal = Journal()
    journal.open_writer()
    journal.take(ApplyConfig(at=journal.at, timestamp=journal.at, version=1, document=DOCUMENT))
    journal.join("gw-1.1", continues=continues)
    journal.join("gw-1.2", continues=continues)
    journal.open()
    return journal


def answered() -> Journal:
    """A turn that was read, worked on and answered."""
    journal = ready()
    journal.say(key="first")
    journal.frame(journal.owner, "run", status="started")
    journal.frame(journal.owner)
    journal.frame(journal.owner, "run", status="finished")
    return journal


def taken_over() -> Journal:
    """A turn whose owner left in the middle of its answer; the other member answered it."""
    journal = ready()
    journal.say(key="first")
    first = journal.owner
    journal.frame(first, "run", status="started")
    journal.frame(first, "tool_call")
    journal.leave(first)
    run = next(iter(journal.state.conversations[CONVERSATION].runs.values()))
    assert run.member is not None
    journal.frame(run.member)
    return journal


def continued() -> Journal:
    """A turn whose owner stored a checkpoint and left in the middle of its answer; the other one finished it."""
    journal = ready(continues=True)
    journal.say(key="first")
    first = journal.owner
    journal.frame(first, "run", status="started")
    journal.frame(first)
    journal.frame(first, "checkpoint")
    journal.drain(first)
    journal.leave(first)
    heir = journal.other(first)
    journal.frame(heir, "run", status="started")
    journal.frame(heir)
    journal.frame(heir, "run", status="finished")
    return journal


def with_event(entries: list[Entry], kind: type[Event], change: Callable[[Event], Event], nth: int = 0) -> list[Entry]:
    """The journal with its `nth` event of a kind replaced."""
    where = [n for n, entry in enumerate(entries) if isinstance(entry.event, kind)][nth]
    broken = list(entries)
    broken[where] = msgspec.structs.replace(entries[where], event=change(entries[where].event))
    return broken


def without(entries: list[Entry], kind: type[Event], nth: int = 0) -> list[Entry]:
    """The journal without its `nth` event of a kind; the lsn of what follows has no gap."""
    where = [n for n, entry in enumerate(entries) if isinstance(entry.event, kind)][nth]
    rest = [msgspec.structs.replace(entry, lsn=entry.lsn - 1) for entry in entries[where + 1 :]]
    return [*entries[:where], *rest]


def changed(**fields: object) -> Callable[[Event], Event]:
    """A replacement of these fields, for `with_event`."""
    return lambda event: msgspec.structs.replace(event, **fields)
