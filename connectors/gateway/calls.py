"""Invocations as this gateway knows them: followed live from the journal's tail, else read from the read model.

A call that the tail saw begin is whole in memory and asks nobody. One from before is loaded once: its conversation is
followed first, then its row and its frames are read, then what came meanwhile is applied. Frames are counted 1, 2, 3 …
along the call, also those that were superseded, so that a reader's place stays what it was.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Protocol

from connectors.gateway.call_state import Call, call_of
from connectors.gateway.ports import Position, Stored, StoredCall, Unavailable
from streams.core.events import (
    ConversationErased,
    Entry,
    Event,
    FrameCommitted,
    RunCancelling,
    RunEnded,
    RunMoved,
    RunOpened,
    RunStarted,
    TurnCommitted,
)
from streams.core.ids import run_id

KEPT_MAX = 5_000
"""Calls in memory; the one that was asked for least recently goes first, when it has ended and nobody waits for it."""

FRAMES_KEPT_MAX = 500_000
"""Frames that the calls in memory may have counted together: 18 MB, each a number of 28 bytes and its place."""


class CallRows(Protocol):
    """What the read model is asked."""

    async def call(self, conversation_id: str, invocation: str) -> StoredCall | None:
        """The invocation's row, if there is one. Raises `Unavailable`."""

    async def open_calls(self, conversation_id: str) -> Sequence[str]:
        """Ids of the invocations that have not ended, in the order of their turns. Raises `Unavailable`."""


class Past(Protocol):
    """What the history is asked."""

    async def until(self, partition: int, lsn: int) -> Position:
        """See `History`."""

    def stored_of_run(self, conversation_id: str, run_id: str, turn_seq: int) -> AsyncIterator[Sequence[Stored]]:
        """Frames of a run, ascending, page by page, superseded ones too. Raises `Unavailable`."""


Follow = Callable[[str, Any], None]


