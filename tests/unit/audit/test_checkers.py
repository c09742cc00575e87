"""Each invariant's checker: content with what the core decides, and it finds the fault that it is for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import cache

import msgspec
import pytest

from ops.audit import refusals
from ops.audit.intake import Consumed, Taken
from ops.audit.keys import KeysOnce
from ops.audit.order import GapFree, WriterEpochs
from ops.audit.owners import Owners
from ops.audit.refusals import NothingFenced
from ops.audit.replay import CheckpointHolds, Replay
from ops.audit.runs import RunEpochs
from ops.audit.turns import NothingLost
from ops.audit.violations import Checker, Findings, Tally, Verdict, Violation
from streams.core.commands import CloseConversation, EraseConversation
from streams.core.events import (
    Assignment,
    BatchCommitted,
    ConversationHandedBack,
    ConversationHandedOver,
    ConversationOpened,
    Entry,
    Event,
    Frame,
    FrameCommitted,
    MemberDraining,
    MemberJoined,
    MemberLeft,
    MoveReason,
    OwnerChanged,
    PersonFrameCommitted,
    Refused,
    RefusedReason,
    Rejected,
    RunCancelling,
    RunEnded,
    RunMoved,
    RunStarted,
    RunStatus,
    TurnCommitted,
    TurnEdited,
    TurnRegenerated,
    WriterOpened,
)
from streams.core.fold import step
from streams.core.run_events import forget_run
from streams.core.state import KEY_LIFETIME_MS, Partition
from streams.core.store import dump_conversation, dump_partition
from tests.support.command_sequences import seeded_commands
from tests.support.journals import (
    CONVERSATION,
    GROUP,
    Journal,
    answered,
    changed,
    continued,
    ready,
    taken_over,
    with_event,
    without,
)
from tests.support.partition_world import World

pytestmark = pytest.mark.unit

CHECKERS: list[Callable[[], Checker]] = [GapFree, WriterEpochs, RunEpochs, NothingLost, NothingFenced, KeysOnce]
JOURNALS = [ready, answered, taken_over, continued]


def found(checker: Checker, entries: Iterable[Entry]) -> list[str]:
    return [problem for entry in entries for problem in checker.see(entry)]


def refolded(entries: Iterable[Entry]) -> list[str]:
    """Problems of invariant 3, deciding again along the journal."""
    replay = Replay(0)
    problems: list[str] = []
    for entry in entries:
        problems += Owners(replay.state).see(entry)
        assert not replay.see(entry)
    replay.close()
    return problems


@pytest.mark.parametrize("journal", JOURNALS)
@pytest.mark.parametrize("checker", CHECKERS)
def test_a_journal_that_the_core_made_breaks_nothing(
    checker: Callable[[], Checker], journal: Callable[[], Journal]
) -> None:
    assert not found(checker(), journal().entries)


@pytest.mark.parametrize("journal", JOURNALS)
def test_deciding_again_and_replaying_agree_with_the_core(journal: Callable[[], Journal]) -> None:
    assert not refolded(journal().entries)


SEEDS = range(4)


@cache
def decided(seed: int) -> list[Entry]:
    state = Partition(0)
    return [entry for command in seeded_commands(seed, 5_000) for entry in step(state, command, 1)]


@pytest.mark.parametrize("seed", SEEDS)
def test_no_sequence_of_commands_brings_the_core_to_break_a_promise(seed: int) -> None:
    entries = decided(seed)
    assert not refolded(entries)
    for checker in CHECKERS:
        # That a member's id is never used again is the gateways' promise, which these sequences' gateways do not keep.
        assert [problem for problem in found(checker(), entries) if "is used again" not in problem] == []


def test_these_sequences_lose_owners_continue_runs_and_wait_in_line() -> None:
    tallies = [counted(decided(seed)) for seed in SEEDS]
    continued = sum(tally.continued for tally in tallies)
    assert sum(tally.takeovers for tally in tallies) > continued > 0
    opened = [entry.event for seed in SEEDS for entry in decided(seed) if isinstance(entry.event, TurnCommitted)]
    assert any(turn.queued for turn in opened)


# ------------------------------------------------------------------------------------------------ 1
def test_1_a_missing_lsn_is_found() -> None:
    entries = answered().entries
    assert found(GapFree(), [*entries[:4], *entries[5:]]) == ["lsn 6 follows 4"]


def test_1_a_repeated_seq_is_found() -> None:
    journal = answered()
    journal.say("more")
    broken = with_event(journal.entries, TurnCommitted, changed(seq=1), nth=1)
    assert found(GapFree(), broken) == ["seq 1 follows 2"]


def test_1_the_first_lsn_is_1() -> None:
    assert found(GapFree(), answered().entries[1:])[0] == "lsn 2 follows 0"


def test_1_a_numbered_event_has_a_conversation() -> None:
    broken = with_event(answered().entries, TurnCommitted, changed(conversation_id=None))
    assert "an event of no conversation has seq 1" in found(GapFree(), broken)


# ------------------------------------------------------------------------------------------------ 2
def test_2_a_new_epoch_without_writer_opened_is_found() -> None:
    journal = answered()
    journal.open_writer()
    journal.say("more")
    assert found(WriterEpochs(), without(journal.entries, WriterOpened, nth=1)) == [
        "epoch 2 begins without WriterOpened"
    ]


def test_2_an_epoch_that_goes_back_is_found() -> None:
    journal = answered()
    journal.open_writer()
    late = msgspec.structs.replace(journal.say("late")[-1], writer_epoch=1)
    assert found(WriterEpochs(), [*journal.entries[:-1], late]) == ["written in epoch 1 after epoch 2"]


def test_2_an_epoch_that_opens_twice_is_found() -> None:
    journal = answered()
    journal.open_writer()
    twice = msgspec.structs.replace(journal.entries[-1], lsn=journal.entries[-1].lsn + 1)
    assert found(WriterEpochs(), [*journal.entries, twice]) == ["epoch 2 opens after epoch 2"]


def test_2_writer_opened_names_its_own_epoch() -> None:
    broken = with_event(answered().entries, WriterOpened, changed(writer_epoch=7))
    assert found(WriterEpochs(), broken) == ["WriterOpened names epoch 7"]


# ------------------------------------------------------------------------------------------------ 3
def test_3_a_turn_given_to_another_than_the_winner_is_found() -> None:
    journal = ready()
    journal.say()
    loser = journal.other(journal.owner)
    wrong = Assignment(GROUP, loser, f"{CONVERSATION}/1/{GROUP}")
    assert len(refolded(with_event(journal.entries, TurnCommitted, changed(assigned=(wrong,))))) == 1


def test_3_a_turn_that_skips_a_group_is_found() -> None:
    journal = ready()
    journal.say()
    problems = refolded(with_event(journal.entries, TurnCommitted, changed(assigned=())))
    assert len(problems) == 1
    assert f"deciding again gives ['{GROUP}']" in problems[0]


def test_3_a_run_moved_to_another_than_the_winner_is_found() -> None:
    journal = ready()
    journal.join("gw-1.3")
    journal.say()
    journal.leave(journal.owner)
    moved = next(entry.event for entry in journal.entries if isinstance(entry.event, RunMoved))
    assert moved.to_member is not None
    wrong = journal.other(moved.to_member)
    assert len(refolded(with_event(journal.entries, RunMoved, changed(to_member=wrong)))) == 1


def test_3_a_run_adopted_by_one_who_never_had_it_is_found() -> None:
    journal = ready()
    journal.say()
    journal.leave(journal.owner)
    assert len(refolded(with_event(journal.entries, RunMoved, changed(adopted=True)))) == 1


def test_3_a_turn_given_to_one_that_drains_is_found() -> None:
    journal = ready()
    journal.say()
    journal.drain(journal.owner)
    journal.say()
    assert not refolded(journal.entries)
    assert any("was given to" in problem for problem in refolded(without(journal.entries, MemberDraining)))


def test_3_a_run_that_begins_anew_with_a_member_that_can_continue_it_is_found() -> None:
    assert refolded(with_event(continued().entries[:-3], RunMoved, changed(continued=False, checkpoint_lsn=0))) == [
        f"run {CONVERSATION}/1/{GROUP} moves with continued=False; deciding again gives True"
    ]


def test_3_a_run_that_is_continued_by_a_member_that_cannot_is_found() -> None:
    entries = with_event(continued().entries, MemberJoined, changed(continues=False), nth=0)
    entries = with_event(entries, MemberJoined, changed(continues=False), nth=1)
    assert len(refolded(entries)) == 1


def test_3_a_change_of_owner_that_did_not_happen_is_found() -> None:
    journal = ready()
    journal.say()
    invented = OwnerChanged(
        conversation_id=CONVERSATION, group=GROUP, previous="gw-1.9", owner=journal.owner, reason=MoveReason.MEMBER_LEFT
    )
    entry = msgspec.structs.replace(journal.entries[-1], lsn=journal.entries[-1].lsn + 1, event=invented)
    assert len(refolded([*journal.entries, entry])) == 1


def test_3_a_run_that_waits_in_line_behind_nobody_is_found() -> None:
    world = World(policy="enqueue")
    world.join("a", settle=True)
    world.open()
    world.say()
    world.say("second")
    world.say("third")
    end = Entry(world.state.lsn + 1, world.at, world.wall, 1, BatchCommitted(turns=3, frames=0, membership=1))
    assert not Owners(world.state).see(end)
    forget_run(world.state, world.conversation(), next(iter(world.conversation().runs.values())))
    assert Owners(world.state).see(end) == ["run c/2/agents/support waits in line behind nobody"]


# ------------------------------------------------------------------------------------------------ 4
def test_4_a_frame_of_an_epoch_that_has_moved_on_is_found() -> None:
    journal = taken_over()
    late = next(entry for entry in journal.entries if isinstance(entry.event, FrameCommitted))
    assert [p for p in found(RunEpochs(), [*journal.entries[:-2], late]) if "at run epoch 1; it is at 2" in p]


def test_4_a_frame_of_one_who_does_not_hold_the_run_is_found() -> None:
    journal = answered()
    broken = with_event(journal.entries, FrameCommitted, changed(member=journal.other(journal.owner)))
    assert len(found(RunEpochs(), broken)) == 1


def test_4_a_second_answer_beside_one_that_is_not_superseded_is_found() -> None:
    broken = with_event(taken_over().entries, RunMoved, changed(superseded=()))
    assert any("not superseded" in problem for problem in found(RunEpochs(), broken))


def test_4_a_second_answer_beside_one_that_was_continued_only_by_name_is_found() -> None:
    broken = with_event(continued().entries, RunMoved, changed(continued=False, checkpoint_lsn=0))
    assert any("not superseded" in problem for problem in found(RunEpochs(), broken))


def test_4_a_continued_run_that_is_superseded_is_found() -> None:
    broken = with_event(continued().entries, RunMoved, changed(superseded=(2,)))
    assert any("continued, and superseded" in problem for problem in found(RunEpochs(), broken))


def test_4_a_continued_run_without_its_last_checkpoint_is_found() -> None:
    broken = with_event(continued().entries, RunMoved, changed(checkpoint_lsn=0))
    assert any("moves with the checkpoint of lsn 0" in problem for problem in found(RunEpochs(), broken))


def test_4_a_run_that_moves_by_two_epochs_is_found() -> None:
    broken = with_event(taken_over().entries, RunMoved, changed(run_epoch=3))
    assert "RunMoved of run" in found(RunEpochs(), broken)[0]


def test_4_a_run_that_ends_twice_is_found() -> None:
    entries = answered().entries
    assert found(RunEpochs(), [*entries, entries[-1]]) == [
        f"RunEnded of run {CONVERSATION}/1/{GROUP}, which is not open"
    ]


def test_4_a_run_that_is_started_by_another_is_found() -> None:
    journal = answered()
    broken = with_event(journal.entries, RunStarted, changed(member=journal.other(journal.owner)))
    assert len(found(RunEpochs(), broken)) == 1


# ------------------------------------------------------------------------------------------------ 5
def counted(entries: Iterable[Entry]) -> Tally:
    checker = NothingLost()
    assert not found(checker, entries)
    return checker.settle()


def test_5_what_became_of_each_turn_is_counted() -> None:
    tally = counted(answered().entries)
    assert (tally.turns, tally.answered, tally.open, tally.ended, tally.takeovers) == (1, 1, 0, 0, 0)


@pytest.mark.parametrize(("skew_ms", "skewed"), [(0, 0), (60_000, 0), (60_001, 1), (-60_001, 1), (5 * 3_600_000, 1)])
def test_a_turn_from_a_clock_more_than_a_minute_off_is_counted_and_no_violation(skew_ms: int, skewed: int) -> None:
    entries = answered().entries
    at = next(index for index, entry in enumerate(entries) if isinstance(entry.event, TurnCommitted))
    said = entries[at].event
    assert isinstance(said, TurnCommitted)
    turn = msgspec.structs.replace(said.turn, client_at=entries[at].timestamp + skew_ms)
    wrong = msgspec.structs.replace(entries[at], event=msgspec.structs.replace(said, turn=turn))
    assert counted([*entries[:at], wrong, *entries[at + 1 :]]).skewed == skewed


def test_5_a_takeover_is_counted_once() -> None:
    tally = counted(taken_over().entries)
    assert (tally.turns, tally.answered, tally.takeovers) == (1, 1, 1)


def test_5_a_takeover_that_goes_on_where_it_stopped_is_counted_as_such() -> None:
    tally = counted(continued().entries)
    assert (tally.answered, tally.takeovers, tally.continued) == (1, 1, 1)
    assert counted(taken_over().entries).continued == 0


def test_5_a_takeover_by_way_of_an_empty_group_is_counted_once() -> None:
    journal = ready()
    journal.say()
    journal.leave("gw-1.1")
    journal.leave("gw-1.2")
    journal.join("gw-1.3")
    assert counted(journal.entries).takeovers in {1, 2}
    moves = [entry.event for entry in journal.entries if isinstance(entry.event, RunMoved)]
    assert counted(journal.entries).takeovers == len([move for move in moves if move.to_member is not None])


def test_5_a_turn_without_its_end_is_open() -> None:
    assert counted(without(answered().entries, RunEnded)).open == 1


@pytest.mark.parametrize("end", [CloseConversation, EraseConversation])
def test_5_a_waiting_turn_ends_with_its_conversation(end: type[CloseConversation | EraseConversation]) -> None:
    journal = ready()
    journal.leave("gw-1.1")
    journal.leave("gw-1.2")
    journal.say()
    assert counted(journal.entries).open == 1
    journal.take(
        end(at=journal.at, timestamp=journal.at, conversation_id=CONVERSATION, by="ana", reason="done", id="x")
    )
    tally = counted(journal.entries)
    assert (tally.open, tally.ended) == (0, 1)


def test_5_an_end_without_a_reason_is_found() -> None:
    broken = with_event(answered().entries, RunEnded, changed(reason=""))
    assert "without a reason" in found(NothingLost(), broken)[0]


def test_5_a_run_of_a_turn_that_does_not_wait_is_found() -> None:
    journal = ready()
    journal.leave("gw-1.1")
    journal.leave("gw-1.2")
    journal.say()
    journal.join("gw-1.3")
    broken = with_event(journal.entries, TurnCommitted, changed(waiting=()))
    assert "does not wait for agents" in found(NothingLost(), broken)[0]


# ------------------------------------------------------------------------------------------------ 6
def refused(ref: str) -> Refused:
    return Refused(conversation_id=CONVERSATION, reason=RefusedReason.FENCED, ref=ref, member="gw-1.1")


def test_6_a_refused_frame_that_is_stored_is_found_in_either_order() -> None:
    entries = answered().entries
    stored = next(entry for entry in entries if isinstance(entry.event, FrameCommitted))
    assert isinstance(stored.event, FrameCommitted)
    refusal = msgspec.structs.replace(stored, event=refused(str(stored.event.ref)))
    for both in ([*entries, refusal], [refusal, *entries]):
        checker = NothingFenced()
        assert not found(checker, both)
        assert len(checker.account([stored.event.ref, None])) == 1
        assert not checker.account([])


def test_6_a_frame_that_lay_in_the_intake_twice_may_be_stored_and_refused() -> None:
    """Without a key the repeat is no repeat; its run ended in between."""
    entries = answered().entries
    stored = next(entry for entry in entries if isinstance(entry.event, FrameCommitted))
    assert isinstance(stored.event, FrameCommitted)
    refusal = msgspec.structs.replace(stored, event=refused(str(stored.event.ref)))
    checker = NothingFenced()
    found(checker, entries)
    assert not checker.account([stored.event.ref])
    found(checker, [refusal])
    assert not checker.account([stored.event.ref]), "the second one"


def test_6_a_frame_of_one_who_has_left_is_found() -> None:
    journal = taken_over()
    stale = next(entry for entry in journal.entries if isinstance(entry.event, FrameCommitted))
    assert "who is not there" in found(NothingFenced(), [*journal.entries, stale])[0]


def test_6_a_member_id_that_is_used_again_is_found() -> None:
    journal = taken_over()
    again = [entry for entry in journal.entries if type(entry.event).__name__ == "MemberJoined"]
    assert any("used again" in problem for problem in found(NothingFenced(), [*journal.entries, *again]))


def test_6_a_member_that_left_is_known_when_more_left_than_are_kept_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refusals, "GONE_RESIDENT", 4)
    journal = ready()
    members = [f"gw-1.{number}" for number in range(10, 30)]
    for member in members:
        journal.join(member)
        journal.leave(member)
    again = [entry for entry in journal.entries if isinstance(entry.event, MemberJoined)][2:]
    checker = NothingFenced()
    assert found(checker, [*journal.entries, *again]) == [f"the member id {member} is used again" for member in members]
    checker.close()


def test_6_a_member_of_an_ended_gateway_is_found() -> None:
    journal = ready()
    journal.expire()
    again = msgspec.structs.replace(journal.entries[2], event=changed(member="gw-1.9")(journal.entries[2].event))
    assert found(NothingFenced(), [*journal.entries, again]) == ["gw-1.9 joins through gateway gw-1, which has ended"]


def test_6_a_member_that_leaves_twice_is_found() -> None:
    journal = taken_over()
    left = [entry for entry in journal.entries if isinstance(entry.event, MemberLeft)]
    assert len(found(NothingFenced(), [*journal.entries, *left])) == 1


# ------------------------------------------------------------------------------------------------ 7
def test_7_a_key_that_is_stored_twice_is_found() -> None:
    journal = ready()
    journal.say(key="same")
    journal.say(key="other")
    turn = next(entry.event for entry in journal.entries if isinstance(entry.event, TurnCommitted)).turn
    assert (
        "was stored at lsn"
        in found(KeysOnce(), with_event(journal.entries, TurnCommitted, changed(turn=turn), nth=1))[0]
    )


def test_7_the_same_key_of_another_person_or_conversation_is_another() -> None:
    journal = ready()
    journal.open("conversation-2")
    journal.say(key="same")
    journal.say(key="same", conversation="conversation-2")
    assert not found(KeysOnce(), journal.entries)


def test_7_a_conversation_opened_twice_under_one_key_is_found() -> None:
    entries = ready().entries
    opened = [entry for entry in entries if isinstance(entry.event, ConversationOpened)]
    assert len(found(KeysOnce(), [*entries, *opened])) == 1


def test_7_a_key_may_come_again_after_a_day() -> None:
    journal = ready()
    first = journal.say(key="same")[-1]
    at = first.at + KEY_LIFETIME_MS
    assert not found(KeysOnce(), [*journal.entries, msgspec.structs.replace(first, at=at)])
    assert found(KeysOnce(), [*journal.entries, msgspec.structs.replace(first, at=at - 1)])


# ------------------------------------------------------------------------------------------- 9, 10
def test_9_an_entry_that_cannot_follow_is_found_and_ends_the_replay() -> None:
    entries = answered().entries
    replay = Replay(0)
    problems = found(replay, [*entries[:-1], msgspec.structs.replace(entries[-1], writer_epoch=9), entries[-1]])
    replay.close()
    assert len(problems) == 1
    assert replay.broken


def test_9_a_replay_that_is_split_and_spilled_gives_the_same_bytes() -> None:
    journal = ready()
    for n in range(40):
        journal.open(f"extra-{n}")
        journal.say(conversation=f"extra-{n}")
    for run in [r for c in journal.state.conversations.values() for r in c.runs.values()][:20]:
        journal.frame(str(run.member), run_id=run.id, conversation_id=run.id.split("/")[0])
    replay = Replay(0, resident_most=4)
    for n, entry in enumerate(journal.entries):
        replay.require(str(entry.event.conversation_id))
        assert not replay.see(entry)
        if n % 7 == 0:
            replay.relieve()
        if n % 11 == 0:
            assert not replay.split()
    assert len(replay.state.conversations) < len(journal.state.conversations)
    assert dump_partition(replay.state) == dump_partition(journal.state)
    assert replay.count == len(journal.state.conversations)
    for name, conversation in journal.state.conversations.items():
        row = replay.row_of(name)
        assert row is not None
        assert row[0] == dump_conversation(conversation)[0]
    replay.close()


def checkpoint_of(journal: Journal) -> dict[str, object]:
    state = journal.state
    return {
        "lsn": state.lsn,
        "turns": state.turns,
        "frames": state.frames,
        "membership": state.membership,
        "state": dump_partition(state),
    }


def conversation_row(journal: Journal) -> dict[str, object]:
    state, _ = dump_conversation(journal.state.conversations[CONVERSATION])
    return {"conversation_id": CONVERSATION, "hot": False, "state": state}


@pytest.fixture
def replayed() -> Iterator[tuple[Journal, Replay]]:
    journal = answered()
    journal.batch(3, 4, 5)
    replay = Replay(0)
    assert not found(replay, journal.entries)
    yield journal, replay
    replay.close()


def test_10_a_checkpoint_that_is_a_replay_to_its_lsn_holds(replayed: tuple[Journal, Replay]) -> None:
    journal, replay = replayed
    holds = CheckpointHolds()
    assert not list(holds.compare(replay, checkpoint_of(journal)))
    assert not list(holds.compare_conversation(replay, conversation_row(journal)))
    assert not list(holds.ahead(journal.state.lsn, journal.state.lsn))


@pytest.mark.parametrize(
    ("field", "value"), [("state", b"other"), ("turns", 2), ("turns", 4), ("frames", 3), ("membership", 0)]
)
def test_10_a_checkpoint_of_another_state_is_found(replayed: tuple[Journal, Replay], field: str, value: object) -> None:
    journal, replay = replayed
    assert len(list(CheckpointHolds().compare(replay, {**checkpoint_of(journal), field: value}))) == 1


@pytest.mark.parametrize(
    ("field", "value"), [("state", b"other"), ("hot", True), ("conversation_id", "conversation-9")]
)
def test_10_a_row_of_another_state_is_found(replayed: tuple[Journal, Replay], field: str, value: object) -> None:
    journal, replay = replayed
    row = {**conversation_row(journal), field: value}
    assert len(list(CheckpointHolds().compare_conversation(replay, row))) == 1


def test_10_a_checkpoint_may_have_consumed_what_decided_nothing_but_not_what_the_next_batch_has_not(
    replayed: tuple[Journal, Replay],
) -> None:
    journal, replay = replayed
    row = {**checkpoint_of(journal), "frames": 6, "membership": 9}
    for frames, problems in ((6, 0), (5, 1)):
        holds = CheckpointHolds()
        assert not list(holds.compare(replay, row))
        journal.batch(3, frames, 9)
        assert len(holds.see(journal.entries.pop())) == problems
        journal.state.frames = 4


def test_10_a_checkpoint_ahead_of_the_journal_is_found() -> None:
    assert list(CheckpointHolds().ahead(7, 6)) == ["the checkpoint is at lsn 7, the journal ends at 6"]


# ------------------------------------------------------------------------------------------------ 11
NOTHING = Taken("frames", (), ())


def batch_of(journal: Journal) -> Consumed:
    """A checker that has seen the journal, whose last entry is a `BatchCommitted`."""
    checker = Consumed()
    assert not found(checker, journal.entries)
    return checker


def spoken() -> Journal:
    """Two turns in a batch of their own: refs ref-2 and ref-3."""
    journal = ready()
    journal.batch(1)
    journal.say()
    journal.say()
    journal.batch(3)
    return journal


def last_batch(journal: Journal) -> Consumed:
    checker = Consumed()
    for entry in journal.entries:
        assert not checker.see(entry)
        if isinstance(entry.event, BatchCommitted) and entry is not journal.entries[-1]:
            checker.skip()
    return checker


def test_11_each_turn_that_was_consumed_has_its_outcome() -> None:
    assert not last_batch(spoken()).account(Taken("turns", ("ref-2", "ref-3"), ()), NOTHING)


def test_11_a_consumed_turn_without_an_outcome_is_found() -> None:
    problems = last_batch(spoken()).account(Taken("turns", ("ref-2", "ref-3", "ref-4"), ()), NOTHING)
    assert problems == ["ref ref-4 of turns: 1 consumed, 0 outcomes"]


def test_11_an_outcome_of_nothing_that_was_consumed_is_found() -> None:
    problems = last_batch(spoken()).account(Taken("turns", ("ref-2",), ()), NOTHING)
    assert problems == ["1 outcomes of what the consumed intake does not hold: ['ref-3']"]


def test_11_a_turn_with_two_outcomes_is_found() -> None:
    journal = spoken()
    checker = last_batch(Journal(entries=[*journal.entries[:-1], *journal.entries[-2:]]))
    assert checker.account(Taken("turns", ("ref-2", "ref-3"), ()), NOTHING) == [
        "ref ref-3 of turns: 1 consumed, 2 outcomes"
    ]


def test_11_a_frame_may_have_no_event_of_its_own_and_never_two() -> None:
    assert not last_batch(spoken()).account(Taken("turns", ("ref-2", "ref-3"), ()), Taken("frames", ("ref-8",), ()))


def test_11_what_cannot_be_decoded_is_rejected() -> None:
    journal = spoken()
    taken = Taken("turns", ("ref-2", "ref-3"), ("turns/0/2",))
    assert len(last_batch(journal).account(taken, NOTHING)) == 1
    rejected = msgspec.structs.replace(journal.entries[-1], event=Rejected(origin="turns/0/2", reason="truncated"))
    checker = last_batch(Journal(entries=[*journal.entries[:-1], rejected, journal.entries[-1]]))
    assert not checker.account(taken, NOTHING)


def test_11_what_the_core_failed_on_is_rejected_in_the_place_of_an_outcome() -> None:
    journal = spoken()
    taken = Taken("turns", ("ref-2", "ref-3", "ref-4"), (), ("turns/0/0", "turns/0/1", "turns/0/2"))
    assert len(last_batch(journal).account(taken, NOTHING)) == 1
    rejected = msgspec.structs.replace(journal.entries[-1], event=Rejected(origin="turns/0/2", reason="undecidable"))
    checker = last_batch(Journal(entries=[*journal.entries[:-1], rejected, journal.entries[-1]]))
    assert not checker.account(taken, NOTHING)


@pytest.mark.parametrize(
    "outcome",
    [
        PersonFrameCommitted(frame=Frame(id="f", type="abort"), sender="ann", channel="web", ref="ref-4"),
        TurnEdited(turn_seq=1, turn_id="t", by="ann", ref="ref-4"),
        TurnRegenerated(turn_seq=1, turn_id="t", by="ann", ref="ref-4"),
        ConversationHandedOver(by="ops", to="bob", reason="asked", id="h", ref="ref-4"),
        ConversationHandedBack(by="ops", reason="done", id="h", ref="ref-4"),
        RunCancelling(
            run_id="r", turn_seq=1, run_epoch=1, group="agents", member="m", by="ann", reason="stop", ref="ref-4"
        ),
        RunEnded(
            run_id="r",
            turn_seq=1,
            group="agents",
            member=None,
            run_epoch=1,
            status=RunStatus.CANCELLED,
            reason="cancelled",
            ref="ref-4",
        ),
    ],
    ids=lambda outcome: type(outcome).__name__,
)
def test_11_each_command_of_a_persons_side_has_its_outcome(outcome: Event) -> None:
    journal = spoken()
    entry = msgspec.structs.replace(journal.entries[-1], event=outcome)
    checker = last_batch(Journal(entries=[*journal.entries[:-1], entry, journal.entries[-1]]))
    assert not checker.account(Taken("turns", ("ref-2", "ref-3", "ref-4"), ()), NOTHING)


def test_11_a_position_that_goes_back_is_found() -> None:
    broken = with_event(spoken().entries, BatchCommitted, changed(turns=0), nth=1)
    assert found(Consumed(), broken) == ["the position in turns goes back from 1 to 0"]


# ------------------------------------------------------------------------------------------ the verdict
def test_the_verdict_counts_all_and_shows_the_first_hundred() -> None:
    findings = Findings()
    for lsn in range(150):
        findings.add(Violation(invariant=1, partition=0, lsn=lsn, conversation=None, problem="gap"))
    document = Verdict(Tally(events=150), findings).document()
    assert (document["ok"], document["violations_total"], len(document["violations"])) == (False, 150, 100)
    assert Counter(each["invariant"] for each in document["violations"]) == {1: 100}


def test_a_clean_verdict_has_the_contracted_fields() -> None:
    document = Verdict(counted(answered().entries), Findings()).document()
    contracted = {"ok", "events", "turns", "answered", "open", "takeovers", "fenced", "violations"}
    assert contracted <= set(document)
    assert (document["ok"], document["violations"]) == (True, [])
