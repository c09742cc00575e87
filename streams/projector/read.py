"""Questions to the read model, for the gateway and the command line. Changes nothing.

Each answer holds as of the partition's position (`position`): whoever needs a later state compares and waits.
Numbered events come back as the journal's own entries, except that a turn's assignments are left to `runs`.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from psycopg import AsyncConnection

from streams.core.events import (
    ConversationClosed,
    ConversationErased,
    ConversationHandedBack,
    ConversationHandedOver,
    ConversationReopened,
    Entry,
    Event,
    Frame,
    FrameCommitted,
    PersonFrameCommitted,
    Turn,
    TurnCommitted,
)
from streams.fence.connection import SessionPool
from streams.fence.queries import load_queries
from streams.projector.store import Position

QUERIES = load_queries("streams.projector", "read.sql")

READ_LIMIT_S = 3.0
SESSIONS = 4
# A time in ms since the epoch has 13 digits until the year 2286; 18 are a bigint of Postgres's still.
CURSOR_DIGITS = 18


class InvalidCursor(ValueError):
    """Not a cursor that a list of conversations gave."""


class ConversationRow(msgspec.Struct, frozen=True):
    """A conversation. Times: broker append times, ms since the epoch."""

    id: str
    partition: int
    channel: str
    participant: str | None
    external_id: str | None
    status: str
    """`open`, `closed` or `erased`."""
    head_seq: int
    opened_at: int
    updated_at: int
    last_lsn: int
    """The lsn of its last numbered event."""
    metadata: str | None


class Activity(msgspec.Struct, frozen=True):
    """A numbered event of a transcript. `superseded`: partial output of a lost owner, which viewers may hide.
    `edited_at`: of a turn, when what it says was last edited, ms since the epoch."""

    entry: Entry
    superseded: bool
    edited_at: int | None = None


class RunRow(msgspec.Struct, frozen=True):
    """A run. `status`: `open`, or how it ended. Times in ms since the epoch."""

    run_id: str
    turn_seq: int
    group: str
    member: str | None
    run_epoch: int
    status: str
    started: bool
    opened_at: int
    ended_at: int | None
    reason: str | None


class CallRow(msgspec.Struct, frozen=True):
    """The run of an invocation. `status`: `queued`, `open`, or how it ended. Times in ms since the epoch."""

    id: str
    run_id: str
    turn_seq: int
    group: str
    member: str | None
    run_epoch: int
    status: str
    cancelling: bool
    opened_at: int
    started_at: int | None
    ended_at: int | None
    reason: str | None
    detail: str | None


class CheckpointRow(msgspec.Struct, frozen=True):
    """What an agent stored of its run for whoever continues it. `data`: JSON."""

    lsn: int
    data: str


class MemberRow(msgspec.Struct, frozen=True):
    """A member that is present. `since`: log time from which turns count it, ms, of the partition that is latest."""

    member: str
    group: str
    channel: str
    gateway: str
    since: int
    partitions: int
    """How many partitions know it."""
    draining: int = 0
    """How many of them give it nothing new."""


class ReadModel:
    """The read model in Postgres, by several connections. Methods raise `FenceUnavailable` when it does not answer."""

    def __init__(self, dsn: str, *, sessions: int = SESSIONS, limit_s: float = READ_LIMIT_S) -> None:
        self._sessions = SessionPool(dsn, "read model", size=sessions, limit_s=limit_s)

    async def close(self) -> None:
        """Close the connections."""
        await self._sessions.close()

    async def position(self, partition: int) -> Position:
        """How far the read model is in this partition; lsn 0: nothing was written yet."""
        rows = await self._rows("position", partition=partition)
        return Position(*rows[0]) if rows else Position(0, 0)

    async def positions(self) -> Mapping[int, Position]:
        """How far it is in every partition that was ever written."""
        return {partition: Position(lsn, offset) for partition, lsn, offset in await self._rows("positions")}

    async def conversation(self, conversation_id: str) -> ConversationRow | None:
        """The conversation, if there is one."""
        rows = await self._rows("conversation", conversation=conversation_id)
        return ConversationRow(*rows[0]) if rows else None

    async def conversations(
        self,
        *,
        limit: int,
        cursor: str | None = None,
        status: str | None = None,
        channel: str | None = None,
        external_id: str | None = None,
        named: str | None = None,
    ) -> tuple[Sequence[ConversationRow], str | None]:
        """A page, the latest activity first, and the cursor of the next page (None: this is the last).

        `named`: the beginning of an id, or the whole of an external id or of a participant's.

        A conversation with news while pages are turned moves to the front: it may be seen twice, none is left out that
        had none. Raises `InvalidCursor`.
        """
        before_at, before_id = (None, None) if cursor is None else _decoded(cursor)
        rows = await self._rows(
            "conversations",
            status=status,
            channel=channel,
            external_id=external_id,
            named=named,
            before_at=before_at,
            before_id=before_id,
            limit=limit + 1,
        )
        page = [ConversationRow(*row) for row in rows[:limit]]
        return page, _encoded(page[-1]) if len(rows) > limit else None

    async def activities(self, conversation_id: str, after_seq: int, limit: int) -> Sequence[Activity]:
        """Numbered events with a seq above `after_seq`, ascending, at most `limit`."""
        rows = await self._rows("lines", conversation=conversation_id, after=after_seq, limit=limit)
        return [_activity(conversation_id, row) for row in rows]

    async def superseded(self, conversation_id: str, upto: int) -> Sequence[int]:
        """Seqs up to `upto` that viewers may hide, ascending."""
        return [seq for (seq,) in await self._rows("superseded", conversation=conversation_id, upto=upto)]

    async def last_edited(self, conversation_id: str, upto: int) -> Activity | None:
        """Of the turns up to `upto` that were edited, the last one."""
        rows = await self._rows("last_edited", conversation=conversation_id, upto=upto)
        return _activity(conversation_id, rows[0]) if rows else None

    async def interrupts(self, conversation_id: str) -> Sequence[Activity]:
        """Questions (`interrupt`), their ends (`interrupt_resolved`) and the turns that answer one, ascending."""
        return [_activity(conversation_id, row) for row in await self._rows("interrupts", conversation=conversation_id)]

    async def runs(self, conversation_id: str, *, open_only: bool = False) -> Sequence[RunRow]:
        """Runs in the order of their turns."""
        rows = await self._rows("runs", conversation=conversation_id, open_only=open_only)
        return [RunRow(*row) for row in rows]

    async def given_upto(self, conversation_id: str, channel: str) -> int:
        """The highest turn with a run of a group of this agents' channel; 0: none."""
        rows = await self._rows("given_upto", conversation=conversation_id, channel=channel)
        seq: int = rows[0][0]
        return seq

    async def call(self, conversation_id: str, invocation: str) -> CallRow | None:
        """The run of this invocation, if there is one."""
        rows = await self._rows("call", conversation=conversation_id, invocation=invocation)
        return CallRow(*rows[0]) if rows else None

    async def open_calls(self, conversation_id: str) -> Sequence[str]:
        """Ids of the invocations that have not ended, in the order of their turns."""
        return [invocation for (invocation,) in await self._rows("open_calls", conversation=conversation_id)]

    async def calls(
        self, *, limit: int, conversation_id: str | None = None, orphaned: bool = False
    ) -> Sequence[tuple[str, CallRow]]:
        """Invocations with their conversations, the newest first: of this one, else of all, those that have not ended.
        `orphaned`: only those that have no member to work on them."""
        query = "live_calls" if conversation_id is None else "calls_of"
        rows = await self._rows(query, limit=limit, conversation=conversation_id, orphaned=orphaned)
        return [(conversation, CallRow(*row)) for conversation, *row in rows]

    async def is_handed_over(self, conversation_id: str) -> bool:
        """Whether a human answers in the conversation."""
        rows = await self._rows("handed", conversation=conversation_id)
        return bool(rows) and msgspec.json.decode(rows[0][0]).get("status") == "handed_over"

    async def checkpoint(self, run_id: str) -> CheckpointRow | None:
        """The last checkpoint of a run that is open, if it stored one."""
        rows = await self._rows("checkpoint", run=run_id)
        return CheckpointRow(*rows[0]) if rows else None

    async def owners(self, conversation_id: str) -> Mapping[str, str]:
        """Group → the member that the next turn goes to."""
        return dict(await self._rows("owners", conversation=conversation_id))

    async def members(self) -> Sequence[MemberRow]:
        """Members that are present."""
        return [MemberRow(*row) for row in await self._rows("members")]

    async def _rows(self, query: str, **parameters: Any) -> Sequence[tuple[Any, ...]]:
        async def ask(connection: AsyncConnection[Any]) -> Sequence[tuple[Any, ...]]:
            return await (await connection.execute(QUERIES[query], parameters)).fetchall()

        return await self._sessions.run(ask)


