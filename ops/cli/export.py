"""`turnlog export`: the journal as tables."""

from __future__ import annotations

import asyncio
import shlex
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ops.cli.common import (
    ArchiveOption,
    EveryOption,
    KafkaOption,
    MetricsPortOption,
    NamespaceOption,
    OfflineOption,
    Output,
    OutputOption,
    emit,
    progress,
    resumable,
    translated_failures,
)
from ops.cli.durations import seconds_of
from ops.cli.errors import INTERRUPTED, USAGE, CommandFailed
from ops.cli.servers import NO_POSTGRES, settings_of

if TYPE_CHECKING:
    from ops.export.run import Outcome
    from ops.export.selection import Selection
    from ops.export.target import States, Target
    from ops.history import History
    from ops.history.rounds import Address, RoundMetrics
    from streams.settings import Settings


class Format(StrEnum):
    """What an export is made of."""

    PARQUET = "parquet"
    DELTA = "delta"
    ICEBERG = "iceberg"
    JSONL = "jsonl"
    CSV = "csv"


FormatArgument = Annotated[Format, typer.Argument(metavar="FORMAT", help="parquet, delta, iceberg, jsonl or csv.")]
TargetArgument = Annotated[
    str, typer.Argument(help="A folder, or an object store's address (s3://…); with --catalog an Iceberg namespace.")
]
TableOption = Annotated[
    list[str] | None,
    typer.Option(
        "--table", help="turns, frames, ownership, membership, runs or conversations; again for more [default: all]."
    ),
]
FromOption = Annotated[
    str | None, typer.Option("--from", help="Rows from then on: an ISO date or time, -15m, or an offset.")
]
ToOption = Annotated[str | None, typer.Option("--to", help="Rows before then, written as --from.")]
ConversationOption = Annotated[
    list[str] | None, typer.Option("--conversation", help="This conversation's rows; again for more.")
]
ChannelOption = Annotated[
    list[str] | None, typer.Option("--channel", help="Rows of conversations on this channel; again for more.")
]
EventOption = Annotated[
    list[str] | None, typer.Option("--event", help="Rows of this journal event (RunEnded, …); again for more.")
]
CatalogOption = Annotated[
    str | None, typer.Option("--catalog", help="iceberg: a catalog of your own, as pyiceberg's configuration names it.")
]
FollowOption = Annotated[bool, typer.Option("--follow", help="Go on as more is committed, without end.")]
AcceptMissingOption = Annotated[
    bool, typer.Option("--accept-missing", help="Go on though records of the journal are gone for good.")
]


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command("export", rich_help_panel="Data")(export)


