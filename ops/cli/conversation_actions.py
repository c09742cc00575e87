"""`turnlog conversation move|release|close`: what an operator does about a conversation that does not go on."""

from __future__ import annotations

import asyncio
import getpass
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ops.cli.actions import ByOption, WhyOption, decided, require_taken
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
    translated_failures,
)
from ops.cli.errors import NEGATIVE, CommandFailed

if TYPE_CHECKING:
    from streams.core.events import Event
    from streams.settings import Settings

IdArgument = Annotated[str, typer.Argument(metavar="ID", help="Id of the conversation.", show_default=False)]


def register(app: typer.Typer) -> None:
    """Add the commands to `turnlog conversation`."""
    app.command("move")(move)
    app.command("release")(release)
    app.command("close")(close)


def move(
    conversation: IdArgument,
    to: Annotated[str, typer.Option("--to", metavar="MEMBER", help="Who gets it: see `turnlog member list`.")],
    by: ByOption = None,
    why: WhyOption = "operator",
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    kafka: KafkaOption = None,
    postgres: PostgresOption = None,
    namespace: NamespaceOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Give a conversation to a member: its open runs now, and its turns for as long as that member is there.

    A run goes on where it stopped if the member can continue it, and begins anew if not; the agent that had it is told
    to stop, and nothing more of it is stored. A call that is executed once at most stays where it is. Once the member
    is gone or drains, the hash decides again, as it does after `turnlog conversation release`.

    Exit code 1 if the conversation is closed, with a human, or gets no agents of that member's group.

    Example:

      turnlog conversation move 6f9619ff-8b86-d011 --to gw-5f0c19a2b3d4.7
    """

    def act(settings: Settings, who: str) -> Coroutine[Any, Any, Event]:
        from ops.actions import move

        return move(settings, conversation, to=to, by=who, reason=why)

    settings = settings_from(kafka, postgres, namespace)
    _do(settings, conversation, "move", by, output, act, to=to, dry_run=dry_run, yes=yes)


def release(
    conversation: IdArgument,
    group: Annotated[str, typer.Option("--group", help="Only in this group, CHANNEL/GROUP; else in all.")] = "",
    by: ByOption = None,
    why: WhyOption = "operator",
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    kafka: KafkaOption = None,
    postgres: PostgresOption = None,
    namespace: NamespaceOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Take a conversation from who has it: for an agent that hangs in it, while it works elsewhere.

    Each open run goes to the next member in rank, or to the same one again where there is no other; a move is undone.
    Later turns go where the hash says, maybe to the same member: `turnlog member drain` sends that one away.

    Exit code 1 if the conversation is closed or with a human.

    Example:

      turnlog conversation release 6f9619ff-8b86-d011 --why "hangs"
    """

    def act(settings: Settings, who: str) -> Coroutine[Any, Any, Event]:
        from ops.actions import release

        return release(settings, conversation, group=group, by=who, reason=why)

    settings = settings_from(kafka, postgres, namespace)
    _do(settings, conversation, "release", by, output, act, dry_run=dry_run, yes=yes)


def close(
    conversation: IdArgument,
    by: ByOption = None,
    why: WhyOption = "operator",
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    kafka: KafkaOption = None,
    postgres: PostgresOption = None,
    namespace: NamespaceOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Close a conversation: its open runs end, and it takes no turn until it is reopened. Closing it twice is nothing.

    Example:

      turnlog conversation close 6f9619ff-8b86-d011 --why "spam" --yes
    """

    def act(settings: Settings, who: str) -> Coroutine[Any, Any, Event]:
        from ops.actions import close

        return close(settings, conversation, by=who, reason=why)

    settings = settings_from(kafka, postgres, namespace)
    _do(settings, conversation, "close", by, output, act, dry_run=dry_run, yes=yes)


def _do(
    settings: Settings,
    conversation: str,
    what: str,
    by: str | None,
    output: Output,
    act: Callable[[Settings, str], Coroutine[Any, Any, Event]],
    *,
    to: str | None = None,
    dry_run: bool,
    yes: bool,
) -> None:
    with translated_failures():
        from ops.conversations import shown

        before = asyncio.run(shown(settings, conversation, progress))
        if before is None:
            raise CommandFailed(f"there is no conversation {conversation}", NEGATIVE)
        if dry_run:
            if to is not None:
                _require_member(settings, before["partition"], to)
            _tell(conversation, what, before, None, output, to)
            return
        if not yes:
            require_yes(f"{what.capitalize()}{_to(to)}: {conversation}, {_state(before)}?")
        outcome = decided(act(settings, by or getpass.getuser()))
        after = asyncio.run(shown(settings, conversation, progress))
    _tell(conversation, what, before, after, output, to)
    require_taken(outcome)


def _require_member(settings: Settings, partition: int, member: str) -> None:
    """Of a member that the read model does not show, unless it may only be behind: a worker refuses it in any case."""
    from ops.conversations import knows_member

    if asyncio.run(knows_member(settings, partition, member)) is False:
        raise CommandFailed(f"there is no member {member}; `turnlog member list` shows those there are", NEGATIVE)


def _to(member: str | None) -> str:
    return "" if member is None else f" to {member}"


def _tell(
    conversation: str,
    what: str,
    before: dict[str, Any],
    after: dict[str, Any] | None,
    output: Output,
    to: str | None,
) -> None:
    if output is not Output.TABLE:
        action = f"{what}{_to(to)}"
        emit(
            {"conversation": conversation, "action": action, "dry_run": after is None}
            | {"before": before, "after": after}
        )
        return
    progress(f"{conversation} {'is' if after is None else 'was'} {_state(before)}")
    progress(f"would {what} it{_to(to)}" if after is None else f"it is {_state(after)}")


def _state(shown: dict[str, Any]) -> str:
    owners = ", ".join(f"{group} → {member}" for group, member in shown["owners"].items()) or "nobody's"
    runs = ", ".join(f"turn {run['turn_seq']} with {run['member'] or 'nobody'}" for run in shown["open_runs"])
    return f"{shown['status']}, {owners}" + (f", open: {runs}" if runs else ", no open run")
