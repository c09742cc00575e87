"""Moments as people write them: `2026-11-30T14:05:00`, `2026-11-30`, `-15m`; and for how long back."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime
from typing import Final

from ops.cli.durations import SECONDS
from ops.cli.errors import USAGE, CommandFailed

_AGO: Final = re.compile(r"-(\d+)(s|m|h|d)$")


def moment(text: str, option: str) -> int:
    """`text` as ms since the epoch; a time without an offset is UTC. `CommandFailed` names `option` if it is none."""
    ago = _AGO.match(text)
    if ago is not None:
        return round(time.time() * 1000) - int(ago[1]) * SECONDS[ago[2]] * 1000
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError:
        raise CommandFailed(
            f"{option}: {text!r} is no time: write 2026-11-30T14:05:00 (UTC), or -15m for a while ago (s, m, h, d)",
            USAGE,
        ) from None
    if parsed.tzinfo is None:
        parsed = parsed.replace(tzinfo=UTC)
    return round(parsed.timestamp() * 1000)