class Calls:
    """See the module. `apply` is called with each entry of the tail; `watch`, `unwatch` are the hub's."""

    def __init__(
        self,
        rows: CallRows,
        past: Past,
        *,
        partition_of: Callable[[str], int],
        last_lsn: Callable[[int], int],
        kept_max: int = KEPT_MAX,
    ) -> None:
        self._rows = rows
        self._past = past
        self._partition_of = partition_of
        self._last_lsn = last_lsn
        self._kept_max = kept_max
        self._calls: OrderedDict[tuple[str, str], Call] = OrderedDict()
        self._by_run: dict[str, Call] = {}
        self._loading: dict[str, list[list[Entry]]] = {}
        """Conversations of which a call is being loaded, and what came of each meanwhile."""
        self._counted = 0

    # ---------------------------------------------------------------------------------------------------- journal
    def apply(self, entry: Entry) -> None:
        """The journal's next entry."""
        event = entry.event
        if self._loading and event.conversation_id in self._loading:
            for came in self._loading[event.conversation_id]:
                came.append(entry)
        if isinstance(event, TurnCommitted):
            if event.turn.invocation is not None:
                self._keep(_begun(entry, event))
            return
        if isinstance(event, ConversationErased):
            self._forget_words(event.conversation_id or "")
            return
        call = self._by_run.get(getattr(event, "run_id", None) or "")
        if call is not None:
            self._change(call, entry)

    def _forget_words(self, thread: str) -> None:
        """What its calls came to is in no memory of this process any more, and is not kept by who reads it just now."""
        for (its, _), call in self._calls.items():
            if its == thread:
                call.output, call.detail, call.erased = None, "", True

    def _change(self, call: Call, entry: Entry) -> None:
        counted = len(call.frames)
        if _changed(call, entry.event, entry.timestamp):
            self._counted += len(call.frames) - counted
            for event in call.waiting:
                event.set()

    # ----------------------------------------------------------------------------------------------------- asking
    async def find(self, thread: str, invocation: str) -> Call | None:
        """The call; None: the thread has none of this id. Raises `Unavailable`."""
        known = self._calls.get((thread, invocation))
        if known is not None:
            self._calls.move_to_end((thread, invocation))
            return known
        return await self._load(thread, invocation)

    async def open_in(self, thread: str) -> list[Call]:
        """The thread's calls that have not ended, in the order of their turns. Raises `Unavailable`."""
        await self._reach(thread)
        ids = dict.fromkeys(await self._rows.open_calls(thread))
        ids.update(dict.fromkeys(call.id for (its, _), call in self._calls.items() if its == thread))
        found = [call for id_ in ids if (call := await self.find(thread, id_)) is not None and call.status is None]
        return sorted(found, key=lambda call: call.turn_seq)

    async def _load(self, thread: str, invocation: str) -> Call | None:
        came: list[Entry] = []
        self._loading.setdefault(thread, []).append(came)
        try:
            await self._reach(thread)
            row = await self._rows.call(thread, invocation)
            if row is None:
                return None
            call = call_of(thread, row)
            async for page in self._past.stored_of_run(thread, call.run_id, call.turn_seq):
                for stored in page:
                    call.frames.append(stored.entry.event.seq)
                    if call.started_at is None and not stored.superseded:
                        call.started_at = stored.entry.timestamp
        finally:
            self._loading[thread].remove(came)
            if not self._loading[thread]:
                del self._loading[thread]
        known = self._calls.get((thread, invocation))
        if known is not None:
            return known  # somebody else loaded it meanwhile
        for entry in came:
            if getattr(entry.event, "run_id", None) == call.run_id:
                _changed(call, entry.event, entry.timestamp)
            elif isinstance(entry.event, ConversationErased):
                call.detail, call.erased = "", True
        self._keep(call)
        return call

    async def _reach(self, thread: str) -> None:
        partition = self._partition_of(thread)
        wanted = self._last_lsn(partition)
        position = await self._past.until(partition, wanted)
        if position.lsn < wanted:
            raise Unavailable(f"the read model is {wanted - position.lsn} entries behind")

    def _keep(self, call: Call) -> None:
        known = self._calls.pop((call.thread, call.id), None)
        if known is not None:  # its id was free again: a day has passed, and 64 keys
            self._forget(known)
        self._calls[call.thread, call.id] = call
        self._by_run[call.run_id] = call
        self._counted += len(call.frames)
        if len(self._calls) > self._kept_max or self._counted > FRAMES_KEPT_MAX:
            self._make_room()

    def _make_room(self) -> None:
        for key, call in self._calls.items():
            if call.status is not None and not call.waiting:
                del self._calls[key]
                self._forget(call)
                return

    def _forget(self, call: Call) -> None:
        self._by_run.pop(call.run_id, None)
        self._counted -= len(call.frames)


def _begun(entry: Entry, event: TurnCommitted) -> Call:
    invocation = event.turn.invocation
    assert invocation is not None  # noqa: S101 -- matched by the caller
    thread = event.conversation_id or ""
    given = event.assigned[0] if event.assigned else None
    return Call(
        thread=thread,
        id=invocation.id,
        run_id=given.run_id if given is not None else run_id(thread, event.seq, invocation.group),
        turn_seq=event.seq,
        agent=invocation.group,
        created_at=entry.timestamp,
        member=given.member if given is not None else None,
    )


def _changed(call: Call, event: Event, at: int) -> bool:
    """Whether the event says anything new of its call. Said again, it does not."""
    match event:
        case FrameCommitted():
            if not event.seq or (call.frames and event.seq <= call.frames[-1]):
                return False
            call.frames.append(event.seq)
            call.started_at = call.started_at or at
        case RunOpened():
            call.member = event.member
        case RunStarted():
            call.started_at = call.started_at or at
        case RunMoved():
            call.member, call.run_epoch = event.to_member, event.run_epoch
            if not event.adopted and not event.continued:
                call.started_at = None
        case RunCancelling():
            call.cancelling = True
        case RunEnded():
            call.status, call.reason, call.detail, call.ended_at = event.status, event.reason, event.detail, at
        case _:
            return False
    return True
