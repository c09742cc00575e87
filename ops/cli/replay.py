"""`turnlog replay`: the state of a deployment as of any point of its history."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ops.cli.common import (
    ArchiveOption,
    KafkaOption,
    NamespaceOption,
    OfflineOption,
    Output,
    OutputOption,
    PostgresOption,
    emit_all,
    progress,
    show_rows,
    told_time,
    translated_failures,
)
from ops.cli.errors import USAGE, CommandFailed
from ops.cli.moments import moment
from ops.cli.servers import settings_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from ops.history import History
    from ops.replay import Target

MEMBER_COLUMNS = ("partition", "member", "group", "gateway", "since", "eligible", "draining", "runs")
RUN_COLUMNS = ("conversation", "turn_seq", "group", "member", "run_epoch", "started", "frames", "asks")
CONVERSATION_COLUMNS = ("conversation", "channel", "status", "head_seq", "owners", "next", "open_runs")
CHANGE_COLUMNS = ("partition", "change", "of", "what")

AtOption = Annotated[
    str | None,
    typer.Option("--at", metavar="POINT", help="A time (ISO, or -15m), an offset (123, o:123), lsn:123. Default: now."),
]
DiffOption = Annotated[
    tuple[str, str] | None,
    typer.Option("--diff", metavar="POINT POINT", help="What changed between two points instead."),
]
PartitionOption = Annotated[int | None, typer.Option("--partition", min=0, help="This partition only.")]
ConversationOption = Annotated[str | None, typer.Option("--conversation", help="This conversation only.")]
LimitOption = Annotated[int, typer.Option("--limit", min=0, help="Conversations listed of a partition, at most.")]
CacheOption = Annotated[
    bool, typer.Option("--cache/--no-cache", help="Keep states on this machine, so that the next look is quick.")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What to look at: one point, or two to be compared."""

    targets: Sequence[Target]
    partition: int | None = None
    conversation: str | None = None
    limit: int = 100
    cache: bool = True


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("replay", rich_help_panel="Look")(replay)


