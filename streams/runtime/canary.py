"""The canary: whether a zombie's writes are refused *here*, on these servers, with this release.

On a partition of its own a first node claims as a worker does and writes. Its lease ends without its being told, and a
second node claims what the first still believes it owns. Then the first goes on: its next transaction, its next
checkpoint and its lease's confirmation must all be refused, and nothing of it may be read.

    first            second
    claim, write                            both go through, else nothing is proved
    (lease ends)
                     claim, write           a higher epoch, from here on the first is a zombie
    write again                             Kafka refuses the transaction
    checkpoint                              PostgreSQL refuses the snapshot
    confirm                                 PostgreSQL refuses the lease
                     read the topic         the zombie's record is not there

What belongs to a deployment's partitions is not touched: the canary has a topic, a transactional id, and in PostgreSQL
a schema with tables of its own.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

import psycopg
import structlog
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import KafkaError, TopicAlreadyExistsError, for_code
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from streams.fence.checkpoint import PostgresCheckpoints
from streams.fence.lease import PostgresLeases
from streams.fence.migrate import SchemaMismatch, migrate
from streams.fence.port import Checkpoint, Checkpoints, Fenced, FenceUnavailable, HeldBy, Lease, Leases, Positions
from streams.runtime.kafka import Doubt, JournalProducer, JournalReader, KafkaEnds, KafkaUnavailable, closed
from streams.runtime.kafka_producers import KafkaJournalProducer
from streams.runtime.kafka_readers import KafkaJournalReader, KafkaReaders
from streams.settings import Settings
from streams.topics import Topics

log = structlog.get_logger(__name__)

PARTITION: Final = 0
SCHEMA: Final = "turnlog_canary"
# A canary that is killed leaves a lease behind, which keeps the next one waiting for so long.
LEASE_TTL_MS: Final = 5_000
BUSY_RETRY_S: Final = 0.5
BUSY_MAX_S: Final = 15.0
# A run writes three records; they are of no interest afterwards.
RETENTION_MS: Final = 60 * 60 * 1000


class CouldNotCheck(Exception):
    """The canary came to no verdict: a server did not answer, or another canary was at it all the time."""


class _Busy(Exception):
    """Another canary has the partition now."""


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that must hold. `found`: the refusal's own words, or what went through."""

    name: str
    ok: bool
    found: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a run came to. `ok`: everything of the zombie was refused."""

    checks: tuple[Check, ...]
    seconds: float

    @property
    def ok(self) -> bool:
        return all(check.ok for check in self.checks)


@dataclass(frozen=True, slots=True)
class Parts:
    """What the nodes work with: one partition's."""

    new_leases: Callable[[str], Leases]
    checkpoints: Checkpoints
    new_producer: Callable[[], JournalProducer]
    new_reader: Callable[[], JournalReader]


class Node:
    """One of the two: it claims as a worker does, and asks nobody later on whether it still may."""

    def __init__(self, name: str, parts: Parts) -> None:
        self.name = name
        self.lease: Lease
        self.leases = parts.new_leases(name)
        self._checkpoints = parts.checkpoints
        self._producer = parts.new_producer()
        self._lsn = 0
        self._end = 0

    async def claim(self) -> None:
        """The claim order, as far as it concerns the fences. Raises `_Busy`."""
        await self.leases.open()
        claimed = await self.leases.claim(PARTITION)
        if isinstance(claimed, HeldBy):
            raise _Busy
        self.lease = await self.leases.next_epoch(claimed)
        await self._producer.start()
        stored = await self._checkpoints.take(PARTITION, self.lease.token)
        self._lsn = stored.lsn if stored is not None else 0

    async def write(self) -> None:
        """One transaction, with one record that names this node."""
        batch = self._producer.new_batch()
        batch.add(None, self.name.encode(), [])
        await self._producer.begin()
        self._end = await self._producer.append(batch)
        await self._producer.commit()

    async def save(self) -> None:
        """A checkpoint."""
        self._lsn += 1
        snapshot = Checkpoint(self.lease.token, self._lsn, self._end, Positions(), self.name.encode())
        await self._checkpoints.save(PARTITION, snapshot, [], [], 0)

    async def close(self) -> None:
        await self._producer.discard()
        await self.leases.close()


async def check(parts: Parts) -> Verdict:
    """One run. Raises `CouldNotCheck`."""
    until = time.monotonic() + BUSY_MAX_S
    while True:
        try:
            return await _check(parts)
        except _Busy:
            if time.monotonic() > until:
                raise CouldNotCheck("another canary has been at it all the time") from None
            await asyncio.sleep(BUSY_RETRY_S)


