"""The tables that the journal is folded into: their columns, what each means, and their Arrow schemas.

Every row comes of one journal event and is never changed later: a table only grows, and the rows of the same journal
are the same whatever increments they are made in. `(partition, lsn)` says which event; its rows in a table are in
the journal's order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import pyarrow as pa

Row = tuple[Any, ...]
Rows = Mapping[str, list[Row]]
"""Name of a table to rows of it, in the journal's order."""

TEXT: Final = pa.string()
NUMBER: Final = pa.int64()
FLAG: Final = pa.bool_()
MOMENT: Final = pa.timestamp("us", tz="UTC")
"""The journal's times are ms; Delta and Iceberg have µs."""
SEQS: Final = pa.list_(NUMBER)
TEXTS: Final = pa.list_(TEXT)
ASSIGNMENTS: Final = pa.list_(
    pa.struct([("group_name", TEXT), ("member", TEXT), ("run_id", TEXT), ("run_epoch", NUMBER)])
)


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its name, Arrow type, and what it means."""

    name: str
    type: pa.DataType
    doc: str
    nullable: bool = True


@dataclass(frozen=True)
class Table:
    """One table: what a row is, and its columns."""

    name: str
    doc: str
    columns: tuple[Column, ...]

    @cached_property
    def schema(self) -> pa.Schema:
        """The Arrow schema, with each column's meaning in its metadata."""
        return pa.schema(
            [pa.field(c.name, c.type, nullable=c.nullable, metadata={"doc": c.doc}) for c in self.columns],
            metadata={"doc": self.doc},
        )

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The columns' names, in the order of a row."""
        return tuple(column.name for column in self.columns)

    def index(self, name: str) -> int:
        """Where a column stands in a row."""
        return self.names.index(name)


def _needed(name: str, type_: pa.DataType, doc: str) -> Column:
    return Column(name, type_, doc, nullable=False)


COMMON: Final = (
    _needed("partition", pa.int32(), "Partition of the journal."),
    _needed("journal_offset", NUMBER, "Offset of the event's record in that partition; offsets have gaps."),
    _needed(
        "lsn", NUMBER, "1, 2, 3, … along the partition, without a gap: with `partition`, which event the row is of."
    ),
    _needed("event", TEXT, "Name of the journal event: TurnCommitted, RunEnded, …"),
    _needed("committed_at", MOMENT, "Broker's time of the command that caused it: what people are shown."),
    _needed("log_time", MOMENT, "The log's own time of the decision, which ownership and expiry are decided by."),
    _needed("writer_epoch", NUMBER, "Writer epoch of the sequencer that decided it; never goes back in a partition."),
    Column("conversation_id", TEXT, "The conversation; null: of no single one."),
    Column("conversation_channel", TEXT, "Channel that the conversation is on, where people write; null: not known."),
)
KEY_ID: Final = Column("key_id", TEXT, "Data key that seals text, data and metadata; null: they are plain.")

TURNS: Final = Table(
    "turns",
    "What people said: a row for each turn, and one more each time that its answer was wanted anew (edited, "
    "regenerated).",
    (
        *COMMON,
        _needed("seq", NUMBER, "The turn's number in its conversation; of an edited turn still that of the first row."),
        _needed("edition", NUMBER, "0: as it was said; n: the n-th time that its answer was wanted anew."),
        _needed("turn_id", TEXT, "The turn's message id."),
        Column("sender", TEXT, "Who said it, or asked for it: the participant's id on the channel."),
        Column("channel", TEXT, "Channel that it came from."),
        Column("type", TEXT, "Message type: text, image, file, quick-reply, …; null: it was regenerated."),
        Column("text", TEXT, "The plain text, where the type has one; null: none, or regenerated as it was."),
        KEY_ID,
        Column("data", TEXT, "The message's data, a JSON object, when it holds more than the text."),
        Column("metadata", TEXT, "What the sender attached, a JSON object."),
        Column("reply_to", TEXT, "Id of the message, or interrupt, that it answers."),
        Column("client_id", TEXT, "The sender's own id for it."),
        Column("idempotency_key", TEXT, "Its idempotency key."),
        Column("client_at", MOMENT, "By the sender's own clock; never used to order anything."),
        Column("invocation_id", TEXT, "Set for the call of an agent: the caller's id of it."),
        Column("deadline_ms", NUMBER, "An invocation's deadline, ms; 0: none; null: no invocation."),
        Column("joins_run", TEXT, "Run whose open ask it answers; it opens none there."),
        Column("interrupt_id", TEXT, "The interrupt that it answers."),
        Column("assigned", ASSIGNMENTS, "The runs that it opened, and whom they were given to."),
        Column("queued", TEXTS, "Groups where it waits in line behind an earlier run."),
        Column("waiting", TEXTS, "Agent channels that had no group; the first to join gets it."),
    ),
)

