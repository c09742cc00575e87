"""Any process as chaos runs it, on a clock of its own if it is told so.

python -m ops.chaos.skewed MODULE ARGUMENT …
"""

from __future__ import annotations

import runpy
import sys

from ops.chaos import clock


def main() -> None:
    """The process: what MODULE imports takes the clock as it finds it."""
    clock.skew()
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
