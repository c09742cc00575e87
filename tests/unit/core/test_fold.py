"""What `evolve` refuses, and what it lets pass."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from streams.core.commands import CommitBatch, CommitTurn, OpenWriter
from streams.core.events import (
    Assignment,
    BatchCommitted,
    ConversationClosed,
    ConversationOpened,
    ConversationReopened,
    Entry,
    Event,
    Frame,
    FrameCommitted,
    GatewayEnded,
    ListApplied,
    MemberJoined,
    MemberLeft,
    MoveReason,
    RunEnded,
    RunMoved,
    RunOpened,
    RunStarted,
    RunStatus,
    Turn,
    TurnCommitted,
    Unknown,
    WriterOpened,
)
from streams.core.fold import conversation_of, decide, evolve, step
from streams.core.state import ImpossibleEvent
from tests.support.partition_world import GROUP, WRITER_EPOCH, World, image

RUN = f"c/1/{GROUP}"


@pytest.fixture
def world() -> World:
    """A turn in conversation c, held by a; conversation d closed; gateway gw-9 ended."""
    world = World()
    world.join("a", settle=True)
    world.open()
    world.say()
    world.open("d")
    world.close("d")
    world.expire("gw-9")
    world.do(CommitBatch(at=world.at, timestamp=world.wall, turns=5, frames=5, membership=5))
    return world


def apply(world: World, event: Event, writer_epoch: int = WRITER_EPOCH) -> None:
    evolve(world.state, Entry(world.state.lsn + 1, world.at, world.wall, writer_epoch, event))


def frame(**fields: object) -> FrameCommitted:
    base = {
        "conversation_id": "c", "seq": 2, "frame": Frame(id="f", type="text"), "sender": "bot", "channel": "agents",
        "group": GROUP, "member": "a", "run_id": RUN, "run_epoch": 1,
    }  # fmt: skip
    return FrameCommitted(**(base | fields))  # type: ignore[arg-type]


def moved(**fields: object) -> RunMoved:
    base = {
        "conversation_id": "c", "run_id": RUN, "turn_seq": 1, "group": GROUP, "from_member": "a", "to_member": "b",
        "run_epoch": 2, "reason": MoveReason.MEMBER_LEFT,
    }  # fmt: skip
    return RunMoved(**(base | fields))  # type: ignore[arg-type]


def ended(**fields: object) -> RunEnded:
    base = {
        "conversation_id": "c", "run_id": RUN, "turn_seq": 1, "group": GROUP, "member": "a", "run_epoch": 1,
        "status": RunStatus.ANSWERED, "reason": "finished",
    }  # fmt: skip
    return RunEnded(**(base | fields))  # type: ignore[arg-type]


def turn(**fields: object) -> TurnCommitted:
    said = Turn(id="t", sender="ann", channel="web", type="text")
    return TurnCommitted(**({"conversation_id": "c", "seq": 2, "turn": said} | fields))  # type: ignore[arg-type]


IMPOSSIBLE: dict[str, Callable[[], Event]] = {
    "a frame of a run that is not open": lambda: frame(run_id="c/9/x"),
    "a frame of another epoch": lambda: frame(run_epoch=2),
    "a frame of another member": lambda: frame(member="b"),
    "a message without a seq": lambda: frame(seq=0),
    "an error frame with one": lambda: frame(frame=Frame(id="f", type="error")),
    "a seq that leaves a gap": lambda: frame(seq=3),
    "a turn without a seq": lambda: turn(seq=0),
    "a turn in a closed conversation": lambda: turn(conversation_id="d"),
    "a turn of a conversation that is not loaded": lambda: turn(conversation_id="nowhere"),
    "a turn that joins a run which asks nothing": lambda: turn(joins_run=RUN, interrupt_id="ask"),
    "a move of a run from another member": lambda: moved(from_member="b"),
    "a move that skips an epoch": lambda: moved(run_epoch=3),
    "a run event with a seq": lambda: moved(seq=2),
    "an end by another member": lambda: ended(member="b"),
    "an end of another epoch": lambda: ended(run_epoch=2),
    "an end of a run that is not open": lambda: ended(run_id="c/9/x"),
    "a start by another member": lambda: RunStarted(
        conversation_id="c", run_id=RUN, run_epoch=1, group=GROUP, member="b", turn_seq=1, by="read"
    ),
    "a run opened for a turn that does not wait": lambda: RunOpened(
        conversation_id="c", run_id="c/1/x", turn_seq=1, group="agents/x", channel="agents", member="a"
    ),
    "a second opening": lambda: ConversationOpened(conversation_id="c", channel="web"),
    "a close over an open run": lambda: ConversationClosed(conversation_id="c", seq=2, by="x", reason="x", id="x"),
    "a second close": lambda: ConversationClosed(conversation_id="d", seq=2, by="x", reason="x", id="x"),
    "a reopen of an open one": lambda: ConversationReopened(conversation_id="c", seq=2, by="x", id="x"),
    "a join of a known member": lambda: MemberJoined(
        member="a", group=GROUP, channel="agents", gateway="gw-1", n=2, since=0
    ),
    "a join at an ended gateway": lambda: MemberJoined(
        member="z", group=GROUP, channel="agents", gateway="gw-9", n=1, since=0
    ),
    "a leave of an unknown member": lambda: MemberLeft(
        member="z", group=GROUP, gateway="gw-1", n=2, reason=MoveReason.MEMBER_LEFT
    ),
    "a leave whose number goes back": lambda: MemberLeft(
        member="a", group=GROUP, gateway="gw-1", n=0, reason=MoveReason.MEMBER_LEFT
    ),
    "a list whose number goes back": lambda: ListApplied(gateway="gw-1", n=0),
    "an end of a gateway that has members": lambda: GatewayEnded(gateway="gw-1", reason="expired"),
    "positions that go back": lambda: BatchCommitted(turns=4, frames=5, membership=5),
    "a writer epoch that does not grow": lambda: WriterOpened(writer_epoch=1, worker="wk-2"),
}


@pytest.mark.parametrize("what", IMPOSSIBLE)
def test_what_cannot_follow_is_refused(world: World, what: str) -> None:
    with pytest.raises(ImpossibleEvent):
        apply(world, IMPOSSIBLE[what]())


def test_the_events_that_these_are_made_from_can_follow(world: World) -> None:
    apply(world, frame())
    apply(world, turn(seq=3, assigned=(Assignment(GROUP, "a", f"c/3/{GROUP}"),)))
    apply(world, moved(to_member=None))
    apply(world, ended(member=None, run_epoch=2))
    assert [(run.turn_seq, run.member) for run in world.conversation().runs.values()] == [(3, "a")]


def test_an_entry_of_another_writer_epoch_is_refused(world: World) -> None:
    with pytest.raises(ImpossibleEvent, match="writer epoch"):
        apply(world, ended(), writer_epoch=WRITER_EPOCH + 1)


@pytest.mark.parametrize(("at", "writer_epoch"), [(-1, 1), (0, 2)], ids=["log time back", "another writer epoch"])
def test_a_turn_that_cannot_follow_is_refused_on_the_short_way_too(world: World, at: int, writer_epoch: int) -> None:
    world.say()
    said = Turn(id="t", sender="ann", channel="web", type="text")
    command = CommitTurn(at=world.at + at, timestamp=world.wall, conversation_id="c", turn=said)
    with pytest.raises(ImpossibleEvent):
        step(world.state, command, writer_epoch)


def test_a_writer_whose_entry_says_another_epoch_is_refused(world: World) -> None:
    with pytest.raises(ImpossibleEvent, match="writer epoch"):
        apply(world, WriterOpened(writer_epoch=3, worker="wk-2"), writer_epoch=2)


def test_a_writer_epoch_below_the_journals_is_not_even_decided(world: World) -> None:
    with pytest.raises(ImpossibleEvent):
        decide(world.state, OpenWriter(at=world.at, timestamp=0, writer_epoch=1, worker="wk-2"))


def test_an_event_of_a_later_release_keeps_its_place_in_the_numbering(world: World) -> None:
    apply(world, Unknown(conversation_id="c", seq=2, name="Reaction", raw=b"?"))
    apply(world, Unknown(name="PartitionFrozen", raw=b"?"))
    assert world.conversation().head == 2
    with pytest.raises(ImpossibleEvent, match="seq"):
        apply(world, Unknown(conversation_id="c", seq=9, name="Reaction", raw=b"?"))


def test_a_command_names_the_conversation_that_it_needs(world: World) -> None:
    assert conversation_of(CommitBatch(at=0, timestamp=0, turns=0, frames=0, membership=0)) is None
    before = image(world.state)
    world.say(id_="nowhere")
    after = image(world.state)
    assert before.pop("") != after.pop(""), "the refusal took an lsn"
    assert before == after
