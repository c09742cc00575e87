"""The journal as a sequencer uses it: entries to records, and the replay that makes a state out of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from functools import lru_cache

from streams.core.events import Entry, TurnCommitted
from streams.runtime.codec import Codec
from streams.runtime.commit import Pack
from streams.runtime.kafka import Headers, JournalReader, KafkaUnavailable

# A replay that gets nothing new for so long waits for a marker that does not come (a foreign open transaction).
REPLAY_STALL_S = 10.0
REPLAY_PAUSE_S = 0.01


@lru_cache(maxsize=4_096)
def _bytes(text: str) -> bytes:
    return text.encode()


def headers_of(entry: Entry, trace: bytes | None) -> Headers:
    """What a reader filters on without decoding: `type`, and where there is one `owner` (the first member that the turn
    is given to), `channel`, `ref` of the command, `traceparent`."""
    event = entry.event
    headers = [("type", _bytes(type(event).__name__))]
    if type(event) is TurnCommitted:
        headers.append(("channel", _bytes(event.turn.channel)))
        if event.assigned and (owner := event.assigned[0].member) is not None:
            headers.append(("owner", _bytes(owner)))
    elif (channel := getattr(event, "channel", None)) is not None:
        headers.append(("channel", _bytes(channel)))
    if (ref := getattr(event, "ref", None)) is not None:
        headers.append(("ref", ref.encode()))
    if trace is not None:
        headers.append(("traceparent", trace))
    return headers


def pack_entries(pack: Pack, codec: Codec, entries: Sequence[Entry], traces: dict[int, bytes]) -> None:
    """Encode `entries` into `pack`. `traces`: the `traceparent` of an entry's command, by the entry's index."""
    encode, add = codec.encode_entry, pack.add
    for index, entry in enumerate(entries):
        conversation_id = entry.event.conversation_id
        key = None if conversation_id is None else conversation_id.encode()
        add(key, encode(entry), headers_of(entry, traces.get(index) if traces else None))


async def replay(reader: JournalReader, codec: Codec, offset: int) -> AsyncIterator[tuple[list[Entry], int]]:
    """The journal from `offset` to the high watermark as it is now, in chunks, each with the position after it.

    The end is compared with the reader's *position*: the last record may be a marker, or part of an aborted
    transaction, which no reader ever gets. Raises `KafkaUnavailable` when the position stops short of the end,
    `Undecodable` for a record that is no entry.
    """
    end = await reader.high_watermark()
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
