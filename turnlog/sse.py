"""Server-sent events, parsed from bytes as they come (WHATWG HTML, section 9.2).

Own parsing, because line splitting must know CR, LF and CRLF only: text libraries also split at U+2028 and its kind,
which JSON may hold.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_LINE_END = re.compile(rb"\r\n|\n|\r")


@dataclass(frozen=True, slots=True)
class ServerEvent:
    """One event. `id` is None when this event named none (what came before stays the last event id)."""

    event: str
    data: str
    id: str | None = None


class EventParser:
    """Feed it bytes in any split; it gives the events that are complete."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[str] = []
        self._event = ""
        self._id: str | None = None
        self._first = True

    def feed(self, chunk: bytes) -> Iterator[ServerEvent]:
        self._rest += chunk
        if self._first and self._rest:
            self._rest = self._rest.removeprefix(b"\xef\xbb\xbf")
            self._first = False
        while (end := _LINE_END.search(self._rest)) is not None:
            if end.group() == b"\r" and end.end() == len(self._rest):
                return  # its LF may be in the next chunk
            line, self._rest = self._rest[: end.start()], self._rest[end.end() :]
            if line:
                self._field(line.decode("utf-8", "replace"))
            elif self._data:
                yield ServerEvent(self._event or "message", "\n".join(self._data), self._id)
                self._clear()
            else:
                self._clear()

    def _field(self, line: str) -> None:
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            self._data.append(value)
        elif name == "event":
            self._event = value
        elif name == "id" and "\0" not in value:
            self._id = value

    def _clear(self) -> None:
        self._data, self._event, self._id = [], "", None
