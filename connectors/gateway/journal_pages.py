"""One conversation's journal in pages, for who looks at it: read from Kafka, each page by a reader of its own.

A page is bounded by what it may find and by what it may read through: other conversations' records lie between, which
are passed over by their key, without decoding them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import msgspec
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from connectors.gateway.ports import Unavailable
from connectors.gateway.tail import consumer
from connectors.gateway.words import Words
from streams.core.events import ConversationOpened, Entry
from streams.runtime.codec import Codec, Undecodable
from streams.settings import Settings

READ_THROUGH: Final = 200_000
"""Records that one page may read through: about a second's worth of them."""
READ_S: Final = 3.0
"""For so long at most: what was found by then is the page."""
PAGE_S: Final = 10.0
POLL_MS: Final = 1_000
AT_ONCE: Final = 2
"""Pages that are read at once: who looks must not hold up who talks."""
CLOCKS_MS: Final = 10_000
"""How far the clocks of workers and broker may be apart before a conversation is looked for in all of its partition."""
WRITER: Final = ("type", b"WriterOpened")


class Placed(msgspec.Struct, frozen=True):
    """An entry, and the offset that it lies at."""

    offset: int
    entry: Entry


class JournalPage(msgspec.Struct, frozen=True):
    """What a page found."""

    found: Sequence[Placed]
    next: int
    """The offset to go on at."""
    first: int
    """The first offset that Kafka still has."""
    end: int
    """The offset after the last that was committed when the page was read."""


class JournalPages(Protocol):
    """The journal of one conversation."""

    async def page(
        self, partition: int, conversation_id: str, *, offset: int | None, since_ms: int, limit: int, opened: bool
    ) -> JournalPage:
        """At most `limit` committed entries of the conversation, and its partition's changes of writer between them,
        from `offset` on; None: from its opening on, which was at `since_ms` of the broker's clock. `opened`: what is
        sealed is opened. Raises `Unavailable`."""


class KafkaPages:
    """`JournalPages` on Kafka."""

    def __init__(
        self, settings: Settings, topic: str, codec: Codec, words: Words, *, read_through: int = READ_THROUGH
    ) -> None:
        self._words = words
        self._settings = settings
        self._topic = topic
        self._codec = codec
        self._read_through = read_through
        self._turn = asyncio.Semaphore(AT_ONCE)

    async def page(
        self, partition: int, conversation_id: str, *, offset: int | None, since_ms: int, limit: int, opened: bool
    ) -> JournalPage:
        """See `JournalPages`."""
        page = await self._found(partition, conversation_id, offset, since_ms, limit)
        if not opened:
            return page
        entries = await self._words.entries([each.entry for each in page.found])
        placed = zip(page.found, entries, strict=True)
        return msgspec.structs.replace(page, found=[Placed(each.offset, entry) for each, entry in placed])

    async def _found(
        self, partition: int, conversation_id: str, offset: int | None, since_ms: int, limit: int
    ) -> JournalPage:
        reader = consumer(self._settings)
        target = TopicPartition(self._topic, partition)
        try:
            async with asyncio.timeout(PAGE_S), self._turn:
                await reader.start()
                reader.assign([target])
                reading = _Reading(reader, target, self._codec, conversation_id.encode(), limit, self._read_through)
                await reading.look()
                if offset is not None:
                    return await reading.from_(offset)
                return await reading.from_opening(since_ms)
        except (KafkaError, TimeoutError, OSError) as error:
            raise Unavailable(f"the journal cannot be read: {type(error).__name__}") from error
        finally:
            await reader.stop()


@dataclass(slots=True)
class _Reading:
    """The reading of one page."""

    reader: AIOKafkaConsumer
    target: TopicPartition
    codec: Codec
    key: bytes
    limit: int
    read_through: int
    first: int = 0
    end: int = 0

    async def look(self) -> None:
        """See what Kafka has."""
        self.first = (await self.reader.beginning_offsets([self.target]))[self.target]
        self.end = (await self.reader.end_offsets([self.target]))[self.target]

    async def from_opening(self, since_ms: int) -> JournalPage:
        """The first page of a conversation that was opened then."""
        wanted = {self.target: max(0, since_ms - CLOCKS_MS)}
        begun = (await self.reader.offsets_for_times(wanted))[self.target]
        start = self.first if begun is None else max(self.first, begun.offset)
        page = await self.from_(start)
        if start > self.first and not _begins(page):
            # Records bear their writers' times: a clock was wrong, and what is before has to be looked through.
            page = await self.from_(self.first)
        return page

    async def from_(self, offset: int) -> JournalPage:
        """The page that begins at this offset."""
        start = position = max(self.first, offset)
        found: list[Placed] = []
        self.reader.seek(self.target, start)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + READ_S
        while position < self.end and position - start < self.read_through and loop.time() < deadline:
            for record in (await self.reader.getmany(self.target, timeout_ms=POLL_MS)).get(self.target, ()):
                if record.offset >= self.end:
                    break
                if record.key == self.key or (record.key is None and WRITER in record.headers):
                    if len(found) == self.limit:
                        return JournalPage(found, record.offset, self.first, self.end)
                    found += self._placed(record)
            position = await self.reader.position(self.target)
        return JournalPage(found, max(start, min(position, self.end)), self.first, self.end)

    def _placed(self, record: Any) -> list[Placed]:
        try:
            return [Placed(record.offset, self.codec.decode_entry(record.value))]
        except Undecodable:
            return []  # told by the tail already


def _begins(page: JournalPage) -> bool:
    """Whether the page begins with the conversation's opening, or has nothing of it yet."""
    own = [each.entry.event for each in page.found if each.entry.event.conversation_id is not None]
    return not own or isinstance(own[0], ConversationOpened)
