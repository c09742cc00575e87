"""What a sequencer knows: one `Partition`, changed only by `fold.evolve`.

Persisted fields come first in each class; those under "Derived" are rebuilt from them when state is loaded (`store.py`)
and are in no checkpoint. All times are log time in ms unless a name says `timestamp`.
"""

from __future__ import annotations

from typing import Final

import msgspec

from streams.core.longest import Longest
from streams.core.routing import Config, Plan
from streams.core.timers import Timers

KEYS_IN_ROW: Final = 64
"""This many newest idempotency keys of a conversation are kept whatever their age."""

KEY_LIFETIME_MS: Final = 24 * 60 * 60 * 1000
"""Keys beyond the newest 64 are kept this long: 24 h."""

ENDED_RUNS_KEPT: Final = 16
"""Ended runs that a conversation remembers, so that a re-sent frame of one of them still finds its key."""

REFUSALS_WRITTEN: Final = 16
"""Refusals of one (member, run) that are written; later ones change nothing and write nothing."""

REFUSAL_SLOTS: Final = 1024
"""(member, run) pairs whose refusals are counted; beyond it the oldest count is forgotten."""

ENDED_GATEWAY_KEPT_MS: Final = 24 * 60 * 60 * 1000
"""An ended gateway incarnation is refused by name this long: 24 h. Its id is random, so nobody else gets it later."""


class ImpossibleEvent(Exception):
    """A journal entry that cannot follow the state: the journal or the code that wrote it is broken. Stop, loudly."""


