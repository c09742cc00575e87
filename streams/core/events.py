"""The journal's events: what was decided, in the words of the `turnlog.v1` schemas.

Every class here is one branch of the envelope's union in `schemas/avro/journal.avsc`, with the same field names.
They are `msgspec.Struct`s: immutable, and an order of magnitude cheaper to make than a frozen slotted dataclass. Times:
`at` is the partition's log time and `timestamp` the broker's wall clock, both in milliseconds; see `Entry`. `seq` is 0
for an event that viewers never get; `conversation_id` is None for an event of the partition itself.
"""

from __future__ import annotations

import msgspec

from streams.core.content import Assignment, Frame, Invocation, MoveReason, RefusedReason, RunStatus, Turn

__all__ = ["Assignment", "Frame", "Invocation", "MoveReason", "RefusedReason", "RunStatus", "Turn"]
"""Part of the events' words too; what is defined here needs no mention to be imported."""


class Event(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """What all events have. Subclasses add their own fields."""

    conversation_id: str | None = None
    seq: int = 0


class ConversationOpened(Event, frozen=True):
    """A conversation began. `ref` completes the command that asked for it."""

    channel: str
    participant: str | None = None
    external_id: str | None = None
    key: str | None = None
    metadata: str | None = None
    ref: str | None = None


class ConversationClosed(Event, frozen=True):
    """Numbered: viewers get it as `conversationUpdate`. Its open runs ended just before it."""

    by: str
    reason: str
    id: str
    ref: str | None = None


class ConversationReopened(Event, frozen=True):
    """Numbered, as `ConversationClosed`."""

    by: str
    id: str
    ref: str | None = None


class TurnCommitted(Event, frozen=True):
    """A turn got its `seq`, and each group's run its owner: the common case is this one event a turn.

    `assigned` is empty when no group is known yet; then `waiting` names the agent channels whose first group gets it.
    `joins_run` is set when the turn is the answer to that run's open ask: it opens no run of its own there.
    """

    turn: Turn
    assigned: tuple[Assignment, ...] = ()
    waiting: tuple[str, ...] = ()
    joins_run: str | None = None
    interrupt_id: str | None = None
    ref: str | None = None
    queued: tuple[str, ...] = ()
    """Groups whose run for it waits, without a member, until the earlier run of that group ended: `RunOpened` then."""


class FrameCommitted(Event, frozen=True):
    """A frame of an agent was stored. `seq` 0: transient, shown to viewers but not numbered (error, run …).

    Of type `checkpoint`: what the agent keeps for whoever continues its run, the last one counts; for no viewer.
    """

    frame: Frame
    sender: str
    channel: str
    group: str
    member: str
    run_id: str | None = None
    run_epoch: int = 0
    key: str | None = None
    ref: str | None = None
    n: int = 0
    """Its frame's number among those of its member; 0: not numbered, or no frame's doing."""
    origin: str = ""
    """Channel that the turn which it answers came from, where that is not the conversation's own."""


class OwnerChanged(Event, frozen=True):
    """The conversation's next turn in `group` goes to another member than its last one did."""

    group: str
    previous: str | None
    owner: str | None
    reason: MoveReason


class RunOpened(Event, frozen=True):
    """A turn's run, later than its turn: a group came, or its time in the queue, or its answer is wanted anew."""

    run_id: str
    turn_seq: int
    group: str
    channel: str
    member: str | None
    run_epoch: int = 1
    turn_id: str = ""
    """Id under which the member is given a turn whose answer is wanted anew, so that what it sends to this one is told
    from what it still sends to the one before; empty: the turn's own."""
    queued: bool = False
    """It waits in line, without a member: another `RunOpened` of it follows when the earlier run of its group ended."""


class RunStarted(Event, frozen=True):
    """The owner said that it works on the run (`read`, `run started`): so correlation survives a change of writer."""

    run_id: str
    run_epoch: int
    group: str
    member: str
    turn_seq: int
    by: str
    n: int = 0
    """Its frame's number among those of its member; 0: not numbered, or no frame's doing."""
    """`read` or `run`: which frame said so."""


class RunMoved(Event, frozen=True):
    """A run changed hands. `from_member`/`to_member` None: it waited, or waits, for a member.

    `superseded`: seqs of the partial frames of the lost owner, which viewers may hide.
    `adopted`: the new member says by its watermark that it has the turn already; it is not given again for `adopt_ms`.
    `continued`: all that was committed of the run stays; the new member is given the turn and goes on after it.
    """

    run_id: str
    turn_seq: int
    group: str
    from_member: str | None
    to_member: str | None
    run_epoch: int
    reason: MoveReason
    superseded: tuple[int, ...] = ()
    adopted: bool = False
    continued: bool = False
    checkpoint_lsn: int = 0
    """Where a continued run's last `checkpoint` frame is; 0: it has none."""
    answers: tuple[int, ...] = ()
    """lsn of the `resume` frames of people that the run's open interrupts were answered by, and that were passed to a
    member that is gone; the new one is given them again."""
    resume: str | None = None
    """What they answered: a JSON object, interrupt id to answer."""
    kept_for: str = ""
    """The process that it waits for, for the channel's grace, and is given to no other; empty: for none."""
    proved: bool = False
    """The new member is a connection of the process that had it, by proof."""


class RunEnded(Event, frozen=True):
    """A run is over; nothing of it is accepted from here on."""

    run_id: str
    turn_seq: int
    group: str
    member: str | None
    run_epoch: int
    status: RunStatus
    reason: str
    superseded: tuple[int, ...] = ()
    by: str | None = None
    """Who ended it, where somebody did."""
    detail: str = ""
    """For people; of a released run, the proof that its worker had stopped."""
    ref: str | None = None
    n: int = 0
    """Its frame's number among those of its member; 0: not numbered, or no frame's doing."""


class MemberJoined(Event, frozen=True):
    """A member is known; eligible for turns whose `at` is `since` or later."""

    member: str
    group: str
    channel: str
    gateway: str
    n: int
    """The gateway's membership counter at this change."""
    since: int
    each: bool = False
    """Gets every turn for itself (`ungrouped: each`); its group has only it."""
    watermarks: dict[str, int] = {}
    """Per conversation of this partition, the highest seq that its process already has."""
    continues: bool = False
    """It can go on with a run that another member began."""
    instance: str = ""
    """The process that it is a connection of; empty: it declared none."""


class MemberLeft(Event, frozen=True):
    """A member is gone. Its runs move, or end, just after."""

    member: str
    group: str
    gateway: str
    n: int
    reason: MoveReason


class GatewayEnded(Event, frozen=True):
    """A gateway incarnation expired or said goodbye: it may never join members again. Its members left just before."""

    gateway: str
    reason: str


class ListWanted(Event, frozen=True):
    """The partition lost count of a gateway's members (`of` = members), or lacks its document (`of` = config)."""

    gateway: str
    of: str
    have: int
    """What it has: the gateway's n, or the document's version."""


class ListApplied(Event, frozen=True):
    """A gateway's list was taken: its members are those that joined and did not leave, its counter is `n`."""

    gateway: str
    n: int


class Refused(Event, frozen=True):
    """A command changed nothing. `count`: the how-manieth of this (member, run); after the 16th none is written."""

    reason: RefusedReason
    ref: str | None = None
    member: str | None = None
    run_id: str | None = None
    client_id: str | None = None
    detail: str = ""
    count: int = 1
    n: int = 0
    """Its frame's number among those of its member; 0: not numbered, or no frame's doing."""


class Duplicate(Event, frozen=True):
    """A repeat of something stored: whoever waits for `ref` gets the first one's ack."""

    ref: str | None
    of_seq: int
    id: str
    of_timestamp: int
    key: str
    client_id: str | None = None


class Rejected(Event, frozen=True):
    """An intake record went to dead-letters. `origin` is its id: `<topic>/<partition>/<offset>`."""

    origin: str
    reason: str


class ConfigChanged(Event, frozen=True):
    """Channels and routes as of `version`: the whole document, JSON."""

    version: int
    document: str


class WriterOpened(Event, frozen=True):
    """First event of every writer epoch."""

    writer_epoch: int
    worker: str


class MemberDraining(Event, frozen=True):
    """A member gets nothing new while its group has one that does not drain; the runs it was given stay its."""

    member: str
    group: str
    by: str
    reason: str


class PersonFrameCommitted(Event, frozen=True):
    """What a person sent beside their turns. Numbered only where viewers get it (`survey`).

    `to`: the runs whose members are given it, at the epoch that they hold them; a member that owns the conversation
    without a run has an assignment with an empty `run_id`. Empty: nobody is there to be given it.
    """

    frame: Frame
    sender: str
    channel: str
    to: tuple[Assignment, ...] = ()
    key: str | None = None
    ref: str | None = None


class TurnEdited(Event, frozen=True):
    """A person changed what their latest turn says. Its runs ended just before; those that answer it anew open next."""

    turn_seq: int
    turn_id: str
    by: str
    text: str | None = None
    data: str | None = None
    superseded: tuple[int, ...] = ()
    """seqs of all frames that answered the turn so far."""
    waiting: tuple[str, ...] = ()
    edition: int = 1
    """The how-manieth time that its answer is wanted anew: in the ids of the runs that open next."""
    client_id: str | None = None
    key: str | None = None
    ref: str | None = None


class TurnRegenerated(Event, frozen=True):
    """A person wants another answer to the latest turn: as `TurnEdited`, with the turn as it was."""

    turn_seq: int
    turn_id: str
    by: str
    superseded: tuple[int, ...] = ()
    waiting: tuple[str, ...] = ()
    edition: int = 1
    client_id: str | None = None
    key: str | None = None
    ref: str | None = None


class ConversationHandedOver(Event, frozen=True):
    """A human answers from here on: numbered. Its open runs ended just before, turns open none, no bot is heard."""

    by: str
    to: str
    reason: str
    id: str
    ref: str | None = None


class ConversationHandedBack(Event, frozen=True):
    """Agents answer again what is said from here on; numbered."""

    by: str
    reason: str
    id: str
    ref: str | None = None


class RunCancelling(Event, frozen=True):
    """Somebody wants the run to stop: its member is told to, and the run ends when it says that it has, or is lost."""

    run_id: str
    turn_seq: int
    run_epoch: int
    group: str
    member: str | None
    by: str
    reason: str
    ref: str | None = None


class TurnUnassigned(Event, frozen=True):
    """A turn waits for an agent channel no more, for it found no member there: nobody of it gets the turn from here on.

    `nobody`: no other channel's either, so that the person is told.
    """

    turn_seq: int
    turn_id: str
    channel: str
    reason: str
    """`refused`: the channel lets no turn wait; `no_member`: it waited as long as the channel lets one."""
    nobody: bool = False


class ConversationMoved(Event, frozen=True):
    """An operator gave the conversation to `to`, who gets its turns in `group` while it is there; or (`to` None)
    released it, in `group` or (empty) in all. Its runs move just after."""

    group: str
    to: str | None
    by: str
    reason: str
    ref: str | None = None


class ConversationErased(Event, frozen=True):
    """It is closed for ever, and the keys that its words are sealed by are destroyed by whoever has them."""

    by: str
    reason: str
    id: str
    ref: str | None = None


class OperatorActed(Event, frozen=True):
    """An operator did something whose outcome is no event of its own: it changes nothing here."""

    action: str
    subject: str
    by: str
    reason: str
    id: str


class BatchCommitted(Event, frozen=True):
    """Last event of every batch: the intake positions (next offset to read) that its outcome covers."""

    turns: int
    frames: int
    membership: int


class Unknown(Event, frozen=True):
    """An event of a later release, kept raw so that an older reader goes on."""

    name: str
    raw: bytes


class Entry(msgspec.Struct, frozen=True, gc=False):
    """One journal record: an event in its envelope."""

    lsn: int
    """1, 2, 3 … along the partition, without a gap."""
    at: int
    """Log time of the decision, ms: advanced by ticks, never by a local clock."""
    timestamp: int
    """The broker's append time of the command, ms since the epoch: what people are shown."""
    writer_epoch: int
    event: Event
