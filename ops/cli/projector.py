"""`turnlog projector`: one process that writes the read model."""

from __future__ import annotations

import asyncio
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
    translated_failures,
)
from ops.cli.errors import COULD_NOT


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

      export TURNLOG_KAFKA=127.0.0.1:9092
      export TURNLOG_POSTGRES=postgresql://localhost/turnlog
      turnlog projector -o json
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
    with translated_failures(quiet=False):
        # Here, and not only in the app: faust says what is missing in many lines.
        from streams.deployment import joined
        from streams.logs import configure_logs

        configure_logs(settings.log_format)
        asyncio.run(joined(settings))
    from faust.cli.faust import cli

    try:
        cli(["--quiet", "-A", "streams.app", "worker", "--without-web"])
    except SystemExit as ended:
        # faust ends with 1 where it could not go on, which reads as "the answer is no" here.
        raise typer.Exit(COULD_NOT if ended.code else 0) from ended
