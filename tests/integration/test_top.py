"""`turnlog top` against a real worker: what PostgreSQL and the worker's own page say of it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from textual.widgets import DataTable

from ops.console.app import Top
from ops.console.sample import TOTALS, Deployment
from streams.settings import Settings
from tests.support.command import turnlog_async
from tests.support.deployment import Deployment as Place
from tests.support.deployment import deployment

MEMBER = "gw-000000000001.1"


@pytest.fixture
async def place(settings: Settings) -> AsyncIterator[Place]:
    async with deployment(settings, 2) as made:
        yield made


async def test_a_look_has_leases_states_and_counts_and_says_what_does_not_answer(place: Place) -> None:
    async with place.worker() as (running, worker):
        url = (await running.until("ready"))["metrics"]
        await place.furnish(MEMBER)
        await place.furnished(MEMBER)
        await place.open("c1")
        await place.turn("c1", "hello")
        await place.all_taken({"c1": ["hello"]})
        source = Deployment(place.settings, [url, "http://127.0.0.1:1/metrics"])
        try:
            look = await source.look()
            assert [(each.worker, each.state, each.live) for each in look.partitions] == [(worker, "running", True)] * 2
            assert look.workers == {worker: False}
            assert look.totals["turns"] == 1
            assert set(look.totals) <= set(TOTALS)
            assert look.problems == ["http://127.0.0.1:1/metrics does not answer: ConnectError"]
            app = Top(source, every_s=3600)
            async with app.run_test(size=(150, 40)) as pilot:
                await app.workers.wait_for_complete()
                await pilot.pause()
                assert app.query_one("#partitions", DataTable).row_count == 2
        finally:
            await source.close()
        shown = await turnlog_async("top", "--metrics", url, "-o", "json", environment=place.environment)
        assert [each["worker"] for each in shown.document["partitions"]] == [worker] * 2
        refused = await turnlog_async("top", environment=place.environment)
        assert (refused.code, "this is no terminal" in refused.err) == (2, True)
