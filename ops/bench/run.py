"""The benches as commands: servers, a deployment of their own on them, the parts in order, and what is printed."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import psycopg
import uvloop
from psycopg import sql
from psycopg.conninfo import make_conninfo

from ops import embedded
from ops.bench.audit import measure_audit, measure_travel, summary
from ops.bench.connections import ConnectionsPlan, measure_connections
from ops.bench.floor import Floor, measure_floor
from ops.bench.growth import measure_growth
from ops.bench.latency import Latency, measure_latency
from ops.bench.logs import log_folder
from ops.bench.recovery import Recovery, measure_recovery, weigh
from ops.bench.sequencer import Sequenced, measure_sequencer
from ops.bench.takeover import Fault, Felt, TakeoverPlan, measure_takeover
from ops.provision import connected_admin, replication_for
from ops.stack import StackPlan, running_on
from streams.fence.migrate import migrate
from streams.settings import Settings, load_settings
from streams.topics import Topics, ensure

Notify = Callable[[str], None]
T = TypeVar("T")


def floor_bench(turns: int, partitions: int, notify: Notify) -> dict[str, Any]:
    """`turnlog bench floor`."""
    with embedded.servers(None, progress=notify) as servers:
        notify(f"copying {turns:,} turns")
        floor = _timed(measure_floor(servers.kafka, turns, partitions))
    return {
        "floor_per_s": round(floor.floor_per_s),
        "cpu_us_per_turn": round(floor.cpu_us_per_turn, 2),
        "transactions": floor.transactions,
        "turns": floor.turns,
    }


def sequencer_bench(turns: int, partitions: int, notify: Notify) -> dict[str, Any]:
    """`turnlog bench sequencer`: floor, worker, floor, on one broker."""
    with embedded.servers(None, progress=notify) as servers:
        before = _floor(servers.kafka, turns, partitions, notify)
        result = _timed(_sequenced(servers, turns, partitions, notify))
        after = _floor(servers.kafka, turns, partitions, notify)
    # A machine that gets slower or faster meanwhile does so for both: the worker is measured between two floors.
    floor_per_s = (before.floor_per_s + after.floor_per_s) / 2
    return {
        "turns_per_s": round(result.turns_per_s),
        "floor_per_s": round(floor_per_s),
        "ratio": round(result.turns_per_s / floor_per_s, 3),
        "cpu_us_per_turn": round(result.cpu_us_per_turn, 2),
        "floor_cpu_us_per_turn": round((before.cpu_us_per_turn + after.cpu_us_per_turn) / 2, 2),
        "turns": result.turns,
        "seconds": round(result.seconds, 2),
    }


def _floor(kafka: str, turns: int, partitions: int, notify: Notify) -> Floor:
    notify(f"measuring the floor with {turns:,} turns")
    floor = _timed(measure_floor(kafka, turns, partitions))
    notify(f"the floor is {floor.floor_per_s:,.0f} turns/s, {floor.cpu_us_per_turn:.2f} µs of CPU a turn")
    return floor


async def _sequenced(servers: embedded.EmbeddedStack, turns: int, partitions: int, notify: Notify) -> Sequenced:
    async with deployment(servers, partitions) as settings:
        return await measure_sequencer(settings, turns, partitions, notify)


def latency_bench(turns: int, rate: float, partitions: int, notify: Notify) -> dict[str, Any]:
    """`turnlog bench latency`: worker, projector and gateway as `turnlog up` runs them."""
    with embedded.servers(None, progress=notify) as servers:
        latency = _timed(_delivered(servers, turns, rate, partitions, notify))
    return {
        "p50_ms": round(latency.p50_ms, 2),
        "p99_ms": round(latency.p99_ms, 2),
        "max_ms": round(latency.most_ms, 2),
        "turns": latency.turns,
        "rate_per_s": rate,
    }


async def _delivered(
    servers: embedded.EmbeddedStack, turns: int, rate: float, partitions: int, notify: Notify
) -> Latency:
    with tempfile.TemporaryDirectory(prefix="turnlog-bench-") as data:
        plan = StackPlan(port=0, partitions=partitions)
        async with (
            deployment(servers, partitions) as settings,
            running_on(servers, settings, plan, Path(data), notify) as stack,
        ):
            return await measure_latency(stack, turns, rate, notify)


def recovery_bench(conversations: int, events: int, weighed: int, notify: Notify) -> dict[str, Any]:
    """`turnlog bench recovery`: two workers on one partition, the first of which is killed."""
    notify(f"weighing {weighed:,} conversations")
    each = _timed(weigh(weighed))
    with embedded.servers(None, progress=notify) as servers:
        result = _timed(_recovered(servers, conversations, events, notify))
    return {
        "recovery_s": round(result.recovery_s, 2),
        "recovery_cpu_s": round(result.cpu_s, 2),
        "bytes_per_conversation": round(each),
        "worker_rss_mib": round(result.worker_rss_bytes / 2**20),
        "resident": result.resident,
        "conversations": conversations,
        "events": events,
        "weighed": weighed,
    }


async def _recovered(servers: embedded.EmbeddedStack, conversations: int, events: int, notify: Notify) -> Recovery:
    with log_folder(notify) as (logs, told):
        async with deployment(servers, 1) as settings:
            return await measure_recovery(settings, conversations, events, logs, told)


def audit_bench(events: int, partitions: int, rounds: int, notify: Notify) -> dict[str, Any]:
    """`turnlog bench audit`: a history of its own making, read and audited some times."""
    with embedded.servers(None, progress=notify) as servers:
        return _timed(_audited(servers, events, partitions, rounds, notify))


async def _audited(
    servers: embedded.EmbeddedStack, events: int, partitions: int, rounds: int, notify: Notify
) -> dict[str, Any]:
    async with deployment(servers, partitions) as settings:
        measured = await measure_audit(settings, events, partitions, rounds, notify)
        return summary(measured, await measure_travel(settings, notify))


def growth_bench(events: int, partitions: int, times: int, notify: Notify) -> dict[str, Any]:
    """`turnlog bench grow`: a history of its own making, read, and moved to more partitions."""
    with embedded.servers(None, progress=notify) as servers:
        return _timed(_grown(servers, events, partitions, times, notify))


async def _grown(
    servers: embedded.EmbeddedStack, events: int, partitions: int, times: int, notify: Notify
) -> dict[str, Any]:
    async with deployment(servers, partitions) as settings:
        return dict(await measure_growth(settings, events, partitions, times, notify))


def takeover_bench(plan: TakeoverPlan, notify: Notify) -> dict[str, Any]:
    """`turnlog bench takeover`: two workers, two gateways, two agents; each fault some times."""
    with embedded.servers(None, progress=notify) as servers:
        felt = _timed(_felt(servers, plan, notify))
    document: dict[str, Any] = {f"{fault.value}_ms": each.document() for fault, each in felt.items()}
    if Fault.DRAIN in felt:
        document["drain_errors"] = felt[Fault.DRAIN].errors
    return {
        **document,
        "partitions": plan.partitions,
        "conversations": plan.conversations,
        "rounds": plan.rounds,
        "load_per_s": plan.load,
    }


async def _felt(servers: embedded.EmbeddedStack, plan: TakeoverPlan, notify: Notify) -> dict[Fault, Felt]:
    with log_folder(notify) as (data, told):
        parts = StackPlan(port=0, workers=2, gateways=2, partitions=plan.partitions)
        async with (
            deployment(servers, plan.partitions) as settings,
            running_on(servers, settings, parts, data, told) as stack,
        ):
            return await measure_takeover(stack, settings, plan, notify)


def connections_bench(plan: ConnectionsPlan, partitions: int, notify: Notify) -> dict[str, Any]:
    """`turnlog bench connections`: one gateway, and all that connect to it in this process."""
    with embedded.servers(None, progress=notify) as servers:
        return _timed(_connected(servers, plan, partitions, notify))


async def _connected(
    servers: embedded.EmbeddedStack, plan: ConnectionsPlan, partitions: int, notify: Notify
) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="turnlog-bench-") as data:
        parts = StackPlan(port=0, partitions=partitions)
        async with (
            deployment(servers, partitions) as settings,
            running_on(servers, settings, parts, Path(data), notify) as stack,
        ):
            return await measure_connections(stack, plan, notify)


@asynccontextmanager
async def deployment(servers: embedded.EmbeddedStack, partitions: int) -> AsyncIterator[Settings]:
    """Topics under a namespace of their own and a database of their own, both removed after."""
    name = f"bench-{secrets.token_hex(4)}"
    with _database(servers.postgres, name.replace("-", "_")) as dsn:
        settings = load_settings(kafka=servers.kafka, postgres=dsn, namespace=name)
        await asyncio.to_thread(migrate, dsn)
        topics = Topics(name)
        async with connected_admin(servers.kafka) as admin:
            await ensure(admin, topics, partitions=partitions, replication=await replication_for(admin))
            try:
                yield settings
            finally:
                made = [each for each in await admin.list_topics() if each.startswith(f"{name}.")]
                await admin.delete_topics(made)  # of every generation


@contextlib.contextmanager
def _database(server: str, name: str) -> Any:
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        try:
            yield make_conninfo(server, dbname=name)
        finally:
            connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def _timed(bench: Coroutine[Any, Any, T]) -> T:
    """Run it on the event loop that workers and gateways run on."""
    return uvloop.run(bench)
