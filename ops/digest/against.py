"""Compares a history with the digests of it, and names what was altered, removed or put in."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from ops.digest.leaves import LEAF_BYTES, leaves_of
from ops.digest.statements import BadStatement, Digests, Leaves, Sealed, Statement
from ops.history.port import History, Missing, Range, Recorded, merged
from streams.core.events import Entry
from streams.runtime.records import Undecodable

SHOWN_MOST: Final = 100
"""Kept in full; all are counted."""


class Kind(StrEnum):
    """What can be wrong."""

    ALTERED = "altered"
    REMOVED = "removed"
    INSERTED = "inserted"
    CUT_OFF = "cut off"
    """The history ends before what was sealed does."""
    DIGEST = "digest"
    """The digests themselves are not to be believed: a signature, a key, a link of the chain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tampering:
    """One difference between what was sealed and what is there."""

    kind: Kind
    partition: int
    problem: str
    """A sentence that names it."""
    offset: int | None = None
    lsn: int | None = None
    conversation: str | None = None

    def document(self) -> dict[str, Any]:
        """For `-o json`."""
        return {
            "kind": self.kind.value,
            "partition": self.partition,
            "offset": self.offset,
            "lsn": self.lsn,
            "conversation": self.conversation,
            "problem": self.problem,
        }

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Tampering:
        """From its document."""
        return cls(**{**document, "kind": Kind(document["kind"])})


@dataclass(slots=True)
class Evidence:
    """What the digests say of one partition."""

    partition: int
    found: list[Tampering] = field(default_factory=list)
    count: int = 0
    missing: list[Range] = field(default_factory=list)
    """Sealed, and not to be read: neither proved nor disproved."""
    records: int = 0
    """Compared and found as they were sealed."""
    sealed: Range = field(default_factory=lambda: Range(0, 0))
    """What the statements speak of."""
    unsealed: int = 0
    """Offsets behind it, of which nothing can be said yet."""
    head: str = ""
    """SHA-256 of the last statement."""

    @property
    def ok(self) -> bool:
        """All that was sealed is there as it was."""
        return not self.count and not self.missing

    def add(self, found: Iterable[Tampering]) -> None:
        """Count them, and keep them if there is room."""
        for each in found:
            self.count += 1
            if len(self.found) < SHOWN_MOST:
                self.found.append(each)

    def document(self) -> dict[str, Any]:
        """For `-o json`."""
        return {
            "partition": self.partition,
            "ok": self.ok,
            "missing": [[gone.start, gone.end] for gone in self.missing],
            "sealed": [self.sealed.start, self.sealed.end],
            "records": self.records,
            "unsealed": self.unsealed,
            "head": self.head,
            "violations": [each.document() for each in self.found],
            "violations_total": self.count,
        }

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Evidence:
        """From its document."""
        return cls(
            document["partition"],
            [Tampering.of(each) for each in document["violations"]],
            document["violations_total"],
            [Range(*gone) for gone in document["missing"]],
            document["records"],
            Range(*document["sealed"]),
            document["unsealed"],
            document["head"],
        )


async def against(
    history: History,
    digests: Digests,
    *,
    partitions: Iterable[int] | None = None,
    within: Range | None = None,
    progress: Callable[[int, int, int], None] = lambda *_: None,
) -> list[Evidence]:
    """What the digests say of these partitions of `history` (None: all), live or archived.

    `within`: compare these offsets alone; the chain is looked at as a whole in any case. `progress` gets the partition,
    the offset reached, and the end of what is sealed. Partitions are apart from one another: several processes may
    take some each.
    """
    wanted = range(history.partitions) if partitions is None else partitions
    return [await _partition(history, digests, partition, within, progress) for partition in wanted]


async def _partition(
    history: History,
    digests: Digests,
    partition: int,
    within: Range | None,
    progress: Callable[[int, int, int], None],
) -> Evidence:
    evidence = Evidence(partition)
    try:
        chain = await asyncio.to_thread(digests.chain, partition)
    except BadStatement as problem:
        evidence.add([Tampering(kind=Kind.DIGEST, partition=partition, problem=str(problem))])
        return evidence
    there = await history.bounds(partition)
    if not chain:
        evidence.unsealed = len(there)
        return evidence
    end = chain[-1].statement.end
    evidence.sealed, evidence.head = Range(chain[0].statement.start, end), chain[-1].hash
    evidence.unsealed = max(0, there.end - end)
    evidence.add(_of_the_chain(chain, digests, history.identity, partition))
    for sealed in chain:
        mine = sealed.statement.range
        wanted = mine if within is None else Range(max(mine.start, within.start), min(mine.end, within.end))
        if len(wanted) and sealed.problem(digests.trust) is None:
            await _segment(history, digests, sealed.statement, wanted, evidence)
            progress(partition, wanted.end, end)
    return evidence


def _of_the_chain(chain: Sequence[Sealed], digests: Digests, topic_id: str, partition: int) -> Iterator[Tampering]:
    """What is wrong with the statements themselves."""
    end, previous = 0, ""
    for sealed in chain:
        statement = sealed.statement
        problem = sealed.problem(digests.trust)
        if problem is None and (statement.topic_id, statement.partition) != (topic_id, partition):
            problem = f"is of partition {statement.partition} of the topic with id {statement.topic_id}"
        if problem is None and statement.start != end:
            problem = f"follows the one that ends at offset {end}: what lay between was taken out, or put in twice"
        if problem is None and statement.previous != previous:
            problem = "does not follow the one before it: that was replaced, or one between them was taken out"
        if problem is not None:
            said = f"the digest of offsets {statement.range} {problem}"
            yield Tampering(kind=Kind.DIGEST, partition=partition, offset=statement.start, problem=said)
        end, previous = statement.end, sealed.hash


