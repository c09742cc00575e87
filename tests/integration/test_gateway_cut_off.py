"""A gateway whose servers go away: it says which one, and is ready again by itself."""

from __future__ import annotations

import signal
import sys
from typing import Any

import httpx
import pytest

from ops.embedded import EmbeddedStack
from streams.settings import load_settings
from tests.support import postgres
from tests.support.deployment import deployment
from tests.support.program import program
from tests.support.waiting import until


@pytest.mark.parametrize("server", ["kafka", "postgres"])
async def test_it_says_which_server_is_away_and_is_ready_again_by_itself(
    private_stack: EmbeddedStack, server: str
) -> None:
    with postgres.database(private_stack.postgres) as dsn:
        settings = load_settings(kafka=private_stack.kafka, postgres=dsn, namespace=f"cut-{server}")
        async with deployment(settings, 2) as place:
            command = (sys.executable, "-m", "ops.cli", "gateway", "--port", "0", "-o", "json")
            async with program(*command, environment=place.environment) as gateway:
                url = (await gateway.until("ready"))["url"]
                async with httpx.AsyncClient(base_url=url, timeout=10) as http:
                    await until(lambda: says(http, 200, kafka=True, postgres=True))
                    if server == "kafka":
                        private_stack.signal_kafka(signal.SIGSTOP)
                        await until(lambda: says(http, 503, kafka=False, postgres=True))
                        private_stack.signal_kafka(signal.SIGCONT)
                    else:
                        private_stack.kill_postgres()
                        await until(lambda: says(http, 200, kafka=True, postgres=False))
                        private_stack.restart_postgres()
                    await until(lambda: says(http, 200, kafka=True, postgres=True))
                assert await gateway.stop() == 0


async def says(http: httpx.AsyncClient, status: int, **answering: bool) -> bool:
    answer = await http.get("/readyz")
    dependencies: dict[str, Any] = answer.json()["dependencies"]
    return answer.status_code == status and {name: dependencies[name]["ok"] for name in dependencies} == answering
