"""The stack under test: servers of its own, and every process where a fault can be done to it alone.

Each worker and gateway has a proxy of its own to Kafka and one to PostgreSQL. Leases and members live for seconds, so
that a pause of three times that fits into a run.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from psycopg.conninfo import conninfo_to_dict, make_conninfo

from ops import embedded
from ops.chaos.disk import SmallDisk, mounted
from ops.chaos.notes import SECRET_VARIABLE
from ops.chaos.processes import Process
from ops.chaos.proxy import KafkaProxy, TcpProxy
from ops.chaos.proxy import running as proxies_running
from ops.chaos.schedule import TTL_S, Target
from ops.children import ChildPlan
from ops.embedded import ports
from ops.provision import ReadyChannel, provide
from streams.settings import Settings, load_settings

PARTITIONS: Final = 4
GATEWAYS: Final = len(Target.GATEWAY.value)
AGENT_PROGRAMS: Final = (
    ("ops.chaos.agent", "--continues"),
    ("ops.chaos.agent", "--continues"),
    ("ops.chaos.agent",),
    ("ops.chaos.socket_agent",),
)
TTL_MS: Final = int(TTL_S * 1000)
GROUP: Final = "crew"

ENVIRONMENT: Final = {
    "TURNLOG_LEASE_TTL_MS": str(TTL_MS),
    "TURNLOG_LEASE_HEARTBEAT_MS": str(TTL_MS // 4),
    "TURNLOG_MEMBER_TTL_MS": str(TTL_MS),
    "TURNLOG_GATEWAY_HEARTBEAT_MS": str(TTL_MS // 4),
    "TURNLOG_TRANSACTION_TIMEOUT_MS": "5000",
    "TURNLOG_REQUEST_TIMEOUT_MS": "2500",
    "TURNLOG_COMMIT_WAIT_MS": "3000",
    "TURNLOG_CHECKPOINT_EVERY_MS": "1500",
    "TURNLOG_DRAIN_BUDGET_MS": "4000",
    "TURNLOG_TOKEN_TTL_S": str(24 * 60 * 60),  # that tokens end is no fault
    "TURNLOG_IDLE_CONVERSATIONS_MAX": "2",  # evictions, and what brings back what was evicted, run all the while
}
Notify = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Ways:
    """How one process reaches the servers."""

    kafka: KafkaProxy
    postgres: TcpProxy


@dataclass(slots=True)
class Place:
    """The whole of it."""

    servers: embedded.EmbeddedStack
    settings: Settings
    channels: Sequence[ReadyChannel]
    data: Path
    disk: SmallDisk | None
    """None: there is none, or none could be had."""
    notify: Notify
    for_workers: Mapping[str, str]
    workers: list[Process] = field(default_factory=list)
    gateways: list[Process] = field(default_factory=list)
    projectors: list[Process] = field(default_factory=list)
    agents: list[Process] = field(default_factory=list)
    passers_by: list[Process] = field(default_factory=list)
    """Workers that came and went in storms."""
    ways: dict[str, Ways] = field(default_factory=dict)
    """By the name of the process."""
    urls: list[str] = field(default_factory=list)
    """Of the gateways, whose ports stay."""

    @property
    def seen(self) -> Path:
        """Where agents and viewers write down what they see."""
        return self.data / "seen"

    def secret(self, kind: str) -> str:
        """Login secret of the channel of this kind."""
        return next(channel.secret for channel in self.channels if channel.kind == kind)

    def processes(self) -> Iterator[Process]:
        """All of them, in the order of starting."""
        yield from (*self.workers, *self.projectors, *self.gateways, *self.agents, *self.passers_by)

    def worker_plan(self, name: str) -> ChildPlan:
        """A worker process, which reaches the servers without a proxy unless `ways` has some of its name."""
        plan = self._plan(name, "ops.chaos.worker", "worker")
        return replace(plan, environment={**plan.environment, **self.for_workers})

    def _plan(self, name: str, module: str, *arguments: str) -> ChildPlan:
        ways = self.ways.get(name)
        kafka, postgres = self.settings.kafka, self.settings.postgres
        environment = {
            **ENVIRONMENT,
            "TURNLOG_KAFKA": kafka if ways is None else f"127.0.0.1:{ways.kafka.port}",
            "TURNLOG_POSTGRES": postgres if ways is None else make_conninfo(postgres, port=ways.postgres.port),
            "TURNLOG_CHAOS_ORDERS": str(self.orders(name)),
        }
        command = [sys.executable, "-m", module, *arguments, "-o", "json", "--lifeline"]
        return ChildPlan(name=name, command=command, environment=environment, log=self.data / "logs" / f"{name}.log")

    def orders(self, name: str) -> Path:
        """The file through which a worker is told where to die."""
        return self.data / "orders" / name

    def furnish(self) -> None:
        """Plan every process; the proxies listen by now."""
        self.workers = [self._process(self.worker_plan(name)) for name in Target.WORKER.value]
        self.projectors = [self._process(self._plan(n, "ops.cli", "projector")) for n in Target.PROJECTOR.value]
        for name in Target.GATEWAY.value:
            port = ports.choose(0, 0)
            self.urls.append(f"http://127.0.0.1:{port}")
            self.gateways.append(self._process(self._plan(name, "ops.chaos.server", "gateway", "--port", str(port))))
        programs = zip(Target.AGENT.value, AGENT_PROGRAMS, strict=True)
        self.agents = [self._process(self._agent_plan(*each)) for each in programs]

    def _process(self, plan: ChildPlan) -> Process:
        return Process(plan, self.notify)

    def _agent_plan(self, name: str, program: tuple[str, ...]) -> ChildPlan:
        module, *options = program
        # Each begins at another gateway.
        first = Target.AGENT.value.index(name)
        urls = [self.urls[(first + n) % GATEWAYS] for n in range(GATEWAYS)]
        return ChildPlan(
            name=name,
            command=[sys.executable, "-m", module, str(self.seen / f"{name}.jsonl"), GROUP, *urls, *options],
            environment={SECRET_VARIABLE: self.secret("websocket")},
            log=self.data / "logs" / f"{name}.log",
        )


@asynccontextmanager
async def opened(
    data: Path, notify: Notify, for_workers: Mapping[str, str], *, small_disk: bool
) -> AsyncIterator[Place]:
    """The place, every process ready, for as long as the block runs. `data`: where all of it is kept; `for_workers`:
    variables that workers get on top; `small_disk`: the servers' data lies on one that can be filled.

    Raises what `ops.stack.running` raises.
    """
    for folder in ("logs", "seen", "orders"):
        (data / folder).mkdir(parents=True, exist_ok=True)
    async with AsyncExitStack() as undo:
        # Apart from what this process and the others write: it may get a small disk of its own.
        stack = data / "stack"
        disk = await undo.enter_async_context(mounted(stack)) if small_disk else None
        servers = await asyncio.to_thread(embedded.start, stack, progress=notify)
        undo.push_async_callback(asyncio.to_thread, servers.stop)
        settings = load_settings(kafka=servers.kafka, postgres=servers.postgres)
        channels = await provide(settings, PARTITIONS, stack / "secrets.json")
        place = Place(servers, settings, channels, data, disk, notify, for_workers)
        host, _, port = settings.kafka.rpartition(":")
        database = conninfo_to_dict(settings.postgres)
        for name in Target.SERVER.value:
            kafka, postgres = KafkaProxy(host, int(port)), TcpProxy(str(database["host"]), int(str(database["port"])))
            await undo.enter_async_context(proxies_running(kafka, postgres))
            place.ways[name] = Ways(kafka, postgres)
        place.furnish()
        undo.push_async_callback(_ended, place)
        for kind in ((*place.workers, *place.projectors), place.gateways, place.agents):
            for process in kind:
                process.begin()
            await asyncio.gather(*(process.ready.wait() for process in kind))
        yield place


async def _ended(place: Place) -> None:
    for kind in (place.agents, place.gateways, (*place.workers, *place.passers_by), place.projectors):
        await asyncio.gather(*(process.end() for process in kind))
