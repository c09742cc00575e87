"""The `turnlog` command in a process that can be cut off from Kafka: `python -m tests.support.cut_off worker -o json`.

SIGUSR1 cuts it off as a network does that drops packets: what it sends gets no answer, and it cannot connect anew.
SIGUSR2 mends it. Its connection to PostgreSQL is well all the time.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from typing import Any

from aiokafka.conn import AIOKafkaConnection

cut = False
send, connect = AIOKafkaConnection.send, AIOKafkaConnection.connect


async def _silence(connection: Any) -> None:
    await asyncio.sleep(connection._request_timeout)
    raise TimeoutError


def _send(self: Any, request: Any, expect_response: bool = True) -> Any:
    return _silence(self) if cut else send(self, request, expect_response=expect_response)


async def _connect(self: Any) -> Any:
    if cut:
        await _silence(self)
    return await connect(self)


def _set(number: int, _frame: object) -> None:
    global cut  # noqa: PLW0603 -- the process's own network
    cut = number == signal.SIGUSR1


def main() -> None:
    from ops.cli.command_line import run  # noqa: PLC0415 -- after the patches

    AIOKafkaConnection.send, AIOKafkaConnection.connect = _send, _connect
    signal.signal(signal.SIGUSR1, _set)
    signal.signal(signal.SIGUSR2, _set)
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
