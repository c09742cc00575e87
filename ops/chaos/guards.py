"""The control: one guard of the product taken out, in a worker that chaos runs, must be caught.

What is taken out is named by TURNLOG_CHAOS_GUARD_OFF. None of this is reachable from a process that `turnlog` starts:
the guards have no switch, they are patched by `ops.chaos.worker` before anything else is imported.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

import msgspec

from ops.chaos.schedule import Nemesis

VARIABLE: Final = "TURNLOG_CHAOS_GUARD_OFF"
BEFORE_INIT_S: Final = 0.5
"""What passes, in the worker that reads before it fences, between the two: a scheduler's whim, made likely."""


class Guard(StrEnum):
    """What can be taken out. The value is its name on the command line."""

    DEDUPE = "dedupe"
    """A person's key is stored once."""
    RUN_TOKEN = "run-token"  # noqa: S105 -- not a secret: (run, member, run epoch)
    """A frame is stored only from a member that is there, and that holds its run."""
    FRAME_NUMBERS = "frame-numbers"
    """A frame without a key is stored once too, by its number."""
    FENCE = "fence"
    """One transactional id a partition, and no write without a lease."""
    AWAIT_SENDS = "await-sends"
    """A transaction is ended once every send in it was confirmed."""
    END_ONCE = "end-once"
    """EndTxn is sent once."""
    FENCE_FIRST = "fence-first"
    """InitProducerId comes before the replay."""
    NEW_EPOCH = "new-epoch"
    """A new writer epoch before each InitProducerId."""
    CONFIRM = "confirm"
    """The lease is confirmed before WriterOpened."""
    LEASE_MARGIN = "lease-margin"
    """No write begins in the last fifth of a lease."""
    TOKEN_AT_CLAIM = "token-at-claim"  # noqa: S105 -- a writer's
    """The claim puts its token into the checkpoint's row."""
    TOKEN_IN_SNAPSHOT = "token-in-snapshot"  # noqa: S105 -- a writer's
    """A snapshot is stored under the token in the row only."""
    READABLE_CHECKPOINT = "readable-checkpoint"
    """A checkpoint is of what readers can get."""
    TICKS_WAIT = "ticks-wait"
    """A tick takes effect once all was read that it names as before it."""
    FULL_TTL = "full-ttl"
    """After a claim every gateway has its full time."""
    LEAVE_WAITS = "leave-waits"
    """A Leave waits for the member's last frame."""
    STAY_ENDED = "stay-ended"
    """A gateway that ended joins nobody any more."""


@dataclass(frozen=True, slots=True)
class Control:
    """How a guard is taken out, and under which faults that shows. `settings`: of its workers, for it to show soon."""

    take_out: Callable[[], None]
    nemeses: tuple[Nemesis, ...]
    settings: Mapping[str, str] = field(default_factory=dict)


def take_out() -> None:
    """Take out the guard that the environment names, if it names one."""
    if guard := os.environ.get(VARIABLE):
        CONTROLS[Guard(guard)].take_out()


# ------------------------------------------------------------------------------------------------------- the core
def _without_dedupe() -> None:
    from streams.core import keys  # noqa: PLC0415 -- only where a guard is taken out

    keys.find = lambda *_: None


def _without_run_token() -> None:
    """Whoever sends a frame of an open run, it is stored as its holder's; one of a run that is over, as of no run."""
    from streams.core import fold, frames  # noqa: PLC0415
    from streams.core.commands import CommitFrame  # noqa: PLC0415

    committed, decide, kept = frames._committed, frames.decide_frame, frames._decide_kept

    def as_the_holders(conversation: Any, command: Any, run: Any, key: Any, seq: int) -> Any:
        event = committed(conversation, command, run, key, seq)
        return event if run is None or run.member is None else msgspec.structs.replace(event, member=run.member)

    def from_anybody(state: Any, command: Any) -> Any:
        """Who is gone is taken for somebody of the group that is there."""
        roster = state.groups.get(command.group)
        if command.member not in state.members and roster is not None and roster.members:
            command = msgspec.structs.replace(command, member=min(roster.members))
        return decide(state, msgspec.structs.replace(command, n=0))  # which is its sender's number

    def whatever_it_is_of(state: Any, conversation: Any, command: Any, target: Any) -> Any:
        if target.run is None:
            return [committed(conversation, command, None, None, conversation.head + 1)]
        return kept(state, conversation, command, target)

    fold._DECIDERS[CommitFrame] = from_anybody
    vars(frames).update(_decide_kept=whatever_it_is_of)
    vars(frames).update(_committed=as_the_holders, _holds=lambda _command, run: run.member is not None)


def _without_frame_numbers() -> None:
    from streams.core import heard  # noqa: PLC0415

    vars(heard).update(is_repeat=lambda *_: False, note=lambda *_: None)


def _without_stay_ended() -> None:
    from streams.core import fold  # noqa: PLC0415
    from streams.core.events import GatewayEnded  # noqa: PLC0415

    table = next(value for value in vars(fold).values() if isinstance(value, dict) and GatewayEnded in value)
    table[GatewayEnded] = lambda state, _entry, event: state.gateways.pop(event.gateway, None)


