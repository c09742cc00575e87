"""`turnlog schema`: the Avro schemas of the topics."""

from __future__ import annotations

import typer

app = typer.Typer(name="schema", help="The Avro schemas of the topics.", no_args_is_help=True)


@app.command("check")
def check() -> None:
    """Prove that every version of every schema in this installation can read what every other one wrote.

    Exit code 0: they can. 1: they cannot, each problem on a line of its own.

    Example:

      turnlog schema check
    """
    from schemas.check import main

    raise typer.Exit(main())
