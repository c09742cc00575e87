"""What holds for every sequence of commands: section 10's invariants, and that the journal is all there is."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from unittest.mock import patch

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streams.core import keys, store
from streams.core.commands import Command, CommitFrame, CommitPersonFrame, CommitTurn
from streams.core.due import due, is_kept, waits_for_room
from streams.core.events import (
    ConversationClosed,
    ConversationHandedOver,
    ConversationOpened,
    Duplicate,
    Entry,
    Event,
    FrameCommitted,
    MoveReason,
    PersonFrameCommitted,
    Refused,
    RunCancelling,
    RunEnded,
    RunMoved,
    RunOpened,
    TurnCommitted,
    TurnEdited,
    TurnRegenerated,
    Unknown,
    WriterOpened,
)
from streams.core.fold import conversation_of, decide, evolve, step
from streams.core.frame_types import CHECKPOINT
from streams.core.ids import key_of_turn, run_id
from streams.core.ownership import owner_of
from streams.core.policies import refused_by_all
from streams.core.runs import may_continue
from streams.core.state import KEY_LIFETIME_MS, ImpossibleEvent, Partition, Run
from streams.core.timers import BUCKET_MS
from tests.support.command_sequences import command_lists, seeded_commands
from tests.support.partition_world import image, replay

many = settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])

LIFETIME_MS = 1_000_000
"""Of keys, where a day would be too long for a short sequence."""


def run(commands: Iterable[Command], state: Partition | None = None) -> tuple[Partition, list[Entry]]:
    state = Partition(0) if state is None else state
    return state, [entry for command in commands for entry in step(state, command, 1)]


def indexes(state: Partition) -> dict[str, object]:
    """What is derived, in a form that can be compared; a run is looked at when it is due, or before."""
    runs = [run for conversation in state.conversations.values() for run in conversation.runs.values()]
    dues = {run.id: when for run in runs if (when := due(state, run)) is not None}
    assert all(state.timers.where[id_] <= when // BUCKET_MS for id_, when in dues.items())
    in_line = [(c.id, run) for c in state.conversations.values() for run in c.runs.values() if run.queued]
    assert Counter(id_ for id_, _ in in_line) == state.queued
    placed = [(c.id, run) for c in state.conversations.values() for run in c.runs.values() if not run.queued]
    held = Counter((run.member or run.group, id_) for id_, run in placed)
    holders = {**state.orphans, **{id_: member.conversations for id_, member in state.members.items()}}
    assert held == {(name, id_): count for name, counts in holders.items() for id_, count in counts.items()}
    for group in state.orphans:
        no_room = [
            (run.placed_at, id_, run.turn_seq, run.id)
            for id_, run in placed
            if run.group == group and waits_for_room(state, run)
        ]
        longest = refused_by_all(state, group, ())
        assert (longest and longest[1].id) == (min(no_room)[3] if no_room else None)
    return {
        "groups": {id_: (sorted(group.members), group.settled_at) for id_, group in state.groups.items()},
        "held": {id_: sorted(member.conversations.items()) for id_, member in state.members.items()},
        "orphans": {group: sorted(ids.items()) for group, ids in state.orphans.items()},
        "longest": {group: sorted(longest.present.values()) for group, longest in state.longest.items()},
        "queued": state.queued,
        "waiting": {channel: sorted(ids) for channel, ids in state.waiting.items()},
        "due": dues,
        "asking": {id_: conversation.asking for id_, conversation in state.conversations.items()},
    }


@many
@given(command_lists())
def test_a_fold_of_the_journal_gives_the_live_state_byte_for_byte(commands: list[Command]) -> None:
    state, entries = run(commands)
    folded = replay(entries)
    assert image(folded) == image(state)
    assert indexes(folded) == indexes(state)


@many
@given(command_lists())
def test_deciding_changes_nothing_and_step_is_decide_and_evolve(commands: list[Command]) -> None:
    stepped, by_hand = Partition(0), Partition(0)
    for command in commands:
        before = image(by_hand)
        events = decide(by_hand, command)
        assert image(by_hand) == before
        assert decide(by_hand, command) == events
        entries = step(stepped, command, 1)
        assert [entry.event for entry in entries] == events
        for entry in entries:
            evolve(by_hand, entry)
        assert image(by_hand) == image(stepped)


def stored_under(event: Event) -> str | None:
    """The idempotency key of what was stored."""
    if isinstance(event, TurnCommitted):
        return key_of_turn(event.turn)
    return getattr(event, "key", None) if not isinstance(event, ConversationOpened | Duplicate) else None


@many
@given(command_lists())
def test_a_keyed_command_decided_again_is_only_a_repeat(commands: list[Command]) -> None:
    state = Partition(0)
    for command in commands:
        for entry in step(state, command, 1):
            stored = entry.event
            if stored_under(stored) is None:
                continue
            [again] = decide(state, command)
            assert isinstance(again, Duplicate)
            assert again.of_seq == stored.seq
            assert isinstance(command, CommitTurn | CommitFrame | CommitPersonFrame)
            assert again.ref == command.ref


class Stored:
    """A checkpoint, as the runtime would keep it."""

    def __init__(self) -> None:
        self.partition = b""
        self.rows: dict[str, bytes] = {}
        self.keys: dict[str, dict[bytes, tuple[bytes, int, str, int, int]]] = defaultdict(dict)

    def save(self, state: Partition) -> None:
        for id_ in sorted(state.dirty):
            self.rows[id_], overflow = store.dump_conversation(state.conversations[id_])
            store.mark_stored(state.conversations[id_], overflow)
            for key in overflow:
                self.keys[id_][key.fingerprint] = (key.fingerprint, key.seq, key.id, key.at, key.timestamp)
        state.dirty.clear()
        self.partition = store.dump_partition(state)

    def restart(self) -> Partition:
        """A new worker: the partition and its hot conversations."""
        state = store.load_partition(self.partition, 0)
        for id_, row in self.rows.items():
            conversation = store.load_conversation(id_, row)
            if store.is_hot(conversation):
                store.attach(state, conversation)
        return state

    def evict(self, state: Partition) -> None:
        for id_ in [id_ for id_, conversation in state.conversations.items() if not store.is_hot(conversation)]:
            store.detach(state, id_)

    def require(self, state: Partition, id_: str | None, at: int) -> None:
        if id_ in self.rows and id_ not in state.conversations:
            store.attach(state, store.load_conversation(id_, self.rows[id_]))
        conversation = state.conversations.get(id_ or "")
        if conversation is not None and conversation.older_keys:
            older = self.keys[conversation.id].values()
            keys.restore_older(conversation, [row for row in older if row[3] >= at - LIFETIME_MS])

    def all(self, state: Partition) -> dict[str, bytes]:
        return {**self.rows, **image(state)}


@many
@given(command_lists(), st.data())
def test_checkpoints_evictions_and_restarts_anywhere_give_the_same_journal(
    commands: list[Command], data: st.DataObject
) -> None:
    with (
        patch.object(keys, "KEYS_IN_ROW", 2),
        patch.object(store, "KEYS_IN_ROW", 2),
        patch.object(keys, "KEY_LIFETIME_MS", LIFETIME_MS),
        patch.object(keys, "FORGET_EVERY", 1),
    ):
        live, entries = run(commands)
        state, stored, again = Partition(0), Stored(), list[Entry]()
        for command in commands:
            stored.require(state, conversation_of(command), command.at)
            again += step(state, command, 1)
            match data.draw(st.sampled_from(["go on", "save", "evict", "restart", "go on"])):
                case "save":
                    stored.save(state)
                case "evict":
                    stored.save(state)
                    stored.evict(state)
                case "restart":
                    stored.save(state)
                    state = stored.restart()
        assert again == entries
        stored.save(state)
        assert stored.all(state) == image(live)


@many
@given(command_lists(), st.data())
def test_a_crash_after_any_entry_is_replayed_from_the_last_checkpoint(
    commands: list[Command], data: st.DataObject
) -> None:
    live, entries = run(commands)
    cut = data.draw(st.integers(min_value=0, max_value=len(entries)))
    state, stored = Partition(0), Stored()
    for entry in entries[:cut]:
        evolve(state, entry)
    stored.save(state)
    recovered = stored.restart()
    for entry in entries[cut:]:
        stored.require(recovered, entry.event.conversation_id, entry.at)
        evolve(recovered, entry)
    assert stored.all(recovered) == image(live)
    for id_ in list(stored.rows):
        stored.require(recovered, id_, live.at)
    assert indexes(recovered) == indexes(live)


class Checker:
    """Section 10's invariants, one entry after the other, on a state of its own."""

    def __init__(self) -> None:
        self.state = Partition(0)
        self.heads: dict[str, int] = defaultdict(int)
        self.keys: dict[tuple[str, str], int] = {}
        self.epochs: dict[str, int] = {}
        self.open: set[str] = set()
        self.line: set[str] = set()
        """Of those, the ones that wait in line."""
        self.parts: dict[str, list[int]] = defaultdict(list)
        """Per run, the numbered frames that count: those of its answer."""
        self.checkpoints: dict[str, int] = defaultdict(int)

    def see(self, entry: Entry) -> None:
        event = entry.event
        assert entry.lsn == self.state.lsn + 1
        assert entry.writer_epoch == (
            event.writer_epoch if isinstance(event, WriterOpened) else self.state.writer_epoch
        )
        id_ = event.conversation_id or ""
        if event.seq:
            self.heads[id_] += 1
            assert event.seq == self.heads[id_]
        match event:
            case TurnCommitted():
                self._turn(entry, event)
            case FrameCommitted():
                self._store_once(entry, event.key)
                if event.run_id is not None:
                    assert self.epochs[event.run_id] == event.run_epoch
                    assert event.run_id in self.open
                    self._part(entry, event)
            case RunOpened():
                self._opened(event)
            case RunMoved():
                assert event.run_epoch == self.epochs[event.run_id] + 1
                self.epochs[event.run_id] = event.run_epoch
                assert event.run_id in self.open
                self._moved(entry, event)
            case RunEnded() | RunCancelling():
                self._ended(event)
            case PersonFrameCommitted():
                self._store_once(entry, event.key)
                for given in event.to:
                    assert given.run_id == "" or self.epochs[given.run_id] == given.run_epoch
                    assert self.state.members[given.member or ""].group == given.group
            case TurnEdited() | TurnRegenerated():
                self._wanted_anew(entry, event)
            case ConversationClosed() | ConversationHandedOver():
                assert not [run for run in self.open if run.startswith(f"{id_}/")]
        evolve(self.state, entry)

    def _part(self, entry: Entry, event: FrameCommitted) -> None:
        run_id = event.run_id or ""
        if event.frame.type == CHECKPOINT:
            assert event.seq == 0
            self.checkpoints[run_id] = entry.lsn
        elif event.seq:
            self.parts[run_id].append(event.seq)

    def _moved(self, entry: Entry, event: RunMoved) -> None:
        id_, run = event.conversation_id or "", self.state.conversations[event.conversation_id or ""].runs[event.run_id]
        owner = owner_of(self.state, event.group, id_, entry.at)
        assert event.run_id not in self.line
        if event.reason is MoveReason.REFUSED:
            assert event.to_member not in {*run.refusers, event.from_member} or event.from_member is None
        elif event.kept_for:
            assert (event.to_member, event.from_member is None) == (None, False)
        elif event.to_member is None and is_kept(self.state, run):
            assert event.from_member is not None or (run.kept_for and owner is None)
        elif event.reason is MoveReason.OPERATOR:
            roster = self.state.groups[event.group].members
            assert event.to_member in roster
            pinned = self.state.conversations[id_].pinned(event.group)
            assert event.to_member in {pinned, event.from_member} or event.from_member is not None
        elif event.proved or (not event.adopted and event.from_member != event.to_member):
            assert event.to_member == owner or self._is_back(run, event.to_member)
        if event.to_member is None or event.adopted:
            assert (event.continued, event.superseded, event.checkpoint_lsn) == (False, (), 0)
            return
        member = self.state.members[event.to_member]
        if member.draining:
            assert all(other.draining for other in self.state.groups[event.group].members.values())
        assert event.continued == may_continue(self.state, run, member)
        if event.continued:
            assert (event.superseded, event.checkpoint_lsn) == ((), self.checkpoints[event.run_id])
        else:
            assert list(event.superseded) == self.parts.pop(event.run_id, [])
            self.checkpoints.pop(event.run_id, None)

    def _is_back(self, run: Run, member: str | None) -> bool:
        """Whether it is a connection of the process that the run was kept for, or that holds it, as far as is known."""
        holder = self.state.members.get(run.member or "")
        had = run.kept_for if run.member is None else None if holder is None else holder.instance
        instance = self.state.members[member or ""].instance
        return bool(instance) and had in {instance, None}

    def _turn(self, entry: Entry, event: TurnCommitted) -> None:
        id_ = event.conversation_id or ""
        self._store_once(entry, key_of_turn(event.turn))
        groups = [assignment.group for assignment in event.assigned]
        assert len(set(groups)) == len(groups)
        for assignment in event.assigned:
            assert assignment.member == owner_of(self.state, assignment.group, id_, entry.at)
            assert assignment.member is not None
            roster = self.state.groups[assignment.group].members
            assert not roster[assignment.member].draining or all(member.draining for member in roster.values())
            self._open(assignment.run_id)
        runs = self.state.conversations[id_].runs.values()
        if event.turn.invocation is not None:
            assert groups + list(event.queued) == [event.turn.invocation.group]
            assert not groups or not [run for run in runs if run.invocation is not None and not run.queued]
        for group in event.queued:
            assert [run for run in runs if run.group == group or run.invocation is not None]
            self._open(run_id(id_, event.seq, group))
            self.line.add(run_id(id_, event.seq, group))
        if event.joins_run is not None:
            assert event.joins_run in self.open

    def _wanted_anew(self, entry: Entry, event: TurnEdited | TurnRegenerated) -> None:
        """All that counted of every answer to the turn counts no more."""
        self._store_once(entry, event.key)
        runs = [run for run in self.epochs if re.match(rf"{event.conversation_id}/{event.turn_seq}(~\d+)?/", run)]
        assert not self.open.intersection(runs)
        said = sorted(seq for run in runs for seq in self.parts.pop(run, []))
        assert sorted(event.superseded) == said

    def _store_once(self, entry: Entry, key: str | None) -> None:
        if key is not None:
            slot = (entry.event.conversation_id or "", key)
            assert entry.at - self.keys.get(slot, -KEY_LIFETIME_MS) >= KEY_LIFETIME_MS
            self.keys[slot] = entry.at

    def _ended(self, event: RunEnded | RunCancelling) -> None:
        assert self.epochs[event.run_id] == event.run_epoch
        assert event.run_id in self.open
        if isinstance(event, RunEnded):
            self.open.remove(event.run_id)
            self.line.discard(event.run_id)

    def _opened(self, event: RunOpened) -> None:
        """Out of the line, when nothing of its group is before it; or anew."""
        if event.run_id not in self.line:
            self._open(event.run_id)
            if event.queued:
                assert event.member is None
                self.line.add(event.run_id)
            return
        runs = self.state.conversations[event.conversation_id or ""].runs
        others = [run for id_, run in runs.items() if id_ != event.run_id and not run.queued]
        assert not [run for run in others if run.group == event.group]
        assert runs[event.run_id].invocation is None or not [run for run in others if run.invocation is not None]
        assert not event.queued
        self.line.remove(event.run_id)

    def _open(self, run_id: str) -> None:
        assert run_id not in self.epochs, "a run opens once"
        self.epochs[run_id] = 1
        self.open.add(run_id)

    def finish(self) -> None:
        """Runs that did not end are open in the state, each with a live member or waiting for one."""
        runs = {id_: run for conv in self.state.conversations.values() for id_, run in conv.runs.items()}
        assert set(runs) == self.open
        for id_, run in runs.items():
            assert self.parts[id_] == ([] if run.progress is None else run.progress.frames)
            assert self.checkpoints[id_] == (0 if run.progress is None else run.progress.checkpoint)
        for run in runs.values():
            assert run.member is None or self.state.members[run.member].group == run.group
            if run.member is None and not run.queued and run.group in self.state.groups:
                assert run.invocation is None or is_kept(self.state, run), "only what people say waits for room"
            elif not run.queued:
                assert (run.member is None) == (run.group not in self.state.groups)
        assert {id_ for id_, run in runs.items() if run.queued} == self.line
        for conversation in self.state.conversations.values():
            assert not conversation.runs or not all(run.queued for run in conversation.runs.values())
        for channel, ids in self.state.waiting.items():
            assert channel not in self.state.channel_groups or not ids


