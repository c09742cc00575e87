"""What a query may name: each table, the views on them, the raw events, and the live state, with their columns.

Views: `conversations` is what each conversation is now; all changes of them are in `conversation_versions`. Columns
that hold what somebody said are masked unless text is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from streams.core.invocations import RELEASED
from turnlog.data.arrow import EVENTS_SCHEMA
from turnlog.data.tables import COMMON, CONVERSATIONS, MOMENT, TABLES, TEXT, Column, Table

VERSIONS: Final = "conversation_versions"
JOURNAL: Final = "journal"
OPEN_RUNS: Final = "open_runs"
LEASES: Final = "leases"
WORKERS: Final = "workers"
SAID: Final[Mapping[str, frozenset[str]]] = {
    "turns": frozenset({"text", "data", "metadata"}),
    "frames": frozenset({"text", "data", "metadata", "extra"}),
    "runs": frozenset({"detail"}),
    "conversations": frozenset({"metadata", "reason"}),
    VERSIONS: frozenset({"metadata", "reason"}),
    JOURNAL: frozenset({"fields"}),
}
"""Columns that may hold what somebody said, by relation."""


_HANDED: Final = "event IN ('ConversationHandedOver', 'ConversationHandedBack')"
_WORDY: Final = (
    *("TurnCommitted", "FrameCommitted", "PersonFrameCommitted", "TurnEdited", "ConversationOpened", "RunMoved"),
    *("ConversationHandedOver", "ConversationHandedBack", "RunCancelling", "RunEnded"),
)
_SAID_IN: Final[Mapping[tuple[str, str], str]] = {
    ("conversations", "reason"): _HANDED,
    (VERSIONS, "reason"): _HANDED,
    ("runs", "detail"): f"reason IS DISTINCT FROM '{RELEASED}'",
    (JOURNAL, "fields"): f"event IN {_WORDY}",
}
"""In which rows a column of `SAID` holds it; elsewhere it is what an operator wrote, or nobody's words."""


@dataclass(frozen=True, slots=True)
class Relation:
    """Something that a query may name."""

    name: str
    doc: str
    columns: tuple[Column, ...]
    table: str | None = None
    """The table of the export that it is made from."""
    live: bool = False
    """Of a live system alone; no export has it."""

    @property
    def schema(self) -> pa.Schema:
        """Its Arrow schema; all may be null, so that an empty one can stand for it."""
        return pa.schema([(column.name, column.type) for column in self.columns])


def _of(table: Table, name: str | None = None, doc: str | None = None) -> Relation:
    return Relation(name or table.name, doc or table.doc, table.columns, table.name)


_BY_NAME: Final = {column.name: column for column in COMMON}
RUN_COLUMNS: Final = (
    _BY_NAME["partition"],
    Column("run_id", TEXT, "`<conversation>/<turn seq>/<group>`."),
    Column("turn_seq", pa.int64(), "seq of the turn that it answers."),
    Column("group_name", TEXT, "Group that it belongs to."),
    Column("member", TEXT, "The member that has it; null: it waits for one."),
    Column("run_epoch", pa.int64(), "Run epoch."),
    Column("turn_at", MOMENT, "When its turn was committed."),
    Column("given_at", MOMENT, "When the first member got it; null: nobody has yet."),
    Column("started_at", MOMENT, "When a member first said that it works on it."),
    Column("takeovers", pa.int64(), "How often another process took it over."),
    Column("frames", pa.int64(), "Frames stored for it so far."),
)
LEASE_COLUMNS: Final = (
    Column("partition", pa.int32(), "The partition."),
    Column("owner", TEXT, "Worker that may write it."),
    Column("writer_epoch", pa.int64(), "Its fencing token."),
    Column("expires_at", MOMENT, "Until when, by the database's clock."),
)
WORKER_COLUMNS: Final = (
    Column("id", TEXT, "The worker's id, new at each process start."),
    Column("expires_at", MOMENT, "Until when it counts as alive, by the database's clock."),
    Column("draining", pa.bool_(), "Whether it takes no more partitions."),
)
RELATIONS: Final[tuple[Relation, ...]] = (
    *(_of(table) for table in TABLES if table is not CONVERSATIONS),
    _of(CONVERSATIONS, doc="What each conversation is now: the latest version of it."),
    _of(CONVERSATIONS, VERSIONS, CONVERSATIONS.doc),
    Relation(
        JOURNAL,
        "The journal itself: every event, its own fields as JSON.",
        tuple(Column(f.name, f.type, (f.metadata or {}).get(b"doc", b"").decode()) for f in EVENTS_SCHEMA),
        live=True,
    ),
    Relation(OPEN_RUNS, "Runs that are not over, as of what was read.", RUN_COLUMNS, live=True),
    Relation(LEASES, "Which worker may write which partition now (from PostgreSQL).", LEASE_COLUMNS, live=True),
    Relation(WORKERS, "The workers that are there now (from PostgreSQL).", WORKER_COLUMNS, live=True),
)
BY_NAME: Final[Mapping[str, Relation]] = {relation.name: relation for relation in RELATIONS}


def view(relation: Relation, source: str, *, show_text: bool, erased: str | None = None) -> str:
    """The statement that makes the relation of `source`, a table function or name that gives its columns. `erased`: a
    view of the conversations of which nothing that was said is shown."""
    columns = ", ".join(_column(relation, column, show_text, erased) for column in relation.columns)
    rows = f"SELECT {columns} FROM {source}"  # noqa: S608 -- names and sources are of this package's own
    if relation.name == CONVERSATIONS.name:
        rows += " QUALIFY row_number() OVER (PARTITION BY conversation_id ORDER BY version DESC) = 1"
    return f'CREATE VIEW "{relation.name}" AS {rows}'


def _column(relation: Relation, column: Column, show_text: bool, erased: str | None) -> str:
    name = f'"{column.name}"'
    if column.name not in SAID.get(relation.name, ()) or (show_text and erased is None):
        return name
    if show_text:
        hidden = _SAID_IN.get((relation.name, column.name), "true")
        of_erased = f"conversation_id IN (SELECT conversation_id FROM {erased})"  # noqa: S608 -- see `view`
        return f"CASE WHEN {of_erased} AND {hidden} THEN NULL ELSE {name} END AS {name}"
    return f"CASE WHEN {name} IS NULL THEN NULL ELSE '(' || length({name}) || ' characters)' END AS {name}"
