"""To any point of a partition's history: from the last kept state before it, on through the journal."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from ops.folders import cache_folder
from ops.history import History
from ops.replay.points import EVERY_EVENTS, Point, Points
from ops.replay.target import Target
from streams.core.events import BatchCommitted, Entry, Unknown
from streams.core.fold import evolve
from streams.core.state import Conversation, ImpossibleEvent, Partition
from streams.core.store import attach, dump_conversation, dump_partition, is_hot, load_conversation, load_partition

LAST_OFFSET: Final = 2**62

Seen = Callable[[Entry], None]
"""Is shown each entry, while the state is still the one before it."""


class Unreachable(Exception):
    """There is no such point, or what lies before it cannot be read or folded; the message says which."""


class Standing:
    """A partition as of one point. Conversations come into memory when they are asked for."""

    def __init__(self, state: Partition, points: Points, base: int) -> None:
        self.state = state
        self._points = points
        self._base = base
        """Position of the point that it was folded on from; 0: from the beginning."""
        self.position = base
        """Journal offset after the last entry that is in it."""
        self.timestamp = 0
        """Of that entry: the broker's clock, ms."""

    def conversation(self, id_: str) -> Conversation | None:
        """One conversation; None: there is none yet."""
        known = self.state.conversations.get(id_)
        if known is None and self._base and (row := self._points.conversation(id_, self._base)) is not None:
            known = load_conversation(id_, row)
            attach(self.state, known)
        return known

    def conversations(self) -> Iterator[Conversation]:
        """All of them, by id. Those that are asked for here alone do not stay in memory."""
        loaded = self.state.conversations
        new = sorted(loaded)
        for id_, row in self._points.conversations(self._base) if self._base else ():
            while new and new[0] < id_:
                yield loaded[new.pop(0)]
            if new and new[0] == id_:
                yield loaded[new.pop(0)]
            else:
                yield load_conversation(id_, row)
        for id_ in new:
            yield loaded[id_]