def export(
    format_: FormatArgument,
    target: TargetArgument,
    tables: TableOption = None,
    since: FromOption = None,
    until: ToOption = None,
    conversations: ConversationOption = None,
    channels: ChannelOption = None,
    events: EventOption = None,
    catalog: CatalogOption = None,
    follow: FollowOption = False,
    every: EveryOption = "1m",
    metrics_port: MetricsPortOption = None,
    accept_missing: AcceptMissingOption = False,
    archive: ArchiveOption = None,
    offline: OfflineOption = False,
    kafka: KafkaOption = None,
    namespace: NamespaceOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Write the journal as tables, or bring tables that were written before up to date: each row exactly once.

    A target keeps its positions in the same transaction as its rows. Whatever kills an export, run the same command
    again: it goes on. A target keeps its selection too, so that only the first run needs it: another one is refused,
    and `-15m` stays what it was in the first run. The columns are in docs/reference/data-contract.md, and `turnlog sql
    --tables` lists them. `--metrics-port` shows how far a following export is behind.

    Texts are exported as the journal has them: sealed where they are sealed. It says when conversations are erased:
    what nobody had sealed of them stays until `turnlog scrub`.

    Exit code 0: up to date. 2: it could not be done, because records are missing, or the target is of something else.

    Examples:

      turnlog export parquet ./tables

      turnlog export delta s3://lake/turnlog --table runs --from 2026-11-01

      turnlog export iceberg support --catalog prod --follow --every 5m

      turnlog export jsonl ./case-4711 --conversation 6f9619ff-8b86-d011
    """
    if catalog is not None and format_ is not Format.ICEBERG:
        raise CommandFailed("--catalog: only Iceberg has catalogs", USAGE)
    every_s = seconds_of(every, "--every")
    settings = settings_of(kafka, NO_POSTGRES, namespace, archive=archive, offline=offline)
    with translated_failures(), export_failures():
        from ops.export.selection import selection

        wanted = selection(
            tables=tables or (),
            since=since,
            until=until,
            conversations=conversations or (),
            channels=channels or (),
            events=events or (),
        )
        work = _Work(format_, target, catalog, wanted, accept_missing)
        with resumable(_way_on()):
            outcome = asyncio.run(work.run(settings, (archive, offline), every_s if follow else None, metrics_port))
    if output is Output.TABLE:
        progress(work.told(outcome))
    else:
        emit(work.document(outcome))
    work.warn(outcome)


def _way_on() -> str:
    """What is said when it is interrupted, with this very command line."""
    again = shlex.join(["turnlog", *sys.argv[1:]])
    return f"interrupted: what was committed stays, each row once; go on with\n  {again}"


@contextmanager
def export_failures() -> Iterator[None]:
    """What tables are refused for, as failures of a command; what is not installed too."""
    try:
        from ops.export.selection import BadSelection
        from ops.export.target import ExportRefused
    except ImportError as error:
        raise CommandFailed(f"{error}: tables need `pip install 'turnlog[data]'`") from error
    try:
        yield
    except BadSelection as error:
        raise CommandFailed(str(error), USAGE) from error
    except ExportRefused as error:
        raise CommandFailed(str(error)) from error


class _Work:
    """One export, round by round."""

    def __init__(
        self, format_: Format, target: str, catalog: str | None, wanted: Selection, accept_missing: bool
    ) -> None:
        self._format = format_
        self._address = target
        self._catalog = catalog
        self._wanted = wanted
        self._accept_missing = accept_missing
        self._upto: dict[int, int] = {}

    def told(self, outcome: Outcome) -> str:
        """What a round did, for people."""
        counts = ", ".join(f"{count:,} {name}" for name, count in outcome.rows.items())
        return f"{self._address} is up to date: {outcome.records:,} new records gave {counts}"

    def document(self, outcome: Outcome) -> dict[str, Any]:
        """What a round did, for programs."""
        return {
            "target": self._address,
            "format": self._format.value,
            "records": outcome.records,
            "rows": outcome.rows,
            "commits": outcome.commits,
            "erased": outcome.erased,
            "positions": outcome.positions,
            "missing": {number: [str(gone) for gone in ranges] for number, ranges in outcome.missing.items()},
        }

    def warn(self, outcome: Outcome) -> None:
        """Say what is still to be done to what the round wrote."""
        if outcome.erased:
            command = ["turnlog", "scrub", self._address, *(["--catalog", self._catalog] if self._catalog else [])]
            progress(
                f"{outcome.erased:,} conversation{'s are' if outcome.erased != 1 else ' is'} erased since: what nobody "
                f"had sealed of what was said there is in the tables until\n  {shlex.join(command)}"
            )

    async def run(
        self, settings: Settings | None, where: tuple[str | None, bool], every_s: float | None, metrics_port: int | None
    ) -> Outcome:
        """`where`: the history's archive, and whether that alone is read."""
        from ops.export.run import Outcome
        from ops.history import open_history
        from ops.history.following import follow
        from ops.history.rounds import counted

        outcome = Outcome()
        archive, offline = where
        async with open_history(settings, archive, offline=offline) as history:

            async def once() -> None:
                nonlocal outcome
                outcome = await self._once(history)
                if every_s is not None:
                    progress(self.told(outcome))
                    self.warn(outcome)

            if every_s is None:
                await once()
            else:
                host = "127.0.0.1" if settings is None else settings.host
                async with self._shown(history, every_s, (host, metrics_port)) as metrics:
                    await follow(counted(once, metrics), every_s, progress)
                raise CommandFailed(_way_on(), INTERRUPTED)
        return outcome

    @asynccontextmanager
    async def _shown(self, history: History, every_s: float, address: Address) -> AsyncIterator[RoundMetrics]:
        from ops.history.rounds import RoundMetrics, shown

        target, _ = await asyncio.to_thread(self._target)
        until = self._selection(target).until
        metrics = RoundMetrics("export", target.address, every_s)
        most = None if until is None else until.offset
        async with shown(metrics, history, self._upto, address, progress, most=most):
            yield metrics

    async def _once(self, history: History) -> Outcome:
        from ops.export.run import Export

        target, states = await asyncio.to_thread(self._target)
        export_ = Export(
            history,
            target,
            states,
            self._selection(target),
            progress,
            accept_missing=self._accept_missing,
            upto=self._upto,
        )
        return await export_.run()

    def _selection(self, target: Target) -> Selection:
        """What was typed; or, when nothing was, what the target was begun with. `-15m` is what it was then."""
        from ops.export.selection import Selection, of_document

        found = target.contents()
        if found is None:
            return self._wanted
        kept = of_document(found.selection)
        return kept if self._wanted == Selection() else self._wanted.settled(kept)

    def _target(self) -> tuple[Target, States]:
        from ops.export.files import WRITERS, FilesTarget, PlaceStates
        from ops.export.run import fold_version
        from ops.export.target import NoStates
        from ops.history.place import place_at

        if self._catalog is not None:
            from ops.export.iceberg import in_catalog

            return in_catalog(self._catalog, self._address), NoStates()
        place = place_at(self._address)
        states = PlaceStates(place, fold_version())
        if self._format is Format.ICEBERG:
            from ops.export.iceberg import in_folder

            if "://" in self._address:
                raise CommandFailed(f"{self._address}: Iceberg tables outside a folder need --catalog", USAGE)
            return in_folder(Path(self._address).absolute()), states
        if self._format is Format.DELTA:
            from ops.export.delta import DeltaTarget

            return DeltaTarget(self._address), states
        return FilesTarget(place, self._format.value, WRITERS[self._format.value]), states
