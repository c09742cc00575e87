"""`turnlog gateway`: one process that people and agents connect to."""

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
    require_port,
    settings_from,
    translated_failures,
)


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("gateway", rich_help_panel="Run")(gateway)


def gateway(
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="Port to listen on; 0 takes a free one.")
    ] = 8080,
    host: Annotated[
        str | None, typer.Option("--host", envvar="TURNLOG_HOST", help="Address to listen on (default: 127.0.0.1).")
    ] = None,
    kafka: KafkaOption = None,
    postgres: PostgresOption = None,
    namespace: NamespaceOption = None,
    lifeline: LifelineOption = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Run one gateway: HTTP, WebSocket and SSE for people and agents on one port. Start as many as you like.

    Any gateway can show any conversation. SIGTERM drains: readiness off, its agents' runs are handed on, sockets close
    with a hint when to come back, exit 0.

    Example:

      export TURNLOG_KAFKA=127.0.0.1:9092
      export TURNLOG_POSTGRES=postgresql://localhost/turnlog
      turnlog gateway --port 8081 -o json
    """
    settings = settings_from(kafka, postgres, namespace, host=host)
    require_port(settings.host, port)
    if lifeline:
        from ops.lifeline import hold_on_to_parent

        hold_on_to_parent()
    with translated_failures(quiet=False):
        from connectors.gateway import run

        run(settings, host=settings.host, port=port, on_ready=ready_line("gateway", output))
