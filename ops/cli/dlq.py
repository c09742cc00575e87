"""`turnlog dlq`: intake records that could not be taken; looked at, replayed or dropped."""

from __future__ import annotations

import asyncio
import getpass
import hashlib
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from ops.cli.actions import WhyShownOption
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
    translated_failures,
)
from ops.cli.errors import NEGATIVE, USAGE, CommandFailed
from ops.cli.moments import moment

if TYPE_CHECKING:
    from ops.dlq.letters import Letter, Wanted
    from ops.dlq.settling import Settlement
    from streams.runtime.codec import Codec, DeadLetter
    from streams.settings import Settings

app = typer.Typer(
    name="dlq",
    help="Dead letters: intake records that could not be taken. Look at them, replay or drop them.",
    no_args_is_help=True,
)

COLUMNS = ("origin", "error", "at", "key", "size", "status", "by", "why", "replayed_from")
VALUE_SHOWN = 4_096


class Status(StrEnum):
    """What became of a letter."""

    OPEN = "open"
    REPLAYED = "replayed"
    DROPPED = "dropped"
    ALL = "all"


class Topic(StrEnum):
    """An intake topic, without its namespace."""

    TURNS = "turns"
    FRAMES = "frames"
    MEMBERSHIP = "membership"


ErrorOption = Annotated[
    list[str] | None,
    typer.Option("--error", help="Only of this reason, as `dlq list` shows it; may be given several times."),
]
TopicOption = Annotated[list[Topic] | None, typer.Option("--topic", help="Only of this intake topic.")]
FromOption = Annotated[
    str | None, typer.Option("--from", help="Only records from then on: 2026-11-30T14:05:00 (UTC), or -15m.")
]
ToOption = Annotated[str | None, typer.Option("--to", help="Only records before then.")]
OriginsArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="[ORIGIN]...", help="Ids of letters, TOPIC/PARTITION/OFFSET.", show_default=False),
]
AllOption = Annotated[bool, typer.Option("--all", help="All that are open.")]
ByOption = Annotated[str | None, typer.Option("--by", help="Who wants it, for the record.  [default: your user]")]
WhyOption = Annotated[str, typer.Option("--why", help="Why, for the record.")]


