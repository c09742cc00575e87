"""`turnlog scrub`: what was said in erased conversations, out of an export that was made before."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ops.cli.common import (
    DryRunOption,
    Output,
    OutputOption,
    YesOption,
    progress,
    require_yes,
    resumable,
    show_rows,
    translated_failures,
)
from ops.cli.errors import NEGATIVE, CommandFailed
from ops.cli.export import CatalogOption, export_failures

if TYPE_CHECKING:
    from ops.export.scrub import Scrubbed
    from ops.export.target import Scrubbable, States

TargetArgument = Annotated[
    str, typer.Argument(help="Where the export is, of any format: a folder, or an address (s3://…).")
]
ConversationsArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="[CONVERSATION]…", help="These beside those that the export says were erased."),
]


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command("scrub", rich_help_panel="Data")(scrub)


def scrub(
    target: TargetArgument,
    conversations: ConversationsArgument = None,
    catalog: CatalogOption = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Take what was said in erased conversations out of an export: its rows stay, with nothing where words were.

    An export of a deployment that seals needs it not. Of one that does not, bring it up to date first (`turnlog
    export`): which conversations were erased is in its table `conversations`. Earlier versions of Delta and Iceberg
    tables, which still have the words, are removed. Whatever interrupts it, run it again. Exports go on after it;
    beside it one of the two may be told to run again.

    Exit code 0: nothing of it is left. 1: something is. 2: it could not be done.

    Examples:

      turnlog scrub ./tables --dry-run

      turnlog scrub s3://lake/turnlog --yes

      turnlog scrub support 6f9619ff-8b86-d011 --catalog prod
    """
    with translated_failures(), export_failures(), _failures(), resumable(_way_on()):
        from ops.export.scrub import scrub as scrubbed

        opened, states = _opened(target, catalog)
        named = conversations or ()
        planned = scrubbed(opened, states, named, progress, dry_run=True)
        if dry_run:
            _tell(planned, output)
            return
        if any(planned.before.values()) and not yes:
            many = f"{planned.conversations} conversation{'s' * (planned.conversations != 1)}"
            require_yes(
                f"Take what was said in {many} out of {sum(planned.before.values())} rows of {target} for good?"
            )
        done = scrubbed(opened, states, named, progress)
    _tell(done, output)
    if any(done.after.values()):
        progress("rows came while it ran: run the same command again")
        raise typer.Exit(NEGATIVE)


def _way_on() -> str:
    return f"interrupted: go on with\n  {shlex.join(['turnlog', *sys.argv[1:]])}"


@contextmanager
def _failures() -> Iterator[None]:
    from ops.export.target import Overtaken

    try:
        yield
    except Overtaken as error:
        raise CommandFailed("something else changed the export at the same time: run the same command again") from error


def _opened(address: str, catalog: str | None) -> tuple[Scrubbable, States]:
    """The export there, whichever format it has, and its states."""
    import json

    from ops.export.delta import DeltaTarget
    from ops.export.files import CONTENTS, WRITERS, FilesTarget, PlaceStates
    from ops.export.iceberg import CATALOG, in_catalog, in_folder
    from ops.export.run import fold_version
    from ops.export.target import NoStates
    from ops.history.place import place_at

    if catalog is not None:
        return in_catalog(catalog, address), NoStates()
    place = place_at(address)
    states = PlaceStates(place, fold_version())
    if place.size(CONTENTS) is not None:
        suffix = json.loads(place.read([CONTENTS])[CONTENTS])["suffix"]
        return FilesTarget(place, suffix, WRITERS[suffix]), states
    if "://" not in address and Path(address, CATALOG).is_file():
        return in_folder(Path(address).absolute()), states
    return DeltaTarget(address), states


def _tell(result: Scrubbed, output: Output) -> None:
    rows: list[dict[str, Any]] = [
        {"table": name, "before": before, "after": result.after.get(name)} for name, before in result.before.items()
    ]
    show_rows(rows, ("table", "before", "after"), output, empty="the export has no table that holds words")
    progress(
        f"{result.conversations} erased conversations; rows that hold what was said in them, by table"
        + (f"; {result.removed} files of earlier versions are removed" if result.removed else "")
    )
