"""`turnlog member`: the agent connections that turns are given to."""

from __future__ import annotations

import asyncio
import getpass
from typing import TYPE_CHECKING, Annotated

import typer

from ops.cli.actions import ByOption, ReasonOption
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
    show_rows,
    translated_failures,
)
from ops.cli.errors import NEGATIVE, CommandFailed

if TYPE_CHECKING:
    from streams.projector.read import MemberRow

app = typer.Typer(name="member", help="The agent connections that turns are given to.", no_args_is_help=True)

COLUMNS = ("member", "group", "channel", "gateway", "partitions", "draining", "since")


@app.command("list")
def list_members(
    postgres: PostgresOption = None,
    kafka: KafkaOption = None,
    namespace: NamespaceOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """List the members that are there, by the read model, with the group each is in and the gateway it is connected to.

    `partitions` is how many partitions have it in their membership (all of them, once it has settled), `draining` how
    many of those give it nothing new; `since` is the log time (UTC) from which turns count it as eligible.

    Example:

      turnlog member list
    """
    settings = settings_from(kafka, postgres, namespace)
    with translated_failures():
        from ops.members import listed

        rows = asyncio.run(listed(settings))
    show_rows(rows, COLUMNS, output, empty="no agent is connected")


@app.command("drain")
def drain_member(
    member: Annotated[
        str, typer.Argument(metavar="MEMBER", help="Its id, as `turnlog member list` shows it.", show_default=False)
    ],
    by: ByOption = None,
    reason: ReasonOption = "operator",
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    postgres: PostgresOption = None,
    kafka: KafkaOption = None,
    namespace: NamespaceOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Give an agent connection nothing new, let it finish what it has, and send it away.

    New turns go to the other members of its group; while there are none, it keeps getting them. Its gateway closes it
    once its runs have ended, or move after TURNLOG_DRAIN_BUDGET_MS. The process may come back, as a new member, after
    15 to 45 s: stop it before, or use SIGTERM, on which agents of the SDK drain by themselves. It cannot be undone.

    Exit code 1 if there is no such member.

    Example:

      turnlog member drain gw-5f0c19a2b3d4.7 --reason "new release" --yes
    """
    settings = settings_from(kafka, postgres, namespace)
    with translated_failures():
        from ops.members import drain, found, others

        row = asyncio.run(found(settings, member))
        if row is None:
            raise CommandFailed(f"there is no member {member}; `turnlog member list` shows those there are", NEGATIVE)
        heirs = asyncio.run(others(settings, row))
        if not dry_run and not yes:
            require_yes(f"Drain {member} of {row.group}, which leaves {_takers(heirs)} in its group?")
        if not dry_run:
            row = asyncio.run(drain(settings, member, by=by or getpass.getuser(), reason=reason))
    _tell(member, row, heirs, output, dry_run=dry_run)


def _takers(others: int) -> str:
    return "1 other member" if others == 1 else f"{others or 'no'} other members"


def _tell(member: str, row: MemberRow | None, heirs: int, output: Output, *, dry_run: bool) -> None:
    if output is not Output.TABLE:
        draining, partitions = (row.draining, row.partitions) if row is not None else (0, 0)
        shown = {"member": member, "draining": draining, "partitions": partitions, "left": row is None}
        emit({**shown, "others": heirs, "dry_run": dry_run})
        return
    if dry_run:
        progress(f"{member} would get nothing new; that leaves {_takers(heirs)} in its group")
    elif row is None:
        progress(f"{member} has left")
    elif row.draining == row.partitions:
        progress(f"{member} gets nothing new on any of {row.partitions} partitions; {_takers(heirs)} left in its group")
    else:
        progress(
            f"every partition was told; the read model shows {row.draining} of {row.partitions} so far (does a "
            "projector run?)"
        )
    if not heirs:
        progress("nobody else is in its group: until there is, it keeps getting turns")