FRAMES: Final = Table(
    "frames",
    "What agents said and did, and people beside their turns: a row for each frame that was stored.",
    (
        *COMMON,
        _needed("seq", NUMBER, "Its number in the conversation; 0: not numbered (an error, a checkpoint, …)."),
        _needed("frame_id", TEXT, "Its message id; of an interrupt the agent's own interrupt id."),
        _needed("origin", TEXT, "agent, person, or system (closing frames that a takeover made)."),
        _needed("type", TEXT, "Frame type: text, genui, tool_call, interrupt, …"),
        Column("sender", TEXT, "Agent's id that viewers are shown, or the participant's."),
        Column("channel", TEXT, "Channel that its sender is connected to."),
        Column("group_name", TEXT, "The member's group; null: a person's."),
        Column("member", TEXT, "Member that held the run, or owned the conversation; null: a person's."),
        Column("run_id", TEXT, "Run that it belongs to; null: a proactive message, or a person's."),
        Column("run_epoch", NUMBER, "Run epoch under which it was accepted; null: no run."),
        Column("turn_seq", NUMBER, "seq of the turn that its run answers; null: no run."),
        Column("text", TEXT, "The plain text, where the type has one."),
        KEY_ID,
        Column("data", TEXT, "Its payload, JSON, when it holds more than the text."),
        Column("metadata", TEXT, "What the sender attached, a JSON object."),
        Column("extra", TEXT, "Further fields of the wire frame, a JSON object."),
        Column("stream_id", TEXT, "Of a streamed message: the stream that the piece belongs to."),
        _needed("done", FLAG, "Of a streamed message: whether it is the last piece."),
        Column("status", TEXT, "Of a run frame: started, finished, error, aborted, interrupted."),
        Column("client_id", TEXT, "The sender's own id for it."),
        Column("idempotency_key", TEXT, "Its idempotency key."),
        Column("given_to", ASSIGNMENTS, "Of a person's frame: whom it was given to."),
    ),
)

OWNERSHIP: Final = Table(
    "ownership",
    "Who was to answer what, from when on, and why: a row each time that a run was given, queued or moved, or that a "
    "conversation's owner changed.",
    (
        *COMMON,
        _needed("group_name", TEXT, "Group that answers."),
        _needed("change", TEXT, "assigned, queued, moved: of a run; owner: of the conversation's next turns."),
        Column("run_id", TEXT, "The run; null for `owner`."),
        Column("run_epoch", NUMBER, "Run epoch from here on; frames of the one before are refused."),
        Column("turn_seq", NUMBER, "seq of the turn that the run answers."),
        Column("previous", TEXT, "Member that had it; null: none."),
        Column("member", TEXT, "Member that has it; null: it waits for one."),
        Column("reason", TEXT, "Why it moved: member_left, member_expired, …; null: it was given for the first time."),
        Column("adopted", FLAG, "Of a move: the same process has the turn already, under a new member id."),
        Column("continued", FLAG, "Of a move: the new member goes on where the lost one stopped."),
        Column("superseded", SEQS, "Of a move: seqs of the lost owner's partial frames, which count no more."),
    ),
)

MEMBERSHIP: Final = Table(
    "membership",
    "Agent connections that came and went. Each partition has its own order of them, so that a change has a row for "
    "each partition: filter on one `partition`, or count distinct members.",
    (
        *COMMON,
        Column("member", TEXT, "The connection's id, never used again; null: all of a gateway ended."),
        Column("group_name", TEXT, "Its group."),
        Column("channel", TEXT, "Channel that it is connected to; null: not told by this event."),
        Column("gateway", TEXT, "Incarnation of the gateway that holds the connection."),
        Column("change", TEXT, "joined, draining, left, gateway_ended."),
        Column("since", MOMENT, "Log time from which on it is eligible; null: no join."),
        Column("continues", FLAG, "Whether it can go on with a run that another began."),
        Column("alone", FLAG, "Whether it gets every turn for itself (`ungrouped: each`)."),
        Column("requested_by", TEXT, "Of draining: who wanted it."),
        Column("reason", TEXT, "Why it left, or drains."),
    ),
)

