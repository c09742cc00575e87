"""Invariant 11: intake is consumed if and only if its outcome is in the journal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final

from ops.audit.violations import NOTHING, Kinds, Problems
from streams.core.events import (
    BatchCommitted,
    ConversationClosed,
    ConversationErased,
    ConversationHandedBack,
    ConversationHandedOver,
    ConversationMoved,
    ConversationOpened,
    ConversationReopened,
    Duplicate,
    Entry,
    FrameCommitted,
    PersonFrameCommitted,
    Refused,
    Rejected,
    RunCancelling,
    RunEnded,
    TurnCommitted,
    TurnEdited,
    TurnRegenerated,
)
from streams.fence.port import Positions

ANSWERS: Final[Kinds] = (
    ConversationOpened,
    ConversationClosed,
    ConversationReopened,
    ConversationHandedOver,
    ConversationMoved,
    ConversationErased,
    ConversationHandedBack,
    TurnCommitted,
    TurnEdited,
    TurnRegenerated,
    FrameCommitted,
    PersonFrameCommitted,
    RunCancelling,
    Duplicate,
    Refused,
)
"""Events that complete a command, by its ref. (A `RunEnded` does where it has one.)"""
_ANSWERS: Final = frozenset(ANSWERS)


@dataclass(frozen=True, slots=True)
class Taken:
    """What lay in the intake, of one topic, in a range of offsets."""

    topic: str
    refs: tuple[str | None, ...]
    """Of the records that can be decoded, in order; None: a record without one."""
    undecodable: tuple[str, ...]
    """Origins (`topic/partition/offset`) of those that cannot."""
    origins: tuple[str, ...] = ()
    """Those of `refs`, in the same order: what the core failed on is rejected though it can be decoded."""

    def without(self, rejected: set[str]) -> Taken:
        """What was not."""
        left = [ref for ref, origin in zip(self.refs, self.origins, strict=False) if origin not in rejected]
        return self if len(left) == len(self.refs) or not self.origins else replace(self, refs=tuple(left))


@dataclass(slots=True)
class Batch:
    """The outcomes of one batch, until its positions are known."""

    refs: Counter[Any] = field(default_factory=Counter)
    """Outcomes of each."""
    rejected: set[str] = field(default_factory=set)
    without_ref: int = 0


class Consumed:
    """11: positions only grow, without a hole; every turn that they cover has one outcome in the same batch, every
    frame at most one, and what cannot be decoded a `Rejected`.

    Remembers one batch. Whoever drives it has it `note` entries before it `look`s at those of its `kinds`, and finds
    what the intake held between two positions: `covered` gives the range once a batch is whole, `account` takes what
    was found there.
    """

    invariant: ClassVar[int] = 11
    kinds: ClassVar[Kinds] = (BatchCommitted, Rejected)

    def __init__(self) -> None:
        self.covered = Positions()
        """Positions of the last batch."""
        self.open = Batch()
        """Outcomes since."""

    def see(self, entry: Entry) -> Problems:
        """See `Checker`."""
        self.note((entry,))
        return self.look(entry, entry.event) if type(entry.event) in self.kinds else NOTHING

    def note(self, entries: Sequence[Entry]) -> None:
        """Note the outcomes among them, before the end of their batch is looked at."""
        batch = self.open
        batch.refs.update([e.event.ref for e in entries if type(e.event) in _ANSWERS])  # type: ignore[attr-defined]
        batch.without_ref += batch.refs.pop(None, 0)
        ended = [e.event.ref for e in entries if type(e.event) is RunEnded]
        batch.refs.update([ref for ref in ended if ref is not None])

    def look(self, _: Entry, event: Any) -> Problems:
        """See `Looking`."""
        if type(event) is BatchCommitted:
            return self._grown(event)
        known = event.origin in self.open.rejected
        self.open.rejected.add(event.origin)
        return [f"{event.origin} is rejected twice"] if known else NOTHING

    def _grown(self, batch: BatchCommitted) -> list[str]:
        found = []
        for topic in ("turns", "frames", "membership"):
            before, after = getattr(self.covered, topic), getattr(batch, topic)
            if after < before:
                found.append(f"the position in {topic} goes back from {before} to {after}")
        self.covered = Positions(batch.turns, batch.frames, batch.membership)
        return found

    def account(self, turns: Taken, frames: Taken) -> list[str]:
        """Compare the batch that just ended with what its ranges held, and begin the next one."""
        batch, self.open = self.open, Batch()
        if self._plain(turns, frames, batch):
            return []
        if batch.rejected:
            turns, frames = turns.without(batch.rejected), frames.without(batch.rejected)
        found = [*self._each_once(turns, batch), *self._at_most_once(frames, batch)]
        unsaid = (origin for origin in (*turns.undecodable, *frames.undecodable) if origin not in batch.rejected)
        found.extend(f"{origin} cannot be decoded, was consumed, and is not rejected" for origin in unsaid)
        extra = sorted(set(batch.refs) - set(turns.refs) - set(frames.refs))
        if extra:
            found.append(f"{len(extra)} outcomes of what the consumed intake does not hold: {extra[:3]}")
        return found

    def skip(self) -> None:
        """Begin the next batch without a look at the intake: it is kept no longer that far back."""
        self.open = Batch()

    def _plain(self, turns: Taken, frames: Taken, batch: Batch) -> bool:
        """Each turn and some of the frames have their one outcome, and there is no other: all is well."""
        if batch.rejected or batch.without_ref or turns.undecodable or frames.undecodable:
            return False
        outcomes, asked = batch.refs, set(turns.refs)
        if len(asked) != len(turns.refs) or None in asked or not outcomes.keys() >= asked:
            return False
        others = set(frames.refs)
        once = sum(outcomes.values()) == len(outcomes)
        return (
            once and len(others) == len(frames.refs) and asked.isdisjoint(others) and asked | others >= outcomes.keys()
        )

    def _each_once(self, turns: Taken, batch: Batch) -> Iterable[str]:
        expected = Counter(turns.refs)
        for ref, records in expected.items():
            if ref is None:
                if batch.without_ref < records:
                    yield f"{records} turns without a ref were consumed, and {batch.without_ref} have an outcome"
            elif (outcomes := batch.refs.get(ref, 0)) != records:
                yield f"ref {ref} of {turns.topic}: {records} consumed, {outcomes} outcomes"

    def _at_most_once(self, frames: Taken, batch: Batch) -> Iterable[str]:
        # Frames that only say how a run stands, and a zombie's beyond the sixteenth, have no event of their ref.
        for ref, records in Counter(frames.refs).items():
            if ref is not None and (outcomes := batch.refs.get(ref, 0)) > records:
                yield f"ref {ref} of {frames.topic}: {records} consumed, {outcomes} outcomes"
