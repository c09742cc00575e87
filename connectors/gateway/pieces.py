"""Masks across the pieces of a stream: what may be the beginning of a match is held back until it is known.

The text of a `genui` stream comes in chunks of any length, and a pattern may match across two of them. So the text is
masked as one, and of what came so far the last `HELD_CHARS` characters are shown with a later chunk only, or with the
end of the stream; a match that reaches into them waits whole. Each chunk keeps its `seq`, and has the text that became
certain with it; a component waits for the text before it, one chunk long. What a reader is shown depends on the
stream's chunks and their order alone, so that a replay shows what was shown live.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from connectors.gateway.protocol.render import Fields
from streams.core.events import Entry, Frame, FrameCommitted

HELD_CHARS: Final = 128
"""The longest match that is found across chunks. A card number has 19 characters, an IBAN 34."""
HELD_MAX: Final = 4096
"""A match that is longer, and not over yet, is masked as far as it goes, and what follows is looked at anew."""
CONTEXT_CHARS: Final = 8
"""What stands before the text that is looked at, for the sake of word boundaries."""
STREAMS_MAX: Final = 64
"""Open streams of one conversation whose text is kept for a reader; beyond, the oldest is as if it began anew."""
MARKER: Final = "stream_done"


class StreamMask(msgspec.Struct, frozen=True):
    """A mask that is for streams: a compiled pattern, and what stands in place of a match."""

    pattern: Any
    with_: str


class _Stream(msgspec.Struct):
    held: str = ""
    """Text that is not shown yet, as it was said."""
    context: str = ""
    """The end of the text that was."""
    waiting: list[Fields] = []
    """Chunks that wait for their turn."""
    text_id: Any = None


class Pieces:
    """One reader's. Every entry is shown to it once, in the order of `seq`; `upto` is the last."""

    def __init__(self) -> None:
        self.upto = 0
        self._streams: dict[str, _Stream] = {}

    def show(self, entry: Entry, masks: Sequence[StreamMask]) -> Entry:
        """The entry with its chunk as the reader gets it. What is no chunk of a stream stays as it is."""
        event = entry.event
        self.upto = max(self.upto, event.seq)
        if not isinstance(event, FrameCommitted) or event.frame.type != "genui" or not event.seq:
            return entry
        chunk = _object(event.frame.data)
        shown = self._shown(event.frame, chunk, masks)
        if shown is chunk:
            return entry
        frame = msgspec.structs.replace(event.frame, text=None, data=msgspec.json.encode(shown).decode())
        return msgspec.structs.replace(entry, event=msgspec.structs.replace(event, frame=frame))

    def _shown(self, frame: Frame, chunk: Fields, masks: Sequence[StreamMask]) -> Fields:
        id_ = frame.stream_id or ""
        stream = self._streams.get(id_)
        if stream is None:
            if frame.done and not _is_text(chunk):
                return chunk
            stream = self._streams[id_] = _Stream()
            if len(self._streams) > STREAMS_MAX:
                del self._streams[next(iter(self._streams))]
        if frame.done:
            del self._streams[id_]
        if _is_text(chunk):
            stream.held += chunk["content"]
            stream.text_id = chunk.get("id")
            if frame.done or not stream.waiting:
                ready = _cut(stream, masks, final=frame.done)
                stream.waiting.append({**chunk, "content": ready})
        else:
            self._wait(stream, chunk, masks, is_end=frame.done and chunk.get("name") == MARKER)
        return _joined(stream.waiting) if frame.done else stream.waiting.pop(0)

    def _wait(self, stream: _Stream, chunk: Fields, masks: Sequence[StreamMask], *, is_end: bool) -> None:
        """A chunk that is no text comes behind all the text before it."""
        if text := _cut(stream, masks, final=True):
            said: Fields = {"type": "text", "content": text}
            stream.waiting.append(said if stream.text_id is None else {**said, "id": stream.text_id})
        if not (is_end and stream.waiting):
            stream.waiting.append(chunk)


def is_text_chunk(frame: Frame) -> bool:
    """Whether it is a piece of a stream's text."""
    return frame.type == "genui" and _is_text(_object(frame.data))


def _cut(stream: _Stream, masks: Sequence[StreamMask], *, final: bool) -> str:
    """What of the held text may be shown now, masked; the rest stays held."""
    text, start = stream.context + stream.held, len(stream.context)
    end = len(text) if final else max(start, len(text) - HELD_CHARS)
    spans = _matches(text, start, masks)
    for begin, over, _ in spans:
        if begin < end < over:
            end = over if len(text) - begin > HELD_MAX else begin
    parts, after = [], start
    for begin, over, with_ in spans:
        if over <= end and begin >= after:
            parts += [text[after:begin], with_]
            after = over
    parts.append(text[after:end])
    stream.context, stream.held = text[max(0, end - CONTEXT_CHARS) : end], text[end:]
    return "".join(parts)


def _matches(text: str, start: int, masks: Sequence[StreamMask]) -> list[tuple[int, int, str]]:
    """Where the masks match behind `start`, ascending; of two that overlap, the first and then the longer."""
    found = [
        (*match.span(), mask.with_)
        for mask in masks
        for match in mask.pattern.finditer(text, start)
        if match.end() > match.start()
    ]
    spans: list[tuple[int, int, str]] = []
    for begin, over, with_ in sorted(found, key=lambda span: (span[0], -span[1])):
        if not spans or begin >= spans[-1][1]:
            spans.append((begin, over, with_))
        elif over > spans[-1][1]:  # what two masks match together is masked as one
            spans[-1] = (spans[-1][0], over, spans[-1][2])
    return spans


def _joined(chunks: Sequence[Fields]) -> Fields:
    """The end of a stream has one chunk, whatever waits: text is added to text, or stands beside what is none."""
    last = chunks[-1]
    text = "".join(chunk["content"] for chunk in chunks if _is_text(chunk))
    other = next((chunk for chunk in reversed(chunks) if not _is_text(chunk)), None)
    if other is None:
        return {**last, "content": text}
    return {**other, "text": text} if text else other


def _is_text(chunk: Fields) -> bool:
    return chunk.get("type") == "text" and isinstance(chunk.get("content"), str)


def _object(data: str | None) -> Fields:
    try:
        value = msgspec.json.decode(data or "{}")
    except (msgspec.DecodeError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