def replay(
    at: AtOption = None,
    diff: DiffOption = None,
    partition: PartitionOption = None,
    conversation: ConversationOption = None,
    limit: LimitOption = 100,
    cache: CacheOption = True,
    archive: ArchiveOption = None,
    offline: OfflineOption = False,
    kafka: KafkaOption = None,
    postgres: PostgresOption = None,
    namespace: NamespaceOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show the state as of a point of history: who owned what, open runs, members.

    It is folded from the journal by the rules alone: nobody is called, and nothing is sent or changed. A time means
    all that had been committed by then, in every partition; an offset and an lsn are of one partition, which
    --partition or --conversation say.

    States along the way are kept in ~/.cache/turnlog (they can be removed at any time), so that the first look takes
    as long as reading the journal, and any other a second or two. --no-cache begins at the beginning: for a proof.

    Examples:

      turnlog replay --at -15m

      turnlog replay --at 2026-11-30T14:05 --conversation 6f9619ff-8b86-d011

      turnlog replay --diff lsn:1200 lsn:1500 --partition 3
    """
    if at is not None and diff is not None:
        raise CommandFailed("--at and --diff: one of them", USAGE)
    wanted = Wanted(
        targets=[target_of(at or "now", "--at")] if diff is None else [target_of(each, "--diff") for each in diff],
        partition=partition,
        conversation=conversation,
        limit=limit,
        cache=cache,
    )
    settings = settings_of(kafka, postgres, namespace, archive=archive, offline=offline)
    with translated_failures():
        from ops.history import open_history

        async def looked() -> list[Mapping[str, Any]]:
            async with open_history(settings, archive, offline=offline) as history:
                return [document async for document in look(history, wanted)]

        documents = asyncio.run(looked())
    if output is not Output.TABLE:
        emit_all(documents, output)
    elif diff is not None:
        _tell_difference(documents)
    else:
        _tell(documents)


def target_of(text: str, option: str) -> Target:
    """A point of history as people write it; `CommandFailed` names `option` if it is none."""
    from ops.replay import Target

    if text == "now":
        return Target()
    kind, _, number = text.rpartition(":")
    if kind in {"", "o", "lsn"} and number.isdecimal():
        return Target(lsn=int(number)) if kind == "lsn" else Target(offset=int(number))
    return Target(time_ms=moment(text, option))


async def look(history: History, wanted: Wanted) -> AsyncIterator[Mapping[str, Any]]:
    """A document for each partition: `shown.standing_document`, or that of a `shown.Difference`.

    What is missing of the journal is said first. Raises `CommandFailed` for a conversation that was not there.
    """
    from ops.replay import Traveller, Unreachable
    from ops.replay.shown import Difference, standing_document
    from ops.replay.travel import spread
    from streams.runtime.partitioning import partition_of

    chosen = wanted.partition
    if wanted.conversation is not None:
        chosen = partition_of(wanted.conversation, history.partitions)
    first, *second = wanted.targets
    try:
        for partition in spread(first, chosen, history.partitions):
            for gone in await history.missing(partition):
                progress(f"partition {partition}: offsets {gone} of the journal are MISSING")
            traveller = Traveller(history, partition, cached=wanted.cache)
            try:
                standing = await traveller.to(first)
                if second:
                    difference = Difference(standing)
                    await traveller.on(standing, second[0], difference.see)
                    yield difference.document(conversation=wanted.conversation)
                else:
                    document = standing_document(standing, conversation=wanted.conversation, limit=wanted.limit)
                    if wanted.conversation is not None and not document["conversations"]:
                        raise CommandFailed(f"there was no conversation {wanted.conversation} at that point")
                    yield document
            finally:
                traveller.close()
    except Unreachable as error:
        raise CommandFailed(str(error)) from error


def _tell(documents: Sequence[Mapping[str, Any]]) -> None:
    for document in documents:
        at = document["as_of"]
        if not at["lsn"]:
            progress(f"partition {document['partition']}: nothing, it is before its first event")
            continue
        progress(
            f"partition {document['partition']} as of {told_time(at['timestamp'])} UTC: lsn {at['lsn']}, "
            f"offset {at['offset']}, writer epoch {at['writer_epoch']}"
        )
    members = [{"partition": d["partition"], **row} for d in documents for row in d["members"]]
    show_rows(members, MEMBER_COLUMNS, Output.TABLE, empty="no members")
    runs = [row for d in documents for row in d["open_runs"]]
    show_rows(runs, RUN_COLUMNS, Output.TABLE, empty="no open runs")
    waiting = [row for d in documents for row in d["waiting"]]
    if waiting:
        show_rows(waiting, ("conversation", "turn_seq", "channel"), Output.TABLE, empty="")
    rows = [row for d in documents for row in d["conversations"]]
    show_rows(rows, CONVERSATION_COLUMNS, Output.TABLE, empty="no conversations")


def _tell_difference(documents: Sequence[Mapping[str, Any]]) -> None:
    rows = []
    for document in documents:
        old, new = document["from"], document["to"]
        events = ", ".join(f"{count} {kind}" for kind, count in document["events"].items()) or "nothing"
        progress(f"partition {document['partition']}, lsn {old['lsn']} to {new['lsn']}: {events}")
        for of, name in (("members", "member"), ("runs", "run_id"), ("conversations", "conversation")):
            rows += [
                {
                    "partition": document["partition"],
                    "change": row["change"],
                    "of": f"{name.removesuffix('_id')} {row[name]}",
                    "what": _told_fields(row["what"], changed=row["change"] == "changed"),
                }
                for row in document[of]
            ]
    show_rows(rows, CHANGE_COLUMNS, Output.TABLE, empty="no difference")


def _told_fields(fields: Mapping[str, Any], *, changed: bool) -> str:
    """The fields of something for people; of what `changed` before and after."""
    told = []
    for name, value in fields.items():
        shown = " → ".join(map(_told_value, value)) if changed else _told_value(value)
        told.append(f"{name.replace('_', ' ')} {shown}")
    return ", ".join(told)


def _told_value(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return " ".join(f"{key}: {_told_value(each)}" for key, each in value.items()) or "none"
    if isinstance(value, list):
        return " ".join(map(_told_value, value)) or "none"
    return "none" if value is None else str(value)
