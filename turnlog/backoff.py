"""How long to wait before the next attempt."""

from __future__ import annotations

import random
from collections.abc import Callable


class Backoff:
    """Exponential delays with jitter, so that a thousand agents do not come back in the same instant.

    Each delay is drawn evenly from the upper half of `first * 2^n`, capped at `most` seconds; a delay that the server
    asked for is a floor under it, with up to a quarter on top.
    """

    def __init__(
        self, *, first: float = 0.25, most: float = 30.0, uniform: Callable[[float, float], float] = random.uniform
    ) -> None:
        self.first = first
        self.most = most
        self._uniform = uniform
        self._attempts = 0

    @property
    def attempts(self) -> int:
        """Attempts since the last success."""
        return self._attempts

    def next(self, asked: float | None = None) -> float:
        """The next delay in seconds. `asked`: what the server said to wait."""
        # 2^16 times any sensible first delay is far above the cap; it keeps the power from growing for ever.
        ceiling = min(self.most, self.first * 2.0 ** min(self._attempts, 16))
        self._attempts += 1
        if asked is not None:
            return asked + self._uniform(0, asked / 4)
        return self._uniform(ceiling / 2, ceiling)

    def reset(self) -> None:
        """The attempt succeeded."""
        self._attempts = 0
