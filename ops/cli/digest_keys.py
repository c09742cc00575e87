"""`turnlog key digest`: the keys that sign digests, and those that are believed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from ops.cli.common import Output, OutputOption, emit, progress, show_rows
from ops.cli.digest import TrustOption, key_failures

app = typer.Typer(name="digest", help="Keys that sign digests, and those that are believed.", no_args_is_help=True)

COLUMNS: Final = ("key_id", "signs")


@app.command("new")
def new(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Where the private key goes.", show_default=False)],
    output: OutputOption = Output.TABLE,
) -> None:
    """Make a key that signs digests (Ed25519): the private one in FILE, for its owner's eyes, the public in FILE.pub.

    Nothing is written over. To rotate: make a new one, sign with it from then on, and go on trusting the old FILE.pub
    for as long as what it signed is to be believed.

    Example:

      turnlog key digest new /etc/turnlog/digest-2026.pem
    """
    with key_failures():
        from ops.digest.keys import PUBLIC_SUFFIX, new_key

        made = new_key(file)
    if output is Output.TABLE:
        typer.echo(made.id)
        progress(f"sign with --key {file} (or TURNLOG_DIGEST_KEY); whoever verifies needs {file}{PUBLIC_SUFFIX}")
    else:
        emit({"key_id": made.id, "private": str(file), "public": f"{file}{PUBLIC_SUFFIX}"})


@app.command("list")
def list_keys(trust: TrustOption = None, output: OutputOption = Output.TABLE) -> None:
    """List the keys that are believed (`--trust`, TURNLOG_DIGEST_TRUST), and which signs (TURNLOG_DIGEST_KEY).

    Example:

      turnlog key digest list --trust /etc/turnlog/trusted
    """
    import os

    with key_failures():
        from ops.digest.keys import KEY_VARIABLE, signing_key, trusted

        signer = signing_key() if os.environ.get(KEY_VARIABLE) else None
        ids = trusted(trust or (), signer).ids
    rows = [{"key_id": key_id, "signs": signer is not None and key_id == signer.id} for key_id in ids]
    show_rows(rows, COLUMNS, output, empty="no key is trusted")
