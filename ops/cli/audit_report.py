"""`turnlog audit report`: an audit to be read, printed and kept."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ops.cli.actions import WhyShownOption, note_shown
from ops.cli.common import (
    ArchiveOption,
    KafkaOption,
    NamespaceOption,
    OfflineOption,
    PostgresOption,
    emit,
    progress,
    told_time,
    translated_failures,
)
from ops.cli.errors import NEGATIVE, USAGE, CommandFailed
from ops.cli.narrate import sentence
from ops.cli.replay import target_of
from ops.cli.servers import settings_of

if TYPE_CHECKING:
    from ops.audit.asked import Scope, Where
    from ops.audit.report import Stretch
    from ops.audit.violations import Verdict
    from streams.settings import Settings

FORMS = (".html", ".json")

OutOption = Annotated[Path, typer.Option("--out", metavar="FILE", help="Where to write it: NAME.html or NAME.json.")]
ConversationOption = Annotated[str | None, typer.Option("--conversation", help="Of this conversation alone.")]
PartitionOption = Annotated[int | None, typer.Option("--partition", min=0, help="Of this partition alone.")]
FromOption = Annotated[
    str, typer.Option("--from", metavar="POINT", help="Tell of what came from this time (ISO, -15m) or offset on.")
]
ToOption = Annotated[str, typer.Option("--to", metavar="POINT", help="Tell of what came up to it.")]
LimitOption = Annotated[
    int, typer.Option("--limit", min=0, help="Tell of so many conversations; those with moves and refusals first.")
]
ShowTextOption = Annotated[
    bool, typer.Option("--show-text", help="Show what was said; else only how long it was. Noted in the journal.")
]


def report(
    out: OutOption,
    conversation: ConversationOption = None,
    partition: PartitionOption = None,
    since: FromOption = "o:0",
    until: ToOption = "now",
    limit: LimitOption = 50,
    show_text: ShowTextOption = False,
    why: WhyShownOption = "",
    archive: ArchiveOption = None,
    offline: OfflineOption = False,
    kafka: KafkaOption = None,
    postgres: PostgresOption = None,
    namespace: NamespaceOption = None,
) -> None:
    """Write an audit's report: verdict, what is missing, timelines, who owned what from when to when, refusals.

    One file that needs nothing else, for a browser, a printer or an archive (.html), or for programs (.json). The
    verdict is of the whole partitions, as `turnlog audit verify` gives it; --from and --to choose what is told beside.

    Exit code 0: no violation. 1: violations, or it could not be verified, and the report, which is written all the
    same, says so.

    Examples:

      turnlog audit report --out report.html

      turnlog audit report --out case-7.html --conversation 6f9619ff --from -2h

      turnlog audit report --out march.json --archive s3://backups --offline
    """
    _require_writable(out)
    settings = settings_of(kafka, postgres, namespace, archive=archive, offline=offline)
    with translated_failures():
        from ops.audit.asked import Scope, Where
        from ops.audit.report import Stretch

        scope = Scope(partition=partition, conversation=conversation)
        stretch = Stretch(
            partitions=(),
            conversation=conversation,
            since=target_of(since, "--from"),
            until=target_of(until, "--to"),
            limit=limit,
            show_text=show_text,
        )
        if stretch.since.lsn is not None or stretch.until.lsn is not None:
            raise CommandFailed("--from and --to take times and offsets, not an lsn", USAGE)
        if show_text:
            what = f"audit report of {archive}" if settings is None else "audit report"
            note_shown(settings, what, why, kafka=kafka, namespace=namespace)
        made = asyncio.run(_made(settings, scope, Where(archive=archive, offline=offline), stretch))
    _write(out, made)
    verdict = made["verdict"]
    emit({"report": str(out), "ok": None if verdict is None else verdict["ok"], "missing": len(made["missing"])})
    if verdict is None:
        progress(f"not verified: {made['could_not_verify']}")
    raise typer.Exit(0 if verdict is not None and verdict["ok"] else NEGATIVE)


def _require_writable(out: Path) -> None:
    if out.suffix not in FORMS:
        raise CommandFailed(f"--out: {out} ends neither in .html nor in .json", USAGE)
    if not out.absolute().parent.is_dir():
        raise CommandFailed(f"--out: there is no folder {out.absolute().parent}", USAGE)


async def _made(settings: Settings | None, scope: Scope, where: Where, stretch: Stretch) -> dict[str, Any]:
    from dataclasses import replace

    from ops.audit.asked import partitions_of
    from ops.audit.report import chronicle_of, document
    from ops.audit.source import CouldNotVerify
    from ops.audit.verify import verify_cluster
    from ops.history import open_history

    notes: list[str] = []
    verdict: Verdict | None = None
    why_not = ""
    async with open_history(settings, where.archive, offline=where.offline) as history:
        stretch = replace(stretch, partitions=tuple(partitions_of(scope, history.partitions)))
        told = await chronicle_of(history, stretch, sentence, progress)
        identity = history.identity
    try:
        verdict = await verify_cluster(
            settings, scope, lambda line: _noted(notes, line), where, processes=os.cpu_count() or 1
        )
    except CouldNotVerify as error:
        why_not = str(error)
    return document(stretch, verdict, why_not, notes, told, identity=identity)


def _noted(notes: list[str], line: str) -> None:
    """What could not be compared belongs into the report; how far it is does not."""
    progress(line)
    if "compared" in line:
        notes.append(line)


def _write(out: Path, made: dict[str, Any]) -> None:
    from ops.audit.page import page

    text = page(made, told_time) if out.suffix == ".html" else json.dumps(made, ensure_ascii=False, indent=1)
    partial = out.with_suffix(f"{out.suffix}.new")
    partial.write_text(text, "utf-8")
    partial.replace(out)
