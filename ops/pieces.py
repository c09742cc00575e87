"""What the pieces of a streamed answer say."""

from __future__ import annotations

from contextlib import suppress

import msgspec


class _Chunk(msgspec.Struct):
    type: str
    content: str = ""


def piece_of(data: str | None) -> str:
    """The text of a streamed answer's piece; empty: it is another chunk, or masked, or sealed."""
    with suppress(msgspec.DecodeError):
        chunk = msgspec.json.decode(data or "", type=_Chunk)
        return chunk.content if chunk.type == "text" else ""
    return ""
