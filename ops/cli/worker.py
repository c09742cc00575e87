"""`turnlog worker`: one process of sequencers."""

from __future__ import annotations

from typing import Annotated

import typer

from ops.cli.common import (
    KafkaOption,
    LifelineOption,
    NamespaceOption,
    Output,
    OutputOption,
    PostgresOption,
    ready_line,
    settings_from,
    translated_failures,
)


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("worker", rich_help_panel="Run")(worker)


def worker(
    kafka: KafkaOption = None,
    postgres: PostgresOption = None,
    namespace: NamespaceOption = None,
    metrics_port: Annotated[
        int | None,
        typer.Option("--metrics-port", envvar="TURNLOG_METRICS_PORT", help="Port of /metrics; 0 takes a free one."),
    ] = None,
    lifeline: LifelineOption = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Run one worker: it takes its share of the partitions and writes their journal. Start as many as you like.

    Workers share the partitions through the lease table: a new one gets its share, one that stops hands its share back,
    one that dies is replaced within two seconds. SIGTERM drains and exits with 0.

    Example:

      export TURNLOG_KAFKA=127.0.0.1:9092
      export TURNLOG_POSTGRES=postgresql://localhost/turnlog
      turnlog worker -o json
    """
    settings = settings_from(kafka, postgres, namespace, metrics_port=metrics_port)
    if lifeline:
        from ops.lifeline import hold_on_to_parent

        hold_on_to_parent()
    with translated_failures(quiet=False):
        from streams.worker import run

        run(settings, on_ready=ready_line("worker", output))
