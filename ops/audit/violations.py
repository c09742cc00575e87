"""What the checkers find, and what the whole audit says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Protocol

from streams.core.events import Entry, Event

SHOWN_MOST: Final = 100
"""Violations kept in full; all are counted. One broken batch can cause thousands that say the same."""
FIRST_OF_EACH: Final = 10
"""Of each invariant so many are kept all the same: thousands of one must not hide another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """One broken promise. `lsn` 0: it concerns the partition as a whole."""

    invariant: int
    partition: int
    lsn: int
    conversation: str | None
    problem: str

    def document(self) -> dict[str, Any]:
        """For the verdict's JSON."""
        return {
            "invariant": self.invariant,
            "partition": self.partition,
            "lsn": self.lsn,
            "conversation": self.conversation,
            "problem": self.problem,
        }


Kinds = tuple[type[Event], ...]


Problems = Sequence[str]
NOTHING: Final[Problems] = ()
Handler = Callable[[Any, Entry, Any], Problems]
"""A checker's method for one kind of event: it is given the entry and its event."""


class Checker(Protocol):
    """One invariant along one partition. What it remembers can be pickled, so that an audit can go on later."""

    invariant: ClassVar[int]
    kinds: ClassVar[Kinds]
    """The events that it looks at: of others it need not be told. Empty: it looks at all of them."""

    def see(self, entry: Entry) -> Problems:
        """The next entry; returns what it breaks, a sentence each."""


class Looking(Checker, Protocol):
    """A checker that may be asked without being asked first whether the kind of the event is its."""

    def look(self, entry: Entry, event: Any) -> Problems:
        """The next entry of one of its `kinds`, and its event."""


class Seeing:
    """A `Checker` with a method for each kind of event that it looks at."""

    handlers: ClassVar[Mapping[type[Event], Handler]]

    def see(self, entry: Entry) -> Problems:
        """See `Checker`."""
        handler = self.handlers.get(type(entry.event))
        return NOTHING if handler is None else handler(self, entry, entry.event)


SKEW_MS: Final = 60_000
"""A clock that is further off is told of: no promise rests on it, but what else its sender says of times may."""


@dataclass(slots=True)
class Tally:
    """What was counted along the way, over all partitions."""

    events: int = 0
    turns: int = 0
    answered: int = 0
    """Turns answered in every group that they were assigned to."""
    open: int = 0
    """Turns that wait or are being answered."""
    ended: int = 0
    """Turns over without an answer in each group, each with a reason: failed, cancelled, timed out, owner gone."""
    unrouted: int = 0
    """Turns of a channel that was routed to no agent channel."""
    takeovers: int = 0
    """Runs that another member took over from the one that had them."""
    continued: int = 0
    """Those of them that went on where they had stopped."""
    fenced: int = 0
    """Frames refused because their sender no longer held what it wrote to."""
    skewed: int = 0
    """Turns whose sender's clock was more than `SKEW_MS` from the broker's."""

    def add(self, other: Tally) -> None:
        """Add what another partition counted."""
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


@dataclass(slots=True)
class Findings:
    """All violations so far, the first `SHOWN_MOST` in full, and the first `FIRST_OF_EACH` of every invariant."""

    by_invariant: dict[int, int] = field(default_factory=dict)
    """How many there are of each."""
    shown: list[Violation] = field(default_factory=list)

    @property
    def count(self) -> int:
        """Of all invariants."""
        return sum(self.by_invariant.values())

    def add(self, violation: Violation) -> None:
        """Count it, and keep it if there is room."""
        known = self.by_invariant.get(violation.invariant, 0)
        self.by_invariant[violation.invariant] = known + 1
        if len(self.shown) < SHOWN_MOST or known < FIRST_OF_EACH:
            self.shown.append(violation)

    def join(self, other: Findings) -> None:
        """Add those of another partition."""
        for invariant, count in other.by_invariant.items():
            self.by_invariant[invariant] = self.by_invariant.get(invariant, 0) + count
        kept = Counter(each.invariant for each in self.shown)
        for violation in other.shown:
            if len(self.shown) < SHOWN_MOST or kept[violation.invariant] < FIRST_OF_EACH:
                self.shown.append(violation)
                kept[violation.invariant] += 1


@dataclass(frozen=True, slots=True)
class Verdict:
    """The audit's answer."""

    tally: Tally
    findings: Findings
    unchecked: tuple[int, ...] = ()
    """Invariants that could not be checked, or not of all: what they rest on is not there, or is kept no longer."""

    @property
    def ok(self) -> bool:
        """No promise is broken, as far as it could be checked."""
        return self.findings.count == 0

    def document(self) -> dict[str, Any]:
        """The contract with scripts: `turnlog audit verify -o json`."""
        tally = self.tally
        return {
            "ok": self.ok,
            "events": tally.events,
            "turns": tally.turns,
            "answered": tally.answered,
            "open": tally.open,
            "ended": tally.ended,
            "unrouted": tally.unrouted,
            "takeovers": tally.takeovers,
            "continued": tally.continued,
            "fenced": tally.fenced,
            "skewed": tally.skewed,
            "violations": [violation.document() for violation in self.findings.shown],
            "violations_total": self.findings.count,
            "violations_by_invariant": {str(number): n for number, n in sorted(self.findings.by_invariant.items())},
            "unchecked": list(self.unchecked),
        }
