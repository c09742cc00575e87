"""Hanging transactions: open in the journal's partition, while their coordinator holds them for ended.

InitProducerId returns once the last holder's transaction has ended, so that a claim should find a journal that can be
read to its end. Where it cannot, the coordinator has left a marker out. Kafka 4.4 does so, in about one of four kills
under load, when a broker comes back from a crash that left the partition without a leader for a moment (decision 12 has
what is known of the cause): the transaction counts as complete, and every reader stands still before it, for ever.
Going on without the marker would be worse: the next commit of the same producer would commit the forgotten records too.

So a claim ends it, as `kafka-transactions.sh abort` does, if it is certain to be one of this partition's own former
epochs: same producer id, a lower producer epoch. Nobody was ever shown its records, and only its writer could have
heard that they were committed, which shows in the checkpoint: that is read before this is decided, and after this
claim's token has shut out every later one. A checkpoint is saved only of what can be read, so that it covers a
transaction without a marker only where the broker lost one that it had (power loss, say).

    the checkpoint covers the whole of it    the marker says committed: what was built on it stays true
    the checkpoint does not reach it         the marker says aborted: intake positions in it are gone too, all of it
                                             is decided again
    the checkpoint ends within it            impossible for one transaction: stop, an operator must look

A writer that is running looks with `Writer.require_ended` when its journal stands still, and starts over.
What belongs to another producer is left alone: `turnlog transaction list` shows it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from enum import StrEnum
from typing import Protocol

import msgspec
import structlog

from streams.runtime.kafka import JournalReader, KafkaUnavailable, ProducerIdentity, Unrecoverable

log = structlog.get_logger(__name__)

# InitProducerId returns after the leader has the marker; that its followers have it too takes some milliseconds more.
MARKER_LATE_S = 1.0
MARKER_WRITTEN_S = 5.0
PAUSE_S = 0.01


class OpenTransaction(msgspec.Struct, frozen=True, gc=False):
    """A transaction that a partition holds for open. `start`: an offset; `last_timestamp`: ms since the epoch."""

    producer_id: int
    producer_epoch: int
    start: int
    last_timestamp: int
    coordinator_epoch: int
    """Of the last marker that the partition got from this producer's coordinator; -1: none yet."""

    def __str__(self) -> str:
        return f"producer {self.producer_id} (epoch {self.producer_epoch}) since offset {self.start}"


class Outcome(StrEnum):
    """How a hanging transaction is ended."""

    COMMITTED = "committed"
    ABORTED = "aborted"


class Transactions(Protocol):
    """The open transactions of the journal's partitions, as their leaders know them."""

    async def unfinished(self, partition: int) -> Sequence[OpenTransaction]:
        """All of them, hanging or alive. Raises `KafkaUnavailable`."""

    async def end(self, partition: int, of: OpenTransaction, producer_epoch: int, outcome: Outcome) -> None:
        """Write the marker that is missing, under `producer_epoch`, which must not be below the transaction's own.

        Every later write of a lower epoch is refused from then on. Raises `Fenced` when the partition knows a higher
        one, `Doubt` when it is not known whether the marker was written, `KafkaUnavailable` when it was not.
        """


def is_own(open_one: OpenTransaction, mine: ProducerIdentity) -> bool:
    """Whether it is of an earlier epoch of the producer that `mine` is."""
    return open_one.producer_id == mine.producer_id and open_one.producer_epoch < mine.producer_epoch


def outcome_of(open_one: OpenTransaction, known: int, end: int) -> Outcome:
    """How to end it. `known`: the journal offset up to which the checkpoint was built; `end`: of the journal.

    Raises `Unrecoverable` when the checkpoint holds a part of it only.
    """
    if known <= open_one.start:
        return Outcome.ABORTED
    if known >= end:
        return Outcome.COMMITTED
    raise Unrecoverable(
        f"the checkpoint was built up to journal offset {known}, amid a transaction that was never ended: "
        f"{open_one}, to {end}"
    )


async def settle(
    transactions: Transactions, reader: JournalReader, partition: int, mine: ProducerIdentity, *, known: int, end: int
) -> Sequence[Outcome]:
    """Make the journal of `partition` readable to `end`, its high watermark since `mine` was started; returns how
    hanging transactions were ended, mostly none.

    `mine`: this claim's producer, started. `known`: the journal offset up to which the checkpoint was built, under this
    claim's token. Raises what the parts raise, and `KafkaUnavailable` when another producer's is in the way.
    """
    if await _stable(reader, end, MARKER_LATE_S):
        return ()
    ended = []
    found = await transactions.unfinished(partition)
    for open_one in found:
        if not is_own(open_one, mine):
            continue
        outcome = outcome_of(open_one, known, end)
        log.error("ending a hanging transaction", partition=partition, of=str(open_one), end=end, outcome=outcome)
        await transactions.end(partition, open_one, mine.producer_epoch, outcome)
        ended.append(outcome)
    if not await _stable(reader, end, MARKER_WRITTEN_S):
        left = ", ".join(str(open_one) for open_one in found if not is_own(open_one, mine)) or "nobody it can name"
        raise KafkaUnavailable(
            f"the journal can be read up to {await reader.stable_end()} only, it ends at {end}; open there: {left}. "
            f"`turnlog transaction list` shows more"
        )
    return ended


async def until_stable(reader: JournalReader, end: int) -> None:
    """Wait until the journal can be read up to `end`. Raises `KafkaUnavailable`; the limit is the caller's."""
    while True:
        if await reader.stable_end() >= end:
            return
        await asyncio.sleep(PAUSE_S)


async def _stable(reader: JournalReader, end: int, limit_s: float) -> bool:
    """Whether the journal can be read up to `end`, now or within the limit."""
    try:
        async with asyncio.timeout(limit_s):
            await until_stable(reader, end)
    except TimeoutError:
        return False
    return True
