"""How a command says that it failed, and the exit codes."""

from __future__ import annotations

from typing import Final

NEGATIVE: Final = 1
COULD_NOT: Final = 2
USAGE: Final = 64
"""`EX_USAGE` of sysexits.h."""
INTERRUPTED: Final = 130
"""128 + SIGINT, as shells say it."""


class CommandFailed(Exception):
    """A command could not be done; the message says why and the way out. `exit_code` is the process's."""

    def __init__(self, message: str, exit_code: int = COULD_NOT) -> None:
        super().__init__(message)
        self.exit_code = exit_code
