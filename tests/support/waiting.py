"""Waiting for what another process or server does: the condition is asked again and again, within a limit."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

LIMIT_S = 120.0
"""Only a failing test waits it out; what is looked at may be a command that starts on a busy machine."""
POLL_S = 0.02


async def until(condition: Callable[[], Any], *, limit_s: float = LIMIT_S) -> Any:
    """The first truthy value of `condition`, which may be a coroutine function. Raises `TimeoutError`."""
    async with asyncio.timeout(limit_s):
        while True:
            value = condition()
            found = await value if isinstance(value, Awaitable) else value
            if found:
                return found
            await asyncio.sleep(POLL_S)
