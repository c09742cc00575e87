"""Seals a history: reads on where the chain ends, hashes, chains, signs; each segment once, whoever else seals."""

from __future__ import annotations

import asyncio
import hashlib
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

import msgspec

from ops.digest.keys import SigningKey
from ops.digest.leaves import leaves_of
from ops.digest.statements import (
    LEAVES,
    Digests,
    Leaves,
    Sealed,
    Statement,
    leaves_folder,
    leaves_name,
    seal,
    statement_name,
)
from ops.history.place import create_once
from ops.history.port import History, HistoryUnavailable, Missing, Range, Recorded
from streams.runtime.records import Undecodable

SEGMENT_RECORDS: Final = 100_000
"""Leaf hashes of so many records, and what names them, are 5 MB or so: what is held at a time."""

Notify = Callable[[str], None]


class Gap(HistoryUnavailable):
    """What is to be sealed next is missing. Nothing is sealed behind it unless a person says so."""

    def __init__(self, missing: Missing) -> None:
        super().__init__(
            f"MISSING: offsets {missing.gone} of partition {missing.partition} cannot be read, and were not sealed. "
            "Name the archive that has them (--archive); or, to seal what is left and have every comparison tell of "
            "the gap: --after-gap"
        )


class Sealer:
    """Seals one history into one place. Any number may do so at the same time."""

    def __init__(
        self,
        history: History,
        digests: Digests,
        key: SigningKey,
        *,
        segment_records: int = SEGMENT_RECORDS,
        after_gap: bool = False,
        notify: Notify,
    ) -> None:
        """`after_gap`: what is missing is sealed as such, and told by every comparison; else it raises `Gap`."""
        self._history = history
        self._digests = digests
        self._key = key
        self._most = segment_records
        self._after_gap = after_gap
        self._notify = notify
        self.upto: dict[int, int] = {}
        """By partition, the offset up to which all is sealed, as it was last seen."""

    async def seal(self) -> int:
        """Seal what is committed now and was not sealed; how many records. Raises `HistoryUnavailable`: nothing is put
        behind a statement that is not to be believed, and nothing that is missing is passed over."""
        sealed = 0
        for partition in range(self._history.partitions):
            sealed += await self._partition(partition)
        return sealed

    async def _partition(self, partition: int) -> int:
        sealed = 0
        until = (await self._history.bounds(partition)).end
        while (last := await self._last(partition)) is None or last.statement.end < until:
            start = 0 if last is None else last.statement.end
            if start >= until:
                break
            try:
                leaves, end = await self._leaves(partition, Range(start, until))
            except Missing as missing:
                if not self._after_gap:
                    raise Gap(missing) from missing
                leaves, end = None, missing.gone.end
            if await asyncio.to_thread(self._put, partition, Range(start, end), leaves, last):
                count = 0 if leaves is None else len(leaves.offsets)
                sealed += count
                what = "MISSING" if leaves is None else f"{count:,} records"
                self._notify(f"partition {partition}: sealed {Range(start, end)}, {what}")
        await asyncio.to_thread(self._clean, partition)
        return sealed

    async def _last(self, partition: int) -> Sealed | None:
        chain = await asyncio.to_thread(self._digests.chain, partition)
        if not chain:
            self.upto[partition] = 0
            return None
        last = chain[-1]
        problem = last.problem(self._digests.trust)
        if problem is None and last.statement.topic_id != self._history.identity:
            problem = f"is of another journal (topic id {last.statement.topic_id}, not {self._history.identity})"
        if problem is not None:
            raise HistoryUnavailable(f"partition {partition}: the digest of {last.statement.range} {problem}")
        self.upto[partition] = last.statement.end
        return last

    async def _leaves(self, partition: int, wanted: Range) -> tuple[Leaves, int]:
        """Of the first records in `wanted`, and up to where they reach."""
        gathered, end = _Gathered(), wanted.end
        try:
            async for chunk in self._history.read(partition, wanted.start, wanted.end):
                taken = chunk[: self._most - len(gathered.offsets)]
                for recorded, leaf in zip(taken, leaves_of(taken), strict=True):
                    gathered.add(recorded.offset, leaf, *self._named(recorded))
                if len(gathered.offsets) >= self._most:
                    end = taken[-1].offset + 1
                    break
        except Missing as missing:
            if missing.gone.start <= wanted.start:
                raise
            end = missing.gone.start  # what comes before it is sealed first
        return gathered.leaves(), end

    def _named(self, recorded: Recorded) -> tuple[int, str | None]:
        try:
            entry = self._history.decode(recorded)
        except Undecodable:
            return 0, None
        return entry.lsn, entry.event.conversation_id

    def _put(self, partition: int, segment: Range, leaves: Leaves | None, last: Sealed | None) -> bool:
        content = b"" if leaves is None else msgspec.msgpack.encode(leaves)
        name = "" if leaves is None else leaves_name(partition, segment, uuid.uuid4().hex[:8])
        lsns = [] if leaves is None else [lsn for lsn in leaves.lsns if lsn]
        statement = Statement(
            topic_id=self._history.identity,
            partition=partition,
            start=segment.start,
            end=segment.end,
            gone=leaves is None,
            records=0 if leaves is None else len(leaves.offsets),
            first_lsn=lsns[0] if lsns else None,
            last_lsn=lsns[-1] if lsns else None,
            leaves=name,
            leaves_sha256=hashlib.sha256(content).hexdigest(),
            previous="" if last is None else last.hash,
            sealed_at=f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
            key_id=self._key.id,
        )
        place = self._digests.place
        if leaves is not None:
            place.create(name, content)
        return create_once(place, statement_name(partition, segment.start), seal(statement, self._key))

    def _clean(self, partition: int) -> None:
        """Remove leaf hashes that no statement names and none will: see `Archiver.clean`."""
        chain = self._digests.chain(partition)
        if not chain:
            return
        named, end = {sealed.statement.leaves for sealed in chain}, chain[-1].statement.end
        for name in self._digests.place.names(leaves_folder(partition)):
            start = name.rsplit("/", 1)[-1].split("-")[0]
            if name.endswith(LEAVES) and start.isdecimal() and int(start) < end and name not in named:
                self._digests.place.remove(name)


class _Gathered:
    def __init__(self) -> None:
        self.offsets: list[int] = []
        self._hashes: list[bytes] = []
        self._lsns: list[int] = []
        self._conversations: dict[str, int] = {}
        self._of: list[int] = []

    def add(self, offset: int, leaf: bytes, lsn: int, conversation: str | None) -> None:
        self.offsets.append(offset)
        self._hashes.append(leaf)
        self._lsns.append(lsn)
        known = self._conversations
        self._of.append(-1 if conversation is None else known.setdefault(conversation, len(known)))

    def leaves(self) -> Leaves:
        return Leaves(self.offsets, b"".join(self._hashes), self._lsns, [*self._conversations], self._of)
