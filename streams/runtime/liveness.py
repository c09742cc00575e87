"""Which gateways are alive: soft state of the runtime, in log time, that the core learns of only as `GatewayExpired`.

Nothing of it is stored: after a claim, or after a gap in the clock, every gateway gets its full time anew, because time
without a writer counts against nobody.
"""

from __future__ import annotations

from collections.abc import Iterable


class Liveness:
    """When each gateway was last heard, by log time (ms)."""

    def __init__(self, ttl_ms: int) -> None:
        self._ttl_ms = ttl_ms
        self._heard: dict[str, int] = {}

    def heard(self, gateway: str, at: int) -> None:
        """A record of `gateway` was taken at log time `at`."""
        self._heard[gateway] = at

    def forget(self, gateway: str) -> None:
        """It said goodbye."""
        self._heard.pop(gateway, None)

    def restart(self, at: int, known: Iterable[str] = ()) -> None:
        """Everyone heard of so far, and `known` ones, count as heard at `at`."""
        self._heard = dict.fromkeys([*self._heard, *known], at)

    def expired(self, at: int) -> list[str]:
        """Gateways silent for longer than the TTL as of `at`, by name; they are forgotten with this answer."""
        silent = sorted(gateway for gateway, heard in self._heard.items() if at - heard > self._ttl_ms)
        for gateway in silent:
            del self._heard[gateway]
        return silent
