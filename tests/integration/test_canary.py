"""The canary on real servers: as a command, on a schedule, and with each fence off."""

from __future__ import annotations

import asyncio
import os
import sys
from dataclasses import replace
from itertools import count

import psycopg
import pytest

from streams.fence.checkpoint import PostgresCheckpoints
from streams.fence.port import Checkpoint, Token
from streams.runtime import canary
from streams.runtime.canary import CouldNotCheck, Verdict, check
from streams.runtime.kafka_producers import KafkaJournalProducer
from streams.settings import Settings
from tests.support.command import Ended, turnlog_async
from tests.support.deployment import deployment, page
from tests.support.program import program
from tests.support.waiting import until


def environment(settings: Settings, **more: str) -> dict[str, str]:
    named = {"KAFKA": settings.kafka, "POSTGRES": settings.postgres, "NAMESPACE": settings.namespace, **more}
    return {**os.environ, **{f"TURNLOG_{name}": value for name, value in named.items()}}


async def command(settings: Settings, *arguments: str) -> Ended:
    return await turnlog_async("canary", *arguments, environment=environment(settings))


async def test_the_command_says_that_a_zombie_is_refused_and_leaves_the_deployment_alone(settings: Settings) -> None:
    async with deployment(settings, 1):
        for _ in range(2):
            ended = await command(settings, "-o", "json")
            assert ended.code == 0, ended.err
            assert ended.document["ok"] is True
            assert all(one["ok"] for one in ended.document["checks"])
        assert "a zombie is refused" in (await command(settings)).err
        with psycopg.connect(settings.postgres) as connection:
            for table in ("leases", "workers", "checkpoints"):
                assert connection.execute(f"SELECT count(*) FROM {table}".encode()).fetchone() == (0,)


async def test_canaries_at_the_same_time_wait_for_each_other(settings: Settings) -> None:
    verdicts = await asyncio.gather(*(canary.run(settings) for _ in range(3)))
    assert [verdict.ok for verdict in verdicts] == [True, True, True]


async def _with(settings: Settings, **changes: object) -> Verdict:
    dsn = canary._in_schema(settings.postgres)
    canary._make_tables(settings.postgres, dsn)
    await canary._make_topic(settings)
    async with canary._parts(settings, dsn) as parts:
        return await check(replace(parts, **changes))  # type: ignore[arg-type]


def failed(verdict: Verdict) -> set[str]:
    return {one.name for one in verdict.checks if not one.ok}


async def test_control_where_nodes_do_not_share_a_transactional_id_the_canary_dies(settings: Settings) -> None:
    numbers = count()

    def unfenced() -> KafkaJournalProducer:
        return KafkaJournalProducer(
            settings.kafka,
            canary.topic_of(settings),
            0,
            transactional_id=f"{settings.namespace}-unfenced-{next(numbers)}",
            timeout_ms=10_000,
            limit_s=5.0,
        )

    assert failed(await _with(settings, new_producer=unfenced)) == {"transaction", "visible"}


async def test_control_where_a_claim_puts_no_token_into_the_checkpoint_the_canary_dies(settings: Settings) -> None:
    class Unfenced(PostgresCheckpoints):
        first: Token | None = None

        async def take(self, partition: int, token: Token) -> Checkpoint | None:
            if self.first is None:
                self.first = token
                return await super().take(partition, token)
            return None

        async def save(self, partition: int, checkpoint: Checkpoint, *rest: object, **more: object) -> None:
            assert self.first is not None
            if checkpoint.token == self.first:
                await super().save(partition, checkpoint, *rest, **more)  # type: ignore[arg-type]

    unfenced = Unfenced(canary._in_schema(settings.postgres))
    try:
        assert failed(await _with(settings, checkpoints=unfenced)) == {"checkpoint"}
    finally:
        await unfenced.close()


async def test_servers_that_are_not_there_give_no_verdict(settings: Settings) -> None:
    with pytest.raises(CouldNotCheck, match="no topic for the canary"):
        await canary.run(settings.model_copy(update={"kafka": "127.0.0.1:1"}))
    nowhere = settings.model_copy(update={"postgres": "postgresql://u:hunter2@127.0.0.1:1/none"})
    ended = await command(nowhere)
    assert ended.code == 2
    assert "no tables for the canary" in ended.err
    assert "hunter2" not in ended.err


async def test_a_projector_runs_it_on_its_schedule_and_tells_in_its_metrics(settings: Settings) -> None:
    async with deployment(settings, 1):
        command_line = (sys.executable, "-m", "ops.cli", "projector", "-o", "json")
        async with program(*command_line, environment=environment(settings, CANARY_EVERY_S="1")) as running:
            url = (await running.until("ready"))["metrics"]

            async def has_run() -> bool:
                return 'turnlog_canary_runs_total{result="refused"}' in (await asyncio.to_thread(page, url))[1]

            await until(has_run, limit_s=60)
            text = (await asyncio.to_thread(page, url))[1]
            assert "turnlog_canary_ok 1.0" in text
            assert 'result="admitted"' not in text
            assert await running.stop() == 0
