"""Fills the tables beside from the journal: the read model as projectors write it, checkpoints as workers do."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from ops.history import History
from ops.rebuild.beside import CannotRebuild
from streams.core.events import Entry, Unknown
from streams.core.fold import evolve
from streams.core.state import KEY_LIFETIME_MS, ImpossibleEvent, Partition
from streams.core.store import load_partition
from streams.fence.checkpoint import PostgresCheckpoints
from streams.fence.port import Positions, Token
from streams.projector.rows import Rows
from streams.projector.store import Position, PostgresProjection
from streams.runtime.memory import Memory

Notify = Callable[[str], None]

PROGRESS_EVERY_S: Final = 1.0
IDLE_MOST: Final = 20_000
"""Idle conversations of the partition that is folded which stay in memory."""
CHANGED_MOST: Final = 20_000
"""So many changed conversations are stored at a time."""
SAVE_LIMIT_S: Final = 120.0
TOKEN: Final = Token(1, "rebuild")


async def fill_read_model(history: History, dsn: str, partition: int, notify: Notify) -> int:
    """Write the read model of a partition from where it is beside to what is committed now; how many events."""
    store = PostgresProjection(dsn)
    try:
        position = (await store.positions([partition]))[partition]
        end = (await history.bounds(partition)).end
        pace = _Pace(f"read model, partition {partition}", end, notify)
        written = 0
        async for chunk in history.read(partition, position.journal_offset, end):
            entries = _following(position.lsn, history.decode_all(chunk), partition)
            upto = Position(entries[-1].lsn, chunk[-1].offset + 1)
            await store.write(partition, position, Rows(entries), upto)
            position = upto
            written += len(entries)
            pace.at(position.journal_offset)
        return written
    finally:
        await store.close()


def _following(lsn: int, entries: list[Entry], partition: int) -> list[Entry]:
    if entries[0].lsn != lsn + 1 or entries[-1].lsn != lsn + len(entries):
        raise CannotRebuild(
            f"partition {partition}: the journal has lsn {entries[0].lsn} to {entries[-1].lsn} after lsn {lsn}: "
            "`turnlog audit verify` tells what is wrong with it"
        )
    return entries


async def fill_checkpoint(history: History, dsn: str, partition: int, notify: Notify) -> int:
    """Fold a partition from the checkpoint that is beside to what is committed now, and store that as its checkpoint;
    how many events that were."""
    checkpoints = PostgresCheckpoints(dsn, save_limit_s=SAVE_LIMIT_S)
    try:
        known = await checkpoints.take(partition, TOKEN)
        state = Partition(partition) if known is None else load_partition(known.state, partition)
        memory = Memory(state, checkpoints, TOKEN, stored_lsn=state.lsn, idle_max=lambda: IDLE_MOST)
        await memory.load_hot()
        start = 0 if known is None else known.journal_offset
        end = (await history.bounds(partition)).end
        pace = _Pace(f"checkpoint, partition {partition}", end, notify)
        begun, offset = state.lsn, start
        async for chunk in history.read(partition, start, end):
            entries = history.decode_all(chunk)
            await _fold(memory, entries)
            offset = chunk[-1].offset + 1
            if len(state.dirty) >= CHANGED_MOST:
                await _save(checkpoints, memory, offset)
            pace.at(offset)
        if state.dirty or offset != start:
            await _save(checkpoints, memory, offset)
        return state.lsn - begun
    finally:
        await checkpoints.close()


async def _fold(memory: Memory, entries: list[Entry]) -> None:
    state = memory.state
    named = {entry.event.conversation_id for entry in entries}
    await memory.require({name for name in named if name and name not in state.conversations})
    for entry in entries:
        if isinstance(entry.event, Unknown):
            raise CannotRebuild(
                f"lsn {entry.lsn} of partition {state.partition} is a {entry.event.name}, which a later release wrote: "
                "rebuild with that release"
            )
        try:
            evolve(state, entry)
        except ImpossibleEvent as impossible:
            raise CannotRebuild(
                f"lsn {entry.lsn} of partition {state.partition} cannot follow what comes before it: {impossible}; "
                "`turnlog audit verify` tells more"
            ) from impossible


async def _save(checkpoints: PostgresCheckpoints, memory: Memory, offset: int) -> None:
    state = memory.state
    snapshot = await memory.snapshot(offset, Positions(state.turns, state.frames, state.membership))
    before = state.at - KEY_LIFETIME_MS
    stored_lsn = snapshot.stored_lsn
    await checkpoints.save(
        state.partition, snapshot.checkpoint, snapshot.rows, snapshot.keys, before, stored_lsn=stored_lsn
    )
    memory.stored(snapshot)


class _Pace:
    """Says how far it is, once a second."""

    def __init__(self, what: str, end: int, notify: Notify) -> None:
        self._what, self._end, self._notify = what, end, notify
        self._told = time.monotonic()

    def at(self, offset: int) -> None:
        now = time.monotonic()
        if now - self._told >= PROGRESS_EVERY_S:
            self._told = now
            self._notify(f"{self._what}: offset {offset:,} of {self._end:,}")
