"""Any other process of `turnlog` as chaos runs it: on a clock of its own, if it is told so.

python -m ops.chaos.server gateway --port 8080 -o json --lifeline
"""

from __future__ import annotations

from ops.chaos import clock


def main() -> None:
    """The process."""
    clock.skew()
    from ops.cli import main as turnlog  # noqa: PLC0415 -- what it imports takes the clock as it finds it

    turnlog()


if __name__ == "__main__":
    main()
