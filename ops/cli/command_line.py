"""The whole command line: its nouns and verbs put together, and how it ends.

Exit codes, kept stable for scripts: 0 done; 1 done, and the answer is no (violations found, a check failed); 2 could
not be done; 64 the command line or its input was wrong; 130 interrupted.
"""

from __future__ import annotations

import os
import sys
import traceback
from importlib.metadata import version
from typing import Annotated, Any

import typer

from ops.cli import (
    archive,
    audit,
    bench,
    canary,
    channel,
    chaos,
    chat,
    conversation,
    demo,
    digest,
    dlq,
    doctor,
    erase,
    export,
    gateway,
    invocation,
    key,
    lease,
    member,
    migrate,
    projector,
    rebuild,
    replay,
    schema,
    scrub,
    send,
    sql,
    top,
    topic,
    transaction,
    up,
    worker,
)
from ops.cli.errors import COULD_NOT, INTERRUPTED, USAGE, CommandFailed
from ops.cli.prose import let_help_flow

EPILOG = (
    "Exit codes: 0 done · 1 done, and the answer is no · 2 could not be done · 64 wrong command line or input · "
    "130 interrupted.   Servers: TURNLOG_KAFKA=HOST:PORT and TURNLOG_POSTGRES=postgresql://… "
    "(`turnlog up` brings its own)."
)

app = typer.Typer(
    name="turnlog",
    epilog=EPILOG,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
# Click's own class, or that of the copy of it which newer releases of typer carry: the base of a public one.
UsageError: type[Any] = typer.BadParameter.__mro__[1]


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"turnlog {version('turnlog')}")
        raise typer.Exit


@app.callback()
def main(
    _version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Conversations between people and agents, as an ordered log: each turn answered by exactly one agent process."""


for module in (
    up,
    demo,
    worker,
    gateway,
    projector,
    send,
    chat,
    replay,
    export,
    sql,
    erase,
    scrub,
    top,
    doctor,
    migrate,
    rebuild,
    canary,
    chaos,
):
    module.register(app)
for noun in (
    channel,
    conversation,
    invocation,
    member,
    lease,
    dlq,
    topic,
    transaction,
    key,
    audit,
    archive,
    digest,
    bench,
    schema,
):
    app.add_typer(noun.app)
let_help_flow(app)


def run(arguments: list[str]) -> int:
    """Run one command line; returns its exit code. Messages go to stderr, data to stdout."""
    try:
        code = app(args=arguments, prog_name="turnlog", standalone_mode=False)
    except CommandFailed as failure:
        sys.stderr.write(f"error: {failure}\n")
        return failure.exit_code
    except UsageError as error:
        error.show()
        return USAGE
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read it has seen enough; what is still buffered must not fail when Python flushes it at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception:  # noqa: BLE001 -- the outermost edge: Python's own code for this, 1, would read as "the answer is no"
        traceback.print_exc()
        return COULD_NOT
    return code if isinstance(code, int) else 0
