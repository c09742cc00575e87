"""Places between two lines of a process at which it can be made to die or stop.

Classes of the product are replaced by ones that pass a failpoint on their way; nothing else differs, and nothing in the
product knows of it. On SIGUSR1 the file that TURNLOG_CHAOS_ORDERS names is read: `{"point": …, "do": "kill" | "stop"}`
arms one failpoint, which does it at its next passing, once.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import FrameType
from typing import Any, Final, ParamSpec, TypeVar

from ops.chaos.schedule import Failpoint

P = ParamSpec("P")
R = TypeVar("R")

ORDERS_VARIABLE: Final = "TURNLOG_CHAOS_ORDERS"
SIGNALS: Final = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}


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


def listening() -> Failpoints:
    """Those of this process, whose orders come with SIGUSR1 from here on."""
    points = Failpoints(Path(os.environ[ORDERS_VARIABLE]))
    signal.signal(signal.SIGUSR1, points.read)
    return points


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
