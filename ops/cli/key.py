"""`turnlog key`: keys of the tenant API, and the keys that sign access tokens."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from ops.cli import digest_keys, operator_keys
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
    settings_from,
    show_rows,
    translated_failures,
)
from ops.cli.credentials import asked
from ops.cli.errors import NEGATIVE

if TYPE_CHECKING:
    from streams.fence.signing import KeyRing
    from streams.settings import Settings

app = typer.Typer(
    name="key", help="Keys of the tenant API, of operators, of access tokens, of digests.", no_args_is_help=True
)
app.add_typer(digest_keys.app)
app.add_typer(operator_keys.app)

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="What the key is for; unique.", show_default=False)]
COLUMNS = ("name", "created_at")


@app.command("list")
def list_keys(
    postgres: PostgresOption = None,
    kafka: KafkaOption = None,
    namespace: NamespaceOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """List the keys of the tenant API: name and creation time (UTC). The keys themselves are not kept.

    Example:

      turnlog key list
    """
    rows = asked(postgres, kafka, namespace, lambda store: store.api_keys())
    shown = [{"name": name, "created_at": created_at} for name, created_at in rows]
    show_rows(shown, COLUMNS, output, empty="there are no keys yet: `turnlog key add NAME`")


@app.command("add")
def add_key(
    name: NameArgument,
    postgres: PostgresOption = None,
    kafka: KafkaOption = None,
    namespace: NamespaceOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Make a key of the tenant API (`/api/v1`, header `x-api-key`), and print it: it is shown this once.

    Example:

      turnlog key add reporting
    """
    key = asked(postgres, kafka, namespace, lambda store: store.add_api_key(name))
    if output is Output.TABLE:
        typer.echo(key)
    else:
        emit({"name": name, "key": key})


@app.command("drop")
def drop_key(
    name: NameArgument,
    yes: YesOption = False,
    postgres: PostgresOption = None,
    kafka: KafkaOption = None,
    namespace: NamespaceOption = None,
) -> None:
    """End a key of the tenant API: whoever still uses it is refused from now on. Exit code 1 if there is none.

    Example:

      turnlog key drop reporting --yes
    """
    if not yes:
        require_yes(f"End the key {name}?")
    existed = asked(postgres, kafka, namespace, lambda store: store.drop_api_key(name))
    progress(f"the key {name} is void" if existed else f"there is no key {name}")
    if not existed:
        raise typer.Exit(NEGATIVE)


@app.command("rotate")
def rotate(
    yes: YesOption = False,
    postgres: PostgresOption = None,
    kafka: KafkaOption = None,
    namespace: NamespaceOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Sign access tokens with a new key from now on. Tokens in use stay valid until they end.

    Keys that stopped signing longer ago than a token lives (TURNLOG_TOKEN_TTL_S) are retired. Gateways take the new
    key by themselves. The keys are sealed by TURNLOG_MASTER_KEY where it is set.

    Example:

      turnlog key rotate --yes
    """
    settings = settings_from(kafka, postgres, namespace)
    if not yes:
        require_yes("Sign with a new key?")
    with translated_failures():
        ring = asyncio.run(_rotated(settings))
    if output is Output.TABLE:
        progress(f"key {ring.kid} signs; {len(ring.keys)} keys verify")
    else:
        emit({"kid": ring.kid, "verify": sorted(ring.keys)})


async def _rotated(settings: Settings) -> KeyRing:
    from streams.fence.signing import SigningKeyStore

    store = SigningKeyStore(settings.postgres, settings.master_key)
    try:
        return await store.rotate(token_ttl_s=settings.token_ttl_s)
    finally:
        await store.close()
