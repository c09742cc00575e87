"""What commands share that put into the journal what an operator does: who and why, and what a worker decided of it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ops.cli.errors import NEGATIVE, CommandFailed

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from streams.core.events import Event

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
