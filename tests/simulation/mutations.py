"""The mutation gate: each guard of the design taken away, one at a time. A simulation that finds nothing then would
find nothing either if the guard had never been there.

A mutant is made by patching, so that the product has no switch for it. What lies in SQL is mutated in the port in
memory, which one contract suite holds to the same behaviour.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

import msgspec

from streams.core import fold, frames, heard
from streams.core.commands import ApplyList, Leave
from streams.core.events import Entry, GatewayEnded
from streams.core.state import Partition
from streams.fence.heartbeat import Heartbeat
from streams.fence.memory import MemoryCheckpoints, MemoryLeases
from streams.fence.port import Checkpoint, Fenced, Lease, Positions, Token
from streams.runtime import kafka_producers
from streams.runtime.commit import Committer, Pack
from streams.runtime.intake import Intake
from streams.runtime.liveness import Liveness
from streams.runtime.signals import Tick
from streams.runtime.writer import Writer
from tests.simulation.mutation import Apply, Mutation, swap
from tests.simulation.mutations_of_rules import RULES


# ------------------------------------------------------------------------------------------------------ the commit
def _unawaited(undo: ExitStack) -> None:
    async def commit(self: Committer, pack: Pack, letters: Sequence[Any]) -> int:
        if letters:
            await self._dead_letters.write(letters)
        self._require_lease()
        await self._producer.begin()
        sends = [asyncio.ensure_future(self._producer.append(batch)) for batch in pack.batches]
        await asyncio.sleep(0)
        self._require_lease()
        await self._producer.commit()
        ends = await asyncio.gather(*sends, return_exceptions=True)
        return max((end for end in ends if isinstance(end, int)), default=0)

    swap(undo, Committer, "commit", commit)


def _end_repeated(undo: ExitStack) -> None:
    swap(undo, kafka_producers, "end_once", lambda producer: None)


def _read_before_fence(undo: ExitStack) -> None:
    fence, replay = Committer.open, Writer._replay

    async def later(self: Committer) -> None:
        """Not yet."""

    async def replay_then_fence(self: Writer, state: Partition) -> None:
        await replay(self, state)
        await fence(self._committer)

    async def unsettled(self: Writer, reader: Any, end: int) -> None:
        """It needs the producer's identity, which is not there yet."""

    swap(undo, Committer, "open", later)
    swap(undo, Writer, "_replay", replay_then_fence)
    swap(undo, Writer, "_settle", unsettled)


def _letters_unawaited(undo: ExitStack) -> None:
    async def commit(self: Committer, pack: Pack, letters: Sequence[Any]) -> int:
        if letters:
            asyncio.ensure_future(self._dead_letters.write(letters)).add_done_callback(lambda done: done.exception())
        return await before(self, pack, ())  # type: ignore[no-any-return]

    before = swap(undo, Committer, "commit", commit)


# ------------------------------------------------------------------------------------------------------- the lease
def _same_epoch(undo: ExitStack) -> None:
    async def next_epoch(self: MemoryLeases, lease: Lease, above: int = 0) -> Lease:
        return lease

    swap(undo, MemoryLeases, "next_epoch", next_epoch)


def _unconfirmed(undo: ExitStack) -> None:
    async def confirm(self: MemoryLeases, lease: Lease) -> None:
        """Taken for granted."""

    swap(undo, MemoryLeases, "confirm", confirm)


def _no_margin(undo: ExitStack) -> None:
    def init(self: Heartbeat, *args: Any, ttl_ms: int, **more: Any) -> None:
        before(self, *args, ttl_ms=ttl_ms, **more)
        self._promise_s = ttl_ms / 1000

    before = swap(undo, Heartbeat, "__init__", init)


# -------------------------------------------------------------------------------------------------- the checkpoint
def _token_at_first_save(undo: ExitStack) -> None:
    """The claim leaves the row as it is; the first snapshot puts the token there."""

    async def take(self: MemoryCheckpoints, partition: int, token: Token) -> Checkpoint | None:
        stored = self._store.checkpoints.get(partition)
        if stored is None:
            self._store.checkpoints[partition] = Checkpoint(token, 0, 0, Positions(), b"")
            return None
        if token.writer_epoch < stored.token.writer_epoch:
            raise Fenced(f"{token} is not the newest", stored.token.writer_epoch)
        return stored if stored.lsn else None

    def require(self: MemoryCheckpoints, partition: int, token: Token, lsn: int) -> None:
        stored = self._store.checkpoints.get(partition)
        if stored is None or stored.token.writer_epoch > token.writer_epoch or stored.lsn < lsn:
            raise Fenced("lost history")

    swap(undo, MemoryCheckpoints, "take", take)
    swap(undo, MemoryCheckpoints, "_require", require)
    _save_under_own_token(undo, lambda stored, mine: stored.writer_epoch <= mine.writer_epoch)


def _any_snapshot(undo: ExitStack) -> None:
    _save_under_own_token(undo, lambda stored, mine: True)


