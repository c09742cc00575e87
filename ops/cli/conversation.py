"""`turnlog conversation`: what was said, who owned it, and what is open."""

from __future__ import annotations

import asyncio
import getpass
import signal
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ops.cli import conversation_actions
from ops.cli.actions import ByOption, ReasonOption, WhyShownOption, decided, require_taken
from ops.cli.common import (
    KafkaOption,
    NamespaceOption,
    Output,
    OutputOption,
    PostgresOption,
    emit,
    progress,
    settings_from,
    show_document,
    show_rows,
    translated_failures,
)
from ops.cli.errors import CommandFailed

if TYPE_CHECKING:
    from ops.history import Missing
    from ops.journal import Opened
    from ops.shown import Shown
    from streams.core.events import Event
    from streams.settings import Settings

app = typer.Typer(
    name="conversation",
    help="What was said, who owned it, and what is open; hand it to a human and back.",
    no_args_is_help=True,
)


conversation_actions.register(app)


class Status(StrEnum):
    """What a conversation is."""

    OPEN = "open"
    CLOSED = "closed"
    ERASED = "erased"


ShowTextOption = Annotated[
    bool, typer.Option("--show-text", help="Show what was said; sealed words need TURNLOG_MASTER_KEY.")
]
IdArgument = Annotated[str, typer.Argument(metavar="ID", help="Id of the conversation.")]
COLUMNS = ("id", "channel", "participant", "status", "head_seq", "updated_at", "partition")


