"""Words that nobody sealed."""

from __future__ import annotations

from collections.abc import Sequence

from streams.core.events import Entry


class PlainWords:
    """`Words` that are as they were stored."""

    async def entries(self, entries: Sequence[Entry]) -> Sequence[Entry]:
        return entries

    async def text(self, name: str, text: str | None) -> str | None:
        return text
