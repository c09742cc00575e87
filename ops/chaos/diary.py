"""What a worker did with its leases and checkpoints, and when, for `writers` to judge.

Times are the machine's monotonic clock (`time.monotonic` on Linux: since its start), which all processes under test
share, whatever time of day they believe in. Each is read on the side from which a verdict can only be milder: before
what the worker does, after what others are told.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine
from enum import StrEnum
from typing import Any

from ops.chaos.notes import Notebook

Method = Callable[..., Coroutine[Any, Any, Any]]


class Deed(StrEnum):
    """What is written down."""

    CLAIMED = "claimed"
    """A lease. `by`: `dead` when its holder was taken for dead, `time` otherwise."""
    HANDED_BACK = "handed-back"
    """A lease; partition -1: all of them."""
    MAY_WRITE = "may-write"
    """The worker was allowed to begin a write, or to commit it."""
    TOOK = "took"
    """The token is in the checkpoint's row."""
    SAVED = "saved"
    """A snapshot was stored, by a call that began at the time given."""


class Diary:
    """Of one worker process. The worker's methods are wrapped by its own."""

    def __init__(self, notebook: Notebook) -> None:
        self._notebook = notebook

    def _note(self, deed: Deed, at: float, partition: int, epoch: int, **more: Any) -> None:
        self._notebook.note(note=deed, at=round(at, 6), partition=partition, epoch=epoch, **more)

    def claiming(self, method: Method) -> Method:
        """Around `PostgresLeases._try_claim`."""

        async def claim(leases: Any, connection: Any, partition: int, dead: Any) -> Any:
            lease = await method(leases, connection, partition, dead)
            if lease is not None:
                how = "time" if dead is None else "dead"
                self._note(
                    Deed.CLAIMED, time.monotonic(), partition, lease.token.writer_epoch, by=how, worker=leases.worker
                )
            return lease

        return claim

    def handing_back(self, method: Method) -> Method:
        """Around `PostgresLeases.hand_back`."""

        async def hand_back(leases: Any, lease: Any) -> None:
            self._note(Deed.HANDED_BACK, time.monotonic(), lease.partition, lease.token.writer_epoch)
            await method(leases, lease)

        return hand_back

    def closing(self, method: Method) -> Method:
        """Around `PostgresLeases.close`, which hands back whatever is left."""

        async def close(leases: Any) -> None:
            self._note(Deed.HANDED_BACK, time.monotonic(), -1, 0)
            await method(leases)

        return close

    def allowing(self, method: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
        """Around `Heartbeat.may_write`."""

        def may_write(heartbeat: Any, lease: Any) -> bool:
            at = time.monotonic()
            may = method(heartbeat, lease)
            if may:
                self._note(Deed.MAY_WRITE, at, lease.partition, lease.token.writer_epoch, worker=lease.token.worker)
            return may

        return may_write

    def taking(self, method: Method) -> Method:
        """Around `PostgresCheckpoints.take`."""

        async def take(checkpoints: Any, partition: int, token: Any) -> Any:
            taken = await method(checkpoints, partition, token)
            self._note(Deed.TOOK, time.monotonic(), partition, token.writer_epoch)
            return taken

        return take

    def saving(self, method: Method) -> Method:
        """Around `PostgresCheckpoints.save`."""

        async def save(checkpoints: Any, partition: int, checkpoint: Any, *arguments: Any, **named: Any) -> None:
            at = time.monotonic()
            await method(checkpoints, partition, checkpoint, *arguments, **named)
            self._note(Deed.SAVED, at, partition, checkpoint.token.writer_epoch)

        return save