# ------------------------------------------------------------------------------------------------------ the commit
def _without_fence() -> None:
    """Each process writes under a transactional id of its own, and takes its lease for good."""
    from streams import topics  # noqa: PLC0415
    from streams.fence import heartbeat  # noqa: PLC0415
    from streams.runtime.partition import Sequencer  # noqa: PLC0415

    stable = topics.Topics.transactional_id
    topics.Topics.transactional_id = lambda self, partition: f"{stable(self, partition)}-{os.getpid()}"  # type: ignore[method-assign]
    heartbeat.Heartbeat.may_write = lambda *_: True  # type: ignore[method-assign]
    Sequencer.lose = lambda *_: None  # type: ignore[method-assign]


def _without_await_sends() -> None:
    from streams.runtime.commit import Committer  # noqa: PLC0415

    async def commit(self: Committer, pack: Any, letters: Any) -> int:
        if letters:
            await self._dead_letters.write(letters)
        self._require_lease()
        producer: Any = self._producer
        await producer.begin()
        sends = []
        for batch in pack.batches:
            batch.builder.close()
            # It is on its way to the broker from here on, before the end of the transaction.
            sends.append(
                await producer._producer.send_batch(batch.builder, producer._topic, partition=producer._partition)
            )
        self._require_lease()
        await producer.commit()
        ends = await asyncio.gather(*sends, return_exceptions=True)
        last = ends[-1]
        return 0 if isinstance(last, BaseException) else int(last.offset + pack.batches[-1].builder.record_count())

    Committer.commit = commit  # type: ignore[method-assign]


def _without_end_once() -> None:
    from streams.runtime import kafka_producers  # noqa: PLC0415

    vars(kafka_producers).update(end_once=lambda _producer: None)


def _without_fence_first() -> None:
    from streams.runtime.commit import Committer  # noqa: PLC0415
    from streams.runtime.writer import Writer  # noqa: PLC0415

    fence, replay = Committer.open, Writer._replay

    async def later(self: Committer) -> None:
        """Not yet."""

    async def replay_then_fence(self: Writer, state: Any) -> None:
        await replay(self, state)
        await asyncio.sleep(BEFORE_INIT_S)
        await fence(self._committer)

    async def unsettled(self: Writer, reader: Any, end: int) -> None:
        """It needs the producer's identity, which is not there yet."""

    Committer.open = later  # type: ignore[method-assign]
    Writer._replay = replay_then_fence  # type: ignore[method-assign]
    Writer._settle = unsettled  # type: ignore[method-assign]


# ------------------------------------------------------------------------------------------------------- the lease
def _without_new_epoch() -> None:
    from streams.fence.lease import PostgresLeases  # noqa: PLC0415

    async def the_same(_leases: Any, lease: Any, *_: Any, **__: Any) -> Any:
        return lease

    PostgresLeases.next_epoch = the_same  # type: ignore[method-assign, assignment]


def _without_confirm() -> None:
    from streams.fence.lease import PostgresLeases  # noqa: PLC0415

    async def confirm(self: PostgresLeases, lease: Any) -> None:
        """Taken for granted."""

    PostgresLeases.confirm = confirm  # type: ignore[method-assign]


def _without_lease_margin() -> None:
    from streams.fence.heartbeat import Heartbeat  # noqa: PLC0415

    init = Heartbeat.__init__

    def without(self: Heartbeat, *arguments: Any, ttl_ms: int, **named: Any) -> None:
        init(self, *arguments, ttl_ms=ttl_ms, **named)
        self._promise_s = ttl_ms / 1000

    Heartbeat.__init__ = without  # type: ignore[method-assign]


# -------------------------------------------------------------------------------------------------- the checkpoint
NEWER_TAKES: Final = """
    INSERT INTO checkpoints AS stored
        (partition, writer_epoch, worker, lsn, journal_offset, turns, frames, membership, state, updated_at)
    VALUES (%(partition)s, %(writer_epoch)s, %(worker)s, 0, 0, 0, 0, 0, ''::bytea, clock_timestamp())
    ON CONFLICT (partition) DO UPDATE SET updated_at = stored.updated_at
    WHERE stored.writer_epoch <= excluded.writer_epoch
    RETURNING lsn, journal_offset, turns, frames, membership, state
"""
"""`take_checkpoint` that leaves the row's token as it is."""
STORE_UNDER: Final = """
    UPDATE checkpoints SET
        writer_epoch = %(writer_epoch)s, worker = %(worker)s,
        lsn = %(lsn)s, journal_offset = %(journal_offset)s, turns = %(turns)s, frames = %(frames)s,
        membership = %(membership)s, state = %(state)s, updated_at = clock_timestamp()
    WHERE partition = %(partition)s AND lsn BETWEEN %(stored_lsn)s AND %(lsn)s
"""
"""`advance_checkpoint` of any writer's snapshot."""
OF_OLDER: Final = " AND writer_epoch <= %(writer_epoch)s"


