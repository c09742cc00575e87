"""A process that starts an embedded stack, says where it is in one line of JSON, and holds it until it is ended."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

import ops.embedded


def main() -> None:
    # As in a terminal, also when the tests were started in the background, where a shell has SIGINT ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    data = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    with ops.embedded.start(data) as stack:
        told = {
            "data": str(stack.data),
            "kafka": stack.kafka,
            "postgres": stack.postgres,
            "servers": [stack.kafka_pid, stack.postgres_pid],
            "supervisor": stack.supervisor_pid,
        }
        print(json.dumps(told), flush=True)  # noqa: T201
        signal.pause()


if __name__ == "__main__":
    main()
