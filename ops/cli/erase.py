"""`turnlog erase`: what was said in a conversation, or by a person, is gone for good."""

from __future__ import annotations

import asyncio
import getpass
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from ops.cli.common import (
    DryRunOption,
    KafkaOption,
    NamespaceOption,
    Output,
    OutputOption,
    PostgresOption,
    YesOption,
    progress,
    require_yes,
    settings_from,
    show_rows,
    translated_failures,
)
from ops.cli.durations import seconds_of
from ops.cli.errors import NEGATIVE, USAGE, CommandFailed

if TYPE_CHECKING:
    from ops.erasure import Due, EraseCommand, Erased, Found
    from streams.settings import Settings

FOUND_COLUMNS = ("conversation", "status", "messages", "keys", "plain")
DUE_COLUMNS = ("conversation", "channel", "retain_days", "status", "messages", "idle_since", "due_at")
ERASED_COLUMNS = ("conversation", "seq", "repeated", "keys", "destroyed", "gone_from_topic", "plain")


ConversationsArgument = Annotated[
    list[str] | None, typer.Argument(metavar="[CONVERSATION]…", help="Ids of conversations.", show_default=False)
]
ParticipantOption = Annotated[
    str | None,
    typer.Option("--participant", help="Every conversation that this person opened, or spoke in."),
]
ChannelOption = Annotated[
    str | None, typer.Option("--channel", help="With --participant or --due: only of this channel.")
]
DueOption = Annotated[
    bool, typer.Option("--due", help="What channels keep no longer, by their `retain_days`; projectors erase it.")
]
WithinOption = Annotated[
    str, typer.Option("--within", help="With --due --dry-run: also what is due so soon (36h, 7d).")
]
WhyOption = Annotated[str, typer.Option("--why", help="For the journal, where it stays: name nobody in it.")]
WhoOption = Annotated[str | None, typer.Option("--by", help="Who asks for it; your login where it is not given.")]
PlainTooOption = Annotated[
    bool,
    typer.Option(
        "--plain-too", help="Erase also where messages were stored before TURNLOG_SEAL was on: those stay in Kafka."
    ),
]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("erase", rich_help_panel="Operate")(erase)


