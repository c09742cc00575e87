"""Invariant 8 and what goes with it: what the clients saw against what the journal holds.

All of it is a pure function of the journal's entries and of what was written down, so that it can be shown to fail.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ops.chaos.limits import Beginnings
from ops.chaos.notes import ANSWER, answer_to
from ops.chaos.people import Line
from ops.chaos.viewers import Seen
from streams.core.events import (
    ConversationClosed,
    ConversationReopened,
    Entry,
    FrameCommitted,
    RunEnded,
    RunMoved,
    RunOpened,
    RunStatus,
    TurnCommitted,
)

CUT_OFF: Final = "closed"
"""Id of the chunk that ends a stream in its lost owner's stead."""


@dataclass(slots=True)
class Told:
    """One conversation as the journal tells it."""

    numbered: dict[int, TurnCommitted | FrameCommitted | ConversationClosed | ConversationReopened] = field(
        default_factory=dict
    )
    superseded: set[int] = field(default_factory=set)
    given: dict[tuple[str, int], str | None] = field(default_factory=dict)
    """Who holds a run at an epoch."""
    ended: dict[str, RunEnded] = field(default_factory=dict)
    beginnings: Beginnings = field(default_factory=Beginnings)

    def take(self, entry: Entry) -> None:
        """The next event of it."""
        event = entry.event
        self.beginnings.take(entry)
        match event:
            case TurnCommitted():
                self.numbered[event.seq] = event
                for assigned in event.assigned:
                    self.given[assigned.run_id, assigned.run_epoch] = assigned.member
            case RunOpened():
                self.given[event.run_id, event.run_epoch] = event.member
            case RunMoved():
                self.given[event.run_id, event.run_epoch] = event.to_member
                self.superseded.update(event.superseded)
            case RunEnded():
                self.ended[event.run_id] = event
                self.superseded.update(event.superseded)
            case FrameCommitted() | ConversationClosed() | ConversationReopened() if event.seq:
                self.numbered[event.seq] = event
            case _:
                pass

    @property
    def open_runs(self) -> set[str]:
        """Runs that are not over; without those of which nothing can be concluded (`limits`)."""
        return {run for run, _ in self.given} - set(self.ended) - set(self.mistaken)

    @property
    def mistaken(self) -> Mapping[str, int]:
        """Runs of which nothing can be concluded (`limits`) -> their turn."""
        if not self.beginnings.doubtful:
            return {}
        answers = {run: found[-1] for run, found in self._whole().items() if run is not None}
        return self.beginnings.mistaken({turn.seq: turn.turn.text or "" for turn in self.turns()}, answers)

    def turns(self) -> Iterator[TurnCommitted]:
        """In order."""
        for _, event in sorted(self.numbered.items()):
            if isinstance(event, TurnCommitted):
                yield event

    def answers(self) -> list[str]:
        """The whole messages of agents that count: streams joined, what was superseded or cut off left out."""
        return [whole for found in self._whole().values() for whole in found]

    def _whole(self) -> dict[str | None, list[str]]:
        """They, by run."""
        streams: dict[str, list[str]] = {}
        found: dict[str | None, list[str]] = {}
        for seq, event in sorted(self.numbered.items()):
            if not isinstance(event, FrameCommitted) or seq in self.superseded:
                continue
            if event.frame.type != "genui":
                found.setdefault(event.run_id, []).append(event.frame.text or "")
                continue
            chunk = json.loads(event.frame.data or "{}")
            stream = streams.setdefault(event.frame.stream_id or "", [])
            stream.append(str(chunk.get("content", "")))
            if event.frame.done and chunk.get("id") != CUT_OFF:
                found.setdefault(event.run_id, []).append("".join(stream))
        return found


def tell(entries: Iterable[Entry]) -> Mapping[str, Told]:
    """Every conversation that the entries, in the order of their partitions, speak of."""
    told: dict[str, Told] = {}
    for entry in entries:
        if (conversation := entry.event.conversation_id) is not None:
            told.setdefault(conversation, Told()).take(entry)
    return told


def viewer_problems(conversation: str, told: Told, seen: Sequence[Seen]) -> Iterator[str]:
    """In order, no gap, no repeat on any connection; each frame the journal's; and all of them in the end."""
    place: dict[int, int] = {}
    highest = 0
    for each in seen:
        seq = each.frame.get("seq")
        if not isinstance(seq, int):
            continue
        expected = place.get(each.connection, each.after) + 1
        if seq != expected:
            what = "again" if seq < expected else "too early"
            yield (
                f"a viewer of {conversation} got seq {seq} {what} (connection {each.connection}, asked for what is "
                f"after {each.after}, {expected} was next)"
            )
        place[each.connection] = seq
        highest = max(highest, seq)
        if (event := told.numbered.get(seq)) is None:
            yield f"a viewer of {conversation} got seq {seq}, which the journal does not hold: {each.frame}"
        elif _essence(each.frame) != _essence_of(event):
            yield f"a viewer of {conversation} got at seq {seq} {each.frame}, the journal holds {event}"
    if highest != len(told.numbered):
        yield f"a viewer of {conversation} saw up to seq {highest} of {len(told.numbered)}"


