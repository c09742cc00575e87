"""What of an export's rows is what somebody said, and rows without it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from streams.core.invocations import RELEASED

WORDS: Final[Mapping[str, tuple[str, ...]]] = {
    "turns": ("text", "data", "metadata"),
    "frames": ("text", "data", "metadata", "extra"),
    "runs": ("detail",),
    "conversations": ("metadata", "reason"),
}
"""Columns that hold it, by table."""
_HANDED: Final = frozenset({"ConversationHandedOver", "ConversationHandedBack"})


def words_in(table: str, row: Mapping[str, Any]) -> list[str]:
    """The columns in which this row holds what somebody said, unless it says which key seals it."""
    if row.get("key_id") is not None:
        return []
    return [name for name in WORDS[table] if row.get(name) and not _of_operators(table, name, row)]


def _of_operators(table: str, column: str, row: Mapping[str, Any]) -> bool:
    """What they say who close or erase, and their proof when they release: it stays, wherever it is stored."""
    if table == "conversations" and column == "reason":
        return row["event"] not in _HANDED
    return table == "runs" and row["reason"] == RELEASED


def without_words(table: str, rows: pa.Table, conversations: Collection[str]) -> tuple[pa.Table, int]:
    """The rows of the table of this name, without what was said in these conversations; and how many held any."""
    of_them = pc.is_in(rows.column("conversation_id"), value_set=pa.array(sorted(conversations), pa.string()))
    places = [at for at, found in enumerate(of_them.to_pylist()) if found]
    found: dict[str, set[int]] = defaultdict(set)
    for at, row in zip(places, rows.take(pa.array(places, pa.int64())).to_pylist(), strict=True):
        for column in words_in(table, row):
            found[column].add(at)
    for column, holding in found.items():
        number = rows.column_names.index(column)
        flags = pa.array([at in holding for at in range(rows.num_rows)], pa.bool_())
        kept = pc.if_else(flags, pa.scalar(None, rows.column(number).type), rows.column(number))
        rows = rows.set_column(number, rows.schema.field(number), kept)
    return rows, len(set().union(*found.values()))