RUNS: Final = Table(
    "runs",
    "The processing of a turn by a group, from given to over: a row for each run that ended.",
    (
        *COMMON,
        _needed(
            "run_id", TEXT, "`<conversation>/<turn seq>/<group>`, with `~<edition>` behind the seq of one wanted anew."
        ),
        _needed("turn_seq", NUMBER, "seq of the turn that it answers."),
        _needed("group_name", TEXT, "Group that it belongs to."),
        Column("invocation_id", TEXT, "Set when its turn was the call of an agent."),
        _needed("outcome", TEXT, "answered, failed, cancelled, timed_out, owner_gone; expect more."),
        _needed("reason", TEXT, "Why it ended, in a word."),
        Column("ended_by", TEXT, "Who ended it, where somebody did."),
        Column("detail", TEXT, "Why, in the words of who ended it; sealed where what is said is."),
        Column("first_member", TEXT, "The first member that had it; null: nobody ever had."),
        Column("member", TEXT, "The member that had it at its end; null: nobody."),
        _needed("run_epoch", NUMBER, "Run epoch at its end: 1, and 1 more for each move."),
        _needed("takeovers", NUMBER, "How often another process took it over: moves between members, adoptions apart."),
        _needed("continued", NUMBER, "How many of them went on where the lost owner stopped."),
        Column("turn_at", MOMENT, "committed_at of its turn; null: before what was read."),
        Column("given_at", MOMENT, "When the first member got it."),
        Column("started_at", MOMENT, "When a member first said that it works on it."),
        Column("first_frame_at", MOMENT, "When its first numbered frame was stored."),
        Column("wait_ms", NUMBER, "From the turn to given."),
        Column("first_frame_ms", NUMBER, "From the turn to the first numbered frame."),
        Column("latency_ms", NUMBER, "From the turn to the run's end."),
        _needed("frames", NUMBER, "Frames stored for it, superseded ones too."),
        _needed("interrupts", NUMBER, "Questions that it asked."),
        _needed("superseded", NUMBER, "Frames of it that count no more."),
        Column("tokens_in", NUMBER, "Tokens read, summed over the `usage` objects in its frames; null: none said."),
        Column("tokens_out", NUMBER, "Tokens written, as tokens_in."),
    ),
)

CONVERSATIONS: Final = Table(
    "conversations",
    "What conversations are: a row for each change of a conversation's life, so that the one with the highest "
    "`version` is what it is now.",
    (
        *COMMON,
        _needed("version", NUMBER, "1, 2, 3, … along the conversation."),
        _needed("status", TEXT, "open, closed, handed_over or erased, from here on."),
        Column("participant", TEXT, "The person's id on the channel."),
        Column("external_id", TEXT, "The channel's own id of the conversation."),
        Column("metadata", TEXT, "What the opener attached, a JSON object."),
        Column("changed_by", TEXT, "Who closed, reopened, handed over or erased it."),
        Column("handed_to", TEXT, "Who answers, while it is handed over."),
        Column("reason", TEXT, "Why, for people; of a handover sealed where what is said is."),
        Column("opened_at", MOMENT, "committed_at of its opening; null: before what was read."),
        _needed("turns", NUMBER, "Turns up to here."),
        _needed("frames", NUMBER, "Frames up to here."),
        _needed("last_seq", NUMBER, "The highest seq up to here."),
    ),
)

TABLES: Final = (TURNS, FRAMES, OWNERSHIP, MEMBERSHIP, RUNS, CONVERSATIONS)
BY_NAME: Final[Mapping[str, Table]] = {table.name: table for table in TABLES}


def chosen(names: Iterable[str]) -> tuple[Table, ...]:
    """The tables of these names, in the order of `TABLES`; none: all. Raises `ValueError` for a name that is none."""
    wanted = set(names)
    unknown = wanted - BY_NAME.keys()
    if unknown:
        raise ValueError(f"no such table: {', '.join(sorted(unknown))}; there are {', '.join(BY_NAME)}")
    return tuple(table for table in TABLES if not wanted or table.name in wanted)


def arrow(table: Table, rows: Sequence[Row]) -> pa.Table:
    """Rows as an Arrow table; moments, which rows have in ms, as `MOMENT`."""
    columns = zip(*rows, strict=True) if rows else ((),) * len(table.columns)
    arrays = [_array(column, values) for column, values in zip(table.columns, columns, strict=True)]
    return pa.Table.from_arrays(arrays, schema=table.schema)


def _array(column: Column, values: Sequence[Any]) -> pa.Array:
    if column.type == MOMENT:
        return pa.array(values, pa.timestamp("ms", tz="UTC")).cast(MOMENT)
    return pa.array(values, column.type)
