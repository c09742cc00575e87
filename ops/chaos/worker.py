"""`turnlog worker` as chaos runs it: the same process, with places where it can be made to die or stop.

    python -m ops.chaos.worker worker -o json --lifeline

The parts that the worker's one wiring place puts together are replaced there by ones that pass a failpoint on their
way; nothing else differs, and nothing in the product knows of it. On SIGUSR1 the file that TURNLOG_CHAOS_ORDERS names
is read: `{"point": …, "do": "kill" | "stop"}` arms one failpoint, which does it at its next passing, once.

TURNLOG_CHAOS_GUARD_OFF names one guard of the product that is taken out (`guards`): the control, which shows that the
suite would see it missing.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import FrameType
from typing import Any, ParamSpec, TypeVar

from ops.chaos import clock, guards
from ops.chaos.schedule import Failpoint

P = ParamSpec("P")
R = TypeVar("R")

SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}


class Failpoints:
    """Which one is armed."""

    def __init__(self, orders: Path) -> None:
        self._orders = orders
        self._armed: tuple[Failpoint, signal.Signals] | None = None

    def read(self, _number: int, _frame: FrameType | None) -> None:
        """The signal's handler. An empty file disarms."""
        text = self._orders.read_text("utf-8")
        if not text:
            self._armed = None
            return
        order = json.loads(text)
        self._armed = Failpoint(order["point"]), SIGNALS[order["do"]]

    def passing(self, point: Failpoint) -> None:
        """Die or stop here, if this is the one."""
        if self._armed is not None and self._armed[0] is point:
            number, self._armed = self._armed[1], None
            os.kill(os.getpid(), number)


def around(
    points: Failpoints,
    before: Failpoint | None,
    after: Failpoint | None,
    method: Callable[P, Coroutine[Any, Any, R]],
) -> Callable[P, Coroutine[Any, Any, R]]:
    """`method` with a failpoint in front of it and one behind."""

    async def passed(*arguments: P.args, **named: P.kwargs) -> R:
        if before is not None:
            points.passing(before)
        result = await method(*arguments, **named)
        if after is not None:
            points.passing(after)
        return result

    return passed


def furnish(points: Failpoints) -> None:
    """Put the failpoints where `streams.worker` wires its parts."""
    from streams import worker  # noqa: PLC0415 -- all of these after the guards and the clock
    from streams.fence.checkpoint import PostgresCheckpoints  # noqa: PLC0415
    from streams.runtime.kafka_clients import KafkaIntake, KafkaJournalProducer  # noqa: PLC0415

    class Producer(KafkaJournalProducer):
        """InitProducerId, begin, append, commit."""

        start = around(points, Failpoint.BEFORE_INIT, Failpoint.AFTER_INIT, KafkaJournalProducer.start)
        # A transaction begins once a batch is decided.
        begin = around(points, Failpoint.AFTER_DECIDE, None, KafkaJournalProducer.begin)
        append = around(points, None, Failpoint.AFTER_SEND, KafkaJournalProducer.append)
        commit = around(points, Failpoint.BEFORE_COMMIT, Failpoint.AFTER_COMMIT, KafkaJournalProducer.commit)

    class IntakeSource(KafkaIntake):
        """A poll that brought something."""

        async def poll(self, *arguments: Any, **named: Any) -> Any:
            polled = await super().poll(*arguments, **named)
            if len(polled):
                points.passing(Failpoint.AFTER_POLL)
            return polled

    class Checkpoints(PostgresCheckpoints):
        """A snapshot."""

        save = around(points, Failpoint.BEFORE_CHECKPOINT, Failpoint.AFTER_CHECKPOINT, PostgresCheckpoints.save)

    vars(worker).update(KafkaJournalProducer=Producer, KafkaIntake=IntakeSource, PostgresCheckpoints=Checkpoints)


def main() -> None:
    """The process."""
    clock.skew()
    guards.take_out()
    points = Failpoints(Path(os.environ["TURNLOG_CHAOS_ORDERS"]))
    signal.signal(signal.SIGUSR1, points.read)
    furnish(points)
    from ops.cli import main as turnlog  # noqa: PLC0415 -- after all of the above

    turnlog()


if __name__ == "__main__":
    main()