def _queries(**changed: str) -> None:
    """Other statements in the place of some of the checkpoint's."""
    from streams.fence import checkpoint  # noqa: PLC0415

    known = vars(checkpoint)["QUERIES"]
    vars(checkpoint).update(QUERIES={**known, **{name: text.encode() for name, text in changed.items()}})


def _any_token_loads() -> None:
    """Where the row's token is not this writer's, loading goes by it all the same."""
    from streams.fence import checkpoint  # noqa: PLC0415

    class Alike:
        """Not unlike any token."""

        def __init__(self, *_: object) -> None: ...

        def __ne__(self, _other: object) -> bool:
            return False

        __hash__ = None  # type: ignore[assignment]

    vars(checkpoint).update(Token=Alike)


def _without_token_at_claim() -> None:
    _queries(take_checkpoint=NEWER_TAKES, advance_checkpoint=STORE_UNDER + OF_OLDER)
    _any_token_loads()


def _without_token_in_snapshot() -> None:
    _queries(advance_checkpoint=STORE_UNDER)


def _without_readable_checkpoint() -> None:
    from streams.runtime.writer import Writer  # noqa: PLC0415

    Writer._save_committed = Writer._save  # type: ignore[method-assign]


# ------------------------------------------------------------------------------------------------------ the intake
def _unwaiting(kind: str) -> Callable[[], None]:
    def without() -> None:
        from streams.runtime.intake import Intake  # noqa: PLC0415

        must_wait = Intake._must_wait

        def waits(self: Intake, content: Any) -> bool:
            return type(content).__name__ != kind and must_wait(self, content)

        Intake._must_wait = waits  # type: ignore[method-assign]

    return without


def _without_full_ttl() -> None:
    from streams.runtime.liveness import Liveness  # noqa: PLC0415

    restart = Liveness.restart

    def at_once(self: Liveness, at: int, known: Any = ()) -> None:
        restart(self, at - self._ttl_ms, known)

    Liveness.restart = at_once  # type: ignore[method-assign]


MANY_CHECKPOINTS: Final = {"TURNLOG_CHECKPOINT_EVERY_MS": "250"}
"""A writer that has not heard yet that it was followed stores one in that time."""
FEW_AT_A_TIME: Final = {"TURNLOG_BATCH_MAX": "2"}
"""A backlog is then read over many polls, of one topic and of the other."""

CONTROLS: Final[Mapping[Guard, Control]] = {
    Guard.DEDUPE: Control(_without_dedupe, (Nemesis.KILL_AGENT,)),
    Guard.RUN_TOKEN: Control(_without_run_token, (Nemesis.KILL_GATEWAY, Nemesis.STOP_GATEWAY)),
    Guard.FRAME_NUMBERS: Control(_without_frame_numbers, (Nemesis.INTAKE_AGAIN,)),
    Guard.FENCE: Control(_without_fence, (Nemesis.STOP_WORKER,)),
    Guard.AWAIT_SENDS: Control(_without_await_sends, (Nemesis.JOURNAL_REFUSES,)),
    Guard.END_ONCE: Control(_without_end_once, (Nemesis.END_TXN_LATE,)),
    Guard.FENCE_FIRST: Control(_without_fence_first, (Nemesis.TAKEN_FOR_DEAD, Nemesis.SESSION_LOST)),
    Guard.NEW_EPOCH: Control(_without_new_epoch, (Nemesis.KAFKA_RESET, Nemesis.END_TXN_ANSWER_LOST)),
    Guard.CONFIRM: Control(_without_confirm, (Nemesis.PAUSED_CLAIM,)),
    Guard.LEASE_MARGIN: Control(_without_lease_margin, (Nemesis.POSTGRES_CUT,)),
    Guard.TOKEN_AT_CLAIM: Control(_without_token_at_claim, (Nemesis.TAKEN_FOR_DEAD,), MANY_CHECKPOINTS),
    Guard.TOKEN_IN_SNAPSHOT: Control(_without_token_in_snapshot, (Nemesis.TAKEN_FOR_DEAD,), MANY_CHECKPOINTS),
    Guard.READABLE_CHECKPOINT: Control(_without_readable_checkpoint, (Nemesis.END_TXN_LATE, Nemesis.BROKER_KILL)),
    Guard.TICKS_WAIT: Control(_unwaiting("Tick"), (Nemesis.KILL_WORKER, Nemesis.INTAKE_AGAIN), FEW_AT_A_TIME),
    Guard.FULL_TTL: Control(_without_full_ttl, (Nemesis.KILL_WORKER, Nemesis.STOP_GATEWAY)),
    Guard.LEAVE_WAITS: Control(
        _unwaiting("Leave"), (Nemesis.KILL_AGENT, Nemesis.KILL_WORKER, Nemesis.INTAKE_AGAIN), FEW_AT_A_TIME
    ),
    Guard.STAY_ENDED: Control(_without_stay_ended, (Nemesis.STOP_GATEWAY, Nemesis.INTAKE_AGAIN)),
}
