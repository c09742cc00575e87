"""What happened in a stretch of history, put together for a report: who had what, from when to when, refusals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any, Final

from ops.audit.streamed import Key, Stream, stream_of
from ops.history import Recorded
from ops.shown import hidden_entry, masked_entry
from streams.core.events import (
    Entry,
    Event,
    FrameCommitted,
    MemberDraining,
    MemberJoined,
    MemberLeft,
    Refused,
    RunEnded,
    RunMoved,
    RunOpened,
    TurnCommitted,
    WriterOpened,
)
from streams.core.ids import run_id

LINES_MOST: Final = 400
"""Events of one conversation that are told one by one."""
REFUSALS_MOST: Final = 500
MEMBERS_MOST: Final = 1_000

Sentence = Callable[[Event], str]


@dataclass(slots=True)
class Told:
    """One conversation."""

    id: str
    partition: int
    first: int = 0
    last: int = 0
    """Broker's times, ms."""
    turns: int = 0
    moves: int = 0
    refusals: int = 0
    lines: list[dict[str, Any]] = field(default_factory=list)
    left_out: int = 0
    lanes: list[dict[str, Any]] = field(default_factory=list)
    """Who had a run from when to when: a row each time that it changed hands."""

    @property
    def weight(self) -> tuple[int, int, int]:
        """What is worth telling first: moves and refusals, then talk, then what is recent."""
        return self.moves + self.refusals, self.turns, self.last


