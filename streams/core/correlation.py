"""Which run an agent's frame belongs to (rule 6), and under which key it is told from a repeat (rule 1). It is of:

1. the run that the frame names;
2. the turn that its clientId names (`<prefix>.<turn id>.m<n>`, as `converger-agent` makes them);
3. the run that its sender last said to work on (`read`, `run started`);
4. the first, by turn, of the runs its sender holds and has been given.

In a conversation of its sender's own channel it is of no run, whatever its clientId names.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from streams.core import keys, refusals
from streams.core.commands import CommitFrame
from streams.core.ids import channel_of_group, frame_key
from streams.core.state import Conversation, Partition, Run

_TURN_OF_CLIENT_ID: Final = re.compile(
    r"\.([0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12})\.m\d+\Z"
)


class Target(msgspec.Struct, frozen=True, gc=False):
    """What a frame belongs to. `run` None: no open run; `key` is then what an ended run would have stored it under."""

    run: Run | None
    key: str | None
    names: bool
    """The frame itself says which run or turn it is of."""


def correlate(conversation: Conversation, command: CommitFrame) -> Target:
    """The run that the frame belongs to, and its idempotency key there."""
    client_id = command.frame.client_id
    if command.run_id is not None:
        run = conversation.runs.get(command.run_id)
        return _named(conversation, command, run, command.run_id)
    turn_id = (
        None if client_id is None or is_its_own(conversation, command.group) else _TURN_OF_CLIENT_ID.search(client_id)
    )
    if turn_id is not None:
        named = _run_of_turn(conversation, command.group, turn_id[1])
        return _named(conversation, command, conversation.runs.get(named or ""), named)
    run = _run_at_work(conversation, command)
    if client_id is None:
        return Target(run, None, names=False)
    if run is None or run.silent or run.given_back or run.turn_seq > command.delivered_seq:
        # Its sender had the run over an earlier connection, or got it behind later turns, and may send again what it
        # sent before.
        sent = _key_sent_before(conversation, command, client_id)
        if run is None or sent is not None:
            return Target(None, sent, names=False)
    return Target(run, frame_key(command.group, run.id, client_id, run.generation), names=False)


def is_its_own(conversation: Conversation, group: str) -> bool:
    """Whether the conversation's own channel is the group's."""
    return conversation.channel == channel_of_group(group)


def _named(conversation: Conversation, command: CommitFrame, run: Run | None, named: str | None) -> Target:
    """The frame says which run it is of: that one, open or ended, and no other."""
    client_id = command.frame.client_id
    if client_id is None or named is None:
        return Target(run, None, names=True)
    known = conversation.ended.get(named) if run is None else run
    generation = 0 if known is None else known.generation
    return Target(run, frame_key(command.group, named, client_id, generation), names=True)


def _run_of_turn(conversation: Conversation, group: str, turn_id: str) -> str | None:
    """The group's run of this turn, or the one whose ask this turn answered, open or lately ended."""
    for run in conversation.runs.values():
        if run.group == group and (run.turn_id == turn_id or (run.progress and turn_id in run.progress.joined)):
            return run.id
    ending = f"/{group}"
    for id_, ended in conversation.ended.items():
        if id_.endswith(ending) and (ended.turn_id == turn_id or turn_id in ended.joined):
            return id_
    return None


def _run_at_work(conversation: Conversation, command: CommitFrame) -> Run | None:
    """Correlation by what the member said last, else by the order in which it was given its turns."""
    current = conversation.runs.get(conversation.current.get(command.member, ""))
    if current is not None:
        return current
    held = (run for run in conversation.runs.values() if run.member == command.member)
    return min((run for run in held if _was_given(run, command)), key=by_turn, default=None)


def by_turn(run: Run) -> int:
    """Sorts runs by their turns."""
    return run.turn_seq


def _was_given(run: Run, command: CommitFrame) -> bool:
    """Its member had the turn when it sent the frame."""
    return run.turn_seq <= command.delivered_seq or run.silent or is_started(run)


def is_started(run: Run) -> bool:
    """Its member said that it works on it."""
    return run.progress is not None and run.progress.started


def begun(conversation: Conversation, command: CommitFrame, run: Run) -> Run:
    """Which run a `run started` begins that names none and, by what its sender said last, would be of `run`. Nobody
    says twice that it begins: where its process said so of that one over an earlier connection, and nothing came of it
    over this one, it is the first that was given to it since."""
    if not (run.adopted_at and is_started(run)):
        return run
    held = (other for other in conversation.runs.values() if other.member == command.member and not is_started(other))
    return min((other for other in held if _was_given(other, command)), default=run, key=by_turn)


def _key_sent_before(conversation: Conversation, command: CommitFrame, client_id: str) -> str | None:
    """The key that it was stored under in a run that ended lately, or as a proactive frame; None: it is new.

    So an unannounced agent's re-sent answer, whose run it ended, is told from a new message.
    """
    group = command.group
    ending = f"/{group}"
    ended = ((id_, run.generation) for id_, run in reversed(conversation.ended.items()) if id_.endswith(ending))
    for id_, generation in (*ended, (None, 0)):
        key = frame_key(group, id_, client_id, generation)
        if keys.find(conversation, key, command.at) is not None:
            return key
    return None


def may_be_a_rest(command: CommitFrame, run: Run) -> bool:
    """Whether a piece of an answer may be of one whose beginning is not stored, or no more: its sender was given the
    run anew, and has not said since that it begins. Who names the epoch was told of it."""
    return run.anew and command.run_epoch is None and not is_started(run)


def lacks_something(command: CommitFrame, run: Run, stream_id: str | None = None) -> bool:
    """Whether what comes before the frame may be lost: it goes on with a stream that was open when its sender's process
    came back over another connection, or ends the run with such a stream open (None). Who names the epoch was told what
    is stored; of others nobody knows what they sent into the connection that was lost."""
    if command.run_epoch is not None or run.progress is None:
        return False
    return any(stream in run.progress.streams and stream_id in {None, stream} for stream in run.torn)


def claimed_run(state: Partition, conversation: Conversation, command: CommitFrame) -> Run | None:
    """The first run, by turn, which another connection holds and the sender's process has, or said it had until it was
    refused something of it."""
    runs = (run for run in conversation.runs.values() if run.group == command.group and run.member != command.member)
    member = command.member
    claimed = (run for run in runs if member in run.claimants or refusals.had(state, member, run.id))
    return min(claimed, key=by_turn, default=None)
