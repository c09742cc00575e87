"""`turnlog up`: the whole of it on this machine, until Ctrl-C."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ops.cli.common import Output, OutputOption, emit, progress, require_port, translated_failures
from ops.cli.errors import COULD_NOT

if TYPE_CHECKING:
    from ops.stack import RunningStack, StackPlan


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("up", rich_help_panel="Run")(up)


def up(
    data: Annotated[
        Path | None, typer.Option("--data", help="Folder that keeps all data. Without it: a temporary one, removed.")
    ] = None,
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="Port of the gateway; 0 takes a free one.")
    ] = 8080,
    workers: Annotated[int, typer.Option("--workers", min=0, help="Worker processes (sequencers).")] = 1,
    gateways: Annotated[int, typer.Option("--gateways", min=1, help="Gateways; all but the first take any port.")] = 1,
    projectors: Annotated[int, typer.Option("--projectors", min=0, help="Processes that write the read model.")] = 1,
    partitions: Annotated[
        int | None,
        typer.Option("--partitions", min=1, help="Partitions of each topic, fixed once they are made (default: 8)."),
    ] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Run all of Turnlog on this machine: Kafka, PostgreSQL, workers, projectors and a gateway, until Ctrl-C.

    Kafka and PostgreSQL are brought along (no Docker); TURNLOG_KAFKA and TURNLOG_POSTGRES point to existing ones
    instead, both, or either with --data: it says so, and with both DATA keeps only logs and login secrets. One DATA
    serves one `up` at a time; without it, the login secrets that were made end with the run.

    Each process logs to a file of its own under DATA/logs; one that ends unasked is reported and started again. Ctrl-C
    or SIGTERM drains and exits with 0; a second one does not wait.

    Examples:

      turnlog up                                  # try it out; nothing is kept

      turnlog up --data ./data --workers 2        # keep everything in ./data

      turnlog up --port 0 -o json                 # for scripts
    """
    require_port("127.0.0.1", port)
    from ops.stack import StackPlan

    plan = StackPlan(
        data=data, port=port, workers=workers, gateways=gateways, projectors=projectors, partitions=partitions
    )
    with translated_failures():
        code = asyncio.run(_until_stopped(plan, output))
    raise typer.Exit(code)


async def _until_stopped(plan: StackPlan, output: Output) -> int:
    from ops.stack import running

    stop = _Stop(asyncio.get_running_loop())
    failure = None
    try:
        async with running(plan, progress) as stack:
            stop.ready(stack)
            _announce(stack, plan, output, await _chat(stack))
            failure = await _stopped_or_failed(stack, stop.asked)
            if failure is not None:
                progress(f"error: {failure}")
                stack.children.excuse()
    except asyncio.CancelledError:
        if not stop.asked.is_set():
            raise
        return 0
    return 0 if failure is None and stack.children.drained else COULD_NOT


class _Stop:
    """What SIGTERM and Ctrl-C do: the first asks for the drain (or ends the start), the second kills the children."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.asked = asyncio.Event()
        self._stack: RunningStack | None = None
        self._main = asyncio.current_task(loop)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled)

    def ready(self, stack: RunningStack) -> None:
        """From here on a signal drains `stack`."""
        self._stack = stack

    def _signalled(self) -> None:
        first = not self.asked.is_set()
        self.asked.set()
        if first and self._stack is None and self._main is not None:
            self._main.cancel()
        elif not first and self._stack is not None:
            progress("not waiting any longer: killing the processes")
            self._stack.children.kill()


async def _stopped_or_failed(stack: RunningStack, asked: asyncio.Event) -> str | None:
    """Wait for a signal (None), or for the end of a server that nobody stopped (what happened)."""
    stopped = asyncio.create_task(asked.wait())
    failed = asyncio.create_task(stack.servers_failed())
    try:
        await asyncio.wait({stopped, failed}, return_when=asyncio.FIRST_COMPLETED)
        return failed.result() if failed.done() else None
    finally:
        stopped.cancel()
        failed.cancel()


async def _chat(stack: RunningStack) -> str | None:
    """A guest's link to the chat page, on the first channel of people; None: there is none."""
    from ops.cli.chat import chat_link
    from streams.core.routing import AGENT_KIND

    for channel in stack.channels:
        if channel.kind != AGENT_KIND:
            return await chat_link(stack.gateway, channel.secret)
    return None


def _announce(stack: RunningStack, plan: StackPlan, output: Output, chat: str | None) -> None:
    if output is not Output.TABLE:
        emit(stack.document() | ({} if chat is None else {"chat": chat}))
        return
    document = stack.document()
    secrets = "\n".join(f"  channel   {c.id} ({c.kind}), secret {c.secret}" for c in stack.channels)
    page = f"  chat      {chat}\n" if chat else ""
    kept = plan.data or "a temporary folder, removed at the end"
    typer.echo(
        f"Turnlog is up.\n  gateway   {document['gateway']}   (API: {document['gateway']}/docs)\n{secrets}\n{page}"
        f"  kafka     {document['kafka']}\n  postgres  {document['postgres']}\n  data      {kept}\n"
        f"  logs      {document['logs']}\n\nIn another terminal:\n"
        f"  export TURNLOG_KAFKA={document['kafka']} TURNLOG_POSTGRES='{document['postgres']}'\n"
        f"  export TURNLOG_GATEWAY={document['gateway']}\n{exported(stack)}"
        f"  turnlog conversation list\n\nCtrl-C drains and stops it."
    )


def exported(stack: RunningStack) -> str:
    """What `turnlog send` and `chat`, and the examples' agents, take their secrets from: the first channel of each."""
    from streams.core.routing import AGENT_KIND

    names = {"TURNLOG_CHANNEL_SECRET": False, "AGENTS_SECRET": True}
    first = {
        name: next((c.secret for c in stack.channels if (c.kind == AGENT_KIND) is agents), None)
        for name, agents in names.items()
    }
    return "".join(f"  export {name}={secret}\n" for name, secret in first.items() if secret is not None)
