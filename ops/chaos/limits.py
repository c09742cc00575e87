"""The one known limit, met now and then: what an agent that names no run says may be taken for another turn.

Such an agent comes back with a watermark, is given a later turn before it has begun one that it claims, and says `run
started` alone: nothing in that says which of the two it means, and a process that serves one turn after another means
the first (docs/explanation/simulation.md). Where that was answered already, over a connection whose frames counted no
more, the answer to the second is stored for the first, and the second stays open. It is told, and is no violation; it
is recognised by the answer itself, so that nothing else is taken for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ops.chaos.notes import answer_to
from streams.core.events import Entry, RunEnded, RunMoved, RunOpened, RunStarted, TurnCommitted


@dataclass(slots=True)
class _Held:
    member: str | None
    turn_seq: int
    adopted: bool = False
    begun: bool = False


@dataclass(frozen=True, slots=True)
class Mistaken:
    """A run that was begun by its word alone; `beside`: what its member had not begun either, by turn."""

    run_id: str
    turn_seq: int
    beside: Mapping[int, str]


@dataclass(slots=True)
class Beginnings:
    """Of one conversation: beginnings that may have meant another turn."""

    doubtful: list[Mistaken] = field(default_factory=list)
    _runs: dict[str, _Held] = field(default_factory=dict)

    def take(self, entry: Entry) -> None:
        """The next entry of it."""
        event = entry.event
        match event:
            case TurnCommitted():
                for given in event.assigned:
                    self._runs[given.run_id] = _Held(given.member, event.seq)
            case RunOpened():
                self._runs[event.run_id] = _Held(event.member, event.turn_seq)
            case RunMoved():
                run = self._runs[event.run_id]
                run.member, run.adopted = event.to_member, event.adopted
            case RunStarted():
                self._started(event)
            case RunEnded():
                self._runs.pop(event.run_id, None)
            case _:
                pass

    def _started(self, event: RunStarted) -> None:
        run = self._runs[event.run_id]
        beside = {
            other.turn_seq: run_id
            for run_id, other in self._runs.items()
            if other.member == run.member and other.turn_seq > run.turn_seq and not other.begun
        }
        if run.adopted and not run.begun and event.by == "run" and beside:
            self.doubtful.append(Mistaken(event.run_id, event.turn_seq, beside))
        run.begun = True

    def mistaken(self, texts: Mapping[int, str], answers: Mapping[str, str]) -> dict[str, int]:
        """Runs about which nothing is to be concluded -> their turn: one whose answer is that of the other turn, and
        that one's. `texts`: by the seq of the turn; `answers`: the whole one that each run has."""
        found: dict[str, int] = {}
        for each in self.doubtful:
            for seq, run_id in each.beside.items():
                if answers.get(each.run_id) == answer_to(texts.get(seq, "")):
                    found |= {each.run_id: each.turn_seq, run_id: seq}
        return found
