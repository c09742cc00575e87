"""Durations as people write them."""

from __future__ import annotations

import re
from typing import Final

from ops.cli.errors import USAGE, CommandFailed

SECONDS: Final = {"s": 1, "m": 60, "h": 60 * 60, "d": 24 * 60 * 60}
_RULE: Final = re.compile(r"(\d+)([smhd])")


def seconds_of(text: str, option: str) -> float:
    """`30s`, `5m`, `36h`, `7d` in seconds; `CommandFailed` names the option that breaks the rule."""
    match = _RULE.fullmatch(text.strip())
    if match is None:
        raise CommandFailed(f"{option}: {text!r} is no duration such as 30s, 5m, 36h or 7d", USAGE)
    return int(match[1]) * SECONDS[match[2]]