class Chronicle:
    """Is shown the records of a stretch, in order, partition by partition; `of`: of one conversation alone.

    Everything is counted; lines and lanes are kept of the `chosen` conversations alone, for there may be millions.
    Nothing that was said in the `erased` ones is told.
    """

    def __init__(
        self,
        sentence: Sentence,
        *,
        of: str | None,
        chosen: Collection[str],
        show_text: bool,
        erased: Collection[str] = (),
    ) -> None:
        self._sentence = sentence
        self._of = of
        self._chosen = chosen
        self._show_text = show_text
        self._erased = erased
        self._open: dict[str, dict[str, Any]] = {}
        self._streams: dict[Key, Stream] = {}
        self.conversations: dict[str, Told] = {}
        self.events: Counter[str] = Counter()
        self.refusals: list[dict[str, Any]] = []
        self.refused = 0
        self.members: dict[tuple[int, str], dict[str, Any]] = {}
        self.writers: list[dict[str, Any]] = []
        self.first = self.last = 0

    def see(self, partition: int, recorded: Recorded, entry: Entry) -> None:
        """The next one."""
        event = entry.event
        name = event.conversation_id
        if self._of is not None and name is not None and name != self._of:
            return
        self.events[type(event).__name__] += 1
        self.first = self.first or entry.timestamp
        self.last = max(self.last, entry.timestamp)
        if name is not None:
            self._conversation(partition, name, entry)
        match event:
            case MemberJoined():
                self._member(partition, event.member, event.group, joined=entry.timestamp, gateway=event.gateway)
            case MemberDraining():
                self._member(partition, event.member, event.group, draining=entry.timestamp)
            case MemberLeft():
                left = {"left": entry.timestamp, "reason": str(event.reason)}
                self._member(partition, event.member, event.group, gateway=event.gateway, **left)
            case WriterOpened():
                opened = {"writer_epoch": event.writer_epoch, "worker": event.worker, "lsn": entry.lsn}
                self.writers.append({"partition": partition, "timestamp": entry.timestamp, **opened})
            case Refused():
                self._refused(partition, recorded, entry, event)
            case _:
                pass

    def settle(self) -> None:
        """After the last one: what is open stays open until the end."""
        for lane in self._open.values():
            lane["until"] = self.last
            lane["outcome"] = "open"

    def _conversation(self, partition: int, name: str, entry: Entry) -> None:
        told = self.conversations.get(name)
        if told is None:
            told = self.conversations[name] = Told(name, partition, first=entry.timestamp)
        told.last = entry.timestamp
        event = entry.event
        told.turns += isinstance(event, TurnCommitted)
        told.moves += isinstance(event, RunMoved)
        told.refusals += isinstance(event, Refused)
        if name in self._chosen:
            self._tell(told, entry)

    def _tell(self, told: Told, entry: Entry) -> None:
        event, name = entry.event, told.id
        match event:
            case TurnCommitted():
                for each in event.assigned:
                    self._held(told, entry, _lane(each.run_id, each.group, event.seq, each.member))
                for group in event.queued:
                    self._held(told, entry, _lane(run_id(name, event.seq, group), group, event.seq, None))
            case RunOpened():
                self._held(told, entry, _lane(event.run_id, event.group, event.turn_seq, event.member))
            case RunMoved():
                self._released(entry, event.run_id, f"moved: {event.reason}")
                lane = _lane(event.run_id, event.group, event.turn_seq, event.to_member)
                self._held(told, entry, {**lane, "run_epoch": event.run_epoch})
            case RunEnded():
                self._released(entry, event.run_id, str(event.status))
            case _:
                pass
        self._line(told, entry)

    def _line(self, told: Told, entry: Entry) -> None:
        stream = stream_of(entry.event)
        known = self._streams.get(stream) if stream is not None else None
        if known is None and len(told.lines) >= LINES_MOST:
            told.left_out += 1
            return
        shown = masked_entry(entry)
        if self._show_text:
            shown = hidden_entry(entry) if told.id in self._erased else entry
        line = {
            "lsn": entry.lsn,
            "seq": entry.event.seq,
            "timestamp": entry.timestamp,
            "event": type(entry.event).__name__,
            "words": self._sentence(shown.event),
        }
        if known is None:
            told.lines.append(line)
        if stream is not None and isinstance(entry.event, FrameCommitted) and isinstance(shown.event, FrameCommitted):
            masked = not self._show_text
            if known is None:
                known = self._streams[stream] = Stream(line, shown.event, masked)
            # Of what is masked only the length is kept.
            said = entry.event.frame.data if masked else shown.event.frame.data
            known.add(dict(line), said, self._sentence)

    def _held(self, told: Told, entry: Entry, lane: dict[str, Any]) -> None:
        run = lane["run_id"]
        lane["from"] = entry.timestamp
        self._released(entry, run, "given")
        self._open[run] = lane
        told.lanes.append(lane)

    def _released(self, entry: Entry, run: str, outcome: str) -> None:
        lane = self._open.pop(run, None)
        if lane is not None:
            lane["until"], lane["outcome"] = entry.timestamp, outcome

    def _member(self, partition: int, member: str, group: str, **facts: Any) -> None:
        known = self.members.get((partition, member))
        if known is None:
            if len(self.members) >= MEMBERS_MOST:
                return
            known = {"partition": partition, "member": member, "group": group, "joined": None, "left": None}
            self.members[partition, member] = known
        known.update(facts)

    def _refused(self, partition: int, recorded: Recorded, entry: Entry, refused: Refused) -> None:
        self.refused += 1
        if len(self.refusals) >= REFUSALS_MOST:
            return
        self.refusals.append(
            {
                "partition": partition,
                "offset": recorded.offset,
                "lsn": entry.lsn,
                "timestamp": entry.timestamp,
                "conversation": refused.conversation_id,
                "reason": str(refused.reason),
                "member": refused.member,
                "run_id": refused.run_id,
                "count": refused.count,
                "detail": refused.detail,
            }
        )


def _lane(run: str, group: str, turn_seq: int, member: str | None) -> dict[str, Any]:
    return {
        "run_id": run,
        "group": group,
        "turn_seq": turn_seq,
        "member": member,
        "run_epoch": 1,
        "from": 0,
        "until": None,
        "outcome": None,
    }
