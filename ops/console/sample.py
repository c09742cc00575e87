"""One look at a deployment: leases and checkpoints, members, open runs from PostgreSQL; counts from `/metrics`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol

import httpx
import msgspec
from prometheus_client.parser import text_string_to_metric_families

from ops.database import Database
from streams.fence.port import FenceUnavailable
from streams.projector.read import ReadModel
from streams.settings import Settings

SCRAPE_LIMIT_S: Final = 2.0
RUNS_SHOWN: Final = 100
TOTALS: Final = {
    "turns": "turnlog_turns_total",
    "frames": "turnlog_frames_total",
    "events": "turnlog_journal_events_total",
    "runs moved": "turnlog_runs_moved_total",
    "takeovers": "turnlog_takeovers_total",
    "refusals": "turnlog_refusals_total",
    "fenced": "turnlog_fenced_total",
    "dead letters": "turnlog_dead_letters_total",
}
"""What is counted, by the name that it is shown under: the sum of a metric over all processes and labels."""


@dataclass(frozen=True, slots=True)
class Partition:
    """One partition: who may write it, how it does, how far it is. None: not known, for no `/metrics` says."""

    partition: int
    worker: str
    writer_epoch: int
    live: bool
    stopped: str | None
    checkpoint_age_ms: int | None
    state: str | None = None
    lag: int | None = None
    resident: int | None = None


@dataclass(frozen=True, slots=True)
class Member:
    """One agent connection, and how many open runs it holds."""

    member: str
    group: str
    gateway: str
    draining: bool
    runs: int


@dataclass(frozen=True, slots=True)
class OpenRun:
    """A run that has not ended."""

    conversation: str
    turn_seq: int
    group: str
    member: str | None
    run_epoch: int
    status: str
    opened_at: int
    """ms since the epoch, by the broker."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One look. `totals`: counters since the processes' start, by the names of `TOTALS`, of those that are known."""

    at: float
    """Monotonic, seconds."""
    now_ms: int
    """The database's clock."""
    partitions: Sequence[Partition] = ()
    workers: Mapping[str, bool] = field(default_factory=dict)
    """Live workers, and whether each drains."""
    members: Sequence[Member] = ()
    runs: Sequence[OpenRun] = ()
    """The longest open ones."""
    open_runs: int = 0
    totals: Mapping[str, float] = field(default_factory=dict)
    connections: int | None = None
    problems: Sequence[str] = ()
    """What could not be asked, a sentence each."""


class Source(Protocol):
    """Where looks come from."""

    async def look(self) -> Sample:
        """One look. Raises nothing that passes: what cannot be asked is among its `problems`."""

    async def close(self) -> None: ...


class Deployment:
    """`Source` on a deployment."""

    def __init__(self, settings: Settings, metrics: Sequence[str]) -> None:
        """`metrics`: addresses of `/metrics`, of workers and gateways."""
        self._database = Database(settings.postgres)
        self._read_model = ReadModel(settings.postgres, sessions=1)
        self._urls = metrics
        self._http = httpx.AsyncClient(timeout=SCRAPE_LIMIT_S)

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()
        await self._read_model.close()
        await self._database.close()

    async def look(self) -> Sample:
        """See `Source`."""
        at = time.monotonic()
        scrapes = await asyncio.gather(*map(self._scrape, self._urls))
        series = [each for scraped in scrapes if not isinstance(scraped, str) for each in scraped]
        problems = [scraped for scraped in scrapes if isinstance(scraped, str)]
        try:
            sample = await self._from_postgres(at, series)
        except FenceUnavailable as error:
            return Sample(at, 0, totals=totals_of(series), problems=[*problems, str(error)])
        return replace(sample, totals=totals_of(series), problems=problems)

    async def _from_postgres(self, at: float, series: Sequence[Series]) -> Sample:
        clock = await self._database.row("server_clock")
        leases = await self._database.rows("leases")
        workers = await self._database.rows("workers")
        held = {row["member"]: int(row["runs"]) for row in await self._database.rows("runs_held")}
        runs = await self._database.rows("longest_runs", limit=RUNS_SHOWN)
        members = [msgspec.to_builtins(row) for row in await self._read_model.members()]
        return Sample(
            at=at,
            now_ms=int(clock["now_ms"]) if clock else 0,
            partitions=[_partition(row, series) for row in leases],
            workers={row["worker"]: bool(row["draining"]) for row in workers},
            members=[
                Member(row["member"], row["group"], row["gateway"], row["draining"] > 0, held.get(row["member"], 0))
                for row in members
            ],
            runs=[OpenRun(**row) for row in runs],
            open_runs=sum(held.values()),
            connections=_connections(series),
        )

    async def _scrape(self, url: str) -> list[Series] | str:
        try:
            answer = await self._http.get(url)
            answer.raise_for_status()
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            return f"{url} does not answer: {type(error).__name__}"
        try:
            return parsed(answer.text)
        except ValueError:
            return f"{url} answers with something else than metrics: name the address of a /metrics"


@dataclass(frozen=True, slots=True)
class Series:
    """One line of a scrape."""

    name: str
    labels: Mapping[str, str]
    value: float


def parsed(text: str) -> list[Series]:
    """The lines of Prometheus' text format."""
    return [
        Series(line.name, line.labels, line.value)
        for family in text_string_to_metric_families(text)
        for line in family.samples
    ]


def totals_of(series: Sequence[Series]) -> dict[str, float]:
    """The sums of `TOTALS`, of those that any process has."""
    found: dict[str, float] = {}
    for shown, name in TOTALS.items():
        values = [each.value for each in series if each.name == name]
        if values:
            found[shown] = sum(values)
    return found


def _partition(row: Mapping[str, Any], series: Sequence[Series]) -> Partition:
    own = [each for each in series if each.labels.get("partition") == str(row["partition"])]
    states = [s.labels["state"] for s in own if s.name == "turnlog_partition_state" and s.value == 1]
    return Partition(
        partition=row["partition"],
        worker=row["worker"],
        writer_epoch=row["writer_epoch"],
        live=row["live"],
        stopped=row["stopped"],
        checkpoint_age_ms=row["checkpoint_age_ms"],
        state=next((state for state in states if state not in {"released", "lost"}), None),
        lag=_sum(own, "turnlog_lag_records"),
        resident=_sum(own, "turnlog_conversations_resident"),
    )


def _connections(series: Sequence[Series]) -> int | None:
    return _sum(series, "turnlog_gateway_connections")


def _sum(series: Sequence[Series], name: str) -> int | None:
    values = [each.value for each in series if each.name == name]
    return round(sum(values)) if values else None
