"""What must hold besides the audit's invariants: watched while it happens, and read off the logs afterwards.

The audit knows the journal; here the true time of everything, each request and each row are known too.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from streams.core.commands import ApplyList, CommitFrame, EraseIdle, Leave
from streams.core.events import (
    ConversationErased,
    Duplicate,
    Entry,
    Frame,
    FrameCommitted,
    GatewayEnded,
    ListApplied,
    MemberJoined,
    MemberLeft,
    MoveReason,
    Refused,
    Rejected,
    RunEnded,
    RunMoved,
    RunStatus,
    WriterOpened,
)
from streams.core.runs import SYSTEM
from streams.fence.port import Checkpoint
from streams.runtime.codec import Undecodable
from streams.runtime.signals import Heartbeat, Tick
from tests.simulation.agents import WHOLE_ANSWER
from tests.simulation.cluster import LogRecord
from tests.simulation.place import Place

TICK_MOST_S = 2.0
"""A tick advances log time by so much at most."""
BAD_SIGNS = ("error: unexpected error", "error: partition stopped")
"""What a worker must never have to log here."""
CORE_FAILED = "error: the core failed"
"""The same, unless it was made to fail."""


class Watch:
    """Promises that are watched as it happens."""

    def __init__(self, place: Place, lease_ttl_ms: int) -> None:
        self._place = place
        self._ttl_s = lease_ttl_ms / 1000
        self._margin_s = lease_ttl_ms // 5 / 1000
        self._taken: dict[int, int] = {}
        self._rows: dict[int, Checkpoint] = {}
        self._dead: set[str] = set()
        self._restored_at = place.database.restored_at
        place.cluster.before_end = self._commits
        place.database.after_call = self._called
        place.database.on_take = self._took
        place.database.on_close = self.died

    def died(self, worker: str) -> None:
        """It was killed, or gives up all its leases at the end of its drain budget. What it sent before may still
        arrive."""
        self._dead.add(worker)

    def _commits(self, transactional_id: str, sender: str) -> None:
        """A worker commits under a live lease only: its deadline leaves a margin for a commit that is under way.

        One that was stopped since it last looked at its clock is past that: what it sends then, Kafka has to refuse.
        """
        place = self._place
        now, database = place.loop.now, place.database
        partition = int(transactional_id.rpartition("-")[2])
        allowed_at = database.allowed_at.get((sender, partition), 0.0)
        if sender in self._dead or now - allowed_at > self._margin_s:
            return
        if allowed_at < database.handed_back_at.get((sender, partition), 0.0):
            return  # it was late; whoever comes next begins with a new epoch
        if now - database.restored_at < self._ttl_s:
            return  # the store lost what it had promised
        if now - database.ended_at.get(sender, float("-inf")) < self._ttl_s:
            return  # others take it for dead, and it has not heard of that
        row = database.row_of(partition)
        if row is None or row.owner != sender:
            holder = "nobody" if row is None else row.owner
            place.broken(f"{sender} commits to partition {partition}, whose lease {holder} has")

    def _took(self, partition: int, writer_epoch: int) -> None:
        self._taken[partition] = max(self._taken.get(partition, 0), writer_epoch)
        self._rows[partition] = self._place.database.store.checkpoints[partition]

    def _called(self) -> None:
        """After a claim no older writer's snapshot is stored."""
        database = self._place.database
        if database.restored_at != self._restored_at:
            self._restored_at = database.restored_at
            self._taken.clear()
            self._rows.clear()
        for partition, row in database.store.checkpoints.items():
            if row is not self._rows.get(partition):
                self._rows[partition] = row
                if row.token.writer_epoch < self._taken.get(partition, 0):
                    self._place.broken(
                        f"partition {partition}: a snapshot of epoch {row.token.writer_epoch} was stored after epoch "
                        f"{self._taken[partition]} had claimed"
                    )


@dataclass(slots=True)
class Intake:
    """One partition's intake and journal, with what became of each record."""

    entries: list[Entry]
    frames: list[tuple[LogRecord, CommitFrame]]
    turns: list[tuple[LogRecord, str | None]]
    heartbeats: dict[str, list[float]]
    """Gateway -> true times of its heartbeats."""
    ticks: dict[tuple[int, int], list[tuple[LogRecord, Tick]]]
    """By (broker's time, writer epoch)."""
    leaves: dict[tuple[str, int], Leave]
    """By (member, n)."""
    lists: dict[tuple[str, int], int]
    """(Gateway, n) -> where the frames end that a list of it waits for; the least of several."""
    outcomes: dict[str, int]
    """Ref -> lsn of its outcome, where one record alone has that ref."""
    looks: dict[str, EraseIdle] = field(default_factory=dict)
    """By ref, what was to erase a conversation if it was idle."""


