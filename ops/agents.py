"""An agent as a child process: of the demo, the benches and the fault suite."""

from __future__ import annotations

import asyncio
import json
import os
import sys

from turnlog import Agent


def run_as_child(agent: Agent) -> None:
    """Serve until SIGTERM. Prints {event: ready, pid, member} as a line on stdout once it is connected."""

    def ready() -> None:
        sys.stdout.write(json.dumps({"event": "ready", "pid": os.getpid(), "member": agent.member}) + "\n")
        sys.stdout.flush()

    asyncio.run(agent.run(on_ready=ready))
