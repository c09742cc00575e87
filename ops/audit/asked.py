"""What an audit is asked for, and what it answers of each partition."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ops.audit.source import CouldNotVerify
from ops.audit.violations import Findings, Tally, Verdict, Violation
from streams.runtime.partitioning import partition_of
from streams.settings import Settings

Notify = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """What to look at. A conversation: its partition is read as a whole, and what is told is of it alone."""

    partition: int | None = None
    conversation: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """Where the history is. `archive`: read first, Kafka from where it ends; `offline`: the archive alone."""

    archive: str | None = None
    offline: bool = False


LIVE: Final = Where()


@dataclass(frozen=True, slots=True)
class Asked:
    """What is asked for, and where it is. `settings` None: of an archive alone."""

    settings: Settings | None
    scope: Scope
    where: Where = LIVE


@dataclass(frozen=True, slots=True)
class Audited:
    """What became of one partition."""

    partition: int
    tally: Tally
    findings: Findings
    notes: tuple[str, ...] = ()
    """What could not be compared."""
    unchecked: tuple[int, ...] = ()
    """Invariants that it rests on; see `Verdict`."""

    def document(self) -> dict[str, Any]:
        """As JSON, for another process or a later time."""
        return {
            "partition": self.partition,
            "tally": {name: getattr(self.tally, name) for name in Tally.__slots__},
            "by_invariant": {str(number): count for number, count in self.findings.by_invariant.items()},
            "shown": [violation.document() for violation in self.findings.shown],
            "notes": list(self.notes),
            "unchecked": list(self.unchecked),
        }

    @classmethod
    def of(cls, document: dict[str, Any]) -> Audited:
        """From its document."""
        shown = [Violation(**violation) for violation in document["shown"]]
        findings = Findings({int(number): count for number, count in document["by_invariant"].items()}, shown)
        notes, unchecked = tuple(document["notes"]), tuple(document["unchecked"])
        return cls(document["partition"], Tally(**document["tally"]), findings, notes, unchecked)


def partitions_of(scope: Scope, count: int) -> Sequence[int]:
    """Those to be read. `CouldNotVerify`: there is no such partition."""
    if scope.conversation is not None:
        return (partition_of(scope.conversation, count),)
    if scope.partition is None:
        return range(count)
    if scope.partition >= count:
        raise CouldNotVerify(f"there is no partition {scope.partition}: they are 0 to {count - 1}")
    return (scope.partition,)


def verdict(scope: Scope, results: Sequence[Audited], notify: Notify) -> Verdict:
    """All of it together."""
    findings, tally = Findings(), Tally()
    for each in results:
        tally.add(each.tally)
        findings.join(each.findings)
    for note in dict.fromkeys(note for each in results for note in each.notes):
        notify(note)
    if scope.conversation is not None and not tally.events and not findings.count:
        raise CouldNotVerify(f"the journal has nothing of a conversation {scope.conversation}")
    return Verdict(tally, findings, tuple(sorted({number for each in results for number in each.unchecked})))
