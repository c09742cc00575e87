"""What a process needs of its way to a gateway, whichever it is: a socket, or a test's own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from turnlog.wire import Frame

FRAME_BYTES = 128 * 1024
"""The protocol's default `limits.maxFrameBytes`."""
IN_FLIGHT = 32
"""The protocol's default `limits.maxInFlight`: sends that wait for their ack."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What the gateway of a connection takes, from its welcome."""

    frame_bytes: int = FRAME_BYTES
    in_flight: int = IN_FLIGHT
    frames_per_second: float | None = None
    """None: it does not say; what is too fast for it, it reads later."""
    runs: int | None = None
    """Live runs that it gives one member; it is one that takes `refuse`. None: it does not know of that."""

    @classmethod
    def of(cls, welcome: Frame) -> Limits:
        """Those that `welcome.data` names; the protocol's defaults for the others."""
        named = welcome.get("limits")
        limits = named if isinstance(named, dict) else {}
        return cls(
            frame_bytes=_positive(limits.get("maxFrameBytes")) or FRAME_BYTES,
            in_flight=_positive(limits.get("maxInFlight")) or IN_FLIGHT,
            frames_per_second=_positive(limits.get("maxFramesPerSecond")),
            runs=_positive(limits.get("maxRuns")),
        )


class Peer(Protocol):
    """Who uses a connection. All but `welcomed` return at once: they run in the reader."""

    def hello(self) -> Frame: ...

    async def welcomed(self) -> None:
        """A new connection is up: `Connection.send` works from here on."""

    def received(self, frame: Frame) -> None: ...


class Connection(Protocol):
    """One member's way to a gateway, over as many sockets as it takes."""

    generation: int
    """Number of the current or last connection that was welcomed; each is another member of the group."""
    connection: str | None
    """The gateway's id for the current or last connection: the member's id in the log."""
    abilities: frozenset[str]
    """What this gateway says that it can do beyond the public protocol: `continue`, `drain`, `adopt`."""
    limits: Limits

    async def run(self, peer: Peer) -> None:
        """Serve `peer` until `close()`. Raises `Unauthorized` or `ProtocolViolation` when refused for good."""

    async def close(self) -> None: ...

    async def wait_up(self, timeout: float | None) -> bool:
        """Whether it is up, within `timeout` seconds."""

    async def pace(self) -> None:
        """Wait until the gateway takes one more frame, where it says how many a second it does."""

    async def send(self, frame: Mapping[str, object]) -> bool:
        """False: there is no connection. True does not mean that it arrived. Waits for a slow gateway."""


def _positive(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
