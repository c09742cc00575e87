"""Where the place stands, in a line: for a violation that does not say by itself what it may come of."""

from __future__ import annotations

from typing import Final

import httpx

from ops.chaos.place import PARTITIONS, Place
from ops.journal import entries_of
from streams.fence.port import FenceUnavailable
from streams.projector.store import PostgresProjection

ANSWERS_WITHIN_S: Final = 5.0


async def state_of(place: Place, http: httpx.AsyncClient) -> str:
    """How far the read model is behind each partition's journal, what gateways say of themselves, who is stopped."""
    stopped = [process.name for process in place.processes() if process.ready.is_set() and await process.is_stopped()]
    gateways = [
        f"{gateway.name} {await _answer(http, url)}" for gateway, url in zip(place.gateways, place.urls, strict=True)
    ]
    return f"read model {await _behind(place)}; {', '.join(gateways)}; stopped: {stopped}"


async def _behind(place: Place) -> str:
    projection = PostgresProjection(place.settings.postgres)
    try:
        positions = await projection.positions(range(PARTITIONS))
    except FenceUnavailable as error:
        return f"does not answer: {error}"
    finally:
        await projection.close()
    lsns = []
    for partition in range(PARTITIONS):
        last = 0
        async for entry in entries_of(place.settings, partition, follow=False):
            last = entry.lsn
        lsns.append(f"{positions[partition].lsn} of {last}")
    return f"at lsn {', '.join(lsns)}"


async def _answer(http: httpx.AsyncClient, url: str) -> str:
    try:
        answer = await http.get(f"{url}/readyz", timeout=ANSWERS_WITHIN_S)
    except httpx.HTTPError as error:
        return type(error).__name__
    return f"{answer.status_code} {answer.text[:200]}"