def erase(
    conversations: ConversationsArgument = None,
    participant: ParticipantOption = None,
    channel: ChannelOption = None,
    due: DueOption = False,
    within: WithinOption = "0s",
    why: WhyOption = "",
    by: WhoOption = None,
    plain_too: PlainTooOption = False,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    kafka: KafkaOption = None,
    postgres: PostgresOption = None,
    namespace: NamespaceOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Erase what was said: the keys that seal it are destroyed, so that nobody can read it, in Kafka, in PostgreSQL, in
    archives, exports and backups; order, numbers, ownership and digests stay, and audits still hold.

    The conversation is closed for ever. Ids stay as they are, those of people too: use pseudonyms where they would say
    who somebody is. An event of the journal says who erased it, and why. A second time changes nothing, so that an
    interrupted command is run again.

    Exit code 1 if something is not erased, or its keys are not all destroyed yet (does a projector run?).

    Examples:

      turnlog erase 6f9619ff-8b86-d011 --why "request 4711"

      turnlog erase --participant 90533 --channel whatsapp --dry-run

      turnlog erase --due --within 7d --dry-run
    """
    if [bool(conversations), bool(participant), due].count(True) != 1:
        raise CommandFailed("name conversations, or a --participant, or say --due", USAGE)
    if channel and not (participant or due):
        raise CommandFailed("--channel goes with --participant, or with --due", USAGE)
    soon_s = seconds_of(within, "--within")
    if soon_s and not (due and dry_run):
        raise CommandFailed("--within goes with --due --dry-run: nothing is erased before its time", USAGE)
    settings = settings_from(kafka, postgres, namespace)
    if due:
        _erase_due(settings, channel, soon_s, dry_run=dry_run, yes=yes, output=output)
        return
    with translated_failures():
        found = asyncio.run(_found(settings, conversations or (), participant, channel))
    if dry_run or not found:
        show_rows([asdict(each) for each in found], FOUND_COLUMNS, output, empty="there is nothing to erase")
        return
    _require_sealed(found, plain_too=plain_too)
    who = by or getpass.getuser()
    _erase_all(settings, [each.command(by=who, why=why) for each in found], yes=yes, output=output)


def _erase_due(
    settings: Settings, channel: str | None, soon_s: float, *, dry_run: bool, yes: bool, output: Output
) -> None:
    """What projectors do by themselves, now and followed; or what they will do."""
    with translated_failures():
        found = asyncio.run(_due(settings, channel, round((time.time() + soon_s) * 1000)))
    if dry_run or not found:
        show_rows([asdict(each) for each, _ in found], DUE_COLUMNS, output, empty="nothing is due")
        return
    _erase_all(settings, [command for _, command in found], yes=yes, output=output)


def _erase_all(settings: Settings, commands: Sequence[EraseCommand], *, yes: bool, output: Output) -> None:
    """Once that is confirmed; exits with 1 where something is left."""
    if not yes:
        require_yes(f"Erase {len(commands)} conversation{'s' * (len(commands) > 1)} for good?")
    with translated_failures():
        done = asyncio.run(_erased(settings, commands))
    show_rows([asdict(each) for each in done], ERASED_COLUMNS, output, empty="")
    if len(done) < len(commands):
        raise typer.Exit(NEGATIVE)
    if not all(each.whole for each in done):
        progress(
            "not all keys are destroyed yet: a projector does it when it reads the event; run the same command again"
        )
        raise typer.Exit(NEGATIVE)


def _require_sealed(found: Sequence[Found], *, plain_too: bool) -> None:
    plain = [each for each in found if each.plain]
    if plain and not plain_too:
        raise CommandFailed(
            f"{plain[0].conversation} has {plain[0].plain} messages that were stored before TURNLOG_SEAL was on: no "
            "key can be destroyed for them, so that they stay in Kafka, archives and exports until those are deleted. "
            "--plain-too erases the rest of it",
            NEGATIVE,
        )


async def _found(
    settings: Settings, conversations: Sequence[str], participant: str | None, channel: str | None
) -> list[Found]:
    from ops.erasure import Erasure

    erasure = Erasure(settings)
    try:
        if participant is not None:
            await _require_read(settings)
            conversations = await erasure.of_participant(participant, channel)
        found = []
        for conversation in conversations:
            known = await erasure.find(conversation)
            if known is None:
                raise CommandFailed(f"there is no conversation {conversation}")
            found.append(known)
        return found
    finally:
        await erasure.close()


async def _require_read(settings: Settings) -> None:
    """`CommandFailed` where a conversation may not be found yet that a person was in: it would stay, in silence."""
    from ops.conversations import unread

    if behind := await unread(settings):
        raise CommandFailed(
            f"the read model has not all that is committed (partitions {', '.join(map(str, behind))}), so that not all "
            "conversations of this person would be found, and nothing is erased: does a projector run? Run it again "
            "once the read model is level (`turnlog doctor`)"
        )


async def _due(settings: Settings, channel: str | None, until_ms: int) -> Sequence[tuple[Due, EraseCommand]]:
    from ops.erasure import DUE_MOST, Erasure

    erasure = Erasure(settings)
    try:
        found = await erasure.due(channel, until_ms)
    finally:
        await erasure.close()
    if len(found) == DUE_MOST:
        progress(f"the first {DUE_MOST:,}; there may be more")
    return found


async def _erased(settings: Settings, commands: Sequence[EraseCommand]) -> list[Erased]:
    """One after the other, with a line for what is not erased."""
    from ops.erasure import Erasure, NotErased

    erasure = Erasure(settings)
    done = []
    try:
        for number, command in enumerate(commands, start=1):
            try:
                done.append(await erasure.erase(command))
            except NotErased as error:
                progress(f"{command.conversation_id}: not erased: {error}")
            except TimeoutError:
                progress(
                    f"{command.conversation_id}: no worker decided it in time; it may yet. Run the same command again"
                )
            if len(commands) > 1:
                progress(f"{number} of {len(commands)}")
    finally:
        await erasure.close()
    return done
