"""The projector's tables as the gateway asks for them. Reads time out short; who asks falls back to the journal."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import TypeVar

import msgspec

from connectors.gateway.ports import (
    ConversationInfo,
    LeaseInfo,
    ListQuery,
    MemberInfo,
    OpenRun,
    Position,
    Stored,
    StoredCall,
    StoredCheckpoint,
    Unavailable,
)
from connectors.gateway.protocol.errors import ProtocolError
from connectors.gateway.words import Words, opened
from streams.fence.lease import LeaseTable
from streams.fence.port import FenceUnavailable
from streams.projector.read import Activity, ConversationRow, InvalidCursor, ReadModel

# A read that takes longer has failed; a healthy one takes a millisecond.
READ_LIMIT_S = 2.0

T = TypeVar("T")


class PostgresReadModel:
    """`ReadModel` of the gateway's ports, on Postgres."""

    def __init__(self, dsn: str, words: Words) -> None:
        self._words = words
        self._read = ReadModel(dsn, limit_s=READ_LIMIT_S)
        self._lease_table = LeaseTable(dsn)

    async def close(self) -> None:
        """Close the connections."""
        await self._read.close()
        await self._lease_table.close()

    async def position(self, partition: int) -> Position:
        """See `ReadModel`."""
        found = await _answer(self._read.position(partition))
        return Position(found.lsn, found.journal_offset)

    async def conversation(self, conversation_id: str) -> ConversationInfo | None:
        """See `ReadModel`."""
        row = await _answer(self._read.conversation(conversation_id))
        return None if row is None else await self._info(row)

    async def transcript(self, conversation_id: str, after: int, limit: int) -> Sequence[Stored]:
        """See `ReadModel`."""
        return await opened(self._words, _stored(await _answer(self._read.activities(conversation_id, after, limit))))

    async def superseded(self, conversation_id: str, upto: int) -> Sequence[int]:
        """See `ReadModel`."""
        return await _answer(self._read.superseded(conversation_id, upto))

    async def last_edited(self, conversation_id: str, upto: int) -> Stored | None:
        """See `ReadModel`."""
        found = await _answer(self._read.last_edited(conversation_id, upto))
        return None if found is None else (await opened(self._words, _stored([found])))[0]

    async def interrupts(self, conversation_id: str) -> Sequence[Stored]:
        """See `ReadModel`."""
        return await opened(self._words, _stored(await _answer(self._read.interrupts(conversation_id))))

    async def open_runs(self, conversation_id: str) -> Sequence[OpenRun]:
        """See `ReadModel`."""
        runs = await _answer(self._read.runs(conversation_id, open_only=True))
        return [OpenRun(run.run_id, run.turn_seq, run.group, run.member, run.run_epoch) for run in runs]

    async def given_upto(self, conversation_id: str, channel: str) -> int:
        """See `ReadModel`."""
        return await _answer(self._read.given_upto(conversation_id, channel))

    async def checkpoint(self, run_id: str) -> StoredCheckpoint | None:
        """See `ReadModel`."""
        found = await _answer(self._read.checkpoint(run_id))
        if found is None:
            return None
        return StoredCheckpoint(found.lsn, await self._words.text("data", found.data) or "")

    async def call(self, conversation_id: str, invocation: str) -> StoredCall | None:
        """See `ReadModel`."""
        row = await _answer(self._read.call(conversation_id, invocation))
        if row is None:
            return None
        detail = await self._words.text("detail", row.detail)
        return StoredCall(**msgspec.structs.asdict(msgspec.structs.replace(row, detail=detail)))

    async def open_calls(self, conversation_id: str) -> Sequence[str]:
        """See `ReadModel`."""
        return await _answer(self._read.open_calls(conversation_id))

    async def owners(self, conversation_id: str) -> dict[str, str]:
        """See `ReadModel`."""
        return dict(await _answer(self._read.owners(conversation_id)))

    async def conversations(self, query: ListQuery) -> tuple[Sequence[ConversationInfo], str | None]:
        """See `ReadModel`."""
        page = self._read.conversations(
            limit=query.limit,
            cursor=query.cursor,
            status=query.status,
            channel=query.channel,
            external_id=query.external_id,
            named=query.named,
        )
        try:
            rows, cursor = await _answer(page)
        except InvalidCursor as error:
            raise ProtocolError("bad_request", str(error)) from None
        return [await self._info(row) for row in rows], cursor

    async def members(self) -> Sequence[MemberInfo]:
        """See `ReadModel`."""
        rows = await _answer(self._read.members())
        return [
            MemberInfo(row.member, row.group, row.channel, row.gateway, row.since, row.partitions, row.draining)
            for row in rows
        ]

    async def leases(self) -> Sequence[LeaseInfo]:
        """See `ReadModel`."""
        rows = await _answer(self._lease_table.rows())
        return [LeaseInfo(row.partition, row.worker, row.writer_epoch, row.live, row.expires_in_ms) for row in rows]

    async def _info(self, row: ConversationRow) -> ConversationInfo:
        return _info(row, await self._words.text("metadata", row.metadata))


async def _answer(question: Awaitable[T]) -> T:
    try:
        return await question
    except FenceUnavailable as error:
        raise Unavailable(str(error)) from error


def _info(row: ConversationRow, metadata: str | None) -> ConversationInfo:
    return ConversationInfo(
        id=row.id,
        channel=row.channel,
        participant=row.participant,
        external_id=row.external_id,
        status="closed" if row.status == "erased" else row.status,
        erased=row.status == "erased",
        head_seq=row.head_seq,
        opened_at=row.opened_at,
        updated_at=row.updated_at,
        metadata=metadata,
    )


def _stored(activities: Sequence[Activity]) -> list[Stored]:
    return [Stored(each.entry, superseded=each.superseded, edited_at=each.edited_at) for each in activities]
