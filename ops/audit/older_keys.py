"""Invariant 10, of the table of older idempotency keys: what fell out of a conversation's newest 64 is in it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar, Final

from ops.audit.remembered import scratch
from streams.core.store import OverflowKey

NAMED_MOST: Final = 10
"""Keys that are missing and named; of the others there is the number."""


class OlderKeys:
    """10: each key younger than 24 h that is not among its conversation's newest 64 is in the table, as a replay has
    it, and the table has no other.

    What a replay has is noted whenever a conversation of it is dumped; it lies in a temporary file.
    """

    invariant: ClassVar[int] = 10

    def __init__(self) -> None:
        self._rows = scratch()
        self._rows.execute(
            "CREATE TABLE older (conversation TEXT, key TEXT, seq INT, id TEXT, at INT, timestamp INT, "
            "found INT DEFAULT 0, PRIMARY KEY (conversation, key)) WITHOUT ROWID"
        )

    def note(self, conversation_id: str, fallen: Iterable[OverflowKey]) -> None:
        """These fell out of a replayed conversation's row."""
        self._rows.executemany(
            "INSERT OR REPLACE INTO older VALUES (?, ?, ?, ?, ?, ?, 0)",
            [(conversation_id, key.fingerprint.hex(), key.seq, key.id, key.at, key.timestamp) for key in fallen],
        )

    def compare(self, row: Mapping[str, Any]) -> Iterator[str]:
        """One row of the table against the replay, which is at the checkpoint's lsn."""
        name, key = row["conversation_id"], row["key"]
        stored = (row["seq"], row["id"], row["at"], row["timestamp"])
        known = self._rows.execute(
            "UPDATE older SET found = 1 WHERE conversation = ? AND key = ? RETURNING seq, id, at, timestamp",
            (name, key),
        ).fetchone()
        if known is None:
            yield f"the table of older keys has {key} of conversation {name}, which a replay does not"
        elif known != stored:
            yield f"the table of older keys has {stored} for {key} of conversation {name}; a replay has {known}"

    def missing(self, until: int) -> Iterator[tuple[str, str]]:
        """After the last row: conversation and problem of those younger than log time `until` that were not there."""
        rows = self._rows.execute("SELECT conversation, key, at FROM older WHERE NOT found AND at > ?", (until,))
        for name, key, at in rows.fetchmany(NAMED_MOST):
            yield name, f"the key {key} of log time {at} is neither among the newest 64 nor in the table of older keys"
        if more := len(rows.fetchall()):
            yield "", f"{more} more keys younger than 24 h are in neither place"

    def close(self) -> None:
        """Remove what lies on disk."""
        self._rows.close()
