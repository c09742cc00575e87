"""A whole Turnlog on one machine, each process of its own: what `turnlog up` runs.

Order of starting: Kafka and PostgreSQL → migrations → topics → channels and their secrets → workers and projectors →
gateways (the first one keeps its port through restarts). Order of stopping: gateways (so that agents' runs can still
be handed on) → workers → projectors → servers. Every child hangs on this process by a pipe (`ops/lifeline.py`), so
that nothing outlives it, however it ends.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Event
from typing import Any
from urllib.parse import urlsplit

from ops import embedded
from ops.children import Child, ChildPlan, environment_of
from ops.embedded.folder import left_behind, temporary_folder
from ops.provision import ReadyChannel, forget_secrets, provide
from streams.fence.port import FenceUnavailable
from streams.settings import Settings, load_settings, redacted_dsn

DEFAULT_PORT = 8080
STOP_MARGIN_S = 5.0
"""A child gets the drain budget and this much more to stop before it is killed."""
SERVERS_LOOKED_AT_EVERY_S = 1.0
SECRETS = "secrets.json"
"""The file of the data folder that holds the channels' login secrets."""
DATABASE = "database"
"""The file of a temporary folder that names the database that outlives it."""
PREFIX = "turnlog-up-"

Notify = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class StackPlan:
    """What to start. `data` None: a temporary folder, removed at the end. `port` 0: any free one.
    `partitions` None: what the topics have, else 8."""

    data: Path | None = None
    port: int = DEFAULT_PORT
    workers: int = 1
    gateways: int = 1
    projectors: int = 1
    partitions: int | None = None


@dataclass(slots=True)
class Children:
    """The stack's processes, in the order of starting; stopped by kind, the last kind first."""

    environment: dict[str, str]
    logs: Path
    notify: Notify
    drain_s: float
    workers: list[Child] = field(default_factory=list)
    projectors: list[Child] = field(default_factory=list)
    gateways: list[Child] = field(default_factory=list)
    drained: bool = True
    """False once a child did not stop in time, or not with exit code 0."""
    _supervisors: list[asyncio.Task[None]] = field(default_factory=list)

    async def start(self, kind: list[Child], noun: str, count: int, *options: str) -> None:
        """Start `count` processes `turnlog <noun>` at the same time and wait until all are ready. `ChildFailed`."""
        for _ in range(count):
            name = f"{noun}-{len(kind) + 1}"
            command = [sys.executable, "-m", "ops.cli", noun, "-o", "json", "--lifeline", *options]
            plan = ChildPlan(name=name, command=command, environment=self.environment, log=self.logs / f"{name}.log")
            kind.append(Child(plan, self.notify))
        await _together(child.start() for child in kind[len(kind) - count :])

    def supervise(self) -> None:
        """From here on, who ends unasked is reported and started again."""
        for child in (*self.workers, *self.projectors, *self.gateways):
            self._supervisors.append(asyncio.create_task(child.supervise(), name=f"supervise {child.plan.name}"))

    async def stop(self) -> None:
        """Drain gateways, then workers, then projectors: an agent's last runs can still be handed on."""
        for supervisor in self._supervisors:
            supervisor.cancel()
        await asyncio.gather(*self._supervisors, return_exceptions=True)
        for kind in (self.gateways, self.workers, self.projectors):
            if not await _all_stopped(kind, self.drain_s + STOP_MARGIN_S):
                self.drained = False

    def excuse(self) -> None:
        """A server has ended: what becomes of them now is no fault of theirs."""
        for child in (*self.gateways, *self.workers, *self.projectors):
            child.excused = True

    def kill(self) -> None:
        """SIGKILL to all of them: for a person who pressed Ctrl-C twice."""
        for child in (*self.gateways, *self.workers, *self.projectors):
            child.kill()


async def _together(starts: Iterable[Coroutine[Any, Any, None]]) -> None:
    """All at the same time; the first that fails cancels the others and is raised as it is."""
    try:
        async with asyncio.TaskGroup() as tasks:
            for start in starts:
                tasks.create_task(start)
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from failures


async def _all_stopped(children: Sequence[Child], budget_s: float) -> bool:
    return all(await asyncio.gather(*(child.stop(budget_s) for child in children)))


@dataclass(frozen=True, slots=True)
class RunningStack:
    """What scripts need to use the stack; `document()` is the ready line of `turnlog up -o json`."""

    channels: Sequence[ReadyChannel]
    children: Children
    servers: embedded.EmbeddedStack

    @property
    def gateway(self) -> str:
        """Base URL of the first gateway."""
        return str(self.children.gateways[0].ready["url"])

    async def servers_failed(self) -> str:
        """Returns when one of the embedded servers has ended though nobody stopped it: what happened to it."""
        while (failure := self.servers.failure()) is None:  # noqa: ASYNC110 -- nothing tells it: it has to be asked
            await asyncio.sleep(SERVERS_LOOKED_AT_EVERY_S)
        return failure

    def document(self) -> dict[str, Any]:
        """The contract with scripts: one JSON object, with every process named."""
        return {
            "event": "ready",
            "gateway": self.gateway,
            "kafka": self.servers.kafka,
            "postgres": self.servers.postgres,
            "channels": [{"id": c.id, "kind": c.kind, "secret": c.secret} for c in self.channels],
            "workers": [_shown(child, "id", "metrics") for child in self.children.workers],
            "gateways": [_shown(child, "id", "url") for child in self.children.gateways],
            "projectors": [_shown(child) for child in self.children.projectors],
            "logs": str(self.children.logs),
        }


