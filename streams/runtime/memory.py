"""What of a partition is in memory: all of its hot conversations, and as many idle ones as fit.

    awake    decoded, in the core's state: what is decided on; hot ones always are
    asleep   idle and unchanged for a while: its row, as the checkpoint holds it, of 2 KiB at most with 64 keys
    stored   in the checkpoint alone

An idle conversation falls asleep, and leaves memory, only after a checkpoint holds it; those of a batch that are not
awake come back together, the stored ones in one query. A restart, a takeover and an eviction therefore give the same
decisions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import islice

import msgspec

from streams.core.commands import Command
from streams.core.fold import conversation_of
from streams.core.keys import restore_older
from streams.core.state import KEY_LIFETIME_MS, ImpossibleEvent, Partition
from streams.core.store import (
    OverflowKey,
    attach,
    detach,
    dump_conversation,
    dump_partition,
    is_hot,
    load_conversation,
    mark_stored,
)
from streams.fence.port import Checkpoint, Checkpoints, ConversationRow, KeyRow, Positions, Token
from streams.runtime.kafka import Unrecoverable

AWAKE_IDLE_MAX = 1_000
"""Idle conversations that stay decoded, a partition: waking one costs some 10 µs."""
# So many conversations are dumped before other partitions get the loop again: about 10 ms.
DUMP_CHUNK = 500


class UnreadableRow(Exception):
    """What the store holds of a conversation is not what was put there: another release wrote it, or a disk broke."""

    def __init__(self, conversation_id: str, error: Exception) -> None:
        super().__init__(f"the stored row of conversation {conversation_id} is not readable: {error}")


class Room:
    """Which partitions of a worker share its memory."""

    def __init__(self) -> None:
        self._partitions: set[int] = set()

    def enter(self, partition: int) -> None:
        """This partition is opened here."""
        self._partitions.add(partition)

    def leave(self, partition: int) -> None:
        """It is closed, opened or not."""
        self._partitions.discard(partition)

    def share(self, conversations: int) -> int:
        """How many each may keep where all of them together may keep `conversations`."""
        return conversations // max(1, len(self._partitions))


class Snapshot(msgspec.Struct, frozen=True, gc=False):
    """A partition's state as of one lsn, in bytes: nothing of it changes while it is on its way to the store."""

    checkpoint: Checkpoint
    rows: Sequence[ConversationRow]
    overflow: Mapping[str, Sequence[OverflowKey]]
    """Per conversation, the keys that go into the table of older ones."""
    conversations: frozenset[str]
    """Whose rows are in it: those that changed since the snapshot before."""
    stored_lsn: int
    """Of that snapshot, which the store must still have."""

    @property
    def keys(self) -> list[KeyRow]:
        """`overflow` as rows."""
        return [
            KeyRow(name, key.fingerprint.hex(), key.seq, key.id, key.at, key.timestamp)
            for name, keys in self.overflow.items()
            for key in keys
        ]


