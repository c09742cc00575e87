"""What a gateway answers before it is there."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator

import httpx
import pytest

from connectors.gateway.server import Front, server
from streams.deployment import Awaited


@pytest.fixture
def awaited() -> Awaited:
    return Awaited()


@pytest.fixture
async def client(awaited: Awaited) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app=Front(awaited.page))
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
        yield client


async def test_it_is_alive_and_not_ready_and_names_the_server_that_it_waits_for(
    client: httpx.AsyncClient, awaited: Awaited
) -> None:
    awaited.answered("postgres")
    awaited.failed("kafka", "connection refused")
    assert (await client.get("/healthz")).status_code == 200
    ready = await client.get("/readyz")
    assert ready.status_code == 503
    assert ready.json()["dependencies"] == {
        "kafka": {"ok": False, "error": "connection refused"},
        "postgres": {"ok": True, "error": ""},
    }


async def test_everything_else_is_unavailable_with_a_hint_when_to_come_back(client: httpx.AsyncClient) -> None:
    answer = await client.post("/api/v1/converger/tokens/generate")
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    assert answer.json()["error"]["code"] == "unavailable"


@pytest.mark.parametrize(("error", "logged"), [(asyncio.CancelledError(), 0), (OSError("broken"), 1)])
def test_what_a_second_signal_cuts_off_is_no_error_of_the_server(
    awaited: Awaited, caplog: pytest.LogCaptureFixture, error: BaseException, logged: int
) -> None:
    server(Front(awaited.page))
    logging.getLogger("uvicorn.error").error("Exception in ASGI application\n", exc_info=error)
    assert len(caplog.records) == logged
