"""The intake's bookkeeping, with a producer that does what the test says."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from connectors.gateway import intake as module
from connectors.gateway.intake import KafkaIntake
from connectors.gateway.ports import Unavailable
from streams.core.commands import CommitTurn
from streams.core.events import Turn
from streams.runtime.codec import Codec
from streams.topics import Topics
from tests.support.gateway_world import settings_for


class FullProducer:
    """A producer without room: a send waits."""

    async def send(self, *_: Any, **__: Any) -> Any:
        await asyncio.Event().wait()


TURN = CommitTurn(
    at=0,
    timestamp=0,
    ref="r",
    conversation_id="c",
    turn=Turn(id="i", sender="ann", channel="web", type="text", text="hello"),
)


@pytest.fixture
def intake() -> KafkaIntake:
    intake = KafkaIntake(settings_for(), Topics(""), Codec(), 1)
    producer: Any = FullProducer()
    intake._turns._producer = producer
    return intake


async def test_a_sender_that_goes_while_it_waits_for_room_takes_none_for_good(
    intake: KafkaIntake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "IN_FLIGHT_MAX", 1)
    for _ in range(3):
        sending = asyncio.create_task(intake.send(TURN))
        await asyncio.sleep(0)
        with pytest.raises(Unavailable, match="on their way"):
            await intake.send(TURN)
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
