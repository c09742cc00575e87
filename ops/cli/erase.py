"""`turnlog erase`: what was said in a conversation, or by a person, is gone for good."""

from __future__ import annotations

import asyncio
import getpass
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
from ops.cli.errors import NEGATIVE, USAGE, CommandFailed

if TYPE_CHECKING:
    from ops.erasure import Erased, Found
    from streams.settings import Settings

FOUND_COLUMNS = ("conversation", "status", "messages", "keys", "plain")
ERASED_COLUMNS = ("conversation", "seq", "repeated", "keys", "destroyed", "gone_from_topic", "plain")


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("erase")(erase)


def erase(
    conversations: Annotated[
        list[str] | None, typer.Argument(metavar="[CONVERSATION]…", help="Ids of conversations.", show_default=False)
    ] = None,
    participant: Annotated[
        str | None,
        typer.Option("--participant", help="Every conversation that this person opened, or spoke in."),
    ] = None,
    channel: Annotated[str | None, typer.Option("--channel", help="With --participant: only of this channel.")] = None,
    why: Annotated[str, typer.Option("--why", help="For the journal, where it stays: name nobody in it.")] = "",
    by: Annotated[str | None, typer.Option("--by", help="Who asks for it; your login where it is not given.")] = None,
    plain_too: Annotated[
        bool,
        typer.Option(
            "--plain-too", help="Erase also where messages were stored before TURNLOG_SEAL was on: those stay in Kafka."
        ),
    ] = False,
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
    """
    if bool(conversations) == bool(participant):
        raise CommandFailed("name conversations, or a --participant", USAGE)
    if channel and not participant:
        raise CommandFailed("--channel goes with --participant", USAGE)
    settings = settings_from(kafka, postgres, namespace)
    with translated_failures():
        found = asyncio.run(_found(settings, conversations or (), participant, channel))
    if dry_run or not found:
        show_rows([asdict(each) for each in found], FOUND_COLUMNS, output, empty="there is nothing to erase")
        return
    _require_sealed(found, plain_too=plain_too)
    if not yes:
        require_yes(f"Erase {len(found)} conversation{'s' * (len(found) > 1)} for good?")
    with translated_failures():
        done = asyncio.run(_erased(settings, found, by or getpass.getuser(), why))
    show_rows([asdict(each) for each in done], ERASED_COLUMNS, output, empty="")
    if len(done) < len(found) or not all(each.whole for each in done):
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


async def _erased(settings: Settings, found: Sequence[Found], by: str, why: str) -> list[Erased]:
    from ops.erasure import Erasure, NotErased

    erasure = Erasure(settings)
    done = []
    try:
        for number, each in enumerate(found, start=1):
            try:
                done.append(await erasure.erase(each, by=by, why=why))
            except NotErased as error:
                progress(f"{each.conversation}: {error}")
            except TimeoutError:
                progress(f"{each.conversation}: no worker decided it in time; it may yet. Run the same command again")
            if len(found) > 1:
                progress(f"{number} of {len(found)}")
    finally:
        await erasure.close()
    return done
