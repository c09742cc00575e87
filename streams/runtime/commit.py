"""The commit order of a batch, and the one owner of a partition's transactions.

    (1) poll            records of the three intakes, positions after them
    (2) decide, evolve  pure; the state in memory is now ahead of the journal
    (3) dead letters    written and awaited, then the transaction begins
    (4) append          the batch, its last event the positions; every future awaited
    (5) commit          the outcome of the intake and its positions become visible together
    (6) tell            metrics, the next checkpoint, whoever waits: nothing earlier

Died after (1) or (2): nothing was written; the next writer reads the same records again. After (3): dead letters may be
written twice, with the same origin, and once more `Rejected` is in the journal only once. After (4): the next writer's
InitProducerId aborts the transaction. After (5), before (6): the next writer finds the batch in the journal.

**Doubt.** aiokafka speaks the first transaction protocol: a late EndTxn of one transaction would commit the half of the
next one. So each EndTxn is sent once (aiokafka by itself repeats one whose connection breaks), and a `Committer` serves
one producer epoch and ends with its first error: whatever went wrong, its producer is thrown away, and the next one is
opened under a new writer epoch, whose InitProducerId decides what became of the last transaction. Nothing is retried
here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import msgspec

from streams.fence.port import Fenced
from streams.runtime.codec import Codec, DeadLetter
from streams.runtime.kafka import (
    BATCH_BYTES,
    REQUEST_BYTES,
    JournalProducer,
    NewHeaders,
    Outbox,
    ProducerIdentity,
    RecordBatch,
    Unrecoverable,
)

# A broker measures a compressed batch by its compressed bytes, so that a record of any size may lie in the intake; what
# does not fit into a request with its framing is cut. Its origin says where all of it lies.
LETTER_BYTES = REQUEST_BYTES - 4 * 1024
CUT_KEY_BYTES = 64 * 1024
CUT_VALUE_BYTES = BATCH_BYTES


class Pack:
    """The records of one transaction, in as few record batches as hold them; filled before the transaction begins, so
    that no record can turn out to be too large inside it.

    `batch` is the one to add to; once it takes no more, `overflow` opens the next.
    """

    __slots__ = ("_new_batch", "batch", "batches")

    def __init__(self, new_batch: Callable[[], RecordBatch]) -> None:
        self._new_batch = new_batch
        self.batch = new_batch()
        self.batches = [self.batch]

    def overflow(self, key: bytes | None, value: bytes, headers: NewHeaders) -> None:
        """Put a record that `batch` did not take into a new one, which is `batch` from here on."""
        self.batch = self._new_batch()
        self.batches.append(self.batch)
        if not self.batch.add(key, value, headers):
            raise Unrecoverable(
                f"a journal record of {len(value)} bytes does not fit into a batch; the core bounds its events"
            )


class DeadLetters:
    """Where intake records go that cannot be taken: awaited, because the journal will say that they are there."""

    def __init__(self, outbox: Outbox, codec: Codec, topic: str) -> None:
        self._outbox = outbox
        self._codec = codec
        self._topic = topic

    async def write(self, letters: Sequence[DeadLetter]) -> None:
        """Write all of them; they lie in the partition of their origin. A repeat writes them again, same `origin`.

        All at once: a flood of garbage would else cost a round trip a record, and hold up what comes behind it.
        """
        await asyncio.gather(*map(self._write, letters))

    async def _write(self, letter: DeadLetter) -> None:
        fitting, value = self._encoded(letter)
        headers = [("error", letter.error.encode())]
        await self._outbox.send(self._topic, letter.partition, value, key=fitting.key, headers=headers)

    def _encoded(self, letter: DeadLetter) -> tuple[DeadLetter, bytes]:
        value = self._codec.encode_dead_letter(letter)
        if len(value) + len(letter.key or b"") <= LETTER_BYTES:
            return letter, value
        cut = msgspec.structs.replace(
            letter,
            reason=f"{letter.reason}; too large for a dead letter: only its first bytes are here, and no headers",
            key=letter.key and letter.key[:CUT_KEY_BYTES],
            value=letter.value and letter.value[:CUT_VALUE_BYTES],
            headers=(),
        )
        return cut, self._codec.encode_dead_letter(cut)


class Committer:
    """Steps 3 to 5 for one producer epoch of one partition."""

    def __init__(self, producer: JournalProducer, dead_letters: DeadLetters, may_write: Callable[[], bool]) -> None:
        """`may_write`: whether the lease is still good, by a clock that began before the lease store was asked."""
        self._producer = producer
        self._dead_letters = dead_letters
        self._may_write = may_write
        self._spent = False

    async def open(self) -> None:
        """InitProducerId: from here on every earlier holder's transactions fail. Any error ends this committer."""
        self._spent = True
        await self._producer.start()
        self._spent = False

    @property
    def identity(self) -> ProducerIdentity:
        """What InitProducerId gave."""
        return self._producer.identity

    def new_pack(self) -> Pack:
        """An empty pack for the next transaction."""
        return Pack(self._producer.new_batch)

    async def commit(self, pack: Pack, letters: Sequence[DeadLetter]) -> int:
        """Make `pack` durable as one transaction. Returns the journal offset after its last record.

        `Fenced`: another writer is in charge. `Doubt`: the outcome is open. After any error this committer is spent.
        """
        if self._spent:
            raise AssertionError("a committer that failed once must not be used again")
        self._spent = True
        if letters:
            await self._dead_letters.write(letters)
        self._require_lease()
        await self._producer.begin()
        end = 0
        for batch in pack.batches:
            end = await self._producer.append(batch)
        self._require_lease()
        await self._producer.commit()
        self._spent = False
        return end

    async def close(self) -> None:
        await self._producer.discard()

    def _require_lease(self) -> None:
        if not self._may_write():
            raise Fenced("the lease could not be renewed in time")
