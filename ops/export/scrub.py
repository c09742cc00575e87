"""Taking what was said in erased conversations out of an export that was made before: each row stays, without it.

Whatever kills it, it is done again from the beginning, and finds less to do: what has nothing of it is not touched.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

import pyarrow as pa

from ops.export.target import Contents, ExportRefused, Scrubbable, States
from ops.export.words import WORDS, without_words

Say = Callable[[str], None]


@dataclass(slots=True)
class Scrubbed:
    """What was done, or in a dry run would be."""

    conversations: int
    before: dict[str, int]
    """Rows that hold what was said in them, by table."""
    after: dict[str, int] = field(default_factory=dict)
    removed: int = 0
    """Files of earlier versions."""


@dataclass(frozen=True, slots=True)
class _Erased:
    """Which conversations; by partition, the offset that a state must have seen to have forgotten them."""

    conversations: frozenset[str]
    seen: dict[int, int]


def scrub(target: Scrubbable, states: States, named: Collection[str], say: Say, *, dry_run: bool = False) -> Scrubbed:
    """Take it out of the rows of every conversation that the export says was erased, and of those `named`.

    Raises `ExportRefused`: there is no export, or it does not say which were erased and none is named; `Overtaken`.
    """
    contents = target.contents()
    if contents is None:
        raise ExportRefused(f"{target.address} has no export")
    tables = [name for name in WORDS if name in contents.selection["tables"]]
    erased = _erased(target, contents, tables, named)
    result = Scrubbed(len(erased.conversations), {name: _holding(target, name, erased) for name in tables})
    if dry_run:
        return result
    for name in tables:
        if result.before[name]:
            target.scrub(name, erased.conversations)
            say(f"{name}: {result.before[name]:,} rows are rewritten")
    for partition, offset in erased.seen.items():
        states.remove(partition, offset)
    result.removed = target.forget()
    result.after = {name: _holding(target, name, erased) for name in tables}
    return result


def _erased(target: Scrubbable, contents: Contents, tables: Collection[str], named: Collection[str]) -> _Erased:
    if "conversations" not in tables and not named:
        raise ExportRefused(
            f"{target.address} has no table `conversations` to say which were erased: name them (`turnlog conversation "
            "list --status erased` lists them)"
        )
    conversations = set(named)
    seen: dict[int, int] = {}
    for rows in target.found("conversations") if "conversations" in tables else ():
        for row in rows.select(["conversation_id", "status", "partition", "journal_offset"]).to_pylist():
            if row["status"] == "erased":
                conversations.add(row["conversation_id"])
                seen[row["partition"]] = max(seen.get(row["partition"], 0), row["journal_offset"])
    if named:  # where they were erased, nothing here says
        seen = dict.fromkeys(range(contents.partitions), 2**62)
    return _Erased(frozenset(conversations), seen)


def _holding(target: Scrubbable, table: str, erased: _Erased) -> int:
    return sum(_held(table, rows, erased) for rows in target.found(table)) if erased.conversations else 0


def _held(table: str, rows: pa.Table, erased: _Erased) -> int:
    return without_words(table, rows, erased.conversations)[1]
