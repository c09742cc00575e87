"""`turnlog invocation`: calls of agents by programs: what became of them, and their end by an operator."""

from __future__ import annotations

import asyncio
import getpass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ops.cli.actions import ByOption, ReasonOption, decided, require_taken
from ops.cli.common import (
    DryRunOption,
    KafkaOption,
    NamespaceOption,
    Output,
    OutputOption,
    PostgresOption,
    YesOption,
    emit,
    progress,
    require_yes,
    settings_from,
    show_document,
    show_rows,
    told_time,
    translated_failures,
)
from ops.cli.errors import NEGATIVE, USAGE, CommandFailed

if TYPE_CHECKING:
    from streams.core.events import Event
    from streams.settings import Settings

app = typer.Typer(
    name="invocation",
    help="Calls of agents by programs: what became of them; cancel one, release one whose worker is gone.",
    no_args_is_help=True,
)

COLUMNS = ("thread", "id", "state", "agent", "member", "created_at", "error")
TIMES = ("started_at", "ended_at")

ThreadArgument = Annotated[str, typer.Argument(metavar="THREAD", help="Its thread.", show_default=False)]
IdArgument = Annotated[str, typer.Argument(metavar="ID", help="Its id in the thread.", show_default=False)]


@app.command("list")
def list_invocations(
    thread: Annotated[
        str | None, typer.Option("--thread", help="All of this thread, ended ones too.", show_default=False)
    ] = None,
    orphaned: Annotated[
        bool, typer.Option("--orphaned", help="Only those that have no member to work on them.")
    ] = False,
    limit: Annotated[int, typer.Option("--limit", min=1, max=1000, help="At most so many, the newest first.")] = 50,
    postgres: PostgresOption = None,
    kafka: KafkaOption = None,
    namespace: NamespaceOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """List the invocations that have not ended, the newest first, as the read model has them; or all of one thread.

    Example:

      turnlog invocation list --orphaned
    """
    settings = settings_from(kafka, postgres, namespace)
    with translated_failures():
        from ops.invocations import listed

        rows = asyncio.run(listed(settings, thread=thread, orphaned=orphaned, limit=limit))
    show_rows(rows, COLUMNS, output, empty="there are no such invocations")


@app.command("show")
def show(
    thread: ThreadArgument,
    invocation: IdArgument,
    kafka: KafkaOption = None,
    postgres: PostgresOption = None,
    namespace: NamespaceOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show an invocation: its state, who works on it, when it began and ended, and why it did not succeed.

    What its agent said is in its thread: `turnlog conversation timeline THREAD`.

    Example:

      turnlog invocation show invoices-2031 7d1f -o json
    """
    found = _found(settings_from(kafka, postgres, namespace), thread, invocation)
    if output is Output.TABLE:
        found |= {name: told_time(found[name]) for name in TIMES if found[name] is not None}
    show_document(found, output)


@app.command("cancel")
def cancel(
    thread: ThreadArgument,
    invocation: IdArgument,
    by: ByOption = None,
    reason: ReasonOption = "operator",
    kafka: KafkaOption = None,
    postgres: PostgresOption = None,
    namespace: NamespaceOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Ask an invocation's agent to stop: it is CANCELLING until the agent says that the work has really ended.

    One that has not begun ends at once; one that is over stays as it is. Its thread is free for the next call once it
    has ended.

    Example:

      turnlog invocation cancel invoices-2031 7d1f --reason "wrong customer"
    """
    settings = settings_from(kafka, postgres, namespace)
    found = _found(settings, thread, invocation)
    with translated_failures():
        from ops.invocations import cancel as cancelled

        who = by or getpass.getuser()
        event = decided(cancelled(settings, thread, found["run_id"], by=who, reason=reason))
    _tell(thread, invocation, event, output)


@app.command("release")
def release(
    thread: ThreadArgument,
    invocation: IdArgument,
    proof: Annotated[
        str,
        typer.Option(
            "--proof", help="How you know that the old worker has stopped; kept in the journal.", show_default=False
        ),
    ],
    by: ByOption = None,
    reason: ReasonOption = "released by an operator",
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    kafka: KafkaOption = None,
    postgres: PostgresOption = None,
    namespace: NamespaceOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """End an invocation whose member is gone and that waits for another: it is OWNER_GONE, and its thread is free.

    Turnlog does not call a process gone that it only cannot see: make sure that it has stopped (its host is off, its
    container deleted), and say how you know. While its member is connected this is refused: `cancel` it, or drain the
    member.

    Exit code 1 if it is refused.

    Example:

      turnlog invocation release invoices-2031 7d1f --proof "its pod is deleted"
    """
    if not proof.strip():
        raise CommandFailed("--proof: say how you know that the old worker has stopped", USAGE)
    settings = settings_from(kafka, postgres, namespace)
    found = _found(settings, thread, invocation)
    if dry_run:
        progress(f"invocation {invocation} of {thread}, {found['state']}, would end as OWNER_GONE")
        return
    if not yes:
        require_yes(f"End invocation {invocation} of {thread}, {found['state']}, as OWNER_GONE?")
    with translated_failures():
        from ops.invocations import release as released

        who = by or getpass.getuser()
        event = decided(released(settings, thread, found["run_id"], by=who, reason=reason, proof=proof))
    _tell(thread, invocation, event, output)


def _found(settings: Settings, thread: str, invocation: str) -> dict[str, Any]:
    with translated_failures():
        from ops.invocations import shown

        found = asyncio.run(shown(settings, thread, invocation, progress))
    if found is None:
        raise CommandFailed(
            f"thread {thread} has no invocation {invocation}; `turnlog invocation list --thread {thread}` lists them",
            NEGATIVE,
        )
    return found


def _tell(thread: str, invocation: str, event: Event, output: Output) -> None:
    from connectors.gateway.call_state import ENDED_STATES
    from streams.core.events import Duplicate, RunEnded

    require_taken(event)
    already = isinstance(event, Duplicate)
    state = ENDED_STATES[event.status].value if isinstance(event, RunEnded) else None if already else "CANCELLING"
    if output is not Output.TABLE:
        emit({"thread": thread, "id": invocation, "state": state, "already": already})
    elif already:
        progress(f"invocation {invocation} of {thread} has ended, or was asked to stop, already")
    else:
        progress(f"invocation {invocation} of {thread} is {state}")
