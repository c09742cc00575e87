"""What the journal tells so far: who owns what, and how far each answer has come.

    WAITING ──▶ GIVEN ──▶ ANSWERING ──▶ ANSWERED ──▶ (the next turn) GIVEN
       ▲          │           │
       └──────────┴───────────┴──▶ GIVEN again, to another owner (RunMoved), or FAILED (RunEnded)

Pure: entries in, happenings out. It shows nothing that is not committed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from streams.core.events import (
    Entry,
    FrameCommitted,
    MemberJoined,
    MemberLeft,
    RunEnded,
    RunMoved,
    RunOpened,
    RunStarted,
    RunStatus,
    TurnCommitted,
)


class Progress(Enum):
    """Where the latest turn of a conversation is."""

    WAITING = "waiting for an agent"
    GIVEN = "given"
    ANSWERING = "answering"
    ANSWERED = "answered"
    FAILED = "failed"


class Kind(Enum):
    """What a happening is about, for those who colour it."""

    MEMBER = "member"
    TURN = "turn"
    ANSWER = "answer"
    MOVE = "move"
    FAILURE = "failure"


@dataclass(frozen=True, slots=True)
class Happening:
    """One line of the story."""

    kind: Kind
    text: str


@dataclass(slots=True)
class Row:
    """One conversation."""

    conversation: str
    title: str
    progress: Progress = Progress.WAITING
    turns: int = 0
    answered: int = 0
    seq: int = 0
    said: str = ""
    answer: str = ""
    owner: str | None = None
    """Member id of the run's holder."""
    epoch: int = 1
    run_id: str = ""
    """The run that was last worked on."""
    slowly: bool = False


@dataclass(slots=True)
class Board:
    """The demo's conversations, in the order in which they were opened."""

    rows: dict[str, Row] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    """Member id → name of its process."""
    titles: dict[str, str] = field(default_factory=dict)
    """Conversation → title, told by the people; an entry may come first."""
    moves: int = 0
    _here: set[str] = field(default_factory=set)
    """Members as the first partition to say so knows them: each of them has the same entries."""

    def name(self, member: str | None) -> str:
        """What people call a member."""
        return "nobody" if member is None else self.names.get(member, member)

    def took(self, entry: Entry) -> list[Happening]:
        """Apply one journal entry."""
        event = entry.event
        match event:
            case MemberJoined() if event.member not in self._here:
                self._here.add(event.member)
                return [Happening(Kind.MEMBER, f"{self.name(event.member)} joined group {event.group}")]
            case MemberLeft() if event.member in self._here:
                self._here.discard(event.member)
                return [Happening(Kind.MEMBER, f"{self.name(event.member)} is gone ({event.reason.value})")]
            case TurnCommitted():
                return self._asked(self._row(event.conversation_id), event)
            case RunOpened():
                return self._given(self._row(event.conversation_id), event.member, event.run_epoch)
            case RunStarted():
                row = self._row(event.conversation_id)
                row.progress, row.run_id = Progress.ANSWERING, event.run_id
            case FrameCommitted():
                self._said(self._row(event.conversation_id), event)
            case RunMoved():
                return self._moved(self._row(event.conversation_id), event)
            case RunEnded():
                return self._ended(self._row(event.conversation_id), event)
        return []

    def answering(self) -> Row | None:
        """The row whose answer is half said by an owner that takes its time."""
        for row in self.rows.values():
            if row.slowly and row.epoch == 1 and row.progress is Progress.ANSWERING and row.answer.count(" ") >= 3:
                return row
        return None

    def _row(self, conversation: str | None) -> Row:
        key = conversation or ""
        if key not in self.rows:
            self.rows[key] = Row(key, self.titles.get(key, key[:8]))
        return self.rows[key]

    def titled(self, conversation: str, title: str) -> None:
        """The people say what a conversation is about."""
        self.titles[conversation] = title
        self._row(conversation).title = title

    def _asked(self, row: Row, event: TurnCommitted) -> list[Happening]:
        row.turns += 1
        row.seq, row.said, row.answer = event.seq, event.turn.text or "", ""
        row.progress, row.owner, row.epoch = Progress.WAITING, None, 1
        row.slowly = _object(event.turn.metadata).get("slowly") is True
        asked = [Happening(Kind.TURN, f"{row.title} #{event.seq}: “{row.said}”")]
        for assignment in event.assigned:
            asked += self._given(row, assignment.member, assignment.run_epoch)
        return asked

    def _given(self, row: Row, member: str | None, epoch: int) -> list[Happening]:
        row.owner, row.epoch = member, epoch
        row.progress = Progress.GIVEN if member is not None else Progress.WAITING
        return [Happening(Kind.TURN, f"{row.title} #{row.seq} belongs to {self.name(member)}")]

    def _said(self, row: Row, event: FrameCommitted) -> None:
        if event.frame.type == "genui":
            chunk = _object(event.frame.data)
            row.answer += str(chunk.get("content", "")) if chunk.get("type") == "text" else ""
        elif event.frame.text is not None and event.seq:
            row.answer = event.frame.text

    def _moved(self, row: Row, event: RunMoved) -> list[Happening]:
        said = row.answer.strip()
        self.moves += 1
        row.owner, row.epoch = event.to_member, event.run_epoch
        if event.superseded:
            row.answer = ""
        row.progress = Progress.GIVEN if event.to_member is not None else Progress.WAITING
        half = f"; what it had said (“{said}…”) is superseded" if event.superseded and said else ""
        return [
            Happening(
                Kind.MOVE,
                f"{row.title} #{event.turn_seq} moved from {self.name(event.from_member)} to "
                f"{self.name(event.to_member)}, run epoch {event.run_epoch} ({event.reason.value}){half}",
            )
        ]

    def _ended(self, row: Row, event: RunEnded) -> list[Happening]:
        if event.status is not RunStatus.ANSWERED:
            row.progress = Progress.FAILED
            return [
                Happening(Kind.FAILURE, f"{row.title} #{event.turn_seq} ended: {event.status.value}, {event.reason}")
            ]
        row.progress = Progress.ANSWERED
        row.answered += 1
        return [
            Happening(
                Kind.ANSWER, f"{row.title} #{event.turn_seq} answered by {self.name(event.member)}: “{row.answer}”"
            )
        ]


def _object(text: str | None) -> Mapping[str, object]:
    value = json.loads(text) if text else {}
    return value if isinstance(value, dict) else {}
