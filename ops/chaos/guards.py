"""The control: one guard of the product taken out, in a worker that chaos runs, must be caught.

What is taken out is named by TURNLOG_CHAOS_GUARD_OFF. None of this is reachable from a process that `turnlog` starts.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, Final

import msgspec

VARIABLE: Final = "TURNLOG_CHAOS_GUARD_OFF"


class Guard(StrEnum):
    """What can be taken out."""

    DEDUPE = "dedupe"
    """A person's key is stored once."""
    RUN_TOKEN = "run-token"  # noqa: S105 -- not a secret: (run, member, run epoch)
    """A frame is stored only from a member that is there, and that holds its run."""
    FENCE = "fence"
    """One transactional id a partition, and no write without a lease."""


def take_out() -> None:
    """Take out the guard that the environment names, if it names one."""
    if guard := os.environ.get(VARIABLE):
        TAKEN_OUT[Guard(guard)]()


def _without_dedupe() -> None:
    from streams.core import keys  # noqa: PLC0415 -- only where a guard is taken out

    keys.find = lambda *_: None


def _without_run_token() -> None:
    """Whoever sends a frame of an open run, it is stored as its holder's; one of a run that is over, as of no run."""
    from streams.core import fold, frames  # noqa: PLC0415
    from streams.core.commands import CommitFrame  # noqa: PLC0415

    committed, decide, kept = frames._committed, frames.decide_frame, frames._decide_kept

    def as_the_holders(conversation: Any, command: Any, run: Any, key: Any, seq: int) -> Any:
        event = committed(conversation, command, run, key, seq)
        return event if run is None or run.member is None else msgspec.structs.replace(event, member=run.member)

    def from_anybody(state: Any, command: Any) -> Any:
        """Who is gone is taken for somebody of the group that is there."""
        roster = state.groups.get(command.group)
        if command.member not in state.members and roster is not None and roster.members:
            command = msgspec.structs.replace(command, member=min(roster.members))
        return decide(state, command)

    def whatever_it_is_of(state: Any, conversation: Any, command: Any, target: Any) -> Any:
        if target.run is None:
            return [committed(conversation, command, None, None, conversation.head + 1)]
        return kept(state, conversation, command, target)

    fold._DECIDERS[CommitFrame] = from_anybody
    vars(frames).update(_decide_kept=whatever_it_is_of)
    vars(frames).update(_committed=as_the_holders, _holds=lambda _command, run: run.member is not None)


def _without_fence() -> None:
    """Each process writes under a transactional id of its own, and takes its lease for good."""
    from streams import topics  # noqa: PLC0415
    from streams.fence import heartbeat  # noqa: PLC0415
    from streams.runtime.partition import Sequencer  # noqa: PLC0415

    stable = topics.Topics.transactional_id
    topics.Topics.transactional_id = lambda self, partition: f"{stable(self, partition)}-{os.getpid()}"  # type: ignore[method-assign]
    heartbeat.Heartbeat.may_write = lambda *_: True  # type: ignore[method-assign]
    Sequencer.lose = lambda *_: None  # type: ignore[method-assign]


TAKEN_OUT: Final[Mapping[Guard, Callable[[], None]]] = {
    Guard.DEDUPE: _without_dedupe,
    Guard.RUN_TOKEN: _without_run_token,
    Guard.FENCE: _without_fence,
}
