"""`turnlog archive`: a copy of the journal that outlives what Kafka keeps."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from ops.cli.common import (
    DryRunOption,
    EveryOption,
    FollowOption,
    KafkaOption,
    MetricsPortOption,
    NamespaceOption,
    Output,
    OutputOption,
    PartitionOption,
    PostgresOption,
    YesOption,
    emit,
    progress,
    require_yes,
    resumable,
    settings_from,
    show_rows,
    translated_failures,
)
from ops.cli.digest import TrustOption, digests_at, trust_from
from ops.cli.durations import seconds_of
from ops.cli.errors import NEGATIVE, CommandFailed
from ops.cli.servers import NO_POSTGRES

if TYPE_CHECKING:
    from ops.archive.checking import PartitionCheck
    from ops.archive.history import ArchiveHistory
    from ops.archive.trimming import Plan
    from ops.digest.statements import Digests
    from ops.history import Range
    from streams.settings import Settings

app = typer.Typer(name="archive", help="A copy of the journal that outlives what Kafka keeps.", no_args_is_help=True)

UrlArgument = Annotated[
    str, typer.Argument(metavar="URL", help="A folder, or an address such as s3://bucket/turnlog.", show_default=False)
]
SEGMENTS: Final = ("partition", "start", "end", "records", "day", "file")
PARTITIONS: Final = ("partition", "start", "end", "segments", "records", "kafka_start", "kafka_end", "behind")
CHECKS: Final = ("partition", "start", "end", "verified", "segments", "records", "undecodable", "problems")
PLANS: Final = ("partition", "start", "end", "until", "offsets", "held_by")
AGAIN: Final = "interrupted; what is committed stays: run the same command again to go on"


@app.command("run")
def run(
    url: UrlArgument,
    follow: FollowOption = False,
    every: EveryOption = "5m",
    segment_records: Annotated[int, typer.Option("--segment-records", min=1, help="Most records of a file.")] = 200_000,
    after_gap: Annotated[
        bool,
        typer.Option("--after-gap", help="Where Kafka deleted what was not archived: note the gap, and go on."),
    ] = False,
    metrics_port: MetricsPortOption = None,
    kafka: KafkaOption = None,
    namespace: NamespaceOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Copy what is committed in the journal, and not archived yet, into an archive of Parquet files.

    Each record is archived once, byte for byte as Kafka has it, whoever else archives at the same time and wherever
    this is killed: run it again, and it goes on. `--follow` keeps it running; each round makes a file for every
    partition that has something new, so that a quiet deployment does well with a long `--every`. `--metrics-port` shows
    how far it is behind.

    Stops with exit code 2 when Kafka no longer has what was not archived yet.

    Examples:

      turnlog archive run /var/lib/turnlog/archive

      turnlog archive run s3://bucket/turnlog --follow --every 15m
    """
    every_s = seconds_of(every, "--every")
    settings = settings_from(kafka, NO_POSTGRES, namespace)
    with translated_failures(), resumable(AGAIN):
        work = _Archiving(url, segment_records=segment_records, after_gap=after_gap)
        copied = asyncio.run(work.run(settings, every_s if follow else None, metrics_port))
    if output is Output.TABLE:
        progress(f"{copied:,} records archived in {url}")
    else:
        emit({"archive": url, "records": copied})


class _Archiving:
    def __init__(self, url: str, **how: Any) -> None:
        self._url = url
        self._how = how
        self._copied = 0

    async def run(self, settings: Settings, every_s: float | None, metrics_port: int | None) -> int:
        from ops.archive.copying import Archiver
        from ops.archive.segment import Source
        from ops.history.following import follow
        from ops.history.live import live_history
        from ops.history.place import place_at
        from ops.history.rounds import RoundMetrics, counted, shown

        async with live_history(settings) as history:
            source = Source(history=history, topic=history.topic, framing=history.codec.framing)
            place = place_at(self._url)
            archiver = Archiver(place, source, notify=progress, **self._how)

            async def once() -> None:
                self._copied += await archiver.copy()

            await archiver.open()
            if every_s is None:
                await once()
            else:
                metrics = RoundMetrics("archive", place.address, every_s)
                async with shown(metrics, history, archiver.upto, (settings.host, metrics_port), progress):
                    await follow(counted(once, metrics), every_s, progress)
            if removed := await archiver.clean():
                progress(f"{removed} files that archivers left when they were killed are removed")
        return self._copied


