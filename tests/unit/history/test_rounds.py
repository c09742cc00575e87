"""How far a process that copies the journal is behind, as it tells Prometheus."""

from __future__ import annotations

from typing import cast

import httpx
import pytest

from ops.history import rounds
from ops.history.place import PlaceUnavailable
from ops.history.port import History, Range
from ops.history.rounds import LATE_ROUNDS, LATE_S, RoundMetrics, counted, shown
from streams.runtime.kafka import KafkaUnavailable
from tests.support.waiting import until


class Ends:
    """A history of which only the ends matter."""

    def __init__(self, *ends: int) -> None:
        self.ends = list(ends)
        self.away = False

    async def bounds(self, partition: int) -> Range:
        if self.away:
            raise KafkaUnavailable("no broker")
        return Range(0, self.ends[partition])


def value(metrics: RoundMetrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(f"turnlog_copy_{name}", {"of": "archive", "to": "/a", **labels})


async def test_all_before_the_beginning_of_a_round_that_ended_is_copied() -> None:
    now = [1_000.0]
    metrics = RoundMetrics("archive", "/a", 60, clock=lambda: now[0])
    assert value(metrics, "until_timestamp_seconds") == 1_000

    async def once() -> None:
        now[0] += 50
        if now[0] > 1_100:
            raise PlaceUnavailable("no bucket")

    for _ in range(2):
        await counted(once, metrics)()
    with pytest.raises(PlaceUnavailable):
        await counted(once, metrics)()
    assert (value(metrics, "until_timestamp_seconds"), value(metrics, "failed_rounds_total")) == (1_050, 1)
    assert metrics.healthy() == (True, {"of": "archive", "to": "/a", "behind_s": 100.0})
    now[0] = 1_050 + LATE_ROUNDS * 60 + LATE_S
    assert not metrics.healthy()[0]


async def test_what_comes_between_two_rounds_is_behind_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "LOOK_EVERY_S", 0.001)
    metrics, ends, told, upto = RoundMetrics("archive", "/a", 60), Ends(10, 20), list[str](), {0: 4}
    async with shown(metrics, cast(History, ends), upto, ("127.0.0.1", 0), told.append):
        await until(lambda: value(metrics, "behind_offsets", partition="0") == 6)
        upto[0], upto[1] = 10, 25
        await until(lambda: value(metrics, "behind_offsets", partition="1") == 0)
        ends.away = True
        ends.ends[0] = 12
        ends.away = False
        await until(lambda: value(metrics, "behind_offsets", partition="0") == 2)
        [line] = told
        async with httpx.AsyncClient() as client:
            page = (await client.get(line.removeprefix("metrics at "))).text
        assert 'turnlog_copy_behind_offsets{of="archive",partition="0",to="/a"} 2.0' in page


async def test_what_is_not_wanted_is_not_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "LOOK_EVERY_S", 0.001)
    metrics, ends, upto = RoundMetrics("archive", "/a", 60), Ends(10, 20), {0: 4, 1: 20}
    async with shown(metrics, cast(History, ends), upto, ("127.0.0.1", 0), lambda _: None, most=12):
        await until(lambda: value(metrics, "behind_offsets", partition="1") == 0)
        assert value(metrics, "behind_offsets", partition="0") == 6
        ends.ends[0] = 30
        await until(lambda: value(metrics, "behind_offsets", partition="0") == 8)


async def test_without_a_port_nothing_listens_and_nothing_is_asked() -> None:
    async with shown(
        RoundMetrics("archive", "/a", 60), cast(History, Ends()), {0: 4}, ("127.0.0.1", None), pytest.fail
    ):
        pass
