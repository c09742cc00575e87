"""`turnlog schema`: the Avro schemas of the topics, the JSON Schemas of the socket."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    name="schema", help="The Avro schemas of the topics, the JSON Schemas of the socket.", no_args_is_help=True
)


@app.command("check")
def check() -> None:
    """Prove that every version of every schema in this installation can read what every other one wrote.

    Exit code 0: they can. 1: they cannot, each problem on a line of its own.

    Example:

      turnlog schema check
    """
    from schemas.check import main

    raise typer.Exit(main())


@app.command("protocol")
def protocol(
    out: Annotated[
        Path | None,
        typer.Option("--out", help="A folder: one file for each side of each kind of socket, and asyncapi.json."),
    ] = None,
) -> None:
    """Write the socket's frames as JSON Schemas (2020-12) and as an AsyncAPI document, as this release speaks them.

    Without --out the AsyncAPI document goes to stdout; it has every schema in it.

    Examples:

      turnlog schema protocol | jq '.components.schemas | keys'

      turnlog schema protocol --out docs/reference/protocol
    """
    from connectors.gateway.protocol import wire_schema

    described = wire_schema.asyncapi()
    if out is None:
        typer.echo(_text(described), nl=False)
        return
    out.mkdir(parents=True, exist_ok=True)
    files = {f"{name}.schema.json": schema for name, schema in wire_schema.schemas().items()}
    for name, document in (files | {"asyncapi.json": described}).items():
        (out / name).write_text(_text(document), encoding="utf-8")
        typer.echo(str(out / name), err=True)


def _text(document: object) -> str:
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"