async def _check(parts: Parts) -> Verdict:
    began, run = time.monotonic(), secrets.token_hex(6)
    first, second = Node(f"canary-{run}-first", parts), Node(f"canary-{run}-second", parts)
    try:
        start = await _end(parts)
        await first.claim()
        await first.write()
        await first.save()
        await second.leases.open()
        await second.leases.hand_back(first.lease)  # without the first one's knowing
        await second.claim()
        await second.write()
        await second.save()
        checks = [
            await _refused("transaction", first.write),
            await _refused("checkpoint", first.save),
            await _refused("lease", lambda: first.leases.confirm(first.lease)),
        ]
        names = await _read(parts, start)
    except Fenced as error:
        # Only another canary that claims in between has this right.
        raise _Busy from error
    except (Doubt, KafkaUnavailable, FenceUnavailable) as error:
        raise CouldNotCheck(str(error)) from error
    finally:
        await closed(first, second)
    seen = [names.count(node.name) for node in (first, second)]
    told = f"{seen[0]} of the first, {seen[1]} of the second"
    checks.append(Check("visible", seen == [1, 1], f"records read: {told}"))
    return Verdict(tuple(checks), time.monotonic() - began)


async def _refused(name: str, attempt: Callable[[], Awaitable[None]]) -> Check:
    try:
        await attempt()
    except Fenced as error:
        return Check(name, ok=True, found=str(error))
    return Check(name, ok=False, found="a zombie's went through")


async def _end(parts: Parts) -> int:
    reader = parts.new_reader()
    try:
        return await reader.open(0)
    finally:
        await closed(reader)


async def _read(parts: Parts, start: int) -> Sequence[str]:
    """The records from `start` on, as readers get them. Raises `KafkaUnavailable` when they stop short of the end."""
    reader = parts.new_reader()
    try:
        end, position, names = await reader.open(start), start, list[str]()
        until = time.monotonic() + BUSY_MAX_S
        while position < end:
            records, position = await reader.read()
            names += [(record.value or b"").decode() for record in records]
            if time.monotonic() > until:
                raise KafkaUnavailable(f"the canary's topic can be read up to {position} only, it ends at {end}")
        return names
    finally:
        await closed(reader)


# ----------------------------------------------------------------------------------------------- on a deployment
def topic_of(settings: Settings) -> str:
    """The canary's topic."""
    return f"{settings.namespace}.fence-canary" if settings.namespace else "fence-canary"


async def run(settings: Settings) -> Verdict:
    """One run on the servers of `settings`; makes what it needs there. Raises `CouldNotCheck`."""
    dsn = _in_schema(settings.postgres)
    try:
        await asyncio.to_thread(_make_tables, settings.postgres, dsn)
        await _make_topic(settings)
    except (psycopg.Error, SchemaMismatch) as error:
        way_out = f"the user of TURNLOG_POSTGRES must be allowed to make the schema {SCHEMA}"
        raise CouldNotCheck(f"no tables for the canary ({way_out}): {error}") from error
    except (KafkaError, KafkaUnavailable, OSError) as error:
        raise CouldNotCheck(f"no topic for the canary: {error}") from error
    async with _parts(settings, dsn) as parts:
        return await check(parts)


@asynccontextmanager
async def _parts(settings: Settings, dsn: str) -> AsyncIterator[Parts]:
    topic, limit_s = topic_of(settings), settings.request_timeout_ms / 1000
    ends, readers = KafkaEnds(settings.kafka, limit_s), KafkaReaders(settings.kafka, limit_s)
    checkpoints = PostgresCheckpoints(dsn)
    transactional_id = f"{Topics(settings.namespace).transactional_id(PARTITION)}-canary"
    try:
        yield Parts(
            new_leases=lambda worker: PostgresLeases(dsn, worker, ttl_ms=LEASE_TTL_MS),
            checkpoints=checkpoints,
            new_producer=lambda: KafkaJournalProducer(
                settings.kafka,
                topic,
                PARTITION,
                transactional_id=transactional_id,
                timeout_ms=settings.transaction_timeout_ms,
                limit_s=limit_s,
            ),
            new_reader=lambda: KafkaJournalReader(readers, ends, topic, PARTITION),
        )
    finally:
        await closed(checkpoints, readers, ends)


def _in_schema(dsn: str) -> str:
    options = conninfo_to_dict(dsn).get("options") or ""
    return make_conninfo(dsn, options=f"{options} -c search_path={SCHEMA}".strip())


def _make_tables(dsn: str, in_schema: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}".encode())
    migrate(in_schema)


async def _make_topic(settings: Settings) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=settings.kafka, request_timeout_ms=settings.request_timeout_ms)
    try:
        await admin.start()
        brokers = len((await admin.describe_cluster())["brokers"])
        configs = {"retention.ms": str(RETENTION_MS)}
        new = NewTopic(topic_of(settings), 1, 3 if brokers >= 3 else 1, topic_configs=configs)
        for _, code, *rest in (await admin.create_topics([new])).topic_errors:
            if code and for_code(code) is not TopicAlreadyExistsError:
                raise KafkaUnavailable(rest[0] if rest and rest[0] else for_code(code).__name__)
    finally:
        await admin.close()
