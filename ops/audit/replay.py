"""Invariants 9 and 10: replaying the journal gives the live state, byte for byte, and a checkpoint is such a state.

The live state is what checkpoints hold: they were taken between batches of any size, with evictions, restarts and
takeovers before them. The replay folds one entry after the other, and is itself taken apart into rows and put
together again on its way, half of its conversations at a time, so that it had another split.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Final
from zlib import crc32

from psycopg import AsyncConnection, AsyncServerCursor, IsolationLevel
from psycopg.rows import dict_row

from ops.audit.older_keys import OlderKeys
from ops.audit.remembered import scratch
from ops.audit.violations import Kinds
from ops.database import QUERIES
from streams.core.events import BatchCommitted, Entry
from streams.core.fold import evolve
from streams.core.state import Conversation, ImpossibleEvent, Partition
from streams.core.store import (
    attach,
    dump_conversation,
    dump_partition,
    is_hot,
    load_conversation,
    load_partition,
)
from streams.fence.connection import bounded_dsn
from streams.fence.port import Positions

RESIDENT_MOST: Final = 50_000
"""Conversations in memory; idle ones beyond it go to a temporary file."""
ROWS_AT_ONCE: Final = 1_000


class Spill:
    """Idle conversations on disk, in an anonymous temporary SQLite database that ends with its connection."""

    def __init__(self) -> None:
        self._rows = scratch()
        self._rows.execute("CREATE TABLE conversation (id TEXT PRIMARY KEY, state BLOB NOT NULL) WITHOUT ROWID")
        self.count = 0

    def put(self, conversation_id: str, state: bytes) -> None:
        """Keep one that is not here."""
        self._rows.execute("INSERT INTO conversation VALUES (?, ?)", (conversation_id, state))
        self.count += 1

    def take(self, conversation_id: str) -> bytes | None:
        """Its row, which is here no longer; None: it is not here."""
        if not self.count:
            return None
        row = self._rows.execute("DELETE FROM conversation WHERE id = ? RETURNING state", (conversation_id,)).fetchone()
        if row is None:
            return None
        self.count -= 1
        state: bytes = row[0]
        return state

    def peek(self, conversation_id: str) -> bytes | None:
        """Its row, which stays."""
        row = self._rows.execute("SELECT state FROM conversation WHERE id = ?", (conversation_id,)).fetchone()
        return None if row is None else row[0]

    def close(self) -> None:
        """Remove it all."""
        self._rows.close()


class Replay:
    """9: the journal alone gives the state, whatever the split. Folds one partition; `state` is for other checkers.

    Of its conversations `RESIDENT_MOST` and the hot ones are in memory.
    """

    invariant: ClassVar[int] = 9
    kinds: ClassVar[Kinds] = ()

    def __init__(self, partition: int, resident_most: int = RESIDENT_MOST) -> None:
        self.state = Partition(partition)
        self.broken = False
        """An entry could not follow: there is no state from there on."""
        self.older_keys = OlderKeys()
        self._resident_most = resident_most
        self._spill = Spill()

    def require(self, name: str) -> None:
        """Have this conversation in memory, if there is one."""
        if name not in self.state.conversations and (row := self._spill.take(name)) is not None:
            attach(self.state, load_conversation(name, row))

    def see(self, entry: Entry) -> list[str]:
        """See `Checker`. After a violation nothing more is folded."""
        if self.broken:
            return []
        try:
            evolve(self.state, entry)
        except ImpossibleEvent as impossible:
            return self.broke(impossible)
        return []

    def broke(self, impossible: ImpossibleEvent) -> list[str]:
        """An entry could not follow: there is no state from here on."""
        self.broken = True
        return [f"it cannot follow what comes before it: {impossible}"]

    def relieve(self) -> None:
        """Between chunks: move idle conversations out, the longest known first, until enough room is left."""
        self.state.dirty.clear()
        surplus = len(self.state.conversations) - self._resident_most
        if surplus <= 0:
            return
        idle = [name for name, each in self.state.conversations.items() if not is_hot(each)]
        for name in idle[: surplus + self._resident_most // 4]:
            self._spill.put(name, self._dumped(self.state.conversations.pop(name)))

    def split(self, first: int = 0, step: int = 1) -> list[str]:
        """Take the state apart into rows and put it together again; it must be the same bytes, and fold on the same.

        Of its conversations, by a hash of their names, one in `step`: the whole of it in turns, `first` from 0 on.
        """
        if self.broken:
            return []
        whole, conversations = dump_partition(self.state), self.state.conversations
        chosen = [name for name in conversations if crc32(name.encode()) % step == first]
        rows = {name: self._dumped(conversations[name]) for name in chosen}
        self.state = load_partition(whole, self.state.partition)
        for name, each in conversations.items():
            attach(self.state, load_conversation(name, rows[name]) if name in rows else each)
        found = [] if dump_partition(self.state) == whole else ["the partition's row is another after it was loaded"]
        for name, row in rows.items():
            if dump_conversation(self.state.conversations[name])[0] != row:
                found.append(f"the row of conversation {name} is another after it was loaded")
        return found

    @property
    def count(self) -> int:
        """Conversations of the partition."""
        return len(self.state.conversations) + self._spill.count

    def row_of(self, conversation_id: str) -> tuple[bytes, bool] | None:
        """A conversation as a checkpoint would hold it, and whether it is hot; None: there is none."""
        known = self.state.conversations.get(conversation_id)
        if known is not None:
            return self._dumped(known), is_hot(known)
        spilled = self._spill.peek(conversation_id)
        return None if spilled is None else (spilled, False)

    def _dumped(self, conversation: Conversation) -> bytes:
        """Its row; the keys that fell out of it are noted."""
        row, fallen = dump_conversation(conversation)
        if fallen:
            self.older_keys.note(conversation.id, fallen)
        return row

    def close(self) -> None:
        """Remove what lies on disk."""
        self._spill.close()
        self.older_keys.close()


@dataclass(frozen=True, slots=True)
class StoredCheckpoint:
    """One partition's checkpoint as of one moment, its conversations in a cursor that still has to be read."""

    row: Mapping[str, Any] | None
    connection: AsyncConnection[Any] | None
    partition: int

    @property
    def lsn(self) -> int:
        """0: none was saved yet."""
        return 0 if self.row is None else int(self.row["lsn"])

    async def conversations(self) -> AsyncIterator[dict[str, Any]]:
        """Its conversation rows."""
        assert self.connection is not None  # noqa: S101 -- there are none without a row
        async with AsyncServerCursor(self.connection, "audit_rows", row_factory=dict_row) as cursor:
            cursor.itersize = ROWS_AT_ONCE
            await cursor.execute(QUERIES["conversation_rows"], {"partition": self.partition})
            async for row in cursor:
                yield row

    async def older_keys(self, not_before: int) -> AsyncIterator[dict[str, Any]]:
        """Rows of the table of older idempotency keys, of this log time or later."""
        assert self.connection is not None  # noqa: S101 -- as above
        async with AsyncServerCursor(self.connection, "audit_keys", row_factory=dict_row) as cursor:
            cursor.itersize = ROWS_AT_ONCE
            await cursor.execute(QUERIES["older_keys"], {"partition": self.partition, "not_before": not_before})
            async for row in cursor:
                yield row


