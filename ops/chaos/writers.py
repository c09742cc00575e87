"""What workers wrote down in their diaries, against what leases and checkpoints promise.

Kafka's fence would refuse most of what is looked for here, so that nothing of it shows in the journal: these are the
guards in front of it, each of which has to hold by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ops.chaos.diary import Deed
from ops.chaos.schedule import TTL_S

MARGIN_S: Final = TTL_S / 5
"""Of a lease's time, its end is left alone by its holder (`streams.fence.heartbeat`)."""
EVERYTHING: Final = -1


@dataclass(frozen=True, slots=True)
class Loss:
    """A time, on the diaries' clock, at whose end PostgreSQL was what it had been before its beginning."""

    began: float
    ended: float


@dataclass(slots=True)
class Losses:
    """When PostgreSQL lost history. Nothing can be said about a lease or a token across one."""

    known: list[Loss] = field(default_factory=list)

    def near(self, at: float) -> bool:
        """Whether rows of before it may be what was seen: until each lease was renewed since, or ended."""
        return any(loss.began <= at <= loss.ended + TTL_S for loss in self.known)

    def between(self, first: float, second: float) -> bool:
        """Whether one of them lies between two moments, or touches one of them."""
        low, high = sorted((first, second))
        return any(loss.began <= high and loss.ended >= low for loss in self.known)


Note = Mapping[str, Any]


def writer_problems(diaries: Mapping[str, Sequence[Note]], losses: Losses) -> Iterator[str]:
    """All that a lease or a token of a checkpoint should have prevented. `diaries`: by the process's name."""
    notes = sorted(
        ({**note, "process": name} for name, diary in diaries.items() for note in diary), key=lambda note: note["at"]
    )
    partitions = sorted({note["partition"] for note in notes} - {EVERYTHING})
    for partition in partitions:
        own = [note for note in notes if note["partition"] in {partition, EVERYTHING}]
        yield from _leases(partition, own, losses)
        yield from _snapshots(partition, own, losses)


def _leases(partition: int, notes: Sequence[Note], losses: Losses) -> Iterator[str]:
    """Nobody begins a write shortly before another worker may claim, nor after it."""
    claims = [note for note in notes if note["note"] == Deed.CLAIMED]
    ends = [note for note in notes if note["note"] == Deed.HANDED_BACK]
    late: dict[int, Note] = {}
    """The last such write before, or after, each claim."""
    for write in notes:
        if write["note"] != Deed.MAY_WRITE:
            continue
        # The claim that ended its epoch. Who is taken for dead may not have heard of it; a worker's own lease goes on.
        index = next((n for n, claim in enumerate(claims) if claim["epoch"] > write["epoch"]), None)
        if index is None or claims[index]["by"] != "time" or claims[index]["worker"] == write["worker"]:
            continue
        at = claims[index]["at"]
        if write["at"] <= at - MARGIN_S / 2 or losses.near(at) or losses.between(write["at"], at):
            continue
        # What was handed back may be claimed at once.
        if write["at"] > at or not _handed_back(ends, write, claims[index]):
            late[index] = write
    for index, write in late.items():
        claim, gap_ms = claims[index], (write["at"] - claims[index]["at"]) * 1000
        yield (
            f"partition {partition}: {write['process']} might write under epoch {write['epoch']} {abs(gap_ms):.0f} ms "
            f"{'after' if gap_ms > 0 else 'before'} {claim['process']} claimed epoch {claim['epoch']}; a lease ends "
            f"{MARGIN_S * 1000:.0f} ms later than its holder's writes"
        )


def _handed_back(ends: Iterable[Note], write: Note, claim: Note) -> bool:
    return any(
        end["process"] == write["process"] and end["epoch"] in {0, write["epoch"]} and end["at"] <= claim["at"]
        for end in ends
    )


def _snapshots(partition: int, notes: Sequence[Note], losses: Losses) -> Iterator[str]:
    """After a claim no older writer's snapshot is stored."""
    taken: list[Note] = []
    for note in notes:
        if note["note"] == Deed.TOOK:
            taken.append(note)
        elif note["note"] == Deed.SAVED:
            over = [
                took for took in taken if took["epoch"] > note["epoch"] and not losses.between(took["at"], note["at"])
            ]
            if over:
                yield (
                    f"partition {partition}: {note['process']} stored a snapshot of epoch {note['epoch']} after "
                    f"{over[-1]['process']} had put epoch {over[-1]['epoch']} into the checkpoint's row"
                )
