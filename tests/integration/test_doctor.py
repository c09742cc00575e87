"""The doctor on real servers that something is wrong with: it names what, and the way out."""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator

import psycopg
import pytest
from aiokafka import AIOKafkaProducer

from ops import doctor
from ops.doctor import Check, Result, diagnose
from streams.fence.channels import ChannelStore, parse_document
from streams.fence.lease import PostgresLeases
from streams.fence.port import Lease
from streams.settings import Settings
from tests.support.deployment import Deployment, deployment


@pytest.fixture
async def place(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Deployment]:
    async with deployment(settings, 2) as made:
        for name, value in made.environment.items():
            monkeypatch.setenv(name, value)
        yield made


async def diagnosed() -> dict[str, Check]:
    return {check.name: check for check in await diagnose(os.environ)}


async def test_a_worker_that_is_cut_off_and_a_partition_that_is_stopped_are_named(place: Deployment) -> None:
    leases = PostgresLeases(place.settings.postgres, "wk-doctor", ttl_ms=60_000)
    await leases.open()
    try:
        held = [await leases.claim(partition) for partition in range(2)]
        checks = await diagnosed()
        assert (checks["workers"].result, checks["partitions"].result) == (Result.OK, Result.OK)
        assert isinstance(held[1], Lease)
        await leases.set_stopped(held[1], "the journal was cut off")
        await leases.set_reaching(False)
        checks = await diagnosed()
        assert checks["workers"].result is Result.FAILED
        assert "1 of 1 do not reach Kafka: wk-doctor" in checks["workers"].found
        assert checks["partitions"].result is Result.FAILED
        assert "1 of 2 are stopped: 1: the journal was cut off" in checks["partitions"].found
        assert "restart the worker" in checks["partitions"].way_out
        assert checks["kafka"].result is checks["postgres"].result is Result.OK
    finally:
        await leases.close()


async def test_a_transaction_that_holds_readers_back_is_named(
    place: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (await diagnosed())["transactions"].result is Result.OK
    monkeypatch.setattr(doctor, "OPEN_MOST_MS", -60_000)
    stranger = AIOKafkaProducer(bootstrap_servers=place.settings.kafka, transactional_id=f"{place.topics.turns}-x")
    await stranger.start()
    try:
        await stranger.begin_transaction()
        await stranger.send_and_wait(place.topics.turns, b"1", partition=1)
        found = (await diagnosed())["transactions"]
        assert found.result is Result.FAILED
        assert f"1 hold readers back: {place.topics.turns}[1]: producer" in found.found
        assert "turnlog transaction list" in found.way_out
        await stranger.abort_transaction()
    finally:
        await stranger.stop()


async def test_the_server_that_is_away_is_named_and_the_other_is_not(
    place: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TURNLOG_KAFKA", "127.0.0.1:1")
    checks = await diagnosed()
    assert (checks["kafka"].result, checks["postgres"].result) == (Result.FAILED, Result.OK)
    assert checks["kafka"].found.startswith("127.0.0.1:1 cannot be connected to")
    monkeypatch.setenv("TURNLOG_KAFKA", place.settings.kafka)
    monkeypatch.setenv("TURNLOG_POSTGRES", "postgresql://127.0.0.1:1/none")
    checks = await diagnosed()
    assert (checks["kafka"].result, checks["postgres"].result) == (Result.OK, Result.FAILED)


async def test_a_broker_that_takes_connections_and_answers_nothing_is_named_soon(
    place: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        monkeypatch.setenv("TURNLOG_KAFKA", address)
        checks = await diagnosed()
    assert checks["kafka"].result is Result.FAILED
    assert checks["kafka"].found.startswith(f"{address} cannot be connected to, or does not answer within")


async def test_a_rule_by_which_words_stay_in_kafka_is_warned_of_and_one_that_nobody_follows(place: Deployment) -> None:
    assert (await diagnosed())["retention"].found == "all channels keep their conversations"
    channels = ChannelStore(place.settings.postgres)
    await channels.apply(parse_document({"channels": [{"id": "web", "kind": "web", "retain_days": 30}]}))
    await channels.close()
    found = (await diagnosed())["retention"]
    assert found.result is Result.WARNING
    assert found.found == "web 30 days; what is said is not sealed, so that it stays in Kafka, archives and exports"
    with psycopg.connect(place.settings.postgres, autocommit=True) as connection:
        connection.execute("INSERT INTO data_keys VALUES ('k', 'c', '1', true, true)")
        assert (await diagnosed())["retention"] == Check("retention", Result.OK, "web 30 days")
        connection.execute("INSERT INTO projector_positions VALUES (0, 1, 1)")
        connection.execute(
            "INSERT INTO conversations (id, partition, channel, status, head_seq, opened_at, updated_at, last_lsn)"
            " VALUES ('old', 0, 'web', 'open', 0, 1, 1, 1)"
        )
    found = (await diagnosed())["retention"]
    assert found.result is Result.WARNING
    assert "old was to be erased more than a day ago" in found.found
