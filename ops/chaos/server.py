"""`turnlog gateway` as chaos runs it: with failpoints, and on a clock of its own if it is told so.

python -m ops.chaos.server gateway --port 8080 -o json --lifeline
"""

from __future__ import annotations

from typing import Any

from ops.chaos import clock, failpoints
from ops.chaos.failpoints import Failpoints, around
from ops.chaos.schedule import Failpoint


def furnish(points: Failpoints) -> None:
    """Put the failpoints between what Kafka has and what anybody is told of it."""
    from connectors.gateway.commands import Commands  # noqa: PLC0415 -- what it imports takes the clock as it finds it
    from connectors.gateway.hub import Hub  # noqa: PLC0415

    show = Hub.apply

    def apply(hub: Hub, *arguments: Any, **named: Any) -> None:
        points.passing(Failpoint.BEFORE_SHOW)
        show(hub, *arguments, **named)

    Hub.apply = apply  # type: ignore[method-assign, assignment]
    Commands._send = around(points, None, Failpoint.AFTER_INTAKE, Commands._send)  # type: ignore[method-assign]
    Commands._outcome = around(points, None, Failpoint.BEFORE_TELL, Commands._outcome)  # type: ignore[method-assign]


def main() -> None:
    """The process."""
    clock.skew()
    furnish(failpoints.listening())
    from ops.cli import main as turnlog  # noqa: PLC0415 -- after all of the above

    turnlog()


if __name__ == "__main__":
    main()