class _Line(msgspec.Struct):
    """A row of the queries `lines` and `interrupts`."""

    seq: int
    lsn: int
    at: int
    timestamp: int
    kind: str
    id: str
    type: str
    sender: str
    channel: str
    text: str | None
    key_id: str | None
    data: str | None
    metadata: str | None
    meta: str | None
    extra: str | None
    reply_to: str | None
    interrupt_id: str | None
    client_id: str | None
    stream_id: str | None
    done: bool
    member: str | None
    group_id: str | None
    run_id: str | None
    run_epoch: int | None
    superseded: bool
    origin: str | None = None
    edited_at: int | None = None


def _activity(conversation_id: str, row: tuple[Any, ...]) -> Activity:
    line = _Line(*row)
    event = _EVENT_OF[line.kind](conversation_id, line)
    # The writer's epoch is the journal's matter; no reader of a transcript asks for it.
    return Activity(Entry(line.lsn, line.at, line.timestamp, 0, event), line.superseded, line.edited_at)


def _turn(conversation_id: str, line: _Line) -> Event:
    turn = Turn(
        id=line.id,
        sender=line.sender,
        channel=line.channel,
        type=line.type,
        client_id=line.client_id,
        text=line.text,
        key_id=line.key_id,
        data=line.data,
        metadata=line.metadata,
        meta=line.meta,
        reply_to=line.reply_to,
    )
    return TurnCommitted(
        conversation_id=conversation_id,
        seq=line.seq,
        turn=turn,
        joins_run=line.run_id,
        interrupt_id=line.interrupt_id,
    )


