"""Erases what channels keep no longer (`retain_days`): finds the conversations, and asks the sequencer for each.

The read model is a moment behind. So what is found is not erased here, but asked for in the intake (`EraseIdle`), with
what was known of it: the sequencer, which has all in order, does it only where nothing happened since. Two processes
that ask for the same, or one that asks twice, come to one erasure.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, Final, Protocol
from uuid import uuid4

import msgspec
import structlog
from psycopg import AsyncConnection
from psycopg.rows import class_row

from streams.core.commands import EraseIdle
from streams.core.erasure import DAY_MS
from streams.fence.channels import ChannelStore
from streams.fence.connection import Session
from streams.fence.queries import load_queries
from streams.projector.metrics import ProjectorMetrics

QUERIES: Final = load_queries("streams.projector", "retention.sql")
LOOK_LIMIT_S: Final = 15.0
EACH_MOST: Final = 100
"""Conversations of one channel in one partition that are asked for at a look."""
MOST: Final = 1_000
"""In all: what a projector writes beside its other work, each erasure a pass over a transcript."""
ASK_AGAIN_S: Final = 3_600.0
"""One that is still there so long after it was asked for is asked for again: the command was lost, or refused since the
log's time, which stands still without a worker, is behind the clock that is looked at here."""

log = structlog.get_logger(__name__)


class DueConversation(msgspec.Struct, frozen=True):
    """A conversation that its channel keeps no longer, as the read model has it."""

    id: str
    partition: int
    channel: str
    status: str
    head_seq: int
    as_of_lsn: int
    """How far the read model is in its partition."""
    idle_since: int
    """Log time of its last numbered event, ms."""
    updated_at: int
    """The broker's time of it, ms."""

    def command(self) -> EraseIdle:
        """What is asked of the sequencer."""
        return EraseIdle(
            at=0,
            timestamp=0,
            ref=str(uuid4()),
            conversation_id=self.id,
            id=str(uuid4()),
            idle_since=self.idle_since,
            head_seq=self.head_seq,
            as_of_lsn=self.as_of_lsn,
        )


class Idle(Protocol):
    """Where idle conversations are looked for."""

    async def rules(self) -> Mapping[str, int]:
        """Channels that do not keep their conversations for ever, each with its `retain_days`."""

    async def due(
        self, rules: Mapping[str, int], now_ms: int, partitions: Collection[int] | None, *, each: int, most: int
    ) -> Sequence[DueConversation]:
        """Conversations that are to be erased at `now_ms`, the longest overdue first; `partitions` None: of all."""


class IdleConversations:
    """`Idle` in Postgres. Raises `FenceUnavailable` when it does not answer."""

    def __init__(self, dsn: str) -> None:
        self._channels = ChannelStore(dsn)
        self._session = Session(dsn, "retention", limit_s=LOOK_LIMIT_S)

    async def close(self) -> None:
        """Close the connections."""
        await self._channels.close()
        await self._session.close()

    async def rules(self) -> Mapping[str, int]:
        """See `Idle`."""
        current = await self._channels.current()
        return {} if current is None else current.document.retained()

    async def due(
        self, rules: Mapping[str, int], now_ms: int, partitions: Collection[int] | None, *, each: int, most: int
    ) -> Sequence[DueConversation]:
        """See `Idle`."""
        parameters = {
            "channels": list(rules),
            "before": [now_ms - days * DAY_MS for days in rules.values()],
            "partitions": None if partitions is None else sorted(partitions),
            "each": each,
            "most": most,
        }

        async def ask(connection: AsyncConnection[Any]) -> Sequence[DueConversation]:
            async with connection.cursor(row_factory=class_row(DueConversation)) as cursor:
                await cursor.execute(QUERIES["due"], parameters)
                return await cursor.fetchall()

        return await self._session.run(ask)

    async def seals(self) -> bool:
        """Whether what is said is sealed by somebody, as far as can be seen."""

        async def ask(connection: AsyncConnection[Any]) -> bool:
            row = await (await connection.execute(QUERIES["sealing"])).fetchone()
            return row is not None and bool(row[0])

        return await self._session.run(ask)


class Retention:
    """What one projector does about it.

    ask: writes a command to its partition of the intake, durably. restore: puts back the keys that Postgres lost and
    the topic of keys has, which could not be destroyed else; needed once. clock: seconds; now_ms: the time of day.
    """

    def __init__(
        self,
        idle: Idle,
        ask: Callable[[int, EraseIdle], Awaitable[object]],
        restore: Callable[[], Awaitable[None]],
        metrics: ProjectorMetrics,
        *,
        clock: Callable[[], float] = time.monotonic,
        now_ms: Callable[[], int] = lambda: round(time.time() * 1000),
    ) -> None:
        self._idle = idle
        self._ask = ask
        self._restore = restore
        self._metrics = metrics
        self._clock = clock
        self._now_ms = now_ms
        self._keys_are_whole = False
        self._rules: Mapping[str, int] = {}
        """As they were at the last look."""
        self._asked: dict[str, float] = {}
        """Conversations that were asked for, in that order, and when."""

    async def look(self, partitions: Collection[int]) -> int:
        """Ask for what is due in these partitions and was not asked for lately; how many.

        A rule is followed from the second look on: gateways tell the sequencers within seconds what they read here too.
        Raises what `Idle`, `ask` and `restore` raise; what was not asked for then is at the next look.
        """
        known, self._rules = self._rules, await self._idle.rules() if partitions else {}
        rules = {channel: days for channel, days in self._rules.items() if known.get(channel) == days}
        now_ms = self._now_ms()
        due = await self._idle.due(rules, now_ms, partitions, each=EACH_MOST, most=MOST) if rules else ()
        overdue_ms = max((now_ms - rules[each.channel] * DAY_MS - each.updated_at for each in due), default=0)
        self._metrics.retention_overdue.set(overdue_ms / 1000)
        self._forget()
        new = [each for each in due if each.id not in self._asked]
        if not new:
            return 0
        if not self._keys_are_whole:
            await self._restore()
            self._keys_are_whole = True
        outcomes = await asyncio.gather(*(self._ask_for(each) for each in new), return_exceptions=True)
        failures = [outcome for outcome in outcomes if outcome is not None]
        log.info("conversations are not kept any longer", asked=len(new) - len(failures), failed=len(failures))
        if failures:
            raise failures[0]
        return len(new)

    async def _ask_for(self, due: DueConversation) -> None:
        await self._ask(due.partition, due.command())
        self._asked[due.id] = self._clock()

    def _forget(self) -> None:
        long_ago = self._clock() - ASK_AGAIN_S
        while self._asked and next(iter(self._asked.values())) <= long_ago:
            del self._asked[next(iter(self._asked))]
