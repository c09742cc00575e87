"""The stack under test: servers of its own, and every process where a fault can be done to it alone.

Each worker and gateway has a proxy of its own to Kafka and one to PostgreSQL, where possible in a network of its own
(`network`); people and agents come to a gateway through its door, a proxy too. Everybody else reaches PostgreSQL
through one more, so that a failover leads all of them to the new primary. Leases and members live for seconds, so that
a pause of three times that fits into a run.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from psycopg.conninfo import make_conninfo

from ops import embedded
from ops.chaos.databases import Database
from ops.chaos.disk import SmallDisk, mounted
from ops.chaos.network import Network, Wire, why_not
from ops.chaos.notes import NOTES_VARIABLE, SECRET_VARIABLE
from ops.chaos.processes import Process
from ops.chaos.proxy import LOOPBACK, KafkaProxy, TcpProxy, Way
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
    ("ops.chaos.public_agent",),
)
SKEWED: Final = "ops.chaos.skewed"
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
    network: Network | None
    """None: it is in the network of everybody."""

    def proxy(self, wire: Wire) -> TcpProxy:
        """The one on this wire."""
        return self.kafka if wire is Wire.KAFKA else self.postgres

    def cut(self, wire: Wire, ways: Collection[Way], *, packets: bool) -> None:
        """Let nothing pass these ways. `packets`: the kernel drops them, where there is a network of its own; else the
        proxy holds what is sent."""
        if packets and self.network is not None:
            self.network.cut(wire, sending=Way.SENDING in ways, receiving=Way.RECEIVING in ways)
        else:
            self.proxy(wire).hold(*ways)

    def mend(self, wire: Wire) -> None:
        """Let everything pass."""
        if self.network is not None:
            self.network.mend(wire)
        self.proxy(wire).release()


@dataclass(slots=True)
class Place:
    """The whole of it."""

    servers: embedded.EmbeddedStack
    database: Database
    front: TcpProxy
    """The way to PostgreSQL of all who have none of their own."""
    settings: Settings
    channels: Sequence[ReadyChannel]
    data: Path
    disk: SmallDisk | None
    """None: there is none, or none could be had."""
    notify: Notify
    for_workers: Mapping[str, str]
    no_networks: str | None
    """Why there are no networks of one's own; None: there are."""
    workers: list[Process] = field(default_factory=list)
    gateways: list[Process] = field(default_factory=list)
    projectors: list[Process] = field(default_factory=list)
    agents: list[Process] = field(default_factory=list)
    passers_by: list[Process] = field(default_factory=list)
    """Workers that came and went in storms."""
    guest_agents: list[Process] = field(default_factory=list)
    """Agents that did."""
    ways: dict[str, Ways] = field(default_factory=dict)
    """By the name of the process."""
    doors: dict[str, TcpProxy] = field(default_factory=dict)
    """Of the gateways, by name."""
    urls: list[str] = field(default_factory=list)
    """Of the gateways, whose ports stay."""

    @property
    def seen(self) -> Path:
        """Where agents and viewers write down what they see."""
        return self.data / "seen"

    @property
    def how_cut(self) -> str:
        """How connections of one process are cut here, for people."""
        if self.no_networks is not None:
            return f"a proxy holds what is sent ({self.no_networks})"
        own = "the kernel drops packets of the process's own network namespace"
        return f"{own}, or a proxy holds what is sent, by turns"

    def secret(self, kind: str) -> str:
        """Login secret of the channel of this kind."""
        return next(channel.secret for channel in self.channels if channel.kind == kind)

    def processes(self) -> Iterator[Process]:
        """All of them, in the order of starting."""
        yield from (*self.workers, *self.projectors, *self.gateways, *self.agents, *self.passers_by, *self.guest_agents)

    def worker_plan(self, name: str) -> ChildPlan:
        """A worker process, which reaches the servers without a proxy unless `ways` has some of its name."""
        plan = self._plan(name, "ops.chaos.worker", "worker")
        return replace(plan, environment={**plan.environment, **self.for_workers})

    def _plan(self, name: str, module: str, *arguments: str) -> ChildPlan:
        ways = self.ways.get(name)
        kafka, postgres = self.settings.kafka, self.settings.postgres
        prefix: Sequence[str] = ()
        if ways is not None:
            kafka = f"{ways.kafka.host}:{ways.kafka.port}"
            postgres = make_conninfo(postgres, host=ways.postgres.host, port=ways.postgres.port)
            prefix = () if ways.network is None else ways.network.process.prefix
        environment = {
            **ENVIRONMENT,
            "TURNLOG_KAFKA": kafka,
            "TURNLOG_POSTGRES": postgres,
            "TURNLOG_CHAOS_ORDERS": str(self.orders(name)),
            NOTES_VARIABLE: str(self.seen / f"{name}.jsonl"),
        }
        command = [*prefix, sys.executable, "-m", module, *arguments, "-o", "json", "--lifeline"]
        return ChildPlan(name=name, command=command, environment=environment, log=self.data / "logs" / f"{name}.log")

    def orders(self, name: str) -> Path:
        """The file through which a worker is told where to die."""
        return self.data / "orders" / name

    def furnish(self) -> None:
        """Plan every process; the proxies listen by now."""
        self.workers = [self._process(self.worker_plan(name)) for name in Target.WORKER.value]
        self.projectors = [self._process(self._plan(n, SKEWED, "ops.cli", "projector")) for n in Target.PROJECTOR.value]
        for name in Target.GATEWAY.value:
            port = self.doors[name].target_port
            self.urls.append(f"http://127.0.0.1:{self.doors[name].port}")
            self.gateways.append(self._process(self._plan(name, "ops.chaos.server", "gateway", "--port", str(port))))
        programs = zip(Target.AGENT.value, AGENT_PROGRAMS, strict=True)
        self.agents = [self._process(self._agent_plan(*each)) for each in programs]

    def lead_to_primary(self) -> None:
        """Everybody's way to PostgreSQL leads to the present primary from here on; sessions end."""
        for proxy in (self.front, *(ways.postgres for ways in self.ways.values())):
            proxy.lead_to(LOOPBACK, self.database.port)

    def guest_agent(self, name: str) -> Process:
        """One more agent process, which comes and goes."""
        guest = self._process(self._agent_plan(name, AGENT_PROGRAMS[len(self.guest_agents) % len(AGENT_PROGRAMS)]))
        self.guest_agents.append(guest)
        return guest

    def _process(self, plan: ChildPlan) -> Process:
        return Process(plan, self.notify)

    def _agent_plan(self, name: str, program: tuple[str, ...]) -> ChildPlan:
        module, *options = program
        # Each begins at another gateway.
        first = len(self.guest_agents) if name not in Target.AGENT.value else Target.AGENT.value.index(name)
        urls = [self.urls[(first + n) % GATEWAYS] for n in range(GATEWAYS)]
        return ChildPlan(
            name=name,
            command=[sys.executable, "-m", SKEWED, module, str(self.seen / f"{name}.jsonl"), GROUP, *urls, *options],
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
        database = Database(servers, stack)
        undo.push_async_callback(asyncio.to_thread, database.stop)
        front = TcpProxy(LOOPBACK, database.port)
        await undo.enter_async_context(proxies_running(front))
        reached = make_conninfo(servers.postgres, host=front.host, port=front.port)
        settings = load_settings(kafka=servers.kafka, postgres=reached)
        channels = await provide(settings, PARTITIONS, stack / "secrets.json")
        no_networks = await asyncio.to_thread(why_not)
        place = Place(servers, database, front, settings, channels, data, disk, notify, for_workers, no_networks)
        for name in Target.SERVER.value:
            await _wire(place, name, undo)
        place.furnish()
        undo.push_async_callback(_ended, place)
        for kind in ((*place.workers, *place.projectors), place.gateways, place.agents):
            for process in kind:
                process.begin()
            await asyncio.gather(*(process.ready.wait() for process in kind))
        yield place


async def _wire(place: Place, name: str, undo: AsyncExitStack) -> None:
    """The ways of the process `name`, and the door if it is a gateway."""
    network = None
    if place.no_networks is None:
        network = await asyncio.to_thread(Network)
        undo.callback(network.close)
    host, _, port = place.settings.kafka.rpartition(":")
    kafka = KafkaProxy(host, int(port), listens=_listener(network, Wire.KAFKA))
    postgres = TcpProxy(LOOPBACK, place.database.port, listens=_listener(network, Wire.POSTGRES))
    place.ways[name] = Ways(kafka, postgres, network)
    proxies = [kafka, postgres]
    if name in Target.GATEWAY.value:
        dials = None if network is None else network.process.new_socket
        door = place.doors[name] = TcpProxy(LOOPBACK, ports.choose(0, 0), dials=dials)
        proxies.append(door)
    await undo.enter_async_context(proxies_running(*proxies))


def _listener(network: Network | None, wire: Wire) -> Callable[[], socket.socket] | None:
    return None if network is None else lambda: network.proxies.listening(network.address(wire))


async def _ended(place: Place) -> None:
    for kind in (
        (*place.agents, *place.guest_agents),
        place.gateways,
        (*place.workers, *place.passers_by),
        place.projectors,
    ):
        await asyncio.gather(*(process.end() for process in kind))
