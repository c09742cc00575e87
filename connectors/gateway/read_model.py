"""The projector's tables, read: rows become the journal's events again, so that one renderer serves all.

Reads time out short; whoever asks falls back to memory and to the journal.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from itertools import cycle
from typing import Any

import msgspec
from psycopg import AsyncConnection
from psycopg.rows import namedtuple_row

from connectors.gateway.ports import (
    ConversationInfo,
    LeaseInfo,
    ListQuery,
    MemberInfo,
    OpenRun,
    Position,
    Stored,
    Unavailable,
)
from connectors.gateway.protocol.errors import ProtocolError
from streams.core.events import (
    ConversationClosed,
    ConversationReopened,
    Entry,
    Event,
    Frame,
    FrameCommitted,
    Turn,
    TurnCommitted,
)
from streams.fence.connection import Session
from streams.fence.port import FenceUnavailable
from streams.fence.queries import load_queries

QUERIES = load_queries("connectors.gateway", "read_model.sql")
# A read that takes longer has failed; a healthy one takes a millisecond.
READ_LIMIT_S = 2.0
SESSIONS = 4
# Questions of one conversation that are looked at for open ones.
INTERRUPTS_MAX = 200


class PostgresReadModel:
    """`ReadModel` on Postgres."""

    def __init__(self, dsn: str) -> None:
        self._sessions = [Session(dsn, "gateway reads", limit_s=READ_LIMIT_S) for _ in range(SESSIONS)]
        self._next = cycle(self._sessions)

    async def close(self) -> None:
        """Close the connections."""
        for session in self._sessions:
            await session.close()

    async def position(self, partition: int) -> Position:
        """See `ReadModel`."""
        rows = await self._rows("position", partition=partition)
        return Position(rows[0].lsn, rows[0].journal_offset) if rows else Position()

    async def conversation(self, conversation_id: str) -> ConversationInfo | None:
        """See `ReadModel`."""
        rows = await self._rows("conversation", id=conversation_id)
        return _info(rows[0]) if rows else None

    async def transcript(self, conversation_id: str, after: int, limit: int) -> Sequence[Stored]:
        """See `ReadModel`."""
        rows = await self._rows("transcript", id=conversation_id, after=after, limit=limit)
        return [_stored(row) for row in rows]

    async def interrupts(self, conversation_id: str) -> Sequence[Stored]:
        """See `ReadModel`."""
        rows = await self._rows("interrupts", id=conversation_id, limit=INTERRUPTS_MAX)
        return [_stored(row) for row in rows]

    async def open_runs(self, conversation_id: str) -> Sequence[OpenRun]:
        """See `ReadModel`."""
        return [OpenRun(*row) for row in await self._rows("open_runs", id=conversation_id)]

    async def owners(self, conversation_id: str) -> dict[str, str]:
        """See `ReadModel`."""
        return {row.group_id: row.member for row in await self._rows("owners", id=conversation_id)}

    async def conversations(self, query: ListQuery) -> tuple[Sequence[ConversationInfo], str | None]:
        """See `ReadModel`."""
        before, before_id = _read_cursor(query.cursor)
        rows = await self._rows(
            "conversations",
            status=query.status,
            channel=query.channel,
            external_id=query.external_id,
            before=before,
            before_id=before_id,
            limit=query.limit + 1,
        )
        found = [_info(row) for row in rows[: query.limit]]
        return found, _cursor(found[-1]) if len(rows) > query.limit else None

    async def members(self) -> Sequence[MemberInfo]:
        """See `ReadModel`."""
        return [MemberInfo(*row) for row in await self._rows("members")]

    async def leases(self) -> Sequence[LeaseInfo]:
        """See `ReadModel`."""
        return [LeaseInfo(*row) for row in await self._rows("leases")]

    async def _rows(self, query: str, **parameters: Any) -> list[Any]:
        async def read(connection: AsyncConnection[Any]) -> list[Any]:
            async with connection.cursor(row_factory=namedtuple_row) as cursor:
                await cursor.execute(QUERIES[query], parameters)
                return await cursor.fetchall()

        try:
            return await next(self._next).run(read)
        except FenceUnavailable as error:
            raise Unavailable(str(error)) from error


def _info(row: Any) -> ConversationInfo:
    return ConversationInfo(
        id=row.id,
        channel=row.channel,
        participant=row.participant,
        external_id=row.external_id,
        status=row.status,
        head_seq=row.head_seq,
        opened_at=row.opened_at,
        updated_at=row.updated_at,
        metadata=row.metadata,
    )


def _stored(row: Any) -> Stored:
    entry = Entry(lsn=row.lsn, at=row.at, timestamp=row.timestamp, writer_epoch=0, event=_event(row))
    return Stored(entry, superseded=row.superseded)


def _event(row: Any) -> Event:
    match row.kind:
        case "turn":
            turn = Turn(
                id=row.id,
                sender=row.sender,
                channel=row.channel,
                type=row.type,
                client_id=row.client_id,
                text=row.text,
                key_id=row.key_id,
                data=row.data,
                metadata=row.metadata,
                meta=row.meta,
                reply_to=row.reply_to,
            )
            return TurnCommitted(
                conversation_id=row.conversation_id, seq=row.seq, turn=turn, interrupt_id=row.interrupt_id
            )
        case "frame":
            return _frame(row)
        case _:
            return _update(row)


def _frame(row: Any) -> FrameCommitted:
    frame = Frame(
        id=row.id,
        type=row.type,
        client_id=row.client_id,
        text=row.text,
        key_id=row.key_id,
        data=row.data,
        metadata=row.metadata,
        extra=row.extra,
        stream_id=row.stream_id,
        done=row.done,
    )
    return FrameCommitted(
        conversation_id=row.conversation_id,
        seq=row.seq,
        frame=frame,
        sender=row.sender,
        channel=row.channel,
        group=row.group_id or "",
        member=row.member or "",
        run_id=row.run_id,
        run_epoch=row.run_epoch or 0,
    )


def _update(row: Any) -> Event:
    data: dict[str, Any] = msgspec.json.decode(row.data or "{}")
    if data.get("status") == "closed":
        return ConversationClosed(
            conversation_id=row.conversation_id,
            seq=row.seq,
            by=row.sender,
            reason=str(data.get("reason", "manual")),
            id=row.id,
        )
    return ConversationReopened(conversation_id=row.conversation_id, seq=row.seq, by=row.sender, id=row.id)


def _cursor(last: ConversationInfo) -> str:
    return base64.urlsafe_b64encode(f"{last.updated_at}:{last.id}".encode()).decode().rstrip("=")


def _read_cursor(cursor: str | None) -> tuple[int | None, str | None]:
    if cursor is None:
        return None, None
    try:
        text = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode()
        updated_at, _, conversation_id = text.partition(":")
        return int(updated_at), conversation_id
    except (ValueError, binascii.Error):
        raise ProtocolError("bad_request", "cursor: not one that this API gave") from None