@app.command("list")
def list_conversations(
    limit: Annotated[int, typer.Option("--limit", min=1, max=1000, help="At most so many, the latest first.")] = 50,
    status: Annotated[
        Status | None, typer.Option("--status", help="Only those that are `open`, `closed` or `erased`.")
    ] = None,
    channel: Annotated[str | None, typer.Option("--channel", help="Only those of this channel.")] = None,
    postgres: PostgresOption = None,
    kafka: KafkaOption = None,
    namespace: NamespaceOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """List conversations, the one with the latest change first, as the read model has them.

    Example:

      turnlog conversation list --status open -o jsonl
    """
    settings = settings_from(kafka, postgres, namespace)
    with translated_failures():
        from ops.conversations import listed

        rows = asyncio.run(listed(settings, limit=limit, status=status, channel=channel))
    show_rows(rows, COLUMNS, output, empty="there are no conversations")


@app.command("show")
def show(
    conversation: IdArgument,
    kafka: KafkaOption = None,
    postgres: PostgresOption = None,
    namespace: NamespaceOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show a conversation: its head seq, its partition and writer epoch, the owner in each group, and the open runs.

    Waits until the read model has what was committed when it was asked; where no projector runs, reads the journal.

    Example:

      turnlog conversation show 6f9619ff-8b86-d011 -o json
    """
    settings = settings_from(kafka, postgres, namespace)
    with translated_failures():
        from ops.conversations import shown

        found = asyncio.run(shown(settings, conversation, progress))
    if found is None:
        raise CommandFailed(f"there is no conversation {conversation}")
    show_document(found, output)


@app.command("handover")
def handover(
    conversation: IdArgument,
    to: Annotated[str, typer.Option("--to", help="Who answers from here on, for people and the journal.")] = "human",
    by: ByOption = None,
    reason: ReasonOption = "operator",
    kafka: KafkaOption = None,
    postgres: PostgresOption = None,
    namespace: NamespaceOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Hand a conversation to a human: from then on no agent is heard in it until it is handed back.

    Open runs end, and their agents are told to stop. What the person says is stored and opens no run. Handing over
    what is handed over already changes nothing. Returns once it is committed.

    Exit code 1 if there is no such conversation, or it is closed.

    Example:

      turnlog conversation handover 6f9619ff-8b86-d011 --to "Eve, second line"
    """
    settings = settings_from(kafka, postgres, namespace)
    with translated_failures():
        from ops.handover import hand_over

        who = by or getpass.getuser()
        outcome = decided(hand_over(settings, conversation, by=who, to=to, reason=reason))
    _handed(conversation, outcome, output, handed_over=True)


@app.command("handback")
def handback(
    conversation: IdArgument,
    by: ByOption = None,
    reason: ReasonOption = "operator",
    kafka: KafkaOption = None,
    postgres: PostgresOption = None,
    namespace: NamespaceOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Give a conversation back to agents: they answer what is said from then on, and nothing of what was said before.

    Exit code 1 if there is no such conversation, or it is closed.

    Example:

      turnlog conversation handback 6f9619ff-8b86-d011
    """
    settings = settings_from(kafka, postgres, namespace)
    with translated_failures():
        from ops.handover import hand_back

        outcome = decided(hand_back(settings, conversation, by=by or getpass.getuser(), reason=reason))
    _handed(conversation, outcome, output, handed_over=False)


def _handed(conversation: str, outcome: Event, output: Output, *, handed_over: bool) -> None:
    from streams.core.events import Duplicate

    require_taken(outcome)
    already = isinstance(outcome, Duplicate)
    if output is not Output.TABLE:
        emit({"conversation": conversation, "handed_over": handed_over, "already": already})
        return
    what = "is with a human" if handed_over else "is with agents"
    progress(f"{conversation} {what}{' already' if already else ''}")


@app.command("timeline")
def timeline(
    conversation: IdArgument,
    show_text: ShowTextOption = False,
    why: WhyShownOption = "",
    by: ByOption = None,
    kafka: KafkaOption = None,
    postgres: PostgresOption = None,
    namespace: NamespaceOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Tell all that happened in a conversation, from the journal: turns, owners, moves, ends, refusals.

    What was said is left out: --show-text shows it, and notes in the journal who was shown it, and why.

    Examples:

      turnlog conversation timeline 6f9619ff-8b86-d011

      turnlog conversation timeline 6f9619ff-8b86 --show-text --why "case 7"
    """
    reading = _Reading(
        conversation, output, follow=False, shown_to=(by or getpass.getuser(), why) if show_text else None
    )
    told = _tell(settings_from(kafka, postgres, namespace), reading)
    if not told:
        raise CommandFailed(f"the journal has nothing of a conversation {conversation}")


@app.command("tail")
def tail(
    conversation: IdArgument,
    show_text: ShowTextOption = False,
    why: WhyShownOption = "",
    by: ByOption = None,
    kafka: KafkaOption = None,
    postgres: PostgresOption = None,
    namespace: NamespaceOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Like `timeline`, and goes on as more is committed, until Ctrl-C.

    Example:

      turnlog conversation tail 6f9619ff-8b86-d011 -o jsonl | jq .event
    """
    reading = _Reading(
        conversation, output, follow=True, shown_to=(by or getpass.getuser(), why) if show_text else None
    )
    _tell(settings_from(kafka, postgres, namespace), reading)


@dataclass(frozen=True, slots=True)
class _Reading:
    """How a conversation is read. `shown_to`: who is shown what was said, and why; None: nobody."""

    conversation: str
    output: Output
    follow: bool
    shown_to: tuple[str, str] | None


def _tell(settings: Settings, reading: _Reading) -> int:
    with translated_failures():
        try:
            return asyncio.run(_told(settings, reading))
        except asyncio.CancelledError:
            raise KeyboardInterrupt from None


def _end_on_interrupt() -> None:
    """The first SIGINT cancels the task that calls this, the second ends the process at once.

    `asyncio.run` alone would raise `KeyboardInterrupt` for the second and then wait for its tasks; a Kafka client that
    is being closed swallows one cancellation, and would be waited for until its connections are idle for minutes.
    """
    loop, task = asyncio.get_running_loop(), asyncio.current_task()

    def interrupted() -> None:
        loop.remove_signal_handler(signal.SIGINT)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        if task is not None:
            task.cancel()

    loop.add_signal_handler(signal.SIGINT, interrupted)


async def _shown(settings: Settings, reading: _Reading, partition: int, known: Opened | None) -> Shown:
    """How its entries are shown: nothing of what was said, if it is erased by now, whoever asks."""
    from ops.journal import is_erased
    from ops.shown import Shown

    if reading.shown_to is None:
        return Shown(settings, text=False)
    erased = await is_erased(settings, partition, reading.conversation, known)
    if erased:
        progress(f"{reading.conversation} is erased: what was said in it is not shown")
    return Shown(settings, text=True, erased=(reading.conversation,) if erased else ())


async def _told(settings: Settings, reading: _Reading) -> int:
    from ops.cli.narrate import document, line
    from ops.conversations import opened
    from ops.journal import entries_of, partition_count
    from ops.shown import note_shown
    from streams.runtime.partitioning import partition_of

    conversation, output, follow = reading.conversation, reading.output, reading.follow
    documents: list[dict[str, Any]] = []
    told = 0

    def caught_up() -> None:
        if follow and not told:
            progress(f"the journal has nothing of a conversation {conversation} yet: waiting for it, until Ctrl-C")

    def missing(gone: Missing) -> None:
        progress(f"MISSING: {gone}. Kafka has deleted them; an archive may have them (`turnlog archive show URL`)")

    if follow:
        _end_on_interrupt()
    partition = partition_of(conversation, await partition_count(settings))
    if reading.shown_to is not None:
        by, why = reading.shown_to
        await note_shown(settings, what=conversation, by=by, why=why, partition=partition)
    known = await opened(settings, conversation)
    shown = await _shown(settings, reading, partition, known)
    entries = entries_of(settings, partition, follow=follow, caught_up=caught_up, of=known, missing=missing)
    try:
        async for entry in entries:
            if entry.event.conversation_id != conversation:
                continue
            [entry] = await shown.entries([entry])  # noqa: PLW2901
            told += 1
            if output is Output.TABLE:
                typer.echo(line(entry))
            elif output is Output.JSON and not follow:
                documents.append(document(entry))
            else:
                emit(document(entry))
    finally:
        await shown.close()
    if documents:
        emit(documents)
    return told
