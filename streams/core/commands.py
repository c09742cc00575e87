"""What the core is asked to decide: an intake record decoded, or something the runtime noticed.

A command brings all that a decision may depend on: ids, the key, log time `at` and the broker's `timestamp` (both ms).
"""

from __future__ import annotations

import msgspec

from streams.core.events import Frame, Turn


class Command(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """What all commands have. `ref` is minted by the gateway; the waiting request is completed by it."""

    at: int
    timestamp: int
    ref: str | None = None


class OpenConversation(Command, frozen=True):
    """Begin a conversation. A repeat of `key` gets the first one's answer."""

    conversation_id: str
    channel: str
    participant: str | None = None
    external_id: str | None = None
    key: str | None = None
    metadata: str | None = None


class CommitTurn(Command, frozen=True):
    """A person said something."""

    conversation_id: str
    turn: Turn


class CloseConversation(Command, frozen=True):
    """No turn is taken from here on; open runs end."""

    conversation_id: str
    by: str
    reason: str
    id: str
    """Message id of the update that viewers get."""


class ReopenConversation(Command, frozen=True):
    """Undo a close."""

    conversation_id: str
    by: str
    id: str


class EraseConversation(Command, frozen=True):
    """Destroy the keys of what was said in it, and close it for ever."""

    conversation_id: str
    by: str
    reason: str
    id: str
    """Message id of the update that viewers get."""


class EraseIdle(Command, frozen=True):
    """Erase it if its channel keeps none that has been idle for so long, and nothing happened in it since it was
    looked at."""

    conversation_id: str
    id: str
    """Message id of the update that viewers get."""
    idle_since: int
    """Log time of its last numbered event; of one without, when it was opened."""
    head_seq: int
    """Its highest seq when it was looked at."""
    as_of_lsn: int
    """Who looked knew the partition's journal up to here."""


class CommitPersonFrame(Command, frozen=True):
    """A person sent something beside their turns: `frame.data` has the frame's own fields, JSON."""

    conversation_id: str
    frame: Frame
    sender: str
    channel: str


class HandOver(Command, frozen=True):
    """A human takes the conversation: no agent is heard in it until it is handed back."""

    conversation_id: str
    by: str
    to: str
    """Who answers from here on, in the words of whoever hands over."""
    reason: str
    id: str
    """Message id of the update that viewers get."""


class HandBack(Command, frozen=True):
    """Agents answer again."""

    conversation_id: str
    by: str
    reason: str
    id: str


class CancelRun(Command, frozen=True):
    """Somebody wants a run to stop."""

    conversation_id: str
    run_id: str
    by: str
    reason: str


class ReleaseRun(Command, frozen=True):
    """An operator ends a run whose member is gone: nothing will come of it."""

    conversation_id: str
    run_id: str
    by: str
    reason: str
    proof: str
    """How the operator knows that the old worker has stopped, in words."""


class MoveConversation(Command, frozen=True):
    """An operator gives the conversation to a member, or (`to` None) releases it from who has it."""

    conversation_id: str
    to: str | None
    by: str
    reason: str
    group: str = ""
    """Release: only in this group; empty: in all."""


class CommitFrame(Command, frozen=True):
    """A frame from an agent's socket, as its gateway stamped it."""

    conversation_id: str
    frame: Frame
    sender: str
    channel: str
    group: str
    member: str
    gateway: str
    run_id: str | None = None
    """Named by agents that know runs; None: the core correlates."""
    run_epoch: int | None = None
    delivered_seq: int = 0
    """Highest turn seq of this conversation that had been written to the socket when the frame was read from it."""
    n: int = 0
    """The how-manieth frame of its member on this partition, by its gateway; 0: not numbered."""


class RefuseRun(Command, frozen=True):
    """A member that was given a run does not take it: its gateway says that it has as many as it may, or it says so."""

    conversation_id: str
    run_id: str
    run_epoch: int
    member: str
    reason: str


class Join(Command, frozen=True):
    """A gateway has a new agent connection; `n` is its counter of membership changes on this partition."""

    gateway: str
    n: int
    member: str
    channel: str
    group: str
    """Qualified: `<channel>` for the implicit group, `<channel>/<group>` for a named one."""
    each: bool = False
    watermarks: dict[str, int] = {}
    continues: bool = False
    """It said that it can go on with a run that another member began."""
    instance: str = ""
    """The process that it is a connection of, as its gateway has proof of it; empty: it declared none."""


class Leave(Command, frozen=True):
    """Applied by the runtime only once `frames` has been read up to `frames_end` (next offset after its last frame)."""

    gateway: str
    n: int
    member: str
    reason: str
    """`left` or, after it drained, `done`: its process closed the connection itself. `drained`: its gateway did, for it
    drains. `closed`: it was lost."""
    frames_end: int = 0


class ListedMember(msgspec.Struct, frozen=True, gc=False):
    """One member of a gateway's list, as it would join."""

    member: str
    channel: str
    group: str
    each: bool = False
    watermarks: dict[str, int] = {}
    continues: bool = False
    draining: bool = False
    """It drains: a partition that missed its `Drain` learns of it here."""
    instance: str = ""
    """As in `Join`."""


class ApplyList(Command, frozen=True):
    """The gateway's answer to `ListWanted(members)`: all its members as of counter `n`.

    Like a `Leave`, applied by the runtime only once `frames` has been read up to `frames_end`: the partition may learn
    from it that a member left.
    """

    gateway: str
    n: int
    members: tuple[ListedMember, ...]
    frames_end: int = 0


class Drain(Command, frozen=True):
    """A member is to get nothing new. From its gateway or an operator, outside the gateway's numbering: what drains
    already, or is not there, stays as it is."""

    member: str
    by: str
    """Who wants it: the gateway's incarnation, or the operator."""
    reason: str


class NoteAction(Command, frozen=True):
    """What an operator did, for the journal."""

    action: str
    subject: str
    by: str
    reason: str
    id: str
    """Minted by who writes it; the journal event carries it."""


class GatewayBehind(Command, frozen=True):
    """A heartbeat showed that the partition's count of this gateway, or its document, is not the gateway's."""

    gateway: str
    n: int
    config_version: int


class ApplyConfig(Command, frozen=True):
    """A gateway broadcast the document; taken when its version is newer."""

    version: int
    document: str


class GatewayExpired(Command, frozen=True):
    """No heartbeat within the member TTL, by log time, or the gateway said goodbye (`reason` = stopped)."""

    gateway: str
    reason: str = "expired"


class TimePassed(Command, frozen=True):
    """Log time moved to `at`: due timers (watchdog, settle, adopt) fire."""


class OpenWriter(Command, frozen=True):
    """A sequencer begins to write the partition; first command of every writer epoch."""

    writer_epoch: int
    worker: str


class Reject(Command, frozen=True):
    """An intake record went to dead-letters."""

    origin: str
    reason: str


class CommitBatch(Command, frozen=True):
    """End of a batch that decided something: record the positions."""

    turns: int
    frames: int
    membership: int
