"""A process that follows tries again what passes by itself, and ends when it is asked to, or when it must."""

from __future__ import annotations

import os
import signal

import pytest

from ops.history.following import follow
from ops.history.place import PlaceUnavailable
from ops.history.port import HistoryUnavailable
from streams.runtime.kafka import KafkaUnavailable


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_it_goes_on_after_what_passes_and_ends_when_it_is_asked_to(number: signal.Signals) -> None:
    rounds: list[int] = []
    told: list[str] = []

    async def once() -> None:
        rounds.append(len(rounds))
        match len(rounds):
            case 1:
                raise KafkaUnavailable("no broker")
            case 2:
                raise PlaceUnavailable("no bucket")
            case 4:
                os.kill(os.getpid(), number)

    await follow(once, 0.001, told.append)
    assert len(rounds) >= 4
    assert [line.split(":")[0] for line in told] == ["KafkaUnavailable", "PlaceUnavailable"]


async def test_what_does_not_pass_ends_it() -> None:
    async def once() -> None:
        raise HistoryUnavailable("a gap")

    with pytest.raises(HistoryUnavailable, match="a gap"):
        await follow(once, 0.001, lambda _: None)