class Memory:
    """The state of one partition under one writer epoch, its loading, snapshots and evictions."""

    def __init__(
        self,
        state: Partition,
        checkpoints: Checkpoints,
        token: Token,
        *,
        stored_lsn: int,
        idle_max: Callable[[], int],
    ) -> None:
        """`stored_lsn`: the checkpoint that this writer knows to be stored; 0: none. `idle_max`: how many idle
        conversations may be in memory now."""
        self.state = state
        self.stored_lsn = stored_lsn
        self._checkpoints = checkpoints
        self._token = token
        self._idle_max = idle_max
        self._asleep: dict[str, bytes] = {}
        self._older: set[str] = set()

    @property
    def loaded(self) -> int:
        """Conversations in memory, awake and asleep."""
        return len(self.state.conversations) + len(self._asleep)

    async def load_hot(self) -> None:
        """Bring in every conversation that must never be out of memory. Raises `UnreadableRow`."""
        if self.stored_lsn:
            self._attach(await self._checkpoints.load_hot(self.state.partition, self._token, self.stored_lsn))

    async def require(self, absent: Collection[str], commands: Iterable[Command] = ()) -> None:
        """Have all that deciding needs: `absent` conversations that exist, older keys of those that commands name.
        Raises `UnreadableRow`."""
        partition, token, lsn = self.state.partition, self._token, self.stored_lsn
        if absent and self._asleep:
            absent = [name for name in absent if not self._wake(name)]
        if absent and lsn:
            rows = await self._checkpoints.load(partition, token, lsn, absent)
            self._attach(rows.values())
        if not self._older:
            return
        named = self._older.intersection(map(conversation_of, commands))
        if named:
            not_before = self.state.at - KEY_LIFETIME_MS
            self._take_keys(named, await self._checkpoints.load_keys(partition, token, lsn, named, not_before))

    async def snapshot(self, journal_offset: int, positions: Positions) -> Snapshot:
        """The state as it is now. The partition must not be stepped meanwhile; other partitions get their turn."""
        state = self.state
        changed = frozenset(state.dirty)
        rows: list[ConversationRow] = []
        overflow: dict[str, Sequence[OverflowKey]] = {}
        for index, conversation_id in enumerate(sorted(changed)):
            conversation = state.conversations[conversation_id]
            data, fallen = dump_conversation(conversation)
            rows.append(ConversationRow(conversation_id, state.lsn, is_hot(conversation), data))
            if fallen:
                overflow[conversation_id] = fallen
            if index % DUMP_CHUNK == DUMP_CHUNK - 1:
                await asyncio.sleep(0)
        state.dirty.clear()
        checkpoint = Checkpoint(self._token, state.lsn, journal_offset, positions, dump_partition(state))
        return Snapshot(checkpoint, rows, overflow, changed, self.stored_lsn)

    def failed(self, snapshot: Snapshot) -> None:
        """The snapshot did not reach the store: what it held is to be stored with the next one."""
        self.state.dirty |= snapshot.conversations

    def stored(self, snapshot: Snapshot) -> int:
        """The snapshot is in the store: its idle conversations may leave. Returns how many did.

        Call it between batches only: what a batch found in memory must be there when it is decided.
        """
        self.stored_lsn = snapshot.checkpoint.lsn
        for name, keys in snapshot.overflow.items():
            mark_stored(self.state.conversations[name], keys)
        self._rest(snapshot)
        surplus = self.loaded - self._idle_max()
        leaving = list(islice(self._asleep, max(0, surplus)))
        for name in leaving:
            del self._asleep[name]
        return len(leaving)

    def _rest(self, snapshot: Snapshot) -> None:
        """Put idle conversations to sleep: all that did not change since the snapshot before this one, and of those
        that did as many as are too many."""
        state = self.state
        conversations, dirty = state.conversations, state.dirty
        idle = [name for name, each in conversations.items() if name not in dirty and not is_hot(each)]
        kept = min(AWAKE_IDLE_MAX, self._idle_max())
        fresh = [name for name in idle if name in snapshot.conversations]
        tired = fresh[: max(0, len(fresh) - kept)]
        rows = {row.conversation_id: row.state for row in snapshot.rows} if tired else {}
        for name in tired:
            self._asleep[name] = _exact(rows[name])
        rested = [name for name in idle if name not in snapshot.conversations]
        for name in rested:
            self._asleep[name] = _exact(dump_conversation(conversations[name])[0])
        for name in (*tired, *rested):
            detach(state, name)
            self._older.discard(name)

    def _wake(self, name: str) -> bool:
        row = self._asleep.pop(name, None)
        if row is None:
            return False
        self._awaken(name, row)
        return True

    def _awaken(self, name: str, row: bytes) -> None:
        try:
            conversation = load_conversation(name, row)
        except (ImpossibleEvent, LookupError, ValueError) as error:
            raise UnreadableRow(name, error) from error
        attach(self.state, conversation)
        if conversation.older_keys:
            self._older.add(name)

    def _attach(self, rows: Iterable[ConversationRow]) -> None:
        for row in rows:
            self._awaken(row.conversation_id, row.state)

    def _take_keys(self, conversations: Iterable[str], found: Sequence[KeyRow]) -> None:
        of: dict[str, list[tuple[bytes, int, str, int, int]]] = {name: [] for name in conversations}
        for row in found:
            try:
                fingerprint = bytes.fromhex(row.key)
            except ValueError as error:
                raise Unrecoverable(
                    f"the stored idempotency key {row.key!r} of conversation {row.conversation_id} is not readable: "
                    f"{error}. Delete this row of idempotency_keys and start the worker again; a repeat of what it "
                    "stood for is then stored once more"
                ) from error
            of[row.conversation_id].append((fingerprint, row.seq, row.id, row.at, row.timestamp))
        for name, older in of.items():
            restore_older(self.state.conversations[name], older)
        self._older.difference_update(of)


def _exact(row: bytes) -> bytes:
    """A copy that takes no more memory than it is long: what an encoder returns keeps room that it did not need, a
    fifth more for each conversation asleep (measured)."""
    return bytes(memoryview(row))
