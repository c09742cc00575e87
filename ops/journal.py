"""Following one partition's journal, for people: what happened in a conversation, and what happens now."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final

from aiokafka import TopicPartition

from ops.history.port import Missing, Range
from ops.provision import connected_admin
from streams.core.events import ConversationErased, ConversationOpened, Entry
from streams.runtime.codec import Codec
from streams.runtime.kafka import Bounds, asked, bounds, consumer
from streams.runtime.registry import open_codec
from streams.settings import Settings
from streams.topics import Topics, verify

REQUEST_LIMIT_S: Final = 10.0
POLL_MS: Final = 500
CLOCKS_MS: Final = 10_000
"""How far the clocks of workers and broker may be apart before a conversation is looked for in all of its partition."""


@dataclass(frozen=True, slots=True)
class Opened:
    """A conversation, and when it was opened: ms since the epoch, as the broker had it."""

    conversation: str
    at: int


async def entries_of(
    settings: Settings,
    partition: int,
    *,
    follow: bool,
    caught_up: Callable[[], None] | None = None,
    of: Opened | None = None,
    missing: Callable[[Missing], None] | None = None,
) -> AsyncGenerator[Entry]:
    """The committed entries of `partition`, from the first that is kept to the last there is now.

    `follow`: goes on as more are committed, without end. `caught_up` is called once all that there is now was given.
    `of`: from where this conversation begins, where that can be found; others' entries are among them.
    `missing` is told when Kafka no longer has what comes before, and is to raise it unless less will do; without one,
    it is raised. Raises `Undecodable`, and what Kafka's client raises.
    """
    topics = Topics(settings.namespace)
    codec = open_codec(settings.schema_registry, topics)
    reader = consumer(settings.kafka, REQUEST_LIMIT_S)
    name = TopicPartition(topics.conversations, partition)
    await reader.start()
    try:
        kept = (await bounds(reader, [name], REQUEST_LIMIT_S))[name]
        reader.assign([name])
        position = kept.start if of is None else await _opening(reader, name, kept, codec, of)
        if 0 < position == kept.start:
            (missing or _raised)(Missing(partition, Range(0, position)))
        reader.seek(name, position)
        while follow or position < kept.end:
            if caught_up is not None and position >= kept.end:
                caught_up()
                caught_up = None
            for record in (await reader.getmany(name, timeout_ms=POLL_MS)).get(name, ()):
                if follow or record.offset < kept.end:
                    yield codec.decode_entry(record.value)
            position = await reader.position(name)
    finally:
        await reader.stop()


async def is_erased(settings: Settings, partition: int, conversation: str, of: Opened | None = None) -> bool:
    """Whether the journal has this conversation's erasure by now. `of`: as for `entries_of`."""
    entries = entries_of(settings, partition, follow=False, of=of, missing=lambda _: None)
    async with aclosing(entries):
        async for entry in entries:
            if isinstance(entry.event, ConversationErased) and entry.event.conversation_id == conversation:
                return True
    return False


def _raised(missing: Missing) -> None:
    raise missing


async def _opening(reader: Any, name: TopicPartition, kept: Bounds, codec: Codec, of: Opened) -> int:
    """The offset of the conversation's opening; the start of the partition unless that is the first there is of it.

    Records bear the time of the worker that wrote them, so that the broker may be wrong about where to look.
    """
    found = (await asked(reader.offsets_for_times({name: of.at - CLOCKS_MS}), REQUEST_LIMIT_S))[name]
    if found is None:
        return kept.start
    position = max(found.offset, kept.start)
    reader.seek(name, position)
    while position < kept.end:
        for record in (await reader.getmany(name, timeout_ms=POLL_MS)).get(name, ()):
            event = codec.decode_entry(record.value).event
            if event.conversation_id == of.conversation:
                return int(record.offset) if isinstance(event, ConversationOpened) else kept.start
        position = await reader.position(name)
    return kept.start


async def partition_count(settings: Settings) -> int:
    """Partitions of the deployment's topics; `TopicsError` when it has none."""
    async with connected_admin(settings.kafka) as admin:
        return await verify(admin, Topics(settings.namespace))