def absent_checkpoint(partition: int) -> StoredCheckpoint:
    """Where there is no database: none."""
    return StoredCheckpoint(None, None, partition)


@asynccontextmanager
async def stored_checkpoint(dsn: str, partition: int) -> AsyncIterator[StoredCheckpoint]:
    """The checkpoint of `partition`: a snapshot that stays while the block runs, whatever workers write meanwhile."""
    connection = await AsyncConnection.connect(bounded_dsn(dsn, "audit"))
    try:
        await connection.set_isolation_level(IsolationLevel.REPEATABLE_READ)
        await connection.set_read_only(True)
        async with connection.cursor(row_factory=dict_row) as cursor:
            # Its conversations are read once the journal is read as far as it: a server's limit would end it meanwhile.
            await cursor.execute("SET LOCAL idle_in_transaction_session_timeout = 0")
            await cursor.execute(QUERIES["checkpoint"], {"partition": partition})
            row = await cursor.fetchone()
        yield StoredCheckpoint(row, connection, partition)
    finally:
        await connection.close()


class CheckpointHolds:
    """10: a checkpoint is never ahead of the journal, and its state is that of a replay to its lsn."""

    invariant: ClassVar[int] = 10
    kinds: ClassVar[Kinds] = (BatchCommitted,)

    def __init__(self) -> None:
        self._positions: Positions | None = None
        """Of the checkpoint, until the next batch is seen."""

    def compare(self, replay: Replay, row: Mapping[str, Any]) -> Iterator[str]:
        """The partition's row against the replay, which is at its lsn."""
        state = replay.state
        self._positions = at = Positions(row["turns"], row["frames"], row["membership"])
        # What decided nothing (heartbeats, ticks, a frame without consequence) is consumed without a batch of its own,
        # so that a checkpoint may be ahead of the last batch there; every turn has an outcome, hence a batch.
        if at.turns != state.turns or at.frames < state.frames or at.membership < state.membership:
            known = Positions(state.turns, state.frames, state.membership)
            yield f"the checkpoint of lsn {row['lsn']} is at {at}; the journal says {known}"
        if bytes(row["state"]) != dump_partition(state):
            yield f"the checkpoint of lsn {row['lsn']} is not the state of a replay to it"

    def see(self, entry: Entry) -> list[str]:
        """See `Checker`: the batch after the checkpoint consumed at least as much."""
        at = self._positions
        if at is None or not isinstance(entry.event, BatchCommitted):
            return []
        self._positions = None
        after = entry.event
        if at.frames <= after.frames and at.membership <= after.membership:
            return []
        return [f"the checkpoint before it was ahead of the journal: {at}, and this batch is at {after}"]

    def compare_conversation(self, replay: Replay, row: Mapping[str, Any]) -> Iterator[str]:
        """One conversation's row against the replay, which is at the checkpoint's lsn."""
        name = row["conversation_id"]
        replayed = replay.row_of(name)
        if replayed is None:
            yield f"the checkpoint has conversation {name}, which the journal does not"
            return
        state, hot = replayed
        if bytes(row["state"]) != state:
            yield f"the checkpoint's row of conversation {name} is not that of a replay"
        elif row["hot"] != hot:
            yield f"the checkpoint's row of conversation {name} says hot={row['hot']}, a replay says {hot}"

    def ahead(self, checkpoint_lsn: int, journal_lsn: int) -> Iterator[str]:
        """After the last entry."""
        if checkpoint_lsn > journal_lsn:
            yield f"the checkpoint is at lsn {checkpoint_lsn}, the journal ends at {journal_lsn}"
