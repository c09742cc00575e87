"""What memory keeps of the journal's end: bounded, whole from its floor on, checkpoints only as long as they count."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest

from connectors.gateway.recent import OVERHEAD_BYTES, Recent
from streams.core.events import (
    ConversationOpened,
    Entry,
    Event,
    Frame,
    FrameCommitted,
    MoveReason,
    RunEnded,
    RunMoved,
    RunStatus,
)


class Window:
    """A partition's window and what comes into it."""

    def __init__(self, **bounds: int) -> None:
        self.recent = Recent(1, **bounds)
        self._lsns = count(1)

    def add(self, event: Event) -> Entry:
        entry = Entry(next(self._lsns), 0, 0, 1, event)
        self.recent.add(0, entry)
        return entry

    def frame(self, type_: str, seq: int = 0, conversation: str = "c", run: str = "c/1/g", data: str = "{}") -> Entry:
        frame = Frame(id="f", type=type_, data=data)
        return self.add(
            FrameCommitted(
                conversation_id=conversation,
                seq=seq,
                frame=frame,
                sender="a",
                channel="agents",
                group="g",
                member="m",
                run_id=run,
                run_epoch=1,
            )
        )

    def moved(self, *superseded: int, conversation: str = "c") -> Entry:
        fields: dict[str, Any] = {"run_id": "c/1/g", "turn_seq": 1, "group": "g", "run_epoch": 2}
        members: dict[str, Any] = {"from_member": "m", "to_member": "n", "reason": MoveReason.MEMBER_LEFT}
        return self.add(RunMoved(conversation_id=conversation, superseded=superseded, **fields, **members))

    def ended(self, run: str = "c/1/g") -> Entry:
        fields: dict[str, Any] = {"turn_seq": 1, "group": "g", "member": "m", "run_epoch": 1, "reason": "finished"}
        return self.add(RunEnded(conversation_id="c", run_id=run, status=RunStatus.ANSWERED, **fields))

    def size(self) -> int:
        return self.recent._partitions[0].size


def test_the_last_checkpoint_of_each_open_run_is_kept_and_the_others_take_no_room() -> None:
    window = Window()
    for number in range(10):
        window.frame("checkpoint", data="x" * 100_000 + str(number))
    other = window.frame("checkpoint", run="c/2/g", data="other")
    kept = window.recent.checkpoint("c", "c/1/g")
    assert kept is not None
    assert isinstance(kept.event, FrameCommitted)
    assert kept.event.frame.data == "x" * 100_000 + "9"
    assert window.recent.checkpoint("c", "c/2/g") is other
    assert window.size() < 110_000 + 11 * OVERHEAD_BYTES
    window.ended()
    assert window.recent.checkpoint("c", "c/1/g") is None
    assert window.size() < 20 * OVERHEAD_BYTES


def test_checkpoints_are_no_part_of_a_transcript() -> None:
    window = Window()
    window.add(ConversationOpened(conversation_id="c", channel="web"))
    window.frame("checkpoint")
    window.frame("text", 1)
    window.moved(1)
    assert [entry.event.seq for entry in window.recent.entries("c")] == [0, 1]
    info = window.recent.info("c", None)
    assert info is not None
    assert info.head_seq == 1


def test_what_was_superseded_is_known_though_the_frames_are_not_kept() -> None:
    """The read model is asked only for what lies before the floor: the move is behind it."""
    window = Window(entries_max=2)
    window.frame("text", 1)
    window.frame("text", 1, conversation="other")
    window.moved(1)
    assert window.recent.floor(0) == 2
    assert window.recent.superseded("c") == {1}
    assert window.recent.info("c", None) is None
    window.frame("text", 2, conversation="other")
    window.frame("text", 3, conversation="other")
    assert window.recent.superseded("c") == set()


@pytest.mark.parametrize("order", [("checkpoint", "text"), ("text", "checkpoint")])
def test_everything_is_forgotten_in_its_order(order: tuple[str, str]) -> None:
    window = Window(entries_max=2)
    for kind in order:
        window.frame(kind, int(kind == "text"))
    window.frame("text", 1, conversation="d")
    left = window.recent.checkpoint("c", "c/1/g"), [entry.event.seq for entry in window.recent.entries("c")]
    assert [left[0] is not None, left[1] == [1]] == [kind == order[1] for kind in ("checkpoint", "text")]
    window.frame("text", 2, conversation="d")
    assert "c" not in window.recent._conversations
