"""A journal made by the real core: commands in, entries out, as a sequencer would write them to one partition."""

from __future__ import annotations

from typing import Any

from streams.core.commands import (
    ApplyConfig,
    CloseConversation,
    Command,
    CommitBatch,
    CommitFrame,
    CommitTurn,
    Join,
    Leave,
    OpenConversation,
    OpenWriter,
    ReopenConversation,
)
from streams.core.events import Entry, Frame, Turn
from streams.core.fold import step
from streams.core.state import Partition

DOCUMENT = (
    '{"version":1,"channels":[{"id":"web","kind":"web"},{"id":"agents","kind":"websocket","group_settle_ms":0}],'
    '"routes":[{"from":"web","to":["agents"]}]}'
)
GATEWAY = "gw-1"
GROUP = "agents/support"
STARTED_MS = 1_700_000_000_000
"""Broker time of the first command."""


class Story:
    """What happened so far on one partition. Each step is a second of log time after the last."""

    def __init__(self, partition: int = 0) -> None:
        self.state = Partition(partition)
        self.entries: list[Entry] = []
        self._now = 0
        self._joined = 0
        self.happen(OpenWriter, writer_epoch=1, worker="wk-1")
        self.happen(ApplyConfig, version=1, document=DOCUMENT)

    def happen(self, command: type[Command], **fields: Any) -> list[Entry]:
        """Decide the command now; returns its entries."""
        self._now += 1000
        given = command(at=self._now, timestamp=STARTED_MS + self._now, **fields)
        entries = step(self.state, given, max(1, self.state.writer_epoch))
        self.entries += entries
        return entries

    def join(self, member: str) -> None:
        self._joined += 1
        self.happen(Join, gateway=GATEWAY, n=self._joined, member=member, channel="agents", group=GROUP)

    def leave(self, member: str) -> None:
        self._joined += 1
        self.happen(Leave, gateway=GATEWAY, n=self._joined, member=member, reason="left")

    def open(self, conversation: str, **fields: Any) -> None:
        self.happen(OpenConversation, conversation_id=conversation, channel="web", participant="u", **fields)

    def turn(self, conversation: str, text: str, **fields: Any) -> int:
        """The seq that the turn got."""
        turn = Turn(id=f"t-{len(self.entries)}", sender="u", channel="web", type="text", text=text, **fields)
        entries = self.happen(CommitTurn, conversation_id=conversation, turn=turn)
        return entries[-1].event.seq

    def frame(self, conversation: str, member: str, type_: str, **fields: Any) -> list[Entry]:
        frame = Frame(id=f"f-{len(self.entries)}", type=type_, **fields)
        return self.happen(
            CommitFrame,
            conversation_id=conversation,
            frame=frame,
            sender="bot",
            channel="agents",
            group=GROUP,
            member=member,
            gateway=GATEWAY,
            delivered_seq=self.state.conversations[conversation].head,
        )

    def answer(self, conversation: str, text: str) -> None:
        """The owner reads, starts, answers and finishes."""
        member = self.state.conversations[conversation].owners[GROUP]
        self.frame(conversation, member, "run", status="started")
        self.frame(conversation, member, "text", text=text, client_id=f"m-{len(self.entries)}")
        self.frame(conversation, member, "run", status="finished")

    def close(self, conversation: str) -> None:
        self.happen(CloseConversation, conversation_id=conversation, by="u", reason="done", id=f"x-{len(self.entries)}")

    def reopen(self, conversation: str) -> None:
        self.happen(ReopenConversation, conversation_id=conversation, by="u", id=f"x-{len(self.entries)}")

    def end_batch(self) -> None:
        self.happen(CommitBatch, turns=0, frames=0, membership=0)


def long_story() -> Story:
    """A bit of everything: dialogues, a takeover in mid-stream, a question and its answer, a close, a waiting turn."""
    story = Story()
    story.open("waits", external_id="ext-1", metadata='{"a":1}')
    story.turn("waits", "anybody?")
    story.join("gw-1.1")
    story.join("gw-1.2")
    for name in ("c-1", "c-2", "c-3"):
        story.open(name)
        story.turn(name, f"hello from {name}", key="k-1", client_id="cl-1")
        story.answer(name, f"hello {name}")
    story.turn("c-1", "tell me more")
    owner = story.state.conversations["c-1"].owners[GROUP]
    story.frame("c-1", owner, "run", status="started")
    story.frame("c-1", owner, "genui", stream_id="s-1", data='{"chunk":"once "}')
    story.turn("c-2", "a question?")
    asked = story.state.conversations["c-2"].owners[GROUP]
    story.frame("c-2", asked, "run", status="started")
    story.frame("c-2", asked, "interrupt", data='{"ask":"which?"}')
    story.turn("c-2", "that one")
    story.leave(owner)
    story.close("c-3")
    story.reopen("c-3")
    story.turn("c-3", "still there?")
    story.close("c-2")
    story.end_batch()
    return story
