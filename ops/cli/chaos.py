"""`turnlog chaos`: faults on a stack of its own, and the proof that nothing was lost, doubled or seen of a zombie."""

from __future__ import annotations

import asyncio
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ops.chaos.guards import Guard
from ops.chaos.schedule import Nemesis
from ops.cli.common import Output, OutputOption, emit, progress, translated_failures
from ops.cli.errors import NEGATIVE

if TYPE_CHECKING:
    from ops.chaos.run import Report

SEEDS = 1 << 31

MinutesOption = Annotated[
    float, typer.Option("--minutes", min=0.1, help="For so long faults begin; start, healing and proof come on top.")
]
SeedOption = Annotated[
    int | None, typer.Option("--seed", min=0, help="The same seed makes the same schedule. Without it: a new one.")
]
NemesisOption = Annotated[
    list[Nemesis] | None, typer.Option("--nemesis", help="Only this kind of fault; may be given again. All of them.")
]
WithoutOption = Annotated[
    Guard | None,
    typer.Option(
        "--without",
        help="The control: workers run without this guard of the product. Must be caught. Without --nemesis: under "
        "the faults that the guard is for.",
    ),
]
DataOption = Annotated[
    Path | None, typer.Option("--data", help="New folder that keeps all of it. Without it: removed if clean.")
]


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("chaos", rich_help_panel="Run")(chaos)


def chaos(
    minutes: MinutesOption = 2.0,
    seed: SeedOption = None,
    nemesis: NemesisOption = None,
    without: WithoutOption = None,
    data: DataOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Kill, stop, cut off and overload everything, and prove that every promise held.

    A stack of its own (Kafka, PostgreSQL, 2 workers, 2 gateways, 5 agents, and people who talk all the while) is put
    through a schedule of faults that follows from the seed. When the last one is undone, every turn must be answered
    within a stated time, and a viewer that stops reading must delay nobody; then `audit verify` reads the log, and what
    each client saw at its socket, and each worker did with its leases, is compared with it.

    As root on Linux, processes have networks of their own, in which the kernel drops packets, and the servers a small
    disk, which is filled; elsewhere proxies hold what is sent, and the disk is left alone. The output says which.

    Exit code 0: clean. 1: something promised is broken; it says what, where the data is, and how to run it again.

    Examples:

      turnlog chaos --minutes 10

      turnlog chaos --seed 7 --nemesis broker-kill --nemesis stop-worker -o json

      turnlog chaos --minutes 1 --without dedupe    # ends with 1: it is seen
    """
    from ops.chaos.run import Plan, run

    plan = Plan(
        seed=secrets.randbelow(SEEDS) if seed is None else seed,
        minutes=minutes,
        nemeses=tuple(nemesis or ()),
        without=without,
        data=data,
    )
    with translated_failures():
        report = asyncio.run(run(plan, progress))
    if output is Output.TABLE:
        typer.echo(told(report))
    else:
        emit(report.document())
    raise typer.Exit(0 if report.ok else NEGATIVE)


def told(report: Report) -> str:
    """The report for people."""
    counts = ", ".join(f"{number:,} {name.replace('_', ' ')}" for name, number in report.counts.items())
    faults = ", ".join(f"{number} {kind}" for kind, number in sorted(report.faults.items()))
    lines = [
        f"seed {report.plan.seed}, {report.plan.minutes:g} min: {sum(report.faults.values())} faults ({faults})",
        counts,
    ]
    lines.append(f"cuts: {report.cuts}")
    if report.stood_s:
        lines.append(
            f"the machine, or this process, stood still for {report.stood_s} s, at most {report.stood_longest_s} s at "
            f"once, with a load average of up to {report.load}: limits of liveness do not count that"
        )
    if report.unmet:
        lines.append(f"not done, as their moment did not come: {', '.join(report.unmet)}")
    lines += [f"{name} ended by itself: {', '.join(ends)}" for name, ends in report.unasked.items()]
    if report.mistaken:
        lines.append(
            "an agent that names no run began one turn, and another was meant (a known limit; see docs/explanation/"
            f"simulation.md): {', '.join(report.mistaken)}"
        )
    if report.ok:
        clean = (
            f"clean: every promise held; settled {report.settled_s} s after the last fault; beside a viewer that reads "
            f"nothing nobody waited longer than {report.probe_s} s for an answer"
        )
        return "\n".join([*lines, clean])
    lines += [f"VIOLATION: {each}" for each in report.violations]
    if report.database is not None:
        lines.append(f"PostgreSQL failed over: its data is in {report.database}, not in the stack's own folder")
    lines.append(
        f"NOT clean: {len(report.violations)} violations. The data and all logs are in {report.data}; its servers "
        f"start with `turnlog up --workers 0 --projectors 0 --data {report.data}/stack`. Again: {report.plan.command}"
    )
    return "\n".join(lines)