def _frame(conversation_id: str, line: _Line) -> Event:
    frame = Frame(
        id=line.id,
        type=line.type,
        client_id=line.client_id,
        text=line.text,
        key_id=line.key_id,
        data=line.data,
        metadata=line.metadata,
        extra=line.extra,
        stream_id=line.stream_id,
        done=line.done,
    )
    if line.group_id is None:  # of a person: an agent's frames are of a group
        return PersonFrameCommitted(
            conversation_id=conversation_id, seq=line.seq, frame=frame, sender=line.sender, channel=line.channel
        )
    return FrameCommitted(
        conversation_id=conversation_id,
        seq=line.seq,
        frame=frame,
        sender=line.sender,
        channel=line.channel,
        group=line.group_id or "",
        member=line.member or "",
        run_id=line.run_id,
        run_epoch=line.run_epoch or 0,
        origin=line.origin or "",
    )


def _update(conversation_id: str, line: _Line) -> Event:
    data = msgspec.json.decode(line.data or "{}")
    place: dict[str, Any] = {"conversation_id": conversation_id, "seq": line.seq, "by": line.sender, "id": line.id}
    match data.get("status"):
        case "closed":
            return ConversationClosed(**place, reason=data.get("reason", ""))
        case "erased":
            return ConversationErased(**place, reason=data.get("reason", ""))
        case "handed_over":
            return ConversationHandedOver(**place, to=data.get("to", ""), reason=data.get("reason", ""))
        case "handed_back":
            return ConversationHandedBack(**place, reason=data.get("reason", ""))
        case _:
            return ConversationReopened(**place)


_EVENT_OF = {"turn": _turn, "frame": _frame, "update": _update}


def _encoded(row: ConversationRow) -> str:
    return base64.urlsafe_b64encode(f"{row.updated_at} {row.id}".encode()).decode()


def _decoded(cursor: str) -> tuple[int, str]:
    try:
        updated_at, _, conversation_id = base64.urlsafe_b64decode(cursor).decode().partition(" ")
        if len(updated_at) > CURSOR_DIGITS or "\0" in conversation_id:
            raise ValueError(cursor)
        return int(updated_at), conversation_id
    except (binascii.Error, ValueError):
        raise InvalidCursor(f"cursor: {cursor!r} was not given by this list") from None