def _shown(child: Child, *names: str) -> dict[str, Any]:
    return {"pid": child.pid, **{name: child.ready[name] for name in names if name in child.ready}}


@asynccontextmanager
async def running(plan: StackPlan, notify: Notify) -> AsyncIterator[RunningStack]:
    """The stack, ready, for as long as the block runs; then drained. `notify` gets lines for people, one at a time.

    Raises what the parts raise: `StackUnavailable` where no server can be had, or only one of them would outlive the
    run, `SettingsError`, and `ChildFailed` where a process did not become ready; whatever was started by then is
    stopped.
    """
    if plan.data is None:
        _require_one_life()
    async with AsyncExitStack() as undo:
        data = plan.data or undo.enter_context(temporary_folder(PREFIX))
        servers = await _servers(plan, notify)
        undo.push_async_callback(asyncio.to_thread, servers.stop)
        settings = load_settings(kafka=servers.kafka, postgres=servers.postgres)
        if plan.data is None:
            await _forget_killed_runs(settings)
            if embedded.POSTGRES in servers.named:
                await asyncio.to_thread((data / DATABASE).write_text, redacted_dsn(settings.postgres))
        yield await undo.enter_async_context(running_on(servers, settings, plan, data, notify))


def _require_one_life() -> None:
    """Topics and tables belong together: where one of the two servers goes with a temporary folder and the other stays,
    what stays is another deployment's for ever, which no later run is let into."""
    variables = embedded.VARIABLES.values()
    named = [variable for variable in variables if os.environ.get(variable)]
    if len(named) == 1:
        [other] = [variable for variable in variables if variable not in named]
        raise embedded.StackUnavailable(
            f"{named[0]} names a server that stays, while the other one would go with this run: what stays would "
            "belong to what is gone, and refuse each later run. Keep the data (`turnlog up --data FOLDER`), set "
            f"{other} too, or unset {named[0]} to have both started here for this run"
        )


@asynccontextmanager
async def running_on(
    servers: embedded.EmbeddedStack, settings: Settings, plan: StackPlan, data: Path, notify: Notify
) -> AsyncIterator[RunningStack]:
    """As `running`, on servers that are there already, for the deployment that `settings` name."""
    logs = data / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    notify("preparing the tables, topics and channels")
    secrets = data / SECRETS
    children = Children(environment_of(settings), logs, notify, settings.drain_budget_ms / 1000)
    try:
        channels = await provide(settings, plan.partitions, secrets)
        await _start_children(children, plan)
        children.supervise()
        yield RunningStack(channels, children, servers)
        notify("draining: gateways, workers, projectors")
    finally:
        await children.stop()
        if plan.data is None:
            await _forget(settings, secrets, notify)


async def _forget_killed_runs(settings: Settings) -> None:
    """Do for runs that were killed what they do at their end."""
    for folder in left_behind(PREFIX):
        database = folder / DATABASE
        if database.exists():
            if database.read_text() != redacted_dsn(settings.postgres):
                continue  # the next run on that database does it
            await forget_secrets(settings, folder / SECRETS)
        await asyncio.to_thread(shutil.rmtree, folder)


async def _forget(settings: Settings, secrets: Path, notify: Notify) -> None:
    """The login secrets of a folder that is removed go with it: a database that outlives it would gather them."""
    try:
        await forget_secrets(settings, secrets)
    except FenceUnavailable as error:
        notify(f"this run's channel secrets stay valid ({error}): `turnlog channel secret CHANNEL --only` ends them")


async def _servers(plan: StackPlan, notify: Notify) -> embedded.EmbeddedStack:
    given_up = Event()
    start = asyncio.to_thread(embedded.servers, plan.data, progress=notify, given_up=given_up)
    starting = asyncio.create_task(start)
    try:
        return await asyncio.shield(starting)
    except asyncio.CancelledError as cancelled:
        # A thread cannot be cancelled: ask it to end, and stop what it had started by then.
        given_up.set()
        try:
            servers = await starting
        except embedded.GivenUp:
            raise cancelled from None
        await asyncio.to_thread(servers.stop)
        raise


async def _start_children(children: Children, plan: StackPlan) -> None:
    children.notify(f"starting {plan.workers} worker(s), {plan.projectors} projector(s), {plan.gateways} gateway(s)")
    await _together(
        (
            children.start(children.workers, "worker", plan.workers),
            children.start(children.projectors, "projector", plan.projectors),
        )
    )
    first = min(plan.gateways, 1)
    await children.start(children.gateways, "gateway", first, "--port", str(plan.port))
    await children.start(children.gateways, "gateway", plan.gateways - first, "--port", "0")
    _keep_ports(children.gateways)


def _keep_ports(gateways: Sequence[Child]) -> None:
    """A gateway that is started again takes the port that it had: its clients know that one."""
    for child in gateways:
        port = urlsplit(child.ready["url"]).port
        child.plan = replace(child.plan, command=[*child.plan.command[:-1], str(port)])