async def _segment(history: History, digests: Digests, statement: Statement, wanted: Range, evidence: Evidence) -> None:
    if statement.gone:
        evidence.missing = merged([*evidence.missing, wanted])
        return
    try:
        leaves = await asyncio.to_thread(digests.leaves, statement)
    except BadStatement as problem:
        said = f"the digest of offsets {statement.range}: {problem}"
        evidence.add([Tampering(kind=Kind.DIGEST, partition=statement.partition, offset=statement.start, problem=said)])
        return
    comparison = Comparison(statement.partition, leaves, history)
    comparison.skip(wanted.start)
    start = wanted.start
    while start < wanted.end:
        try:
            async for chunk in history.read(statement.partition, start, wanted.end):
                evidence.add(comparison.see(chunk))
            start = wanted.end
        except Missing as missing:
            gone = Range(missing.gone.start, min(missing.gone.end, wanted.end))
            evidence.missing = merged([*evidence.missing, gone])
            evidence.add(comparison.passed(gone.start))
            comparison.skip(gone.end)
            start = gone.end
    there = await history.bounds(statement.partition)
    evidence.add(comparison.passed(min(wanted.end, there.end)))
    evidence.add(comparison.cut_off(wanted.end))
    evidence.records += comparison.same


class Comparison:
    """One sealed segment, beside what is read of it in order."""

    def __init__(self, partition: int, leaves: Leaves, history: History) -> None:
        self._partition = partition
        self._leaves = leaves
        self._history = history
        self._next = 0
        """Index of the next sealed record that is expected."""
        self._last = -1
        self.same = 0

    def see(self, chunk: Sequence[Recorded]) -> Iterator[Tampering]:
        """The next records that are there; what they differ in."""
        found = leaves_of(chunk)
        begin, end = self._next, self._next + len(chunk)
        sealed = self._leaves
        # All as it was, the everyday case: one comparison for the whole chunk. A leaf has its record's offset in it.
        if sealed.hashes[begin * LEAF_BYTES : end * LEAF_BYTES] == b"".join(found):
            self._next, self._last = end, chunk[-1].offset
            self.same += len(chunk)
            return
        for recorded, leaf in zip(chunk, found, strict=True):
            yield from self._one(recorded, leaf)

    def _one(self, recorded: Recorded, leaf: bytes) -> Iterator[Tampering]:
        offset = recorded.offset
        if offset <= self._last:
            yield self._there(Kind.INSERTED, recorded, f"comes after offset {self._last}: it was put in, or moved")
            return
        self._last = offset
        yield from self.passed(offset)
        if self._next >= len(self._leaves.offsets) or self._leaves.offsets[self._next] != offset:
            yield self._there(Kind.INSERTED, recorded, "was not there when it was sealed")
            return
        index, self._next = self._next, self._next + 1
        if self._leaves.hash_at(index) == leaf:
            self.same += 1
            return
        was = self._sealed(index)
        now = self._entry(recorded)
        changed = "" if now is None or now.lsn == was[0] else f"; it says lsn {now.lsn} now"
        yield self._tampering(Kind.ALTERED, offset, was, f"is not what was sealed{changed}")

    def passed(self, offset: int) -> Iterator[Tampering]:
        """Nothing more comes below `offset`: what was sealed there is gone."""
        until = bisect_left(self._leaves.offsets, offset, lo=self._next)
        for index in range(self._next, until):
            yield self._tampering(Kind.REMOVED, self._leaves.offsets[index], self._sealed(index), "is gone")
        self._next = max(self._next, until)

    def skip(self, offset: int) -> None:
        """What lies below `offset` cannot be read."""
        self._next = bisect_left(self._leaves.offsets, offset, lo=self._next)

    def cut_off(self, until: int) -> Iterator[Tampering]:
        """The history ends here: what was sealed behind it, below `until`, is gone, said once."""
        left = bisect_left(self._leaves.offsets, until, lo=self._next) - self._next
        if left:
            offset, was = self._leaves.offsets[self._next], self._sealed(self._next)
            what = (
                f"and {left - 1} more behind it are not there: the history ends before them (of an archive alone: it "
                "was cut, or is behind)"
            )
            yield self._tampering(Kind.CUT_OFF, offset, was, what)

    def _sealed(self, index: int) -> tuple[int | None, str | None]:
        return self._leaves.lsns[index] or None, self._leaves.conversation_at(index)

    def _entry(self, recorded: Recorded) -> Entry | None:
        try:
            return self._history.decode(recorded)
        except Undecodable:
            return None

    def _there(self, kind: Kind, recorded: Recorded, what: str) -> Tampering:
        entry = self._entry(recorded)
        named = (None, None) if entry is None else (entry.lsn, entry.event.conversation_id)
        return self._tampering(kind, recorded.offset, named, what)

    def _tampering(self, kind: Kind, offset: int, named: tuple[int | None, str | None], what: str) -> Tampering:
        lsn, conversation = named
        where = f"partition {self._partition}, offset {offset}"
        of = "" if conversation is None else f" of conversation {conversation}"
        return Tampering(
            kind=kind,
            partition=self._partition,
            offset=offset,
            lsn=lsn,
            conversation=conversation,
            problem=f"{where}: the event with lsn {lsn or 'unknown'}{of} {what}",
        )
