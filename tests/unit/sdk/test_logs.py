"""Log lines of an agent say of which conversation, turn and run they are: the SDK's own, and a handler's."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

import pytest

from tests.support.scripted_gateway import scripted_gateway
from turnlog import Agent, Turn, TurnFields
from turnlog.backoff import Backoff

FIELDS = ("conversation", "turn", "run", "run_epoch")


class Kept(logging.Handler):
    """Keeps the records."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    def fields(self, message: str) -> list[object]:
        [record] = [each for each in self.records if message in each.getMessage()]
        return [getattr(record, name, None) for name in FIELDS]


@pytest.fixture
def kept() -> Iterator[Kept]:
    handler = Kept()
    handler.addFilter(TurnFields())
    logging.getLogger().addHandler(handler)
    yield handler
    logging.getLogger().removeHandler(handler)


@pytest.mark.parametrize("threaded", [False, True])
async def test_every_line_of_a_turn_names_it(kept: Kept, threaded: bool) -> None:
    def work(turn: Turn) -> str:
        logging.getLogger("a library").warning("the model is slow")
        logging.getLogger("a library").warning("its own word counts", extra={"run": "mine"})
        raise ValueError("no")

    async def awaited(turn: Turn) -> str:
        return work(turn)

    async with scripted_gateway() as gateway:
        agent = Agent(gateway.url, token="t", backoff=Backoff(first=0.01, most=0.05))
        agent.on_turn(work if threaded else awaited)
        starting = asyncio.create_task(agent.start())
        peer = await gateway.welcomed()
        await starting
        await peer.turn("c1", "hi", seq=3, epoch=2)
        while (await peer.inner("c1"))["type"] != "error":
            pass
        await agent.stop(budget=0)
    logging.getLogger("a library").warning("of no turn")
    named = ["c1", "turn-3", "c1/3/agents", 2]
    assert kept.fields("the model is slow") == named
    assert kept.fields("its own word counts") == ["c1", "turn-3", "mine", 2]
    assert kept.fields("the handler failed") == named
    assert kept.fields("of no turn") == [None] * 4
