"""Three intake topics to one list of commands, in the order taken, with the positions that its outcome covers.

The topics have no order among each other; the order made here is the one that the journal records. It is by the
broker's append time, membership first within a millisecond, except for what must wait:

- a **Leave**, and a list of members, which may be in the place of one, until `frames` was read up to `frames_end`, so
  that a last answer is never overtaken by its sender's exit;
- a **tick** of this writer until `turns` and `frames` were read to the ends that it names, so that no time-out fires
  over a record that was there before it.

What waits holds back the membership records behind it (their order is total), never the other two topics. The position
of `membership` stays at the first held record, so that a restart reads it again.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Container, Sequence
from itertools import accumulate, groupby
from operator import attrgetter
from typing import TypeVar

import msgspec

from streams.core.clock import LogClock
from streams.core.commands import (
    ApplyList,
    Command,
    GatewayBehind,
    GatewayExpired,
    Join,
    Leave,
    Reject,
    TimePassed,
)
from streams.fence.port import Positions
from streams.runtime.codec import Codec, DeadLetter, Reason, Undecodable
from streams.runtime.kafka import Polled, Record
from streams.runtime.liveness import Liveness
from streams.runtime.partitioning import partition_of
from streams.runtime.signals import Goodbye, Heartbeat, Signal, Tick

# So many membership records may wait behind one; then the topic is left unread until the head moves on.
HELD_MAX = 4_000

Decoded = TypeVar("Decoded", bound=Command | Signal)

_timestamp = attrgetter("timestamp")
_topic = attrgetter("topic")


class Batch(msgspec.Struct, gc=False):
    """What one look at the intake came to. `absent`: conversations that are not in memory (or do not exist)."""

    commands: list[Command]
    sources: list[Record]
    """The record that each of the commands came of."""
    absent: set[str]
    letters: list[DeadLetter]
    positions: Positions
    traces: dict[int, bytes]
    """`traceparent` header by index of the command that it came with."""


class Held(msgspec.Struct, frozen=True, gc=False):
    """A membership record in its place: a command, a signal, or what could not be decoded."""

    record: Record
    content: Command | Signal | Undecodable


class Intake:
    """Turns what was polled into batches, for one writer epoch of one partition."""

    def __init__(
        self,
        codec: Codec,
        clock: LogClock,
        liveness: Liveness,
        *,
        partition: int,
        partitions: int,
        worker: str,
        writer_epoch: int,
        positions: Positions,
        quarantine: frozenset[str] = frozenset(),
    ) -> None:
        """`positions`: where the source was opened. `quarantine`: origins of records that the core failed on."""
        self._decode_turns = _screened(codec.decode_turns, quarantine)
        self._decode_frames = _screened(codec.decode_frames, quarantine)
        self._decode_membership = _screened(codec.decode_membership, quarantine)
        self._clock = clock
        self._liveness = liveness
        self._partition = partition
        self._partitions = partitions
        self._worker = worker
        self._writer_epoch = writer_epoch
        self._held: deque[Held] = deque()
        self._suspect: Held | None = None
        self._read = positions
        self._batch = Batch([], [], set(), [], positions, {})

    @property
    def at(self) -> int:
        """Log time now, ms."""
        return self._clock.at

    @property
    def wants_membership(self) -> bool:
        """Whether more membership records may be polled."""
        return len(self._held) < HELD_MAX

    def take(self, polled: Polled, resident: Container[str]) -> Batch:
        """The commands of `polled`, and of what it no longer holds back. `resident`: conversations in memory."""
        self._batch = batch = Batch([], [], set(), [], self._read, {})
        if polled.turns and not (polled.frames or polled.membership):
            self._keyed(polled.turns, self._decode_turns, resident)
        elif polled:
            self._merge(polled, resident)
        self._read = polled.read
        self._release()
        held = self._held[0].record.offset if self._held else self._read.membership
        batch.positions = Positions(self._read.turns, self._read.frames, held)
        return batch

    def note_ends(self, ends: Positions) -> None:
        """The ends of the topics, asked for just now. What has waited through two of them for an offset that
        `frames` does not have would hold back its partition for ever: it is rejected."""
        head = self._held[0] if self._held else None
        if head is None or not isinstance(head.content, Leave | ApplyList) or head.content.frames_end <= ends.frames:
            self._suspect = None
        elif self._suspect is head:
            reason = f"frames_end {head.content.frames_end} lies beyond the end of frames, {ends.frames}"
            self._held[0] = Held(head.record, Undecodable(Reason.WRONG_SCHEMA, reason))
        else:
            self._suspect = head

    # ------------------------------------------------------------------------------------------- keyed records
    def _keyed(
        self, records: Sequence[Record], decode: Callable[[Record, int], Command], resident: Container[str]
    ) -> None:
        batch, at = self._batch, self._clock.at
        append, source = batch.commands.append, batch.sources.append
        for record in records:
            try:
                command = decode(record, at)
            except Undecodable as problem:
                self._reject(record, problem)
                continue
            conversation_id: str = command.conversation_id  # type: ignore[attr-defined]  # every keyed command has it
            if conversation_id not in resident and not self._belongs(record, conversation_id):
                continue
            if record.headers:
                self._keep_trace(record)
            append(command)
            source(record)

    def _belongs(self, record: Record, conversation_id: str) -> bool:
        """Whether a conversation that is not in memory lies in this partition at all; if so it must be looked for."""
        home = partition_of(conversation_id, self._partitions)
        if home == self._partition:
            self._batch.absent.add(conversation_id)
            return True
        sentence = (
            f"key {conversation_id!r} belongs to partition {home} (murmur2), the record lies in {self._partition}"
        )
        self._reject(record, Undecodable(Reason.WRONG_PARTITION, sentence))
        return False

    def _keep_trace(self, record: Record) -> None:
        for name, value in record.headers:
            if name == "traceparent":
                self._batch.traces[len(self._batch.commands)] = value

    def _reject(self, record: Record, problem: Undecodable) -> None:
        origin = origin_of(record)
        self._batch.letters.append(
            DeadLetter(
                error=problem.reason,
                reason=str(problem),
                origin=origin,
                topic=record.topic,
                partition=record.partition,
                offset=record.offset,
                key=record.key,
                value=record.value,
                headers=tuple(record.headers),
                at=record.timestamp,
            )
        )
        reject = Reject(at=self._clock.at, timestamp=record.timestamp, origin=origin, reason=problem.reason)
        self._add(reject, record)

    def _add(self, command: Command, source: Record) -> None:
        self._batch.commands.append(command)
        self._batch.sources.append(source)

    # ---------------------------------------------------------------------------------------------- membership
    def _merge(self, polled: Polled, resident: Container[str]) -> None:
        """All three by append time. Membership records are few: the others are cut at their times, not sorted in."""
        keyed = (
            _in_time(polled.frames, polled.turns) if polled.frames and polled.turns else polled.frames or polled.turns
        )
        start = 0
        for change in polled.membership:
            cut = bisect_left(keyed, change.timestamp, start, key=_timestamp)
            self._keyed_run(keyed[start:cut], polled, resident)
            start = cut
            self._held.append(Held(change, self._membership(change)))
            self._release()
        self._keyed_run(keyed[start:], polled, resident)

    def _keyed_run(self, records: Sequence[Record], polled: Polled, resident: Container[str]) -> None:
        """Records of `turns` and `frames` in their order; `self._read` follows, because held ones wait for it."""
        if not records:
            return
        if not polled.frames or not polled.turns:
            runs = [records]
        else:
            runs = [list(run) for _, run in groupby(records, key=_topic)]
        frames = polled.frames[0].topic if polled.frames else None
        for run in runs:
            end = run[-1].offset + 1
            if run[0].topic == frames:
                self._keyed(run, self._decode_frames, resident)
                self._read = msgspec.structs.replace(self._read, frames=end)
            else:
                self._keyed(run, self._decode_turns, resident)
                self._read = msgspec.structs.replace(self._read, turns=end)
            self._release()

    def _membership(self, record: Record) -> Command | Signal | Undecodable:
        try:
            return self._decode_membership(record, self._clock.at)
        except Undecodable as problem:
            return problem

    def _release(self) -> None:
        while self._held and not self._must_wait(self._held[0].content):
            held = self._held.popleft()
            if isinstance(held.content, Undecodable):
                self._reject(held.record, held.content)
            elif isinstance(held.content, Signal):
                self._signal(held.content, held.record)
            else:
                self._command(held.content, held.record)

    def _must_wait(self, content: Command | Signal | Undecodable) -> bool:
        if isinstance(content, Leave | ApplyList):
            return self._read.frames < content.frames_end
        if isinstance(content, Tick) and self._is_mine(content):
            return self._read.turns < content.turns_end or self._read.frames < content.frames_end
        return False

    def _is_mine(self, tick: Tick) -> bool:
        return tick.writer_epoch == self._writer_epoch and tick.worker == self._worker

    def _command(self, command: Command, source: Record) -> None:
        # Decoded when it arrived, decided now: what was held takes the log time of its release.
        now = self._clock.at
        if command.at != now:
            command = msgspec.structs.replace(command, at=now)
        if isinstance(command, Join | Leave | ApplyList):
            self._liveness.heard(command.gateway, now)
        self._add(command, source)

    def _signal(self, signal: Signal, source: Record) -> None:
        at = self._clock.at
        match signal:
            case Heartbeat(timestamp=timestamp, gateway=gateway, n=n, config_version=version):
                self._liveness.heard(gateway, at)
                behind = GatewayBehind(at=at, timestamp=timestamp, gateway=gateway, n=n, config_version=version)
                self._add(behind, source)
            case Goodbye(timestamp=timestamp, gateway=gateway):
                self._liveness.forget(gateway)
                self._add(GatewayExpired(at=at, timestamp=timestamp, gateway=gateway, reason="stopped"), source)
            case Tick() if self._is_mine(signal):
                self._tick(signal.timestamp, source)
            case _:  # a tick of an earlier writer: its time counts for nothing
                pass

    def _tick(self, timestamp: int, source: Record) -> None:
        if self._clock.tick(timestamp).restart:
            self._liveness.restart(self._clock.at)
        at = self._clock.at
        for gateway in self._liveness.expired(at):
            self._add(GatewayExpired(at=at, timestamp=timestamp, gateway=gateway), source)
        self._add(TimePassed(at=at, timestamp=timestamp), source)


def origin_of(record: Record) -> str:
    """The id of an intake record: `<topic>/<partition>/<offset>`."""
    return f"{record.topic}/{record.partition}/{record.offset}"


def _screened(decode: Callable[[Record, int], Decoded], quarantine: frozenset[str]) -> Callable[[Record, int], Decoded]:
    """`decode`, or where something is in quarantine one that refuses it."""
    if not quarantine:
        return decode

    def screened(record: Record, at: int) -> Decoded:
        if origin_of(record) in quarantine:
            raise Undecodable(
                Reason.UNDECIDABLE, "the core failed on this record twice; the worker's log has the error"
            )
        return decode(record, at)

    return screened


def _in_time(frames: Sequence[Record], turns: Sequence[Record]) -> Sequence[Record]:
    """Both topics' records by append time, frames first within a millisecond.

    Each topic keeps its own order whatever its times say: a time before that of an earlier record (a broker's clock was
    set back) counts as that one's.
    """
    records = [*frames, *turns]
    times = [*accumulate(map(_timestamp, frames), max), *accumulate(map(_timestamp, turns), max)]
    return [records[index] for index in sorted(range(len(records)), key=times.__getitem__)]
