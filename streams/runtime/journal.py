"""The journal as a sequencer uses it: entries to records, and the replay that makes a state out of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from functools import lru_cache

from streams.core.events import Entry, Event, TurnCommitted
from streams.runtime.codec import Codec
from streams.runtime.commit import Pack
from streams.runtime.kafka import JournalReader, KafkaUnavailable, NewHeaders

# A replay that gets nothing new for so long waits for a marker that does not come (a foreign open transaction).
REPLAY_STALL_S = 10.0
REPLAY_PAUSE_S = 0.01


@lru_cache(maxsize=16_384)
def _filters(kind: type[Event], channel: str | None, owner: str | None) -> NewHeaders:
    """The headers that repeat from record to record; the list is shared, nobody changes it."""
    named = (("type", kind.__name__), ("channel", channel), ("owner", owner))
    return [(name, value.encode()) for name, value in named if value is not None]


def headers_of(entry: Entry, trace: bytes | None) -> NewHeaders:
    """What a reader filters on without decoding: `type`, and where there is one `channel`, `owner` (the first member
    that the turn is given to), `ref` of the command, `traceparent`."""
    event = entry.event
    ref: str | None
    if type(event) is TurnCommitted:
        ref = event.ref
        headers = _filters(TurnCommitted, event.turn.channel, event.assigned[0].member if event.assigned else None)
    else:
        ref = getattr(event, "ref", None)
        headers = _filters(type(event), getattr(event, "channel", None), None)
    if ref is not None:
        headers = [*headers, ("ref", ref.encode())]
    return headers if trace is None else [*headers, ("traceparent", trace)]


def pack_entries(pack: Pack, codec: Codec, entries: Sequence[Entry], traces: Mapping[int, bytes]) -> None:
    """Encode `entries` into `pack`. `traces`: the `traceparent` of an entry's command, by the entry's index."""
    encode, add = codec.encode_entry, pack.batch.add
    for index, entry in enumerate(entries):
        conversation_id = entry.event.conversation_id
        key = None if conversation_id is None else conversation_id.encode()
        value, headers = encode(entry), headers_of(entry, traces.get(index) if traces else None)
        if not add(key, value, headers):
            pack.overflow(key, value, headers)
            add = pack.batch.add


async def replay(reader: JournalReader, codec: Codec, offset: int, end: int) -> AsyncIterator[tuple[list[Entry], int]]:
    """The journal from `offset` to `end`, its high watermark, in chunks, each with the position after it.

    The end is compared with the reader's *position*: the last record may be a marker, or part of an aborted
    transaction, which no reader ever gets. Raises `KafkaUnavailable` when the position stops short of the end,
    `Undecodable` for a record that is no entry.
    """
    position, moved = offset, time.monotonic()
    while position < end:
        records, now_at = await reader.read()
        if now_at > position:
            position, moved = now_at, time.monotonic()
            yield [codec.decode_entry(record.value) for record in records], position
        elif time.monotonic() - moved > REPLAY_STALL_S:
            raise KafkaUnavailable(f"the journal can be read up to {position} only, it ends at {end}")
        else:
            await asyncio.sleep(REPLAY_PAUSE_S)