class KeyRecord(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """What an idempotency key stands for: enough to repeat the first one's ack."""

    seq: int
    id: str
    """Empty: the id that follows from the key (`ids.message_id`)."""
    at: int
    timestamp: int
    ordinal: int
    """The how-manieth key of its conversation; 0: read back from the table of older keys."""


class WaitingTurn(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A turn for which an agent channel has no member yet."""

    turn_seq: int
    turn_id: str
    edition: int = 0
    """The how-manieth time that its answer is wanted anew."""
    at: int = 0
    """Since when it waits."""
    origin: str = ""
    """Channel that it came from, where that is not the conversation's own."""


class EndedRun(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """What is remembered of a run that is over: whose frames a re-sent one may repeat."""

    turn_id: str
    generation: int
    joined: tuple[str, ...] = ()
    """Ids of the turns that answered its asks."""


class Update(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A conversation's last close, reopen or erasure, or its last handover, there or back."""

    seq: int
    id: str
    timestamp: int


class Latest(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The latest turn of a conversation."""

    seq: int
    id: str
    speaker: str
    """Who said it; empty: it called an agent."""
    editions: int = 0
    """How often its answer was wanted anew."""
    answered: tuple[int, ...] = ()
    """What ended runs said to it, for when its answer is wanted anew: first and last seq of each stretch of frames."""
    origin: str = ""
    """Channel that it came from, where that is not the conversation's own."""


class Progress(msgspec.Struct, gc=False, array_like=True):
    """What a run's holders did so far, since its frames were last superseded."""

    active_at: int
    """Last sign of work; the idle watchdog counts from it."""
    started: bool = False
    frames: list[int] = []
    """Seqs of its numbered frames."""
    messages: int = 0
    """Persistent messages and finished streams: what a person would call an answer."""
    asks: dict[str, int] = {}
    """Open interrupts: id -> seq."""
    streams: list[str] = []
    """Open genui streams."""
    last_stream: str | None = None
    """Stream of its last frame, when that was a chunk: a further chunk of it is the same coalesced event."""
    events: int = 0
    """Coalesced events."""
    joined: list[str] = []
    """Ids of the turns that answered its asks."""
    checkpoint: int = 0
    """lsn of its last checkpoint frame; 0: none."""
    inherited: bool = False
    """All of it is of earlier holders: its present one continues it, and has not begun."""
    answers: dict[str, tuple[int, str]] = {}
    """Open interrupts that a person's `resume` answered, its lsn and the answer, JSON: the member was given it and has
    not said so."""
    answers_kept: bool = False
    """They came while it had no member: nobody was given them."""
    asked_at: int = 0
    """When it asked last; its interrupts' own time-out counts from it."""
    paused_at: int = 0
    """Since when the deadline stands still, for an interrupt is open; 0: it runs."""


class Terms(msgspec.Struct, gc=False, array_like=True):
    """What few runs have: a deadline, an invocation, members that refused it, a place in line, a wish to end it."""

    deadline_at: int = 0
    """It ends at this log time; 0: never, for that."""
    streamed: bool = False
    """Of an invocation: its caller follows its frames."""
    invocation: str | None = None
    """Id of the invocation that it executes; None: it answers what a person said."""
    refusers: tuple[str, ...] = ()
    """Members that it was given to and that did not take it."""
    queued: bool = False
    """It waits, without a member, for the end of an earlier run of its group."""
    cancelling: bool = False
    """Its member was told to stop."""
    retry: bool = False
    """Of an invocation: it may be executed again when its owner is lost."""
    given_back: bool = False
    """Its member got it after members had refused it: later than turns that came after."""
    kept_for: str = ""
    """It waits for this process, which had it, and is given to no other; empty: for none."""
    proved: bool = False
    """Its member is a connection of the process that had it before, by proof."""
    origin: str = ""
    """Channel that its turn came from, where that is not the conversation's own."""
    torn: tuple[str, ...] = ()
    """Streams that were open when its process came back over another connection: what it sent last may be lost."""
    anew: bool = False
    """Its process had begun it, and was given it again from the beginning: until it says that it begins, what it sends
    may be the rest of what it was at."""


class Run(msgspec.Struct, gc=False, array_like=True):
    """An open run: one turn, being answered by (or waiting for) one member of one group."""

    id: str
    turn_seq: int
    turn_id: str
    group: str
    member: str | None
    """None: the group has no member; it waits for the next one."""
    placed_at: int = 0
    """When it was given to its member, or began to wait for one."""
    speaker: str = ""
    """Who said the turn; empty: it called an agent, or the run opened later than its turn."""
    epoch: int = 1
    generation: int = 0
    """How often its frames were superseded."""
    silent: bool = False
    """Its member said that it has the turn already, and was not given it."""
    adopted_at: int = 0
    """When it was adopted; 0 once a frame of it came, or never."""
    claimants: tuple[str, ...] = ()
    """Members that joined with a watermark at or above this turn while another held it."""
    progress: Progress | None = None
    handed: bool = False
    """It was given to one process after another: which of them a watermark speaks for cannot be told."""
    terms: Terms | None = None
    """None: as most runs, it has none of its own."""

    @property
    def deadline_at(self) -> int:
        """See `Terms`, as all of these."""
        return 0 if self.terms is None else self.terms.deadline_at

    @property
    def streamed(self) -> bool:
        return self.terms is not None and self.terms.streamed

    @property
    def invocation(self) -> str | None:
        return None if self.terms is None else self.terms.invocation

    @property
    def retry(self) -> bool:
        return self.terms is not None and self.terms.retry

    @property
    def refusers(self) -> tuple[str, ...]:
        return () if self.terms is None else self.terms.refusers

    @property
    def queued(self) -> bool:
        return self.terms is not None and self.terms.queued

    @property
    def cancelling(self) -> bool:
        return self.terms is not None and self.terms.cancelling

    @property
    def given_back(self) -> bool:
        return self.terms is not None and self.terms.given_back

    @property
    def kept_for(self) -> str:
        return "" if self.terms is None else self.terms.kept_for

    @property
    def proved(self) -> bool:
        return self.terms is not None and self.terms.proved

    @property
    def origin(self) -> str:
        return "" if self.terms is None else self.terms.origin

    @property
    def torn(self) -> tuple[str, ...]:
        return () if self.terms is None else self.terms.torn

    @property
    def anew(self) -> bool:
        return self.terms is not None and self.terms.anew

    def own_terms(self) -> Terms:
        """Its terms, to be changed."""
        if self.terms is None:
            self.terms = Terms()
        return self.terms


class Conversation(msgspec.Struct, gc=False):
    """One conversation that is loaded."""

    id: str
    channel: str
    open: bool = True
    head: int = 0
    """Highest seq given."""
    lsn: int = 0
    """Last journal entry that changed it."""
    update: Update | None = None
    keys: dict[str, KeyRecord] = {}
    """Taken since it was idle last, in that order."""
    fingerprints: bytes = b""
    """Of the keys before those: the newest, packed, as many as may be among the newest 64 of all; see `keys`."""
    key_facts: bytes = b""
    """What each of those stands for."""
    odd_keys: dict[int, KeyRecord] = {}
    """By ordinal, those of them that stand for something which does not fit there."""
    keys_packed: int = 0
    """Ordinal of the last packed key."""
    keys_issued: int = 0
    runs: dict[str, Run] = {}
    """Open runs, by id, in the order of their turns."""
    ended: dict[str, EndedRun] = {}
    """The last `ENDED_RUNS_KEPT`."""
    waiting: dict[str, list[WaitingTurn]] = {}
    """Per agent channel without a member: the turns that wait for it."""
    owners: dict[str, str] = {}
    """Per group, the member that the last turn was given to."""
    current: dict[str, str] = {}
    """Per member, the run that it last said to work on."""
    erased: bool = False
    """It is closed for ever."""
    handed_over: bool = False
    """A human answers: turns open no run, and no agent is heard."""
    handover: Update | None = None
    pins: dict[str, str] | None = None
    """Per group, the member that an operator moved it to: it gets the turns while it is there. None: there is none."""
    latest: Latest | None = None
    """The latest turn, unless an open run is of a later one; see `latest`. None: none yet."""
    # Derived
    asking: int = 0
    """Open interrupts over all its runs."""
    older: dict[bytes, KeyRecord] = {}
    """By fingerprint, keys before those in `fingerprints` and younger than 24 h, in the order they were taken."""
    older_keys: bool = False
    """Keys beyond the newest 64 may lie in the table and are not in `older`: load them before a keyed command."""
    keys_stored: int = 0
    """Keys up to this ordinal are in the table or in the row of a checkpoint that holds."""
    plan: Plan | None = None
    """The plan that `owners` was last chosen under with every member eligible: the choice needs no hashing again."""

    def pinned(self, group: str) -> str | None:
        """The member that an operator moved it to, in this group, whether it is there still or not."""
        return None if self.pins is None else self.pins.get(group)


class Member(msgspec.Struct):
    """One agent connection."""

    id: str
    group: str
    channel: str
    gateway: str
    since: int
    each: bool = False
    continues: bool = False
    """It can go on with a run that another member began."""
    draining: bool = False
    """It gets nothing new while its group has a member that does not drain."""
    heard: int = 0
    """The highest number of a frame of its that came to something; see `heard`."""
    heard_bits: int = 0
    """Which of the `heard.WINDOW` numbers up to that one did: the lowest bit is that one's."""
    instance: str = ""
    """The process that it is a connection of; empty: it declared none."""
    # Derived
    conversations: dict[str, int] = {}
    """Loaded conversations in which it holds runs, and how many. Never iterated unsorted."""


class Gateway(msgspec.Struct):
    """A live gateway incarnation."""

    id: str
    n: int = 0
    """Its last membership change that was applied."""
    list_wanted_at: int = -1
    """Its list was asked for and has not come; -1: not asked."""
    config_wanted_at: int = -1
    members: dict[str, None] = {}
    """In the order they joined."""


class Group(msgspec.Struct):
    """Derived: the members of one group, while it has any."""

    id: str
    channel: str
    members: dict[str, Member] = {}
    settled_at: int = 0
    """From here on every member is eligible."""


class Partition(msgspec.Struct):
    """All that a partition's decisions depend on."""

    partition: int
    lsn: int = 0
    at: int = 0
    writer_epoch: int = 0
    restarted_at: int = 0
    """When the present writer began: time-outs count from here if their cause is older."""
    turns: int = 0
    frames: int = 0
    membership: int = 0
    """Next offsets to read of the three intakes, as of the last `BatchCommitted`."""
    config: Config = msgspec.field(default_factory=Config)
    gateways: dict[str, Gateway] = {}
    members: dict[str, Member] = {}
    ended_gateways: dict[str, int] = {}
    """Ended incarnation -> when, in the order they ended."""
    refusals: dict[str, int] = {}
    """Refusals written so far, by `refusals.slot`."""
    # Derived
    conversations: dict[str, Conversation] = {}
    """Those loaded; the hot ones always are."""
    groups: dict[str, Group] = {}
    channel_groups: dict[str, dict[str, Group]] = {}
    """Per agent channel, its groups with a member."""
    plans: dict[str, Plan | None] = {}
    """Per people's channel, who gets its turns; forgotten whenever the roster or the config changes."""
    orphans: dict[str, dict[str, int]] = {}
    """Per group, conversations with runs that wait for the group's next member, and how many. Never iterated
    unsorted."""
    longest: dict[str, Longest] = {}
    """Per group with `orphans`, those by how long they wait."""
    waiting: dict[str, set[str]] = {}
    """Per agent channel, conversations with a turn that waits for it. Never iterated unsorted."""
    queued: dict[str, int] = {}
    """Conversations with runs that wait in line, and how many. Never iterated unsorted."""
    timers: Timers = msgspec.field(default_factory=Timers)
    waits: Timers = msgspec.field(default_factory=Timers)
    """Of turns that wait for a channel; see `unassigned`."""
    dirty: set[str] = set()
    """Conversations changed since the runtime last cleared this."""