def _save_under_own_token(undo: ExitStack, may: Callable[[Token, Token], bool]) -> None:
    """A snapshot first puts its own token into the row, where it `may`, given the one there and its own."""

    async def save(
        self: MemoryCheckpoints,
        partition: int,
        checkpoint: Checkpoint,
        rows: Any,
        keys: Any,
        before: int,
        **known: int,
    ) -> None:
        stored = self._store.checkpoints[partition]
        if may(stored.token, checkpoint.token):
            self._store.checkpoints[partition] = msgspec.structs.replace(stored, token=checkpoint.token)
        await kept(self, partition, checkpoint, rows, keys, before, **known)

    kept = swap(undo, MemoryCheckpoints, "save", save)


def _older_keys_lost(undo: ExitStack) -> None:
    async def save(
        self: MemoryCheckpoints, partition: int, checkpoint: Checkpoint, rows: Any, keys: Any, before: int, **known: int
    ) -> None:
        await kept(self, partition, checkpoint, rows, (), before, **known)

    kept = swap(undo, MemoryCheckpoints, "save", save)


def _unreadable_saved(undo: ExitStack) -> None:
    swap(undo, Writer, "_save_committed", Writer._save)


# -------------------------------------------------------------------------------------------------------- the core
def _any_token(undo: ExitStack) -> None:
    swap(undo, frames, "_holds", lambda command, run: True)


def _unnumbered(undo: ExitStack) -> None:
    swap(undo, heard, "is_repeat", lambda member, command: False)
    swap(undo, heard, "note", lambda state, member_id, n: None)


def _ended_return(undo: ExitStack) -> None:
    def forgotten(state: Partition, entry: Entry, event: GatewayEnded) -> None:
        state.gateways.pop(event.gateway, None)

    table = next(value for value in vars(fold).values() if isinstance(value, dict) and GatewayEnded in value)
    undo.enter_context(patch.dict(table, {GatewayEnded: forgotten}))


# ------------------------------------------------------------------------------------------------------ the intake
def _unwaiting(kind: type[Any]) -> Apply:
    def apply(undo: ExitStack) -> None:
        def must_wait(self: Intake, content: Any) -> bool:
            return not isinstance(content, kind) and bool(before(self, content))

        before = swap(undo, Intake, "_must_wait", must_wait)

    return apply


def _no_full_ttl(undo: ExitStack) -> None:
    def restart(self: Liveness, at: int, known: Iterable[str] = ()) -> None:
        before(self, at - self._ttl_ms, known)

    before = swap(undo, Liveness, "restart", restart)


GUARDS = (
    Mutation("await every future", "the commit goes out beside the sends", _unawaited),
    Mutation(
        "EndTxn is sent once",
        "aiokafka repeats it when its connection breaks",
        _end_repeated,
        ("ends late", "flood"),
    ),
    Mutation(
        "fence before reading",
        "InitProducerId comes after the replay",
        _read_before_fence,
        ("taken for dead", "session ended"),
    ),
    Mutation("new writer epoch before each InitProducerId", "a holder goes on under its old one", _same_epoch),
    Mutation(
        "confirm before WriterOpened",
        "the lease of before the replay is taken for granted",
        _unconfirmed,
        ("pause at", "kill at"),
    ),
    Mutation(
        "lease margin",
        "a write may start until the very end of the lease",
        _no_margin,
        ("renewals lost", "intake repeated"),
    ),
    Mutation(
        "my token in the checkpoint row at the claim",
        "the first snapshot puts it there",
        _token_at_first_save,
        ("pause at save", "session ended"),
    ),
    Mutation(
        "the token's condition in each snapshot",
        "any writer's snapshot is stored",
        _any_snapshot,
        ("pause at save", "session ended"),
    ),
    Mutation(
        "a checkpoint of what readers can get",
        "what Kafka called committed is in it, also without its marker",
        _unreadable_saved,
        ("marker forgotten", "kill at"),
    ),
    Mutation("older keys are kept for a day", "what falls out of its conversation's row is gone", _older_keys_lost),
    Mutation(
        "run token on frames",
        "whoever names, or is taken for, a run may write to it",
        _any_token,
        ("interrupt agent", "late words"),
    ),
    Mutation(
        "numbers on frames",
        "a frame without a key is new whenever it comes",
        _unnumbered,
        ("intake repeated", "flood"),
    ),
    Mutation(
        "ticks wait for the ends they name",
        "a tick takes effect as soon as it is read",
        _unwaiting(Tick),
        ("flood", "invoke"),
    ),
    Mutation(
        "full TTL after a claim",
        "the time without a writer counts as silence",
        _no_full_ttl,
        ("kill worker", "pause gateway"),
    ),
    Mutation(
        "Leave waits for the member's last frame",
        "a Leave takes effect as soon as it is read",
        _unwaiting(Leave),
        ("disconnect agent", "stop gateway", "flood"),
    ),
    Mutation(
        "lists wait for the last frames",
        "a gateway's list takes effect as soon as it is read",
        _unwaiting(ApplyList),
        ("leave lost behind turns",),
    ),
    Mutation(
        "ended members stay ended",
        "an ended incarnation is forgotten",
        _ended_return,
        ("stop gateway", "intake repeated"),
    ),
    Mutation(
        "dead letters are awaited",
        "they are written beside the commit that says that they are there",
        _letters_unawaited,
        ("poison", "kill at"),
    ),
)

MUTATIONS = (*GUARDS, *RULES)
