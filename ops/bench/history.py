"""A deployment's history as its sequencers would have written it, made by the core's own decisions: a bench's journal.

Per partition: a writer, the channels, members of one group, conversations, and then batches of turns with their
answers. Of ten turns seven are answered by one message; three are read, streamed in pieces and finished. Some turns
come twice. At even distances a member leaves, with the runs it had, and another one joins, so that runs move.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from ops.bench.fill import DOCUMENT
from ops.bench.floor import TEXT
from streams.core.commands import (
    ApplyConfig,
    Command,
    CommitBatch,
    CommitFrame,
    CommitTurn,
    Join,
    Leave,
    OpenConversation,
    OpenWriter,
    TimePassed,
)
from streams.core.events import Entry, Frame, Turn
from streams.core.fold import step
from streams.core.ids import message_id, turn_key
from streams.core.state import Partition
from streams.runtime.partitioning import partition_of

GATEWAY: Final = "gw-history00000"
GROUP: Final = "agents/bench"
MEMBERS: Final = 4
TURNS_A_BATCH: Final = 100
STREAMED: Final = 3
"""Of ten turns, so many are answered in pieces."""
PIECES: Final = 8
REPEATED_EVERY: Final = 50
"""The how-manieth turn comes twice."""
CHANGES_EVERY: Final = 20
"""After so many batches a member goes and another comes."""
BEGAN_AT: Final = 1_700_000_000_000
BATCH_MS: Final = 500


@dataclass(frozen=True, slots=True)
class MadeBatch:
    """One batch: what lay in the intake, and what became of it."""

    turns: Sequence[Command]
    frames: Sequence[Command]
    membership: Sequence[Command]
    entries: Sequence[Entry]


@dataclass(slots=True)
class History:
    """One partition's. `batches` makes it; the same arguments give the same events."""

    partition: int
    partitions: int
    conversations: int
    state: Partition = field(init=False)
    _now: int = BEGAN_AT
    """The broker's clock. Log time stands where it began: nobody ticks."""
    _joined: int = 0
    _said: int = 0
    _framed: int = 0
    _refs: int = 0
    _taken: list[int] = field(default_factory=lambda: [0, 0, 0])
    _changes: list[Command] = field(default_factory=list)
    """Of members, in the batch that is being made."""
    _numbers: dict[str, int] = field(default_factory=dict)
    _ids: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.state = Partition(self.partition)
        self._ids = list(_ids(self.partition, self.partitions, self.conversations))

    def batches(self, events: int) -> Iterator[MadeBatch]:
        """Batches until there are `events` events or a few more."""
        yield self._batch(self._furniture(), [], [])
        for start in range(0, len(self._ids), TURNS_A_BATCH):
            opened = [self._opening(id_) for id_ in self._ids[start : start + TURNS_A_BATCH]]
            yield self._batch([], opened, [])
        number = 0
        while self.state.lsn < events:
            number += 1
            self._now += BATCH_MS
            yield self._talk(number)

    def _talk(self, number: int) -> MadeBatch:
        turns = [turn for _ in range(TURNS_A_BATCH) for turn in self._turn()]
        entries = [entry for turn in turns for entry in step(self.state, turn, 1)]
        if number % CHANGES_EVERY == 0:
            entries += self._change()
        frames: list[Command] = []
        for conversation in sorted({turn.conversation_id for turn in turns}):
            for frame in self._answers(conversation):
                frames.append(frame)
                entries += step(self.state, frame, 1)
        return self._closed(entries, turns, frames)

    def _turn(self) -> Iterator[CommitTurn]:
        self._said += 1
        conversation = self._ids[self._said % len(self._ids)]
        key = f"bench-{self._said}"
        id_ = message_id(conversation, turn_key("user", key))
        turn = Turn(id=id_, sender="user", channel="web", type="text", key=key, text=TEXT)
        yield CommitTurn(at=BEGAN_AT, timestamp=self._now, ref=self._ref(), conversation_id=conversation, turn=turn)
        if self._said % REPEATED_EVERY == 0:
            yield CommitTurn(at=BEGAN_AT, timestamp=self._now, ref=self._ref(), conversation_id=conversation, turn=turn)

    def _answers(self, conversation: str) -> Iterator[CommitFrame]:
        """What the members that have its open runs say to each."""
        for run in [*self.state.conversations[conversation].runs.values()]:
            self._framed += 1
            if self._framed % 10 < STREAMED:
                yield self._frame(conversation, run.member, "read", watermark=run.turn_seq)
                for piece in range(PIECES):
                    chunk = json.dumps({"type": "text", "content": TEXT[:40], "id": "t"})
                    done = piece == PIECES - 1
                    yield self._frame(
                        conversation, run.member, "genui", data=chunk, stream_id=f"s{self._framed}", done=done
                    )
                yield self._frame(conversation, run.member, "run", status="finished")
            else:
                client_id = f"agent.{run.turn_id}.m1"
                yield self._frame(conversation, run.member, "text", text=TEXT, client_id=client_id)

    def _frame(self, conversation: str, member: str | None, type_: str, **fields: object) -> CommitFrame:
        member = str(member)
        n = self._numbers[member] = self._numbers.get(member, 0) + 1
        frame = Frame(id=str(uuid.UUID(int=n << 64 | self._refs)), type=type_, **fields)  # type: ignore[arg-type]
        return CommitFrame(
            at=BEGAN_AT,
            timestamp=self._now,
            ref=self._ref(),
            conversation_id=conversation,
            frame=frame,
            sender="agent",
            channel="agents",
            group=GROUP,
            member=member,
            gateway=GATEWAY,
            delivered_seq=self.state.conversations[conversation].head,
            n=n,
        )

    def _furniture(self) -> list[Entry]:
        config = ApplyConfig(at=BEGAN_AT, timestamp=self._now, version=1, document=DOCUMENT)
        entries = step(self.state, OpenWriter(at=BEGAN_AT, timestamp=self._now, writer_epoch=1, worker="bench"), 1)
        entries += step(self.state, config, 1)
        for _ in range(MEMBERS):
            entries += step(self.state, self._join(), 1)
        return entries

    def _join(self) -> Join:
        self._joined += 1
        member = f"{GATEWAY}.{self._joined}"
        join = Join(
            at=BEGAN_AT,
            timestamp=self._now,
            gateway=GATEWAY,
            n=self._joined,
            member=member,
            channel="agents",
            group=GROUP,
        )
        self._changes.append(join)
        return join

    def _change(self) -> list[Entry]:
        oldest = next(iter(self.state.members))
        entries = step(self.state, self._join(), 1)
        self._joined += 1
        leave = Leave(at=BEGAN_AT, timestamp=self._now, gateway=GATEWAY, n=self._joined, member=oldest, reason="left")
        self._changes.append(leave)
        return entries + step(self.state, leave, 1)

    def _opening(self, conversation: str) -> OpenConversation:
        return OpenConversation(
            at=BEGAN_AT,
            timestamp=self._now,
            ref=self._ref(),
            conversation_id=conversation,
            channel="web",
            participant="user",
        )

    def _batch(self, entries: list[Entry], turns: Sequence[Command], frames: Sequence[Command]) -> MadeBatch:
        for command in (*turns, *frames):
            entries += step(self.state, command, 1)
        return self._closed(entries, turns, frames)

    def _closed(self, entries: list[Entry], turns: Sequence[Command], frames: Sequence[Command]) -> MadeBatch:
        entries += step(self.state, TimePassed(at=BEGAN_AT, timestamp=self._now), 1)
        self._taken[0] += len(turns)
        self._taken[1] += len(frames)
        changes, self._changes = self._changes, []
        self._taken[2] += len(changes)
        end = CommitBatch(
            at=BEGAN_AT,
            timestamp=self._now,
            turns=self._taken[0],
            frames=self._taken[1],
            membership=self._taken[2],
        )
        entries += step(self.state, end, 1)
        self.state.dirty.clear()
        return MadeBatch(turns, frames, changes, entries)

    def _ref(self) -> str:
        self._refs += 1
        return f"{self.partition:08x}{self._refs:024x}"


def _ids(partition: int, partitions: int, count: int) -> Iterator[str]:
    """Conversation ids of the partition: UUIDs, the same ones each time."""
    number = made = 0
    while made < count:
        id_ = str(uuid.uuid5(uuid.NAMESPACE_OID, f"bench-{number}"))
        number += 1
        if partition_of(id_, partitions) == partition:
            made += 1
            yield id_
