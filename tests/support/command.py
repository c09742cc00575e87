"""The `turnlog` command as a person types it."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

PATIENCE_S = 120.0


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """The one JSON document on stdout."""
        return json.loads(self.out)


def turnlog(*arguments: str, environment: Mapping[str, str] | None = None) -> Ended:
    """Run it to its end. Of this process's environment it sees no TURNLOG_ variable but those given."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TURNLOG_")}
    ended = subprocess.run(
        [sys.executable, "-m", "ops.cli", *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        env={**kept, **(environment or {})},
    )
    return Ended(ended.returncode, ended.stdout, ended.stderr)


async def turnlog_async(*arguments: str, environment: Mapping[str, str] | None = None) -> Ended:
    """`turnlog`, without holding up the event loop."""
    return await asyncio.to_thread(turnlog, *arguments, environment=environment)
