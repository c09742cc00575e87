"""`turnlog demo`: dialogues, two agents, a kill, and the proof."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ops.cli.errors import COULD_NOT, INTERRUPTED, NEGATIVE, USAGE, CommandFailed

if TYPE_CHECKING:
    from ops.demo.dialogues import Dialogue

COUNT = 8


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("demo", rich_help_panel="Run")(demo)


def demo(
    dialogues: Annotated[
        Path | None,
        typer.Option(
            "--dialogues",
            help="JSON lines of {dialogue_id, turns: [{speaker: USER|SYSTEM, text}]}. Without it: invented ones.",
        ),
    ] = None,
    count: Annotated[
        int, typer.Option("--count", min=1, help="How many dialogues to replay at the same time.")
    ] = COUNT,
    plain: Annotated[bool, typer.Option("--plain", help="Plain lines, as in a pipe, also in a terminal.")] = False,
) -> None:
    """See it work: people talk to two agent processes, one of which is killed in the middle of an answer.

    Starts the whole stack on this machine for the length of the demo (as `turnlog up` does; TURNLOG_KAFKA and
    TURNLOG_POSTGRES, both, point to existing servers instead). What is shown is read from the log of committed events.
    It ends with `turnlog audit verify`; the exit code is 0 only if every turn was answered exactly once and the audit
    is content.

    Examples:

      turnlog demo

      turnlog demo --dialogues dialogues.jsonl --count 20 --plain | tee demo.log
    """
    from ops.demo.dialogues import SAMPLE, DialogueError, read_dialogues

    source = dialogues or SAMPLE
    try:
        chosen = read_dialogues(source, count)
    except (DialogueError, OSError) as error:
        raise CommandFailed(str(error), USAGE) from error
    raise typer.Exit(asyncio.run(_played(chosen, source, plain=plain)))


async def _played(dialogues: list[Dialogue], source: Path, *, plain: bool) -> int:
    from rich.console import Console

    from ops.children import ChildFailed
    from ops.demo.board import Board
    from ops.demo.play import play
    from ops.demo.show import LiveShow, PlainShow
    from ops.embedded import StackUnavailable

    running = asyncio.current_task()
    if running is not None:  # SIGTERM drains like Ctrl-C
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, running.cancel)
    console, board = Console(), Board()
    live = console.is_terminal and not plain
    with LiveShow(console, board) if live else PlainShow(console) as show:
        try:
            held = await play(dialogues, source, board, show)
        except (StackUnavailable, ChildFailed) as error:
            raise CommandFailed(str(error), COULD_NOT) from error
        except asyncio.CancelledError:
            show.note("interrupted: everything that was started is stopped")
            return INTERRUPTED
    return 0 if held else NEGATIVE