def read(place: Place, partition: int) -> Intake:
    """Everything of one partition."""
    intake = Intake([entry for _, entry in place.journal(partition)], [], [], {}, {}, {}, {}, {})
    _read_keyed(place, partition, intake)
    _read_membership(place, partition, intake)
    for entry in intake.entries:
        ref = getattr(entry.event, "ref", None)
        if ref is not None:
            intake.outcomes.setdefault(ref, entry.lsn)
    refs = Counter([frame.ref for _, frame in intake.frames] + [ref for _, ref in intake.turns])
    for ref, records in refs.items():
        if ref is not None and records > 1:
            intake.outcomes.pop(ref, None)
    return intake


def _read_keyed(place: Place, partition: int, intake: Intake) -> None:
    codec, topics, committed = place.codec, place.cluster.topics, place.cluster.committed
    for record in committed(topics.frames, partition):
        with suppress(Undecodable):
            frame = codec.decode_frames(record, 0)
            if isinstance(frame, CommitFrame):
                intake.frames.append((record, frame))
    for record in committed(topics.turns, partition):
        with suppress(Undecodable):
            command = codec.decode_turns(record, 0)
            intake.turns.append((record, command.ref))
            if isinstance(command, EraseIdle) and command.ref is not None:
                intake.looks[command.ref] = command


def _read_membership(place: Place, partition: int, intake: Intake) -> None:
    for record in place.cluster.committed(place.cluster.topics.membership, partition):
        try:
            change = place.codec.decode_membership(record, 0)
        except Undecodable:
            continue
        match change:
            case Heartbeat(gateway=gateway):
                intake.heartbeats.setdefault(gateway, []).append(record.written_at)
            case Tick() as tick:
                intake.ticks.setdefault((record.timestamp, tick.writer_epoch), []).append((record, tick))
            case Leave() as leave:
                intake.leaves[leave.member, leave.n] = leave
            case ApplyList(gateway=gateway, n=n, frames_end=end):
                intake.lists[gateway, n] = min(end, intake.lists.get((gateway, n), end))
            case _:
                pass


def poison_left(place: Place, partition: int, origins: list[str]) -> Iterator[str]:
    """Each record that cannot be taken is in `dead-letters`, before the journal says once that it is, and no other."""
    mine = [origin for origin in origins if origin.split("/")[1] == str(partition)]
    said = place.cluster.logs[place.cluster.topics.conversations, partition].records
    rejected: Counter[str] = Counter()
    said_at: dict[str, float] = {}
    for offset, entry in place.journal(partition):
        if isinstance(entry.event, Rejected):
            rejected[entry.event.origin] += 1
            said_at[entry.event.origin] = said[offset].written_at
    letters: dict[str, float] = {}
    for record in place.cluster.committed(place.cluster.topics.dead_letters, partition):
        letters.setdefault(place.codec.decode_dead_letter(record.value).origin, record.written_at)
    for origin in mine:
        if rejected[origin] != 1:
            yield f"{origin} is poison, and rejected {rejected[origin]} times"
    for origin in rejected:
        if origin not in mine:
            yield f"{origin} was rejected and is no poison"
        if origin not in letters:
            yield f"{origin} was rejected and is not among the dead letters"
        elif letters[origin] > said_at[origin]:
            yield f"{origin} was rejected before it was among the dead letters"


def mistold(intake: Intake) -> Iterator[str]:
    """What a person was shown as the answer of agents that can continue is the whole of it, once and in order; and a
    frame that names its run and epoch is stored for these alone."""
    told: dict[str, dict[int, FrameCommitted]] = {}
    named = {frame.ref: frame for _, frame in intake.frames if frame.ref and frame.run_epoch is not None}
    continuing: set[str | None] = set()
    for entry in intake.entries:
        match entry.event:
            case MemberJoined(member=member, continues=True):
                continuing.add(member)
            case FrameCommitted(run_id=str(run_id)) as stored:
                if stored.seq:
                    told.setdefault(run_id, {})[stored.seq] = stored
                meant = named.get(stored.ref or "")
                if meant is not None and (meant.run_id, meant.run_epoch, meant.member) != (
                    run_id,
                    stored.run_epoch,
                    stored.member,
                ):
                    token = f"{meant.member}'s token for {meant.run_id} at {meant.run_epoch}"
                    yield f"lsn {entry.lsn}: a frame with {token} is stored for {run_id} at {stored.run_epoch}"
            case RunMoved(run_id=run_id, superseded=superseded):
                for seq in superseded:
                    told.get(run_id, {}).pop(seq, None)
            case RunEnded(run_id=run_id, status=status, reason=reason, member=member):
                frames = told.pop(run_id, {}).values()
                parts = [_part_of(each.frame) for each in frames if each.frame.type in {"genui", "text"}]
                # Of one of whom nothing is stored, its frames do not tell whether it is such an agent.
                by_steps = (frames or member in continuing) and all(
                    (each.frame.client_id or "").startswith(str(entry.event.conversation_id)) for each in frames
                )
                if by_steps and status is RunStatus.ANSWERED and reason == "finished" and parts != list(WHOLE_ANSWER):
                    yield f"lsn {entry.lsn}: run {run_id} was answered with {parts}"
            case _:
                pass


