"""One viewer's copy of a conversation: history and live entries merged by `seq`, each once, in order, none missing.

LOADING ──history reaches what is buffered──▶ LIVE ──a seq is missing──▶ LOADING
   └──────watermark above the head, or replay limit reached──▶ STALLED ──sync──▶ LOADING
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum

import msgspec

from connectors.gateway.protocol.limits import REPLAY_MAX

# Live entries kept while history is read. What does not fit is read from history like the rest.
BUFFER_MAX = 1_000


class Phase(StrEnum):
    """Where a viewer's numbered frames come from now."""

    LOADING = "loading"
    LIVE = "live"
    STALLED = "stalled"


class Item(msgspec.Struct, frozen=True):
    """What is written for one `seq`. `make` is called when it is, in the order of `seq`, and once."""

    seq: int
    make: Callable[[], bytes]


class Viewer:
    """Merges. `delivered` is the highest seq written; every method returns the frames to write now, in order."""

    def __init__(self, watermark: int, head: int) -> None:
        self.phase = Phase.LOADING
        self.delivered = watermark
        self.head = head
        self.replayed = 0
        self.load_after: int | None = watermark
        """Set when history must be read after this seq; the owner takes it with `wants_load`."""
        self._buffer: dict[int, Item] = {}

    def wants_load(self) -> int | None:
        """The seq after which history is to be read now; None: nothing to read. Asking takes the wish."""
        after, self.load_after = self.load_after, None
        return after

    def sync(self, watermark: int) -> None:
        """The client asks for everything after `watermark`."""
        self.phase = Phase.LOADING
        self.delivered = self.load_after = watermark
        self.replayed = 0

    def offer(self, item: Item) -> list[bytes]:
        """A live entry."""
        self.head = max(self.head, item.seq)
        if item.seq <= self.delivered or self.phase is Phase.STALLED:
            return []
        if self.phase is Phase.LIVE and item.seq == self.delivered + 1:
            self.delivered = item.seq
            return [item.make()]
        if len(self._buffer) < BUFFER_MAX:
            self._buffer[item.seq] = item
        if self.phase is Phase.LIVE:
            self.phase = Phase.LOADING
            self.load_after = self.delivered
        return []

    def above_head(self, after: int, head: int) -> bool:
        """Whether no conversation of this head can have the client's watermark `after`; then nothing is written until
        the client syncs."""
        self.head = max(self.head, head)
        if after <= self.head:
            return False
        self.stall()
        return True

    def loaded(self, items: Sequence[Item], head: int) -> list[bytes]:
        """A part of history, ascending, from where it was asked for; `head`: the conversation's last seq."""
        self.head = max(self.head, head)
        frames: list[bytes] = []
        for item in items:
            if item.seq != self.delivered + 1:
                break
            self.delivered = item.seq
            frames.append(item.make())
        self.replayed += len(frames)
        frames += self._from_buffer()
        if self.delivered >= self.head:
            self.phase = Phase.LIVE
            self._buffer.clear()
        elif self.replayed >= REPLAY_MAX or not frames:
            self.stall()
        else:
            self.load_after = self.delivered
        return frames

    @property
    def truncated(self) -> bool:
        """Whether the replay limit was reached: the client is to ask for the rest."""
        return self.phase is Phase.STALLED and self.replayed >= REPLAY_MAX

    @property
    def incomplete(self) -> bool:
        """Whether history did not hold what follows: it must be asked again later."""
        return self.phase is Phase.STALLED and self.replayed < REPLAY_MAX

    def stall(self) -> None:
        """Write nothing numbered until the client syncs."""
        self.phase = Phase.STALLED
        self.load_after = None
        self._buffer.clear()

    def _from_buffer(self) -> list[bytes]:
        frames: list[bytes] = []
        while (item := self._buffer.pop(self.delivered + 1, None)) is not None:
            self.delivered += 1
            frames.append(item.make())
        return frames