@many
@given(command_lists())
def test_the_invariants_hold(commands: list[Command]) -> None:
    checker = Checker()
    for entry in run(commands)[1]:
        checker.see(entry)
    checker.finish()


def test_the_invariants_hold_over_a_long_seeded_journal() -> None:
    events: list[Event] = []
    for seed in (11, 23):
        checker = Checker()
        state, entries = run(seeded_commands(seed, 20_000))
        for entry in entries:
            checker.see(entry)
        checker.finish()
        events += [entry.event for entry in entries]
        assert image(checker.state) == image(state)
    missing = set(Event.__subclasses__()) - {type(event) for event in events}
    assert missing == {Unknown}, "the sequences reach every kind of event"
    moved = [event for event in events if isinstance(event, RunMoved)]
    assert any(event.continued and event.checkpoint_lsn for event in moved)
    assert any(event.continued and event.from_member is None for event in moved)
    reasons = {event.reason for event in events if isinstance(event, RunEnded)}
    assert {"not_begun", "no_member", "watchdog", "owner_gone_after_answer"} <= reasons
    assert {"aborted", "edited", "regenerated", "handed_over", "interrupt_expired"} <= reasons
    assert {"interrupted", "deadline", "cancelled", "released", "agent_busy"} <= reasons
    assert any(event.answers for event in moved)
    assert any(event.kept_for for event in moved)
    assert any(event.proved for event in moved)


