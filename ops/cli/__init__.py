"""The `turnlog` command: noun, then verb. One module a noun; each imports what it runs only when it runs it."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line of this process and exit with a documented code (`command_line`)."""
    try:
        from ops.cli.command_line import run
    except ModuleNotFoundError as missing:
        if missing.name != "typer":
            raise
        sys.stderr.write("error: the turnlog command needs the servers' packages: pip install 'turnlog[server]'\n")
        sys.exit(2)
    sys.exit(run(sys.argv[1:]))
