"""What a gateway says of itself and of its servers, and whom it does not wait for."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import urlsplit

import pytest

from connectors.gateway import gateway as gateway_module
from connectors.gateway import server as server_module
from connectors.gateway.ports import Unavailable
from connectors.gateway.protocol.errors import RETRY_AFTER_MS, RETRY_BUDGET_MS, SPECS, ProtocolError
from tests.support.gateway_world import Served, World, bearer, serve
from tests.support.waiting import until


async def test_a_ready_gateway_says_that_its_servers_answer(served: Served) -> None:
    answer = await served.http.get("/readyz")
    fine = {"ok": True, "error": ""}
    assert (answer.status_code, answer.json()) == (
        200,
        {"status": "ready", "ready": True, "phase": "ready", "dependencies": {"kafka": fine, "postgres": fine}},
    )


async def test_it_is_not_ready_while_kafka_is_away_and_says_so(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway_module, "REACH_EVERY_S", 0.01)
    async with serve(world) as served:
        world.broken = Unavailable("no broker")
        answer = await until(lambda: not_ready(served))
        assert answer.json()["dependencies"]["kafka"] == {"ok": False, "error": "no broker"}
        assert answer.json()["error"]["message"] == "Kafka cannot be reached: no broker"
        assert answer.headers["retry-after"] == "1"
        assert answer.json()["ready"] is False
        world.broken = None

        async def again() -> bool:
            return (await served.http.get("/readyz")).status_code == 200

        await until(again)


async def not_ready(served: Served) -> object:
    answer = await served.http.get("/readyz")
    return answer if answer.status_code == 503 else None


async def test_while_only_postgres_is_away_it_takes_turns_and_says_so(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("connectors.gateway.directory.DOCUMENT_POLL_S", 0.01)
    async with serve(world) as served:
        conversation, token = await served.conversation()
        served.store.broken = served.read_model.broken = Unavailable("no database")

        async def told() -> bool:
            shown = await served.http.get("/readyz")
            assert shown.status_code == 200
            return bool(shown.json()["dependencies"]["postgres"] == {"ok": False, "error": "no database"})

        await until(told)
        assert (await served.say(conversation, token, "hello")).status_code == 201


@pytest.mark.parametrize("code", [code for code, spec in SPECS.items() if spec.retryable])
def test_every_error_that_passes_says_when_to_try_again_and_for_how_long(code: str) -> None:
    error = ProtocolError(code, "m", details={"field": "f"})
    assert error.frame()["data"]["retryAfterMs"] == RETRY_AFTER_MS
    assert error.body("r")["error"]["details"] == {
        "field": "f",
        "budgetMs": RETRY_BUDGET_MS,
        "retryAfterMs": RETRY_AFTER_MS,
    }


def test_an_error_for_good_says_nothing_of_trying_again() -> None:
    assert "details" not in ProtocolError("bad_request", "m").body("r")["error"]


async def connections(served: Served, number: int) -> list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    port = urlsplit(served.url).port
    return [await asyncio.open_connection("127.0.0.1", port) for _ in range(number)]


@pytest.mark.parametrize("said", [b"", b"GET /healthz HTTP/1.1\r\nHost: a\r\n"], ids=["nothing", "half a request"])
async def test_three_hundred_sockets_that_say_no_more_are_closed(
    world: World, monkeypatch: pytest.MonkeyPatch, said: bytes
) -> None:
    monkeypatch.setattr(server_module.ImpatientProtocol, "headers_s", 0.2)
    async with serve(world) as served:
        silent = await connections(served, 300)
        for _, writer in silent:
            writer.write(said)
        async with asyncio.timeout(20):
            assert await asyncio.gather(*(reader.read() for reader, _ in silent)) == [b""] * 300
        for _, writer in silent:
            writer.close()
        assert (await served.http.get("/healthz")).status_code == 200


async def test_who_is_served_is_not_closed_and_half_a_second_request_is(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module.ImpatientProtocol, "headers_s", 0.2)
    async with serve(world) as served:
        conversation, token = await served.conversation()
        async with served.socket(token, {}) as person, served.agent() as agent:
            path = f"/v1/conversations/{conversation}/stream"
            async with served.http.stream("GET", path, headers=bearer(token)) as events:
                ((reader, writer),) = await connections(served, 1)
                writer.write(b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n")
                assert await reader.readuntil(b"}") != b""
                writer.write(b"GET /healthz HTTP/1.1\r\n")
                assert await reader.read() == b""
                writer.close()
                await served.say(conversation, token, "hello")
                assert (await agent.until("text"))["data"]["text"] == "hello"
                assert (await person.until("text"))["data"]["text"] == "hello"
                lines = events.aiter_lines()
                while await anext(lines) != "event: text":
                    pass


class Ticked:
    """A connection that sees what else ran before it was told of the time."""

    def __init__(self, ran: list[int]) -> None:
        self._ran = ran
        self.saw: list[int] = []

    def tick(self) -> None:
        self.saw.append(len(self._ran))


async def test_thousands_of_connections_are_told_of_the_time_without_holding_up_the_rest(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway_module, "TICK_S", 0.01)
    ran: list[int] = []
    crowd: list[Any] = [Ticked(ran) for _ in range(4 * gateway_module.TICKED_AT_ONCE)]

    async def the_rest() -> None:
        while True:
            ran.append(1)
            await asyncio.sleep(0)

    beside = asyncio.create_task(the_rest())
    served.gateway._connections.update(crowd)
    try:
        await until(lambda: all(each.saw for each in crowd))
    finally:
        beside.cancel()
        served.gateway._connections.difference_update(crowd)
    seen = sorted({each.saw[0] for each in crowd})
    assert len(seen) >= 4, "others had a turn between the slices"