@app.command("list")
def list_segments(
    url: UrlArgument,
    partition: PartitionOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """List the archive's segments: offsets (end exclusive), records, file, hashes with `-o json`.

    Example:

      turnlog archive list s3://bucket/turnlog --partition 3 -o jsonl
    """
    with translated_failures():
        rows, missing = asyncio.run(_segments(url, partition))
    _told_missing(missing)
    show_rows(rows, SEGMENTS, output, empty="nothing is archived yet")


async def _segments(url: str, partition: int | None) -> tuple[list[dict[str, Any]], dict[int, Sequence[Range]]]:
    import msgspec

    archive = await _opened(url)
    wanted = _partitions(archive, partition)
    rows = [msgspec.structs.asdict(segment) for each in wanted for segment in await archive.segments(each)]
    return rows, {each: await archive.missing(each) for each in wanted}


@app.command("show")
def show(
    url: UrlArgument,
    offline: Annotated[bool, typer.Option("--offline", help="Do not ask Kafka how far behind it is.")] = False,
    kafka: KafkaOption = None,
    namespace: NamespaceOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show what the archive holds of each partition, what Kafka has, and how far the archive is behind.

    What was there once and is in neither is the first line, and the exit code is 1.

    Example:

      turnlog archive show s3://bucket/turnlog
    """
    settings = None if offline else settings_from(kafka, NO_POSTGRES, namespace)
    with translated_failures():
        rows, missing = asyncio.run(_shown(settings, url))
    _told_missing(missing)
    show_rows(rows, PARTITIONS, output, empty="it has no partitions")
    if any(missing.values()):
        raise typer.Exit(NEGATIVE)


async def _shown(settings: Settings | None, url: str) -> tuple[list[dict[str, Any]], dict[int, Sequence[Range]]]:
    from ops.history.joined import JoinedHistory
    from ops.history.live import live_history

    archive = await _opened(url)
    rows: list[dict[str, Any]] = []
    for each in range(archive.partitions):
        chain, bounds = await archive.segments(each), await archive.bounds(each)
        rows.append(
            {
                "partition": each,
                "start": bounds.start,
                "end": bounds.end,
                "segments": len(chain),
                "records": sum(segment.records for segment in chain),
                "bytes": sum(segment.bytes for segment in chain),
            }
        )
    if settings is not None:
        async with live_history(settings) as live:
            both = JoinedHistory(archive, live)  # a hole in the archive that Kafka still has is none
            for row in rows:
                there = await live.bounds(row["partition"])
                row |= {"kafka_start": there.start, "kafka_end": there.end, "behind": max(0, there.end - row["end"])}
            missing = {each: await both.missing(each) for each in range(both.partitions)}
    else:
        missing = {each: await archive.missing(each) for each in range(archive.partitions)}
    for row in rows:
        row["missing"] = [[gone.start, gone.end] for gone in missing[row["partition"]]]
    return rows, missing


@app.command("verify")
def verify(
    url: UrlArgument,
    partition: PartitionOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Read all of an archive again: files as written, records as written, none missing, `lsn` without a gap.

    That its records are those that were committed is proved by digests (`turnlog digest verify --archive URL
    --offline`), and what they mean by `turnlog audit verify --archive URL --offline`.

    Exit code 0: all is there. 1: something is missing or damaged, and named.

    Example:

      turnlog archive verify s3://bucket/turnlog
    """
    with translated_failures():
        checks = asyncio.run(_verified(url, partition))
    _told_missing({check.partition: check.missing for check in checks})
    for problem in (problem for check in checks for problem in check.problems):
        progress(f"DAMAGED: {problem}")
    show_rows([check.document() for check in checks], CHECKS, output, empty="it has no partitions")
    if not all(check.ok for check in checks):
        raise typer.Exit(NEGATIVE)


async def _verified(url: str, partition: int | None) -> list[PartitionCheck]:
    from ops.archive.checking import check
    from ops.history.place import place_at

    archive = await _opened(url)
    return [await check(place_at(url), archive, each, progress) for each in _partitions(archive, partition)]


@app.command("trim")
def trim(
    url: UrlArgument,
    keep: Annotated[str, typer.Option("--keep", help="What is younger stays in Kafka (7d, 36h).")] = "7d",
    digests: Annotated[
        str | None,
        typer.Option("--digests", metavar="URL", help="Where the digests are: what is not sealed stays in Kafka."),
    ] = None,
    without_digests: Annotated[
        bool, typer.Option("--without-digests", help="Delete what no digest was made of.")
    ] = False,
    trust: TrustOption = None,
    keep_records: Annotated[
        int, typer.Option("--keep-records", min=2_000, help="Offsets of each partition that stay in any case.")
    ] = 20_000,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    kafka: KafkaOption = None,
    postgres: PostgresOption = None,
    namespace: NamespaceOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Delete from Kafka what is old, archived, sealed, and read by everybody of Turnlog's own.

    Before anything is deleted, it is read from Kafka, from the archive and from the digests, and must be the same. What
    checkpoints, the read model or gateways still need stays; the column `held by` says what sets the limit. Readers of
    your own that have not come so far must read the archive.

    A backup of PostgreSQL that is older than what is deleted cannot be restored without `turnlog rebuild` from the
    archive: keep at least as long as backups are kept.

    Exit code 1: something differs, or nobody agreed; nothing was deleted of that partition.

    Examples:

      turnlog archive trim s3://bucket/turnlog --digests s3://vault/turnlog \\
        --dry-run

      turnlog archive trim s3://bucket/turnlog --digests s3://vault/turnlog \\
        --keep 30d --yes
    """
    if (digests is None) != without_digests:
        raise CommandFailed("say where the digests are with --digests URL, or do without: --without-digests", 64)
    keep_s = seconds_of(keep, "--keep")
    settings = settings_from(kafka, postgres, namespace)
    before_ms = int((time.time() - keep_s) * 1000)
    with translated_failures():
        sealed = None if digests is None else digests_at(digests, trust_from(trust))
        plans = asyncio.run(_planned(settings, url, sealed, before_ms, keep_records))
        for problem in (problem for plan in plans for problem in plan.problems):
            progress(f"DIFFERS: {problem}")
        total = sum(len(plan.deletes) for plan in plans)
        show_rows([plan.document() for plan in plans], PLANS, output, empty="it has no partitions")
        if total and not dry_run:
            if not yes:
                require_yes(f"Delete {total:,} offsets from Kafka, for good?")
            asyncio.run(_trimmed(settings, plans))
            progress(f"{total:,} offsets deleted")
    if any(plan.problems for plan in plans):
        raise typer.Exit(NEGATIVE)


async def _planned(settings: Settings, url: str, digests: Digests | None, before_ms: int, tail: int) -> list[Plan]:
    from ops.archive.trimming import Safe
    from ops.database import Database
    from ops.history.joined import require_same
    from ops.history.live import live_history

    archive = await _opened(url)
    database = Database(settings.postgres)
    try:
        async with live_history(settings) as live:
            require_same(archive, live)
            safe = Safe(live=live, archive=archive, digests=digests, database=database, notify=progress)
            return await safe.plans(before_ms, tail)
    finally:
        await database.close()


async def _trimmed(settings: Settings, plans: Sequence[Plan]) -> None:
    from ops.archive.trimming import trim as delete
    from ops.provision import connected_admin
    from streams.topics import Topics

    async with connected_admin(settings.kafka) as admin:
        await delete(admin, Topics(settings.namespace).conversations, plans)


async def _opened(url: str) -> ArchiveHistory:
    from ops.history.opening import archive_at

    return await archive_at(url)


def _partitions(archive: ArchiveHistory, partition: int | None) -> Sequence[int]:
    return range(archive.partitions) if partition is None else [partition]


def _told_missing(missing: dict[int, Sequence[Range]]) -> None:
    for partition, gone in missing.items():
        for each in gone:
            progress(f"MISSING: offsets {each} of partition {partition}")