@app.command("list")
def list_letters(
    status: Annotated[Status, typer.Option("--status", help="Only these.")] = Status.OPEN,
    error: ErrorOption = None,
    topic: TopicOption = None,
    from_: FromOption = None,
    to: ToOption = None,
    kafka: KafkaOption = None,
    postgres: PostgresOption = None,
    namespace: NamespaceOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """List dead letters, the oldest first: the record's id (topic/partition/offset), why it was refused, and its fate.

    Their values are not read out here, see `dlq show`. How many there are of each status is said at the end.

    Example:

      turnlog dlq list --error wrong_partition --from -24h
    """
    wanted = _wanted(None, error, topic, from_, to, None if status is Status.ALL else status.value)
    settings = settings_from(kafka, postgres, namespace)
    with translated_failures():
        from ops.dlq.letters import listed

        letters, counts = asyncio.run(listed(settings, wanted))
    show_rows([_row(one) for one in letters], COLUMNS, output, empty="there is no such dead letter")
    progress(_counted(counts))


@app.command("show")
def show_letter(
    origin: Annotated[
        str, typer.Argument(metavar="ORIGIN", help="Its id, as `dlq list` shows it.", show_default=False)
    ],
    show_text: Annotated[
        bool,
        typer.Option(
            "--show-text",
            help="Show what was said in it, and bytes as text; noted in the journal. Sealed words need "
            "TURNLOG_MASTER_KEY.",
        ),
    ] = False,
    why: WhyShownOption = "",
    kafka: KafkaOption = None,
    postgres: PostgresOption = None,
    namespace: NamespaceOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show one dead letter: why it was refused, its headers, the command in it where it can be read, and its fate.

    What people or agents said in it is left out unless asked for. Exit code 1 if there is no such letter.

    Example:

      turnlog dlq show turns/3/1042
    """
    settings = settings_from(kafka, postgres, namespace)
    with translated_failures():
        from ops.dlq.letters import shown

        found = asyncio.run(shown(settings, origin))
    if found is None:
        raise CommandFailed(f"there is no dead letter {origin}; `turnlog dlq list --status all`", NEGATIVE)
    one, whole, codec = found
    with translated_failures():
        if show_text:
            from ops.shown import note_shown

            partition = int(origin.split("/")[1])
            asyncio.run(note_shown(settings, what=origin, by=getpass.getuser(), why=why, partition=partition))
        content = asyncio.run(_content(settings, whole, codec, show_text))
    show_document({**_row(one), "reason": whole.reason, **content}, output)


@app.command("replay")
def replay(
    origins: OriginsArgument = None,
    every: AllOption = False,
    error: ErrorOption = None,
    topic: TopicOption = None,
    from_: FromOption = None,
    to: ToOption = None,
    by: ByOption = None,
    why: WhyOption = "operator",
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    kafka: KafkaOption = None,
    postgres: PostgresOption = None,
    namespace: NamespaceOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Write dead letters back into their intake, each once, for the workers to decide as if they had come now.

    Each goes to the partition of its key, in the order of the letters. One that would be refused for the same or
    another reason stays where it is, and is named. Once replayed it is never replayed again, whatever dies meanwhile:
    the record and the mark of its letter are written together. If a worker refuses it again, that is a new letter.

    Exit code 1 if there was nothing to replay, or some would be refused again.

    Example:

      turnlog dlq replay --error wrong_partition --dry-run
    """
    wanted = _chosen(origins, every, error, topic, from_, to)
    settings = settings_from(kafka, postgres, namespace)
    _settle(settings, wanted, "replayed", by, why, output, dry_run=dry_run, yes=yes)


@app.command("drop")
def drop(
    origins: OriginsArgument = None,
    every: AllOption = False,
    error: ErrorOption = None,
    topic: TopicOption = None,
    from_: FromOption = None,
    to: ToOption = None,
    by: ByOption = None,
    why: WhyOption = "operator",
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    kafka: KafkaOption = None,
    postgres: PostgresOption = None,
    namespace: NamespaceOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Mark dead letters as dealt with: they are not listed as open any more, and cannot be replayed.

    Their records stay in the topic for as long as it keeps them. It cannot be undone. Exit code 1 if there was none.

    Example:

      turnlog dlq drop turns/3/1042 --why "a port scanner" --yes
    """
    wanted = _chosen(origins, every, error, topic, from_, to)
    settings = settings_from(kafka, postgres, namespace)
    _settle(settings, wanted, "dropped", by, why, output, dry_run=dry_run, yes=yes)


# ----------------------------------------------------------------------------------------------------- which
def _chosen(
    origins: list[str] | None,
    every: bool,
    error: list[str] | None,
    topic: list[Topic] | None,
    from_: str | None,
    to: str | None,
) -> Wanted:
    if not (origins or every or error or topic or from_ or to):
        raise CommandFailed("which letters? Name them, or choose by --error, --topic, --from, --to, or --all", USAGE)
    return _wanted(origins, error, topic, from_, to, None)


def _wanted(
    origins: list[str] | None,
    error: list[str] | None,
    topic: list[Topic] | None,
    from_: str | None,
    to: str | None,
    status: str | None,
) -> Wanted:
    from ops.dlq.letters import Wanted

    return Wanted(
        origins=frozenset(origins or ()),
        errors=frozenset(error or ()),
        topics=frozenset(one.value for one in topic or ()),
        status=status,
        since=None if from_ is None else moment(from_, "--from"),
        until=None if to is None else moment(to, "--to"),
    )


# ------------------------------------------------------------------------------------------------------ settle
def _settle(
    settings: Settings,
    wanted: Wanted,
    action: str,
    by: str | None,
    why: str,
    output: Output,
    *,
    dry_run: bool,
    yes: bool,
) -> None:
    with translated_failures():
        from ops.dlq.settling import Decision, Unfinished, settle

        decision = Decision(action, by or getpass.getuser(), why)

        def run(*, dry_run: bool) -> Settlement:
            return asyncio.run(settle(settings, wanted, decision, dry_run=dry_run, notify=_progress))

        try:
            if not dry_run and not yes:
                _ask(run(dry_run=True), action)
            result = run(dry_run=dry_run)
        except Unfinished as error:
            raise CommandFailed(str(error)) from error
    _tell(result, wanted, action, output, dry_run=dry_run)


def _progress(done: int) -> None:
    progress(f"{done} letters are settled")


def _ask(planned: Settlement, action: str) -> None:
    if planned.done:
        verb = "Replay" if action == "replayed" else "Drop"
        require_yes(f"{verb} {len(planned.done)} of {planned.before['open']} open dead letters?")


def _tell(result: Settlement, wanted: Wanted, action: str, output: Output, *, dry_run: bool) -> None:
    unknown = sorted(set(wanted.origins) - {one["origin"] for one in (*result.done, *result.refused, *result.already)})
    if output is not Output.TABLE:
        emit(
            {
                "action": action,
                "dry_run": dry_run,
                "before": result.before,
                "after": result.after,
                "done": result.done,
                "refused": result.refused,
                "already": result.already,
                "unknown": unknown,
            }
        )
    else:
        _sentences(result, unknown, action, dry_run=dry_run)
    if not result.done or result.refused or unknown:
        raise typer.Exit(NEGATIVE)


def _sentences(result: Settlement, unknown: list[str], action: str, *, dry_run: bool) -> None:
    for one in result.done:
        into = f" into {one['into']}" if one["into"] else ""
        typer.echo(f"{one['origin']} {'would be' if dry_run else 'is'} {action}{into}")
    for one in result.refused:
        progress(f"{one['origin']} stays: it would be refused again ({one['error']}: {one['why']})")
    for one in result.already:
        into = f" into {one['into']}" if one["into"] else ""
        progress(f"{one['origin']} was {one['action']}{into} by {one['by']} already: {one['why']}")
    for origin in unknown:
        progress(f"{origin}: there is no such letter")
    progress(f"before: {_counted(result.before)}\n{'would be' if dry_run else 'after'}: {_counted(result.after)}")


def _counted(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {status}" for status, count in counts.items())


# -------------------------------------------------------------------------------------------------------- show
def _row(one: Letter) -> dict[str, Any]:
    letter, settled = one.letter, one.settled
    return {
        "origin": letter.origin,
        "error": letter.error,
        "topic": letter.topic,
        "partition": letter.partition,
        "offset": letter.offset,
        "at": letter.at,
        "key": None if letter.key is None else letter.key[:100].decode(errors="replace"),
        "size": one.size,
        "status": one.status,
        "by": settled and settled.by,
        "why": settled and settled.why,
        "settled_at": settled and settled.at,
        "into": settled and settled.into,
        "replayed_from": one.replayed_from,
    }


async def _content(settings: Settings, letter: DeadLetter, codec: Codec, show_text: bool) -> dict[str, Any]:
    """The letter's headers and value: the command in it, or its bytes."""
    headers = {name: None if value is None else value.decode(errors="replace") for name, value in letter.headers}
    command = _command(letter, codec)
    if command is not None:
        fields = msgspec.to_builtins(await _shown(settings, command, show_text))
        return {"headers": headers, "command": type(command).__name__, "fields": fields}
    value = letter.value or b""
    summary = {"bytes": len(value), "sha256": hashlib.sha256(value).hexdigest()}
    if show_text:
        summary["value"] = value[:VALUE_SHOWN].decode(errors="backslashreplace")
    return {"headers": headers, "command": None, "value": summary}


async def _shown(settings: Settings, command: Any, show_text: bool) -> Any:
    """The command with its words masked, or opened where they are sealed."""
    from ops.conversations import erased_of
    from ops.shown import Shown
    from streams.core.commands import Command

    if not isinstance(command, Command):  # a signal: it has no words
        return command
    shown = Shown(settings, text=show_text, erased=await erased_of(settings, command) if show_text else ())
    try:
        return await shown.command(command)
    finally:
        await shown.close()


def _command(letter: DeadLetter, codec: Codec) -> Any:
    from ops.dlq.settling import decoded
    from streams.runtime.codec import Undecodable

    try:
        return decoded(codec, letter)
    except Undecodable:
        return None
