"""`turnlog schema`: the Avro schemas of the topics, the JSON Schemas of the socket."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ops.cli.common import (
    DryRunOption,
    NamespaceOption,
    Output,
    OutputOption,
    YesOption,
    progress,
    require_yes,
    show_rows,
    translated_failures,
)
from ops.cli.errors import NEGATIVE, USAGE, CommandFailed

if TYPE_CHECKING:
    from ops.registry import Finding
    from streams.topics import Topics

app = typer.Typer(
    name="schema", help="The Avro schemas of the topics, the JSON Schemas of the socket.", no_args_is_help=True
)


RegistryOption = Annotated[
    str | None,
    typer.Option(
        "--registry",
        envvar="TURNLOG_SCHEMA_REGISTRY",
        metavar="URL",
        help="A Confluent schema registry; its address may hold a user and a password.",
        show_default=False,
        show_envvar=True,
    ),
]


@app.command("check")
def check(
    registry: RegistryOption = None, namespace: NamespaceOption = None, output: OutputOption = Output.TABLE
) -> None:
    """Prove that every version of every schema in this installation can read what every other one wrote.

    With a registry, ask it too whether it would take each schema as the next version of its subject, and whether it
    holds the subject to the compatibility that Turnlog promises: a gate for a deployment's pipeline.

    Exit code 0: they can, and it would. 1: not so, each problem on a line of its own.

    Examples:

      turnlog schema check

      turnlog schema check --registry https://registry.example.org
    """
    from schemas.check import main

    code = main()
    if code == 0 and registry is not None:
        with translated_failures():
            from ops import registry as registries

            found = registries.check(registries.SchemaRegistry(registry), _topics(namespace))
        _show(found, output, empty="the registry would take every schema")
        code = NEGATIVE if found else 0
    raise typer.Exit(code)


@app.command("diff")
def diff(
    registry: RegistryOption = None, namespace: NamespaceOption = None, output: OutputOption = Output.TABLE
) -> None:
    """Show what differs between a registry's latest version of each schema and this release's.

    Exit code 0: nothing differs. 1: something does, a line each: `newer` is only here, `older` only in the registry.

    Example:

      turnlog schema diff --registry https://registry.example.org
    """
    with translated_failures():
        from ops import registry as registries

        found = registries.diff(registries.SchemaRegistry(_required(registry)), _topics(namespace))
    _show(found, output, empty="the registry has what this release has")
    raise typer.Exit(NEGATIVE if found else 0)


@app.command("push")
def push(
    registry: RegistryOption = None,
    namespace: NamespaceOption = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Register this release's schemas, with every version that ever wrote a record, and set each one's compatibility.

    A process registers what it writes when it starts; do it before, where processes may not, or where a pipeline is to
    find out. Nothing is registered when the registry would refuse one of them.

    Exit code 0: done, or there was nothing to do. 1: the registry would refuse, or it was not confirmed.

    Examples:

      turnlog schema push --registry https://registry.example.org --dry-run

      turnlog schema push --registry https://registry.example.org --yes
    """
    with translated_failures():
        from ops import registry as registries

        client, topics = registries.SchemaRegistry(_required(registry)), _topics(namespace)
        planned = registries.push(client, topics, dry_run=True)
        refused = any(finding.what == "incompatible" for finding in planned)
        if refused or dry_run or not planned:
            _show(planned, output, empty="the registry has it all")
            raise typer.Exit(NEGATIVE if refused else 0)
        if not yes:
            for finding in planned:
                progress(f"{finding.subject}: {finding.told}")
            require_yes(f"Change {client.address}?")
        done = registries.push(client, topics, dry_run=False)
    _show(done, output, empty="the registry has it all")


def _required(registry: str | None) -> str:
    if registry is None:
        raise CommandFailed("which registry? --registry URL, or TURNLOG_SCHEMA_REGISTRY", USAGE)
    return registry


def _topics(namespace: str | None) -> Topics:
    from streams.topics import Topics

    return Topics(namespace or "")


def _show(found: Sequence[Finding], output: Output, *, empty: str) -> None:
    show_rows([finding.document() for finding in found], ("subject", "what", "told"), output, empty=empty)


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
