"""What commands share that put into the journal what an operator does: who and why, and what a worker decided of it."""

from __future__ import annotations

import asyncio
import getpass
import os
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ops.cli.common import progress, settings_from
from ops.cli.errors import NEGATIVE, CommandFailed
from ops.cli.servers import NO_POSTGRES

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from streams.core.events import Event
    from streams.settings import Settings

ByOption = Annotated[str | None, typer.Option("--by", help="Who wants it, for the journal.  [default: your user]")]
ReasonOption = Annotated[str, typer.Option("--reason", help="Why, for the journal.")]
WhyOption = Annotated[str, typer.Option("--why", help="Why, for the journal.")]
WhyShownOption = Annotated[str, typer.Option("--why", help="With --show-text: why, for the journal.")]


def decided(asking: Coroutine[Any, Any, Event]) -> Event:
    """What a worker decided, a refusal too. `CommandFailed`: nothing in time."""
    try:
        return asyncio.run(asking)
    except TimeoutError:
        raise CommandFailed(
            "no worker has decided it in time; it may be decided yet. `turnlog lease list` shows who writes"
        ) from None


def require_taken(outcome: Event) -> None:
    """`CommandFailed` with `NEGATIVE` for what was refused."""
    from streams.core.events import Refused

    if isinstance(outcome, Refused):
        raise CommandFailed(f"{outcome.reason}: {outcome.detail}", NEGATIVE)


def note_shown(settings: Settings | None, what: str, why: str, *, kafka: str | None, namespace: str | None) -> None:
    """Note, before it happens, that this user is shown what was said; raises what Kafka raises.

    `settings` None: it lies in files, which know of no deployment. Then the one is told that the options or the
    environment name; where they name none, the person is told that nobody is.
    """
    from ops.shown import note_shown as note

    if settings is None and not (kafka or os.environ.get("TURNLOG_KAFKA")):
        progress(
            "NOT noted in any journal: no deployment is named (--kafka, TURNLOG_KAFKA) to write down who is shown it"
        )
        return
    if settings is None:
        settings = settings_from(kafka, NO_POSTGRES, namespace)
    asyncio.run(note(settings, what=what, by=getpass.getuser(), why=why, partition=0))
