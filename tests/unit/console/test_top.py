"""`turnlog top`: what two looks tell, what a scrape says, and what the screen shows of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from prometheus_client import generate_latest
from textual.widgets import DataTable, RichLog, Static

from ops.console.app import Top
from ops.console.compare import changes, rates
from ops.console.sample import Deployment, Member, OpenRun, Partition, Sample, parsed, totals_of
from streams.runtime.metrics import WorkerMetrics
from streams.settings import load_settings

WORKER, OTHER = "wk-0a1b2c3d4e5f", "wk-5f4e3d2c1b0a"
NOW_MS = 1_780_000_000_000
NOWHERE = load_settings(kafka="127.0.0.1:1", postgres="postgresql://127.0.0.1:1/none")
FIRST = Sample(
    at=100.0,
    now_ms=NOW_MS,
    partitions=[
        Partition(0, WORKER, 3, live=True, stopped=None, checkpoint_age_ms=2_000, state="running", lag=0, resident=12),
        Partition(1, WORKER, 4, live=True, stopped=None, checkpoint_age_ms=None, state="running", lag=4, resident=3),
    ],
    workers={WORKER: False},
    members=[Member("gw-1.1", "agents/support", "gw-1", draining=False, runs=1)],
    runs=[OpenRun("c-1", 7, "agents/support", "gw-1.1", 1, "open", NOW_MS - 75_000)],
    open_runs=1,
    totals={"turns": 1_000.0, "frames": 5_000.0, "fenced": 0.0, "runs moved": 1.0, "dead letters": 0.0},
    connections=17,
)
SECOND = replace(
    FIRST,
    at=102.0,
    partitions=[
        FIRST.partitions[0],
        Partition(
            1, OTHER, 5, live=True, stopped="a checkpoint is ahead", checkpoint_age_ms=9, state="stopped", lag=2_000
        ),
    ],
    workers={WORKER: True, OTHER: False},
    members=[Member("gw-1.2", "agents/support", "gw-1", draining=False, runs=0)],
    runs=[],
    open_runs=0,
    totals={"turns": 1_020.0, "frames": 10.0, "fenced": 1.0, "runs moved": 3.0, "dead letters": 0.0},
    problems=["http://127.0.0.1:9101/metrics does not answer: ConnectError"],
)


class Looks:
    """A source that was written down."""

    def __init__(self, *looks: Sample) -> None:
        self._looks = list(looks)
        self.asked = 0

    async def look(self) -> Sample:
        self.asked += 1
        return self._looks.pop(0) if len(self._looks) > 1 else self._looks[0]

    async def close(self) -> None: ...


def test_rates_are_a_second_and_a_counter_that_began_anew_has_none() -> None:
    assert rates(FIRST, SECOND) == {"turns": 10.0, "fenced": 0.5, "runs moved": 1.0, "dead letters": 0.0}
    assert rates(SECOND, SECOND) == {}


def test_what_changed_hands_is_told() -> None:
    assert changes(FIRST, SECOND) == [
        f"partition 1: {OTHER} takes over from {WORKER} (epoch 5)",
        f"worker {OTHER} is there",
        f"worker {WORKER} drains",
        "gw-1.2 joined agents/support",
        "gw-1.1 left agents/support",
        "2 runs moved",
        "1 fenced",
    ]
    assert changes(FIRST, FIRST) == []
    assert changes(Sample(at=1.0, now_ms=0), FIRST) == [], "what was there at the first look did not just happen"


def test_the_metrics_of_a_real_worker_are_understood() -> None:
    metrics = WorkerMetrics()
    metrics.turns.inc(3)
    metrics.fenced.inc()
    metrics.lag.labels("turns", "0").set(5)
    metrics.runs_moved.labels("operator").inc(2)
    found = totals_of(parsed(generate_latest(metrics.registry).decode()) * 2)
    assert (found["turns"], found["fenced"], found["runs moved"]) == (6.0, 2.0, 4.0)


async def test_the_screen_shows_both_looks_and_what_happened_between(tmp_path: Path) -> None:
    source = Looks(FIRST, SECOND)
    app = Top(source, every_s=3600)
    async with app.run_test(size=(150, 40)) as pilot:
        await app.workers.wait_for_complete()
        await pilot.pause()
        partitions, members, runs = (app.query_one(name, DataTable) for name in ("#partitions", "#members", "#runs"))
        assert (partitions.row_count, members.row_count, runs.row_count) == (2, 1, 1)
        assert "1 min 15 s" in str(runs.get_row_at(0)[0])
        numbers = str(app.query_one("#numbers", Static).content)
        assert all(part in numbers for part in ("partitions 2/2", "open runs 1", "connections 17", "turns/s -"))
        await pilot.press("r")
        await app.workers.wait_for_complete()
        await pilot.pause()
        numbers = str(app.query_one("#numbers", Static).content)
        assert all(part in numbers for part in ("stopped 1", "turns/s 10.0", "fenced 1", "lag 2000"))
        assert "does not answer" in str(app.query_one("#problems", Static).content)
        told = "\n".join(line.text for line in app.query_one("#events", RichLog).lines)
        assert "takes over from" in told.replace("\n", " ")
        assert "<svg" in app.export_screenshot()


async def test_it_stands_still_while_paused_and_ends_with_q() -> None:
    source = Looks(FIRST)
    app = Top(source, every_s=0.01)
    async with app.run_test() as pilot:
        await app.workers.wait_for_complete()
        await pilot.press("p")
        assert app.sub_title == "paused"
        asked = source.asked
        app._tick()
        await pilot.pause()
        assert source.asked == asked
        await pilot.press("q")
    assert app.return_code == 0


@pytest.mark.parametrize("size", [(80, 24), (200, 60)])
async def test_it_fits_into_small_and_large_terminals(size: tuple[int, int]) -> None:
    app = Top(Looks(SECOND), every_s=3600)
    async with app.run_test(size=size) as pilot:
        await app.workers.wait_for_complete()
        await pilot.pause()
        assert all(app.query_one(name).size.height > 1 for name in ("#partitions", "#members", "#runs", "#events"))


@pytest.mark.parametrize("name", ["c[/]1", "turns[3]", "[bold]b", "[link='x"])
async def test_what_users_call_things_is_shown_as_it_is_and_is_no_markup(name: str) -> None:
    odd = replace(
        FIRST,
        partitions=[replace(FIRST.partitions[0], stopped=f"{name} is odd")],
        members=[Member("gw-1.1", f"agents/{name}", "gw-1", draining=False, runs=1)],
        runs=[OpenRun(name, 7, f"agents/{name}", "gw-1.1", 1, "open", NOW_MS)],
        problems=[f"{name} does not answer"],
    )
    app = Top(Looks(FIRST, odd), every_s=3600)
    async with app.run_test(size=(150, 40)) as pilot:
        await app.workers.wait_for_complete()
        await pilot.press("r")
        await app.workers.wait_for_complete()
        await pilot.pause()
        members, runs = (app.query_one(each, DataTable) for each in ("#members", "#runs"))
        assert (str(members.get_row_at(0)[1]), str(runs.get_row_at(0)[1])) == (f"agents/{name}", name)
        assert f"{name} does not answer" in str(app.query_one("#problems", Static).render())
        assert name in "\n".join(line.text for line in app.query_one("#events", RichLog).lines)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("<!doctype html>", "something else than metrics"),
        ("turnlog_turns_total 3\n", None),
    ],
)
async def test_an_address_that_is_no_metrics_is_a_problem_that_is_shown(answer: str, said: str | None) -> None:
    deployment = Deployment(NOWHERE, ["http://metrics.test/metrics", "http://[::1/metrics"])
    await deployment._http.aclose()
    deployment._http = httpx.AsyncClient(transport=httpx.MockTransport(lambda _: httpx.Response(200, text=answer)))
    found, mistyped = [await deployment._scrape(url) for url in deployment._urls]
    await deployment.close()
    assert isinstance(found, list) if said is None else said in str(found)
    assert "does not answer: InvalidURL" in str(mistyped)
