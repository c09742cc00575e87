"""`turnlog projector`: one process that writes the read model."""

from __future__ import annotations

import os

import typer

from ops.cli.common import (
    KafkaOption,
    LifelineOption,
    NamespaceOption,
    Output,
    OutputOption,
    PostgresOption,
    settings_from,
)


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("projector", rich_help_panel="Run")(projector)


def projector(
    kafka: KafkaOption = None,
    postgres: PostgresOption = None,
    namespace: NamespaceOption = None,
    lifeline: LifelineOption = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Run one projector: it reads the journal and keeps transcripts, runs, owners and members in PostgreSQL.

    The same as `faust -A streams.app worker`. Start as many as there are partitions; they share them.

    Example:

      TURNLOG_KAFKA=127.0.0.1:9092 TURNLOG_POSTGRES=postgresql://localhost/turnlog turnlog projector -o json
    """
    settings = settings_from(kafka, postgres, namespace)
    # The app is found by faust through its name, so that the environment is its only way to settings.
    os.environ.update(
        TURNLOG_KAFKA=settings.kafka, TURNLOG_POSTGRES=settings.postgres, TURNLOG_NAMESPACE=settings.namespace
    )
    if output is not Output.TABLE:
        os.environ["TURNLOG_READY"] = "json"
    if lifeline:
        from ops.lifeline import hold_on_to_parent

        hold_on_to_parent()
    from faust.cli.faust import cli

    cli(["-A", "streams.app", "worker", "--without-web"])