def _essence(frame: Mapping[str, Any]) -> tuple[Any, ...]:
    if frame.get("type") == "genui":
        return "genui", frame.get("streamId"), frame.get("chunk"), frame.get("done")
    return frame.get("type"), frame.get("id"), (frame.get("data") or {}).get("text")


def _essence_of(event: Any) -> tuple[Any, ...]:
    match event:
        case TurnCommitted():
            return event.turn.type, event.turn.id, event.turn.text
        case FrameCommitted() if event.frame.type == "genui":
            return "genui", event.frame.stream_id, json.loads(event.frame.data or "{}"), event.frame.done
        case FrameCommitted():
            return event.frame.type, event.frame.id, event.frame.text
        case _:
            return "conversationUpdate", event.id, None


def line_problems(person: str, told: Told, lines: Sequence[Line]) -> Iterator[str]:
    """What a person said is there once, in the order of saying, as it was acknowledged."""
    turns = list(told.turns())
    expected = [line.text for line in lines]
    found = [turn.turn.text for turn in turns]
    if found != expected:
        missing = [text for text in expected if text not in found]
        counts = Counter(found)
        twice = [text for text in counts if counts[text] > 1]
        yield (
            f"{person} said {len(expected)} lines, the journal has {len(found)}; missing: {missing[:5]}, more than "
            f"once: {twice[:5]}" + ("" if missing or twice else ", in another order")
        )
    places = {(turn.turn.id, turn.seq) for turn in turns}
    for line in lines:
        if line.id is not None and (line.id, line.seq) not in places:
            yield f"{person} was told that {line.text} is {line.id} at seq {line.seq}, which the journal does not hold"


def answer_problems(conversation: str, told: Told) -> Iterator[str]:
    """One answer a turn, and none that was not asked for; a turn without one has an end with its reason."""
    answers = Counter(told.answers())
    beyond = set(told.mistaken.values())
    for turn in told.turns():
        count = answers.pop(answer_to(turn.turn.text or ""), 0)
        if count > 1:
            yield f"turn {turn.seq} of {conversation} was answered {count} times"
        runs = [run for run, _ in told.given if run.startswith(f"{conversation}/{turn.seq}/")]
        ends = [told.ended[run] for run in runs if run in told.ended]
        if not count and turn.seq not in beyond and any(end.status is RunStatus.ANSWERED for end in ends):
            yield f"turn {turn.seq} of {conversation} counts as answered, but its answer is not there as a whole"
        if not runs:
            yield f"turn {turn.seq} of {conversation} was given to nobody"
    for text, count in answers.items():
        shown = text if text.startswith(ANSWER) else f"a message that is no agent's: {text}"
        yield f"{conversation} has {count} of {shown!r}, which answers no turn of it"


def delivery_problems(told: Mapping[str, Told], agents: Mapping[str, Sequence[Mapping[str, Any]]]) -> Iterator[str]:
    """Turns went to whom the journal names, once a run epoch. `agents`: the notes of each agent process."""
    givings: Counter[tuple[str, int, str]] = Counter()
    for name, notes in agents.items():
        for given in _givings(notes):
            conversation, run, epoch, member = given
            holder = told[conversation].given.get((run, epoch), "") if conversation in told else ""
            if holder == "":
                yield f"{name} was given run {run} at epoch {epoch}, which the journal does not have"
            elif member is not None and holder != member:
                yield f"{name} ({member}) was given run {run} at epoch {epoch}, which is {holder}'s"
            givings[run, epoch, name] += 1
    processes: dict[tuple[str, int], set[str]] = {}
    for (run, epoch, name), count in givings.items():
        if count > 1:
            yield f"{name} was given run {run} at epoch {epoch} {count} times"
        processes.setdefault((run, epoch), set()).add(name)
    for (run, epoch), names in processes.items():
        if len(names) > 1:
            yield f"run {run} at epoch {epoch} was given to {sorted(names)}"


def _givings(notes: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str, int, str | None]]:
    """(conversation, run, epoch, member): the SDK's agents do not say as which member they got it."""
    for note in notes:
        if note["note"] == "turn" and note["run"] is not None:
            yield note["conversation"], note["run"], note["run_epoch"], None
        elif (
            note["note"] == "frame"
            and (inner := note["frame"].get("frame", {})).get("from") == "user"
            and "run" in inner
        ):
            yield note["conversation"], inner["run"], inner["runEpoch"], note["member"]
