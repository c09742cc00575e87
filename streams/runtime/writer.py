"""One writer epoch of one partition: opened in the claim order, ended by its first doubt, then thrown away whole.

Claim order, after the advisory lock and the lease with its new epoch, which the worker has by then:

    (1) InitProducerId       the last holder's transactions fail from here on, its open one is aborted
    (2) checkpoint token     its snapshots are refused from here on
    (3) checkpoint, hot rows
    (4) replay               the journal from there to its high watermark, not merely to the last stable offset; a
                             transaction that hangs between the two is ended first
    (5) lease confirmed      nobody took over during the replay
    (6) WriterOpened         the first event of this epoch, with what waits in the intake behind it

A writer that was opened decides batches in the commit order (see `commit`). Any error ends it: the state in memory may
be ahead of the journal, so nothing of it is kept.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Iterable
from typing import NamedTuple

import structlog

from streams.core.clock import LogClock
from streams.core.commands import Command, CommitBatch, OpenWriter
from streams.core.events import Entry
from streams.core.fold import conversation_of, evolve, step
from streams.core.state import KEY_LIFETIME_MS, ImpossibleEvent, Partition
from streams.core.store import load_partition
from streams.fence.clock import monotonic_s
from streams.fence.port import FenceUnavailable, Lease, Positions
from streams.runtime.codec import Undecodable
from streams.runtime.commit import Committer
from streams.runtime.hanging import MARKER_LATE_S, settle, until_stable
from streams.runtime.intake import Batch, Intake, origin_of
from streams.runtime.journal import pack_entries, replay
from streams.runtime.kafka import Doubt, JournalReader, KafkaUnavailable, Unrecoverable, closed
from streams.runtime.liveness import Liveness
from streams.runtime.memory import Memory, Snapshot, UnreadableRow
from streams.runtime.ports import Ports
from streams.runtime.signals import Tick
from streams.runtime.spans import begin_spans

log = structlog.get_logger(__name__)

# How long one look at an empty intake waits, and with it how soon an idle writer notices that it should drain.
POLL_WAIT_MS = 200
# A checkpoint that could not be stored is tried again so much later: each holds all that the one before held, and more.
SAVE_AGAIN_S = 1.0
# Conversations that a replay changes before a checkpoint of them is stored: about 100 MiB.
REPLAY_UNSAVED_MAX = 25_000


class StaleLeases(Exception):
    """The journal, or the checkpoint, has a writer epoch that the lease store has not given yet: it was restored, or
    failed over."""

    def __init__(self, highest: int) -> None:
        super().__init__(f"writer epoch {highest} was used already; the lease store gave no higher one")
        self.highest = highest


class Undecidable(Exception):
    """The core failed on a command: a mistake in the code, which must not stand in the way of what comes behind it."""

    def __init__(self, origin: str, conversation: str | None, error: Exception) -> None:
        super().__init__(f"the core failed on {origin}: {type(error).__name__}: {error}")
        self.origin = origin
        self.conversation = conversation


class CheckpointDiscarded(Exception):
    """What was stored could not be read and counts for nothing any more: the next epoch begins with the journal."""


class Saving(NamedTuple):
    """A checkpoint on its way to the store."""

    snapshot: Snapshot
    task: asyncio.Task[None]


class Writer:
    """One writer epoch. `open` it, call `turn` for as long as it goes well, `close` it in any case."""

    def __init__(self, lease: Lease, ports: Ports, quarantine: frozenset[str] = frozenset()) -> None:
        """`quarantine`: origins of intake records that go to dead-letters, because the core failed on them before."""
        self.lease = lease
        self._quarantine = quarantine
        self._ports = ports
        self._partition = lease.partition
        self._token = lease.token
        self._committer = Committer(
            ports.new_producer(lease.partition), ports.dead_letters, lambda: ports.keeper.may_write(lease)
        )
        self._source = ports.new_intake(lease.partition)
        self._reader = ports.new_reader(lease.partition)
        self._memory: Memory
        self._intake: Intake
        self._positions = Positions()
        self._journal_offset = 0
        self._readable_to = 0
        """The journal is known to be readable up to here."""
        self._saving: Saving | None = None
        self._saved_at = time.monotonic()
        self._save_again_at = 0.0
        """After a checkpoint that could not be stored, when the next one is tried."""
        self._saved_positions = Positions()

    # ---------------------------------------------------------------------------------------------- claim order
    async def open(self) -> None:
        """Steps 1 to 6 of the claim order. Raises `Fenced`, `Doubt`, `StaleLeases`, `Unrecoverable`, or that Kafka or
        Postgres cannot be asked; after any of them only `close` may follow."""
        self._ports.room.enter(self._partition)
        await self._committer.open()
        state = await self._load()
        await self._replay(state)
        if state.writer_epoch >= self._token.writer_epoch:
            raise StaleLeases(state.writer_epoch)
        asked_at = monotonic_s()
        await self._ports.leases.confirm(self.lease)
        self._ports.keeper.watch(self.lease, asked_at)
        self._positions = Positions(state.turns, state.frames, state.membership)
        if state.lsn == self._memory.stored_lsn:
            # An idle partition's checkpoint knows positions that no batch has carried into the journal.
            self._positions = self._saved_positions
        await self._source.open(self._positions)
        clock, liveness = LogClock(state.at), Liveness(self._ports.limits.member_ttl_ms)
        self._intake = Intake(
            self._ports.codec,
            clock,
            liveness,
            partition=self._partition,
            partitions=self._ports.partitions,
            worker=self._token.worker,
            writer_epoch=self._token.writer_epoch,
            positions=self._positions,
            quarantine=self._quarantine,
        )
        # The broker's time of the first tick is the one of WriterOpened; a new partition's log time starts with it.
        timestamp = await self.tick()
        clock.tick(timestamp)
        liveness.restart(clock.at, state.gateways)
        opened = OpenWriter(
            at=clock.at, timestamp=timestamp, writer_epoch=self._token.writer_epoch, worker=self._token.worker
        )
        await self._first_batch(opened)

    async def _first_batch(self, opened: OpenWriter) -> None:
        """Step 6, in one transaction with what waits in the intake: that waits for one less, and a takeover makes one
        less in each of dozens of partitions. Where nothing waits there is the tick, just written."""
        state = self._memory.state
        entries = step(state, opened, self._token.writer_epoch)
        _, batch = await self._polled()
        await self._require(batch.absent, batch.commands)
        entries += self._decided(state, batch, len(entries))
        await self._commit(batch, entries, batch.commands[-1].timestamp if batch.commands else opened.timestamp)

    async def _load(self) -> Partition:
        """Steps 2 and 3: my token in the checkpoint's row, then what it holds."""
        stored = await self._ports.checkpoints.take(self._partition, self._token)
        if stored is not None:
            try:
                state = await self._remember(load_partition(stored.state, self._partition))
            except (ImpossibleEvent, UnreadableRow) as error:
                await self._discard(error)
            else:
                self._journal_offset, self._saved_positions = stored.journal_offset, stored.positions
                return state
        return await self._remember(Partition(self._partition))

    async def _discard(self, why: Exception) -> None:
        """Count the checkpoint for nothing: what another release wrote there, or a disk broke, is made anew from the
        journal. One that does not go back to its beginning cannot do that: `Unrecoverable`, and all stays as it is."""
        reader = self._ports.new_reader(self._partition)
        try:
            await reader.open(0)
        except Unrecoverable as error:
            raise Unrecoverable(
                f"{why}; nor can the journal replace the checkpoint: {error}. Take both tables, checkpoints and "
                "conversation_states, from one backup of PostgreSQL, or run the release that wrote them"
            ) from error
        finally:
            await closed(reader)
        log.error("checkpoint not readable: rebuilding from the journal", partition=self._partition, error=str(why))
        await self._ports.checkpoints.discard(self._partition, self._token)

    async def _require(self, absent: Collection[str], commands: Iterable[Command] = ()) -> None:
        """Have in memory what deciding needs. A conversation whose row is not readable cannot be made anew by itself:
        what happened to it follows from the partition's members and channels of that time."""
        try:
            await self._memory.require(absent, commands)
        except UnreadableRow as error:
            await self._discard(error)
            raise CheckpointDiscarded(str(error)) from error

    async def _remember(self, state: Partition) -> Partition:
        self._memory = Memory(
            state,
            self._ports.checkpoints,
            self._token,
            stored_lsn=state.lsn,
            idle_max=lambda: self._ports.room.share(self._ports.limits.idle_conversations_max),
        )
        await self._memory.load_hot()
        return state

    async def _replay(self, state: Partition) -> None:
        """Step 4. The checkpoint must lie within the journal: ahead of it or before its start is a stop."""
        reader = self._reader
        try:
            # Asked once: since step 1 nobody else's records come behind it, only markers.
            end = await reader.open(self._journal_offset)
            await self._settle(reader, end)
            async for entries, offset in replay(reader, self._ports.codec, self._journal_offset, end):
                named = {entry.event.conversation_id for entry in entries}
                await self._require({name for name in named if name and name not in state.conversations})
                for entry in entries:
                    evolve(state, entry)
                self._journal_offset = offset
                self._readable_to = offset
                if len(state.dirty) >= REPLAY_UNSAVED_MAX:
                    await self._save_replayed(state)
        except (ImpossibleEvent, Undecodable) as error:
            raise Unrecoverable(f"the journal does not continue the checkpoint: {error}") from error
        finally:
            await closed(reader)

    async def _save_replayed(self, state: Partition) -> None:
        """A checkpoint amid the replay: what is read of a long journal need not all be in memory, nor be read again
        should this claim fail. The intake positions are those of the last whole batch; the rest of it is replayed."""
        snapshot = await self._memory.snapshot(
            self._journal_offset, Positions(state.turns, state.frames, state.membership)
        )
        await self._save(snapshot)
        self._memory.stored(snapshot)
        self._saved_positions = snapshot.checkpoint.positions

    async def _settle(self, reader: JournalReader, end: int) -> None:
        """End what a former epoch's producer left open and Kafka forgot; see `hanging`."""
        mine = self._committer.identity
        asked = self._ports.transactions
        for outcome in await settle(asked, reader, self._partition, mine, known=self._journal_offset, end=end):
            self._ports.metrics.hanging.labels(outcome).inc()

    # --------------------------------------------------------------------------------------------- commit order
    async def turn(self) -> int:
        """One round of the commit order, then a checkpoint if one is due. Returns how many records were polled."""
        self._look_at_save()
        polled, batch = await self._polled()
        if batch.commands:
            await self._require(batch.absent, batch.commands)
            entries = self._decided(self._memory.state, batch)
            if entries:
                await self._commit(batch, entries, batch.commands[-1].timestamp)
        await self._save_if_due()
        return polled

    async def _polled(self) -> tuple[int, Batch]:
        """Step 1: how many records there were, and what is to be decided of them."""
        polled = await self._source.poll(
            self._ports.limits.batch_max, POLL_WAIT_MS, membership=self._intake.wants_membership
        )
        batch = self._intake.take(polled, self._memory.state.conversations)
        self._positions = batch.positions
        return len(polled), batch

    def _decided(self, state: Partition, batch: Batch, before: int = 0) -> list[Entry]:
        """Step 2. `batch.traces` is rewritten from the index of a command to that of its first entry; `before`: how
        many entries go into the journal before these."""
        epoch, traces = self._token.writer_epoch, batch.traces
        entries: list[Entry] = []
        index = 0
        try:
            if traces:
                batch.traces = {}
                for index, command in enumerate(batch.commands):
                    decided = step(state, command, epoch)
                    if decided and index in traces:
                        batch.traces[before + len(entries)] = traces[index]
                    entries += decided
            else:
                for index, command in enumerate(batch.commands):  # noqa: B007 -- read when a step fails
                    entries += step(state, command, epoch)
        except Exception as error:
            conversation = conversation_of(batch.commands[index])
            raise Undecidable(origin_of(batch.sources[index]), conversation, error) from error
        return entries

    async def _commit(self, batch: Batch, entries: list[Entry], timestamp: int) -> None:
        """Steps 3 to 6. A batch that decided nothing never comes here: its positions go with the next one."""
        state, covered = self._memory.state, batch.positions
        end = CommitBatch(
            at=self._intake.at,
            timestamp=timestamp,
            turns=covered.turns,
            frames=covered.frames,
            membership=covered.membership,
        )
        entries += step(state, end, self._token.writer_epoch)
        pack = self._committer.new_pack()
        tracer = self._ports.tracer
        spans = begin_spans(tracer, self._partition, entries, batch.traces) if batch.traces and tracer.on else []
        pack_entries(pack, self._ports.codec, entries, batch.traces)
        began = time.perf_counter()
        self._journal_offset = await self._committer.commit(pack, batch.letters)
        for span in spans:
            span.end()
        self._ports.metrics.batch(entries, len(batch.commands), time.perf_counter() - began)

    async def require_ended(self) -> None:
        """Raise `Doubt` when Kafka holds for open what this writer knows to be committed: the next epoch ends it.

        What this writer has under way at this moment begins behind what it has committed.
        """
        known, mine = self._journal_offset, self._committer.identity.producer_id
        for open_one in await self._ports.transactions.unfinished(self._partition):
            if open_one.producer_id == mine and open_one.start < known:
                raise Doubt(f"Kafka has forgotten to end a committed transaction: {open_one}, to {known}")

    # -------------------------------------------------------------------------------------------------- the clock
    async def tick(self) -> int:
        """Write a tick with the ends of the topics as they are now. Returns the broker's time of it, ms."""
        ends = await self._source.ends()
        self._intake.note_ends(ends)
        tick = Tick(
            worker=self._token.worker,
            writer_epoch=self._token.writer_epoch,
            turns_end=ends.turns,
            frames_end=ends.frames,
        )
        value = self._ports.codec.encode_command(tick)
        metrics = self._ports.metrics
        metrics.positions(self._partition, self._positions, ends)
        metrics.checkpoint_age.labels(str(self._partition)).set(time.monotonic() - self._saved_at)
        metrics.conversations.labels(str(self._partition)).set(self._memory.loaded)
        return await self._ports.outbox.send(self._ports.membership_topic, self._partition, value)

    # ----------------------------------------------------------------------------------------------- checkpoints
    async def drain(self) -> None:
        """The last checkpoint, so that the next owner has next to nothing to replay. No `turn` may follow."""
        if self._saving is not None:
            await asyncio.wait({self._saving.task})
        self._look_at_save()
        await self._save_committed(await self._snapshot())

    async def _save_if_due(self) -> None:
        """Start a checkpoint in the background of the next batches; one at a time, always of what is committed."""
        if self._saving is not None or time.monotonic() < self._save_again_at:
            return
        limits = self._ports.limits
        events = self._memory.state.lsn - self._memory.stored_lsn
        waited_ms = (time.monotonic() - self._saved_at) * 1000
        moved = events > 0 or self._positions != self._saved_positions
        if events >= limits.checkpoint_every_events or (moved and waited_ms >= limits.checkpoint_every_ms):
            snapshot = await self._snapshot()
            self._saving = Saving(snapshot, asyncio.create_task(self._save_committed(snapshot)))

    async def _snapshot(self) -> Snapshot:
        return await self._memory.snapshot(self._journal_offset, self._positions)

    async def _save_committed(self, snapshot: Snapshot) -> None:
        """Save it once readers can get all that it was made of; `KafkaUnavailable` when they cannot. That Kafka said
        "committed" is not enough: where it forgot the marker, an abort of the next transaction takes this one along,
        and the checkpoint would be ahead of the journal."""
        end = snapshot.checkpoint.journal_offset
        if end > self._readable_to:
            try:
                async with asyncio.timeout(MARKER_LATE_S):
                    await until_stable(self._reader, end)
            except TimeoutError:
                raise KafkaUnavailable(f"the journal cannot be read up to {end}: no checkpoint of it yet") from None
            self._readable_to = end
        await self._save(snapshot)

    async def _save(self, snapshot: Snapshot) -> None:
        before = self._memory.state.at - KEY_LIFETIME_MS
        await self._ports.checkpoints.save(
            self._partition, snapshot.checkpoint, snapshot.rows, snapshot.keys, before, stored_lsn=snapshot.stored_lsn
        )

    def _look_at_save(self) -> None:
        """Between two batches: what the checkpoint in the background came to. `Fenced`: this writer is a zombie."""
        if self._saving is None or not self._saving.task.done():
            return
        saving, self._saving = self._saving, None
        try:
            saving.task.result()
        except (FenceUnavailable, KafkaUnavailable) as error:
            # The lease ends before this becomes a problem of memory; until then the next one holds what this one did.
            log.warning("checkpoint not stored", partition=self._partition, error=str(error))
            self._memory.failed(saving.snapshot)
            self._save_again_at = time.monotonic() + SAVE_AGAIN_S
            return
        self._saved_at = time.monotonic()
        self._saved_positions = saving.snapshot.checkpoint.positions
        self._ports.metrics.evictions.inc(self._memory.stored(saving.snapshot))
        self._ports.metrics.checkpoints.inc()

    async def close(self) -> None:
        """End the epoch: nothing of it is written from here on, nothing of its memory is kept."""
        if self._saving is not None:
            task = self._saving.task
            task.cancel()
            await asyncio.wait({task})
            if not task.cancelled() and (error := task.exception()) is not None:
                log.info("the last checkpoint was not stored", partition=self._partition, error=str(error))
        self._ports.room.leave(self._partition)
        await closed(self._committer, self._source)