def erased_in_use(intake: Intake) -> Iterator[str]:
    """What a channel keeps no longer is not erased when something was said, or done, since it was looked at."""
    last: dict[str | None, Entry] = {}
    for entry in intake.entries:
        event = entry.event
        if isinstance(event, ConversationErased) and (look := intake.looks.get(event.ref or "")) is not None:
            before = last.get(event.conversation_id)
            if before is not None and before.lsn > look.as_of_lsn:
                since = f"{type(before.event).__name__} at lsn {before.lsn}"
                yield f"lsn {entry.lsn}: it is erased as idle, as of lsn {look.as_of_lsn}, though there is {since}"
        elif not isinstance(event, Refused | Duplicate | RunEnded) and getattr(event, "sender", "") != SYSTEM:
            last[event.conversation_id] = entry  # what closes runs comes of the erasure itself


def _part_of(frame: Frame) -> str:
    return frame.text or json.loads(frame.data or '""')


def broken(intake: Intake, member_ttl_ms: int, *, clock_was_set: bool) -> Iterator[str]:
    """What the logs of one partition show."""
    opened_at = 0
    for index, entry in enumerate(intake.entries):
        match entry.event:
            case WriterOpened():
                opened_at = entry.at
            case GatewayEnded(gateway=gateway, reason="expired"):
                yield from _expired(intake, entry, gateway, opened_at, member_ttl_ms, clock_was_set=clock_was_set)
                yield from _too_early(intake, entry)
            case RunEnded(reason="watchdog" | "watchdog_after_answer" | "deadline" | "not_begun"):
                yield from _too_early(intake, entry)
            case RunMoved(reason=MoveReason.ADOPT_TIMEOUT):
                yield from _too_early(intake, entry)
            case MemberLeft() as left:
                yield from _left(intake, index, entry, left)
            case _:
                pass


def _expired(
    intake: Intake, entry: Entry, gateway: str, opened_at: int, member_ttl_ms: int, *, clock_was_set: bool
) -> Iterator[str]:
    if entry.at - opened_at <= member_ttl_ms:
        yield f"lsn {entry.lsn}: {gateway} expired {entry.at - opened_at} ms after the claim, before its full TTL"
    slack = TICK_MOST_S * (2 if clock_was_set else 1)
    for record, _ in intake.ticks.get((entry.timestamp, entry.writer_epoch), ()):
        beats = intake.heartbeats.get(gateway, [])
        last = bisect_left(beats, record.written_at)
        if last and record.written_at - beats[last - 1] <= member_ttl_ms / 1000 - slack:
            silent = record.written_at - beats[last - 1]
            yield f"lsn {entry.lsn}: {gateway} expired {silent:.3f} s after its last heartbeat"


def _too_early(intake: Intake, entry: Entry) -> Iterator[str]:
    """A tick takes effect only once all was read that lay before the ends it names."""
    ticks = [tick for _, tick in intake.ticks.get((entry.timestamp, entry.writer_epoch), ())]
    frames_end = min((tick.frames_end for tick in ticks), default=0)
    turns_end = min((tick.turns_end for tick in ticks), default=0)
    before = [(f"frame {record.offset}", frame.ref) for record, frame in intake.frames if record.offset < frames_end]
    before += [(f"turn {record.offset}", ref) for record, ref in intake.turns if record.offset < turns_end]
    for what, ref in before:
        if intake.outcomes.get(ref or "", 0) > entry.lsn:
            yield f"lsn {entry.lsn}: a time-out fired before {what}, which its tick names as before it"


def _left(intake: Intake, index: int, entry: Entry, left: MemberLeft) -> Iterator[str]:
    if left.reason not in {MoveReason.MEMBER_LEFT, MoveReason.MEMBER_DRAINED}:
        return
    leave, what = intake.leaves.get((left.member, left.n)), "Leave"
    end = 0 if leave is None else leave.frames_end
    for later in intake.entries[index:]:
        if later.timestamp != entry.timestamp:
            break
        if isinstance(later.event, ListApplied) and later.event.gateway == left.gateway:
            # It was the gateway's list that it is not on.
            end, what = intake.lists.get((left.gateway, later.event.n), 0), "gateway's list"
    for record, frame in intake.frames:
        if frame.member == left.member and record.offset < end:
            outcome = intake.outcomes.get(frame.ref or "", 0)
            if outcome > entry.lsn:
                which = f"its frame {record.offset}, which its {what} waits for"
                yield f"lsn {entry.lsn}: {left.member} left before {which}"
