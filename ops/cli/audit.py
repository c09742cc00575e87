"""`turnlog audit`: proof from the log."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from ops.cli.common import (
    KafkaOption,
    NamespaceOption,
    Output,
    OutputOption,
    PostgresOption,
    emit,
    progress,
    settings_from,
    translated_failures,
)
from ops.cli.errors import NEGATIVE

app = typer.Typer(name="audit", help="Proof from the log.", no_args_is_help=True)


@app.command("verify")
def verify(
    partition: Annotated[int | None, typer.Option("--partition", min=0, help="Look at this partition only.")] = None,
    conversation: Annotated[
        str | None, typer.Option("--conversation", help="Look at this conversation's partition; tell of it alone.")
    ] = None,
    kafka: KafkaOption = None,
    postgres: PostgresOption = None,
    namespace: NamespaceOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Prove from the journal that no turn was lost, or answered twice, or given to the wrong member.

    Reads every partition's journal up to what is committed now, decides every owner again, folds the state again and
    compares it with the checkpoints, and compares the consumed intake with its outcomes. The system may be running.

    Exit code 0: no violation. 1: violations, listed. 2: it could not be checked.

    Examples:

      turnlog audit verify

      turnlog audit verify --conversation 6f9619ff-8b86-d011 -o json
    """
    settings = settings_from(kafka, postgres, namespace)
    with translated_failures():
        from ops.audit.verify import Scope, verify_cluster

        scope = Scope(partition=partition, conversation=conversation)
        verdict = asyncio.run(verify_cluster(settings, scope, progress))
    if output is Output.TABLE:
        typer.echo(told(verdict.document()))
    else:
        emit(verdict.document())
    raise typer.Exit(0 if verdict.ok else NEGATIVE)


def told(verdict: dict[str, object]) -> str:
    """The verdict for people: `document` of a `Verdict` in sentences."""
    counts = (
        f"{verdict['events']:,} events: {verdict['turns']:,} turns, {verdict['answered']:,} answered, "
        f"{verdict['open']:,} open, {verdict['ended']:,} ended without an answer, {verdict['unrouted']:,} for nobody; "
        f"{verdict['takeovers']:,} takeovers ({verdict['continued']:,} continued), {verdict['fenced']:,} frames fenced"
    )
    lines = [counts]
    violations = verdict["violations"]
    assert isinstance(violations, list)  # noqa: S101 -- `Verdict.document`
    for each in violations:
        where = f"partition {each['partition']}, lsn {each['lsn']}, conversation {each['conversation'] or '-'}"
        lines.append(f"VIOLATION of invariant {each['invariant']} ({where}): {each['problem']}")
    lines.append("ok: every promise holds" if verdict["ok"] else f"NOT ok: {verdict['violations_total']} violations")
    return "\n".join(lines)