class Traveller:
    """Goes to points of one partition's history. `cached` False: nothing is kept for later, nor used from before.
    `folder`: where it is kept, in place of the user's."""

    def __init__(
        self,
        history: History,
        partition: int,
        *,
        cached: bool = True,
        folder: Path | None = None,
        every: int = EVERY_EVENTS,
    ) -> None:
        self._history = history
        self._partition = partition
        self._points = Points((folder or cache_of(history)) if cached else None, partition)
        self._every = every

    def close(self) -> None:
        """Close what it keeps."""
        self._points.close()

    async def to(self, target: Target) -> Standing:
        """The state as of `target`. Raises `Unreachable`, and what the history raises."""
        until = await self._until(target)
        point = self._points.before(lsn=target.lsn) if target.lsn is not None else self._points.before(position=until)
        standing = self._from(point)
        await self._fold(standing, until, target.lsn, None)
        self._check(standing, target)
        return standing

    async def before_seq(self, conversation: str, seq: int) -> Standing:
        """The last kept state in which the conversation has not come to `seq` yet; else the beginning."""
        point = self._points.before(position=LAST_OFFSET)
        while point is not None and self._head(conversation, point.position) >= seq:
            point = self._points.before(position=point.position - 1)
        return self._from(point)

    def _head(self, conversation: str, position: int) -> int:
        row = self._points.conversation(conversation, position)
        return 0 if row is None else load_conversation(conversation, row).head

    async def on(self, standing: Standing, target: Target, seen: Seen) -> None:
        """From there on to a later target; `seen` is shown every entry on the way."""
        until = await self._until(target)
        if until < standing.position or (target.lsn is not None and target.lsn < standing.state.lsn):
            raise Unreachable(f"partition {self._partition}: the second point lies before the first one")
        await self._fold(standing, until, target.lsn, seen)
        self._check(standing, target)

    def _check(self, standing: Standing, target: Target) -> None:
        if target.lsn is not None and standing.state.lsn != target.lsn:
            where = "ends at" if standing.state.lsn < target.lsn else "is past it, at"
            raise Unreachable(
                f"partition {self._partition}: lsn {target.lsn}: the journal {where} {standing.state.lsn}"
            )

    async def _until(self, target: Target) -> int:
        """The first offset that is not to be folded."""
        bounds = await self._history.bounds(self._partition)
        if target.offset is not None:
            if target.offset >= bounds.end:
                last = bounds.end - 1
                raise Unreachable(f"partition {self._partition}: offset {target.offset}: the journal ends at {last}")
            return target.offset + 1
        if target.time_ms is None:
            return bounds.end
        after = await self._history.offset_at(self._partition, target.time_ms + 1)
        return bounds.end if after is None else after

    def _from(self, point: Point | None) -> Standing:
        if point is None:
            return Standing(Partition(self._partition), self._points, 0)
        state = load_partition(point.state, self._partition)
        standing = Standing(state, self._points, point.position)
        standing.timestamp = point.timestamp
        for id_ in point.hot:
            standing.conversation(id_)
        return standing

    async def _fold(self, standing: Standing, until: int, lsn: int | None, seen: Seen | None) -> None:
        keep_after = standing.state.lsn + self._every if self._points.last() <= standing.position else None
        async for offset, entry in self._entries(standing.position, until):
            if lsn is not None and entry.lsn > lsn:
                return
            self._step(standing, entry, seen)
            standing.position = offset + 1
            if keep_after is not None and entry.lsn >= keep_after and type(entry.event) is BatchCommitted:
                self._keep(standing)
                keep_after = entry.lsn + self._every

    async def _entries(self, start: int, until: int) -> AsyncIterator[tuple[int, Entry]]:
        async for chunk in self._history.read(self._partition, start, until):
            for recorded, entry in zip(chunk, self._history.decode_all(chunk), strict=True):
                yield recorded.offset, entry

    def _step(self, standing: Standing, entry: Entry, seen: Seen | None) -> None:
        event = entry.event
        if isinstance(event, Unknown):
            raise Unreachable(
                f"lsn {entry.lsn} of partition {self._partition} is a {event.name}, which a later release wrote: "
                "what it did is not known here"
            )
        name = event.conversation_id
        if name is not None and name not in standing.state.conversations:
            standing.conversation(name)
        if seen is not None:
            seen(entry)
        try:
            evolve(standing.state, entry)
        except ImpossibleEvent as impossible:
            raise Unreachable(
                f"lsn {entry.lsn} of partition {self._partition} cannot follow what comes before it: {impossible}; "
                "`turnlog audit verify` tells more"
            ) from impossible
        standing.timestamp = entry.timestamp

    def _keep(self, standing: Standing) -> None:
        """Keep a point, and forget what rests: it is in there."""
        state = standing.state
        for id_ in state.dirty:
            _forget_words(state.conversations[id_])
        changed = [(id_, dump_conversation(state.conversations[id_])[0]) for id_ in sorted(state.dirty)]
        hot = tuple(id_ for id_, each in state.conversations.items() if is_hot(each))
        point = Point(standing.position, state.lsn, standing.timestamp, dump_partition(state), hot)
        self._points.keep(point, changed)
        standing._base = standing.position
        state.dirty.clear()
        for id_ in [id_ for id_, each in state.conversations.items() if not is_hot(each)]:
            del state.conversations[id_]


def _forget_words(conversation: Conversation) -> None:
    """That its open questions were answered stays; how, which no fold asks for, does not."""
    for run in conversation.runs.values():
        if run.progress is not None and run.progress.answers:
            run.progress.answers = {ask: (lsn, "") for ask, (lsn, _) in run.progress.answers.items()}


def cache_of(history: History) -> Path:
    """Where the states of this journal are kept."""
    name = "".join(each if each.isalnum() or each in "-_" else "_" for each in history.identity)
    return cache_folder("replay", name)


def spread(target: Target, partition: int | None, partitions: int) -> Sequence[int]:
    """The partitions that a target is looked for in. Raises `Unreachable`: it is of one, and nobody said of which."""
    if partition is not None:
        if partition >= partitions:
            raise Unreachable(f"there is no partition {partition}: they are 0 to {partitions - 1}")
        return (partition,)
    if target.of_one_partition and partitions > 1:
        raise Unreachable("an offset and an lsn are of one partition: say which with --partition or --conversation")
    return range(partitions)
