"""`turnlog key operator`: who may act as an operator by the API of a gateway."""

from __future__ import annotations

from typing import Annotated

import typer

from ops.cli.common import (
    KafkaOption,
    NamespaceOption,
    Output,
    OutputOption,
    PostgresOption,
    YesOption,
    emit,
    progress,
    require_yes,
    show_rows,
)
from ops.cli.credentials import asked
from ops.cli.errors import NEGATIVE

app = typer.Typer(name="operator", help="Tokens of operators, for `/v1/operator` of a gateway.", no_args_is_help=True)

NameArgument = Annotated[
    str, typer.Argument(metavar="NAME", help="Whose it is, as the journal will say.", show_default=False)
]
COLUMNS = ("name", "created_at", "revoked_at")


@app.command("add")
def add(
    name: NameArgument,
    postgres: PostgresOption = None,
    kafka: KafkaOption = None,
    namespace: NamespaceOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Make an operator's token and print it: it is shown this once. All done with it is in the journal, by this name.

    Example:

      turnlog key operator add eve
    """
    token = asked(postgres, kafka, namespace, lambda store: store.add_operator(name))
    if output is Output.TABLE:
        typer.echo(token)
    else:
        emit({"name": name, "token": token})


@app.command("list")
def list_tokens(
    postgres: PostgresOption = None,
    kafka: KafkaOption = None,
    namespace: NamespaceOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """List whose tokens there are, and were: name, when it was made and, if so, revoked (UTC).

    Example:

      turnlog key operator list
    """
    rows = asked(postgres, kafka, namespace, lambda store: store.operators())
    shown = [{"name": name, "created_at": created, "revoked_at": revoked} for name, created, revoked in rows]
    show_rows(shown, COLUMNS, output, empty="there are none yet: `turnlog key operator add NAME`")


@app.command("revoke")
def revoke(
    name: NameArgument,
    yes: YesOption = False,
    postgres: PostgresOption = None,
    kafka: KafkaOption = None,
    namespace: NamespaceOption = None,
) -> None:
    """End an operator's token, at once and at every gateway; the name stays taken. Exit code 1 if there is none.

    Example:

      turnlog key operator revoke eve --yes
    """
    if not yes:
        require_yes(f"End the token of {name}?")
    existed = asked(postgres, kafka, namespace, lambda store: store.revoke_operator(name))
    progress(f"the token of {name} is void" if existed else f"{name} has no token that is good")
    if not existed:
        raise typer.Exit(NEGATIVE)
