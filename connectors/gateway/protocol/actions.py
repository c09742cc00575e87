"""What a session asks of whoever drives it."""

from __future__ import annotations

import msgspec

from connectors.gateway.protocol.parse import UserMessage
from streams.core.events import Frame
from streams.runtime.live import Receipt, Shown, Typing


class Write(msgspec.Struct, frozen=True):
    """Send this frame."""

    frame: bytes


class Close(msgspec.Struct, frozen=True):
    """End the connection; nothing is written after it."""

    code: int
    reason: str = ""


class OpenConversation(msgspec.Struct, frozen=True):
    """A person said hello: find the conversation (None: make one), subscribe, then call `UserSession.opened`."""

    conversation_id: str | None


class OpenMember(msgspec.Struct, frozen=True):
    """An agent said hello: join it to its group on every partition, then call `AgentSession.opened`."""

    group: str | None
    watermarks: dict[str, int]
    continues: bool
    instance: str | None = None
    """What its process calls itself; None: it wants nothing held for it."""
    instance_secret: str | None = None
    """What an earlier welcome gave to that process."""


class DrainMember(msgspec.Struct, frozen=True):
    """An agent wants nothing new: tell every partition."""


class Load(msgspec.Struct, frozen=True):
    """Read the conversation's numbered entries after `after`, then call `UserSession.loaded` or `load_failed`."""

    after: int


class LoadSuperseded(msgspec.Struct, frozen=True):
    """Find which seqs up to `upto` were superseded, then call `UserSession.told_superseded`."""

    upto: int


class LoadEdited(msgspec.Struct, frozen=True):
    """Find the last edit of a turn up to `upto`, then call `UserSession.told_edited`."""

    upto: int


class LoadFor(msgspec.Struct, frozen=True):
    """Read entries of (`after`, `upto`] for an agent's `sync`, where the conversation is one of its channel's business,
    then call `AgentSession.replayed`; `load_failed` otherwise. `given`: the highest turn that was given over this
    connection; what its process has beyond, by its own word, holds no turn that its channel was not given."""

    conversation_id: str
    after: int
    upto: int
    given: int


class FetchTurn(msgspec.Struct, frozen=True):
    """Find the turn of a run that came to this agent later than its turn, then call `AgentSession.fetched`.

    `continued`: with what was stored of the run before `moved_lsn`, where it came here: what follows, the agent is
    given as it comes. `checkpoint_lsn`: where its last checkpoint lies, 0: it has none.
    """

    conversation_id: str
    turn_seq: int
    run_id: str
    run_epoch: int
    moved_lsn: int
    continued: bool = False
    checkpoint_lsn: int = 0
    answers: str | None = None
    """What people answered to the run's open interrupts and was passed to a member that is gone: a JSON object."""


class FetchRun(msgspec.Struct, frozen=True):
    """Find what was stored before `moved_lsn` of a run that this agent's process goes on with, then call
    `AgentSession.adopted`."""

    conversation_id: str
    turn_seq: int
    run_id: str
    run_epoch: int
    moved_lsn: int


class SubmitTurn(msgspec.Struct, frozen=True):
    """Write a person's message to the intake under this `ref`."""

    ref: str
    message: UserMessage
    traceparent: str | None = None
    """Of the trace that its sender says that it is of."""


class SubmitPersonFrame(msgspec.Struct, frozen=True):
    """Write what a person sent beside their messages to the intake under this `ref`."""

    ref: str
    frame: Frame
    traceparent: str | None = None
    """As in `SubmitTurn`."""


class SubmitFrame(msgspec.Struct, frozen=True):
    """Write an agent's frame to the intake. `ref` None: nothing waits for what becomes of it."""

    conversation_id: str
    frame: Frame
    ref: str | None
    run_id: str | None
    run_epoch: int | None
    traceparent: str | None
    """Of the trace that its sender says that it is of."""
    delivered_seq: int


class RefuseGiven(msgspec.Struct, frozen=True):
    """Write to the intake that this member does not take a run that it was given."""

    conversation_id: str
    run_id: str
    run_epoch: int
    reason: str


class Announce(msgspec.Struct, frozen=True):
    """Tell the others of the conversation, at every gateway; it may be lost."""

    conversation_id: str
    signal: Typing | Receipt | Shown


class Follow(msgspec.Struct, frozen=True):
    """An agent is to be told what goes on in these conversations. `ask`: also what goes on now."""

    conversation_ids: tuple[str, ...]
    ask: bool


class Unfollow(msgspec.Struct, frozen=True):
    """It is not any more."""

    conversation_id: str


Action = (
    Write
    | Close
    | OpenConversation
    | OpenMember
    | DrainMember
    | Load
    | LoadSuperseded
    | LoadEdited
    | LoadFor
    | FetchTurn
    | FetchRun
    | SubmitTurn
    | SubmitPersonFrame
    | SubmitFrame
    | RefuseGiven
    | Announce
    | Follow
    | Unfollow
)