@many
@given(command_lists(), st.data())
def test_a_journal_that_was_tampered_with_is_refused(commands: list[Command], data: st.DataObject) -> None:
    entries = run(commands)[1]
    index = data.draw(st.integers(min_value=1, max_value=len(entries) - 1))
    entry, replace = entries[index], msgspec.structs.replace
    event = entry.event
    wrong: list[list[Entry]] = [
        [*entries[:index], *entries[index + 1 :]],
        [*entries[: index + 1], *entries[index:]],
        [*entries[:index], replace(entry, lsn=entry.lsn + 1)],
        [*entries[:index], replace(entry, at=entries[index - 1].at - 1)],
        [*entries[:index], replace(entry, writer_epoch=0)],
    ]
    if event.seq:
        wrong += [[*entries[:index], replace(entry, event=replace(event, seq=event.seq + by))] for by in (1, -1)]
    if isinstance(event, RunMoved | RunEnded):
        wrong.append([*entries[:index], replace(entry, event=replace(event, run_epoch=event.run_epoch + 1))])
    if isinstance(event, FrameCommitted) and event.run_id is not None:
        wrong.append([*entries[:index], replace(entry, event=replace(event, member="somebody"))])
    if index == len(entries) - 1:
        wrong.pop(0)
    for journal in wrong:
        with pytest.raises(ImpossibleEvent):
            replay(journal)


@many
@given(command_lists())
def test_what_is_refused_leaves_no_trace_but_its_count(commands: list[Command]) -> None:
    state = Partition(0)
    for command in commands:
        before = image(state)
        entries = step(state, command, 1)
        if entries and all(isinstance(entry.event, Refused | Duplicate) for entry in entries):
            after = image(state)
            del before[""], after[""]
            assert after == before
