"""What a process waits for before it starts, on real Kafka and Postgres that come up later than it."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from structlog.testing import capture_logs

from streams.deployment import Awaited, joined
from streams.fence.topics import database_id
from streams.runtime.belonging import Belonging, belong, owner_in
from streams.runtime.kafka import KafkaUnavailable
from streams.settings import Settings
from streams.topics import Topics, TopicsError
from tests.support.deployment import deployment, page
from tests.support.postgres import database as other_database
from tests.support.waiting import until

PARTITIONS = 2


class Late:
    """A port of a server that is not there yet; once `open` it leads to the real one."""

    def __init__(self, host: str, port: int) -> None:
        self._target = host, port
        self._listener = socket.socket()
        self._listener.bind(("127.0.0.1", 0))
        self._links: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.port: int = self._listener.getsockname()[1]

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._link, sock=self._listener)

    async def _link(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader, there_writer = await asyncio.open_connection(*self._target)
        for source, sink in ((reader, there_writer), (there_reader, writer)):
            task = asyncio.create_task(_pass_on(source, sink))
            self._links.add(task)
            task.add_done_callback(self._links.discard)

    async def close(self) -> None:
        for link in list(self._links):
            link.cancel()
        await asyncio.gather(*self._links, return_exceptions=True)
        if self._server is not None:
            self._server.close()
        self._listener.close()


async def _pass_on(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    try:
        while data := await source.read(65_536):
            sink.write(data)
            await sink.drain()
    finally:
        sink.close()


@asynccontextmanager
async def late(host: str, port: int) -> AsyncIterator[Late]:
    door = Late(host, port)
    try:
        yield door
    finally:
        await door.close()


def dependencies(document: dict[str, Any]) -> dict[str, bool]:
    return {name: each["ok"] for name, each in document["dependencies"].items()}


async def test_servers_that_come_up_later_are_waited_for_by_name(settings: Settings) -> None:
    postgres = conninfo_to_dict(settings.postgres)
    kafka_host, _, kafka_port = settings.kafka.partition(",")[0].rpartition(":")
    async with (
        deployment(settings, PARTITIONS),
        late(kafka_host, int(kafka_port)) as kafka,
        late(str(postgres["host"]), int(str(postgres["port"]))) as database,
    ):
        dsn = make_conninfo(settings.postgres, host="127.0.0.1", port=database.port)
        there = settings.model_copy(update={"kafka": f"127.0.0.1:{kafka.port}", "postgres": dsn})
        awaited = Awaited()
        with capture_logs() as logs:
            starting = asyncio.create_task(joined(there, awaited))
            await until(lambda: [line for line in logs if line.get("server") == "postgres"])
            assert dependencies(awaited.page()[1]) == {"kafka": False, "postgres": False}
            await database.open()
            await until(lambda: [line for line in logs if line.get("server") == "kafka"])
            assert dependencies(awaited.page()[1]) == {"kafka": False, "postgres": True}
            await kafka.open()
            assert (await starting).partitions == PARTITIONS


async def test_meanwhile_a_page_names_what_is_waited_for(settings: Settings) -> None:
    async with late("127.0.0.1", 1) as nothing:
        away = settings.model_copy(update={"postgres": f"postgresql://u:secret@127.0.0.1:{nothing.port}/d"})
        with capture_logs() as logs:
            starting = asyncio.create_task(joined(away))
            (told,) = await until(lambda: [line for line in logs if line["event"] == "waiting to start"])
            status, text = await asyncio.to_thread(page, told["readyz"])
            healthy, _ = await asyncio.to_thread(page, told["readyz"].replace("readyz", "healthz"))
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
    document = json.loads(text)
    assert (status, document["state"], dependencies(document)["postgres"], healthy) == (503, "waiting", False, 200)
    assert "secret" not in text + str(logs)


async def test_a_server_that_stays_away_ends_the_start_after_the_budget(settings: Settings) -> None:
    away = settings.model_copy(update={"postgres": "postgresql://127.0.0.1:1/d", "start_wait_ms": 0})
    with pytest.raises(psycopg.OperationalError):
        await joined(away)
    async with deployment(settings, PARTITIONS):
        away = settings.model_copy(update={"kafka": "127.0.0.1:1", "start_wait_ms": 0})
        with pytest.raises(KafkaUnavailable, match=r"127\.0\.0\.1:1 cannot be connected to"):
            await joined(away)


async def test_topics_that_belong_to_another_database_are_refused_until_they_are_adopted(settings: Settings) -> None:
    with other_database(settings.postgres) as dsn:
        other = settings.model_copy(update={"postgres": dsn})
        async with deployment(settings, PARTITIONS), deployment(other, PARTITIONS):
            assert (await joined(settings)).partitions == PARTITIONS
            assert (await joined(settings)).partitions == PARTITIONS
            with pytest.raises(TopicsError, match="belong to another database"):
                await joined(other)
            topic, limit_s = Topics(settings.namespace).deployment, settings.request_timeout_ms / 1000
            lost, mine = database_id(settings.postgres), database_id(dsn)
            assert await belong(settings.kafka, topic, mine, limit_s, instead_of=lost) == mine
            assert (await joined(other)).partitions == PARTITIONS
            with pytest.raises(TopicsError, match="belong to another database"):
                await joined(settings)


def test_the_first_record_has_it_until_one_takes_its_place() -> None:
    first, second, stranger = Belonging("a"), Belonging("b"), Belonging("c", "b")
    assert owner_in([]) is None
    assert owner_in([first, second, stranger]) == "a"
    assert owner_in([first, Belonging("b", "a"), Belonging("c", "a"), stranger]) == "c"
