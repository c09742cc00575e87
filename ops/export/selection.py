"""What of the tables is exported: which tables, and which of their rows."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from turnlog.data.events import EVENTS
from turnlog.data.tables import COMMON, TABLES, Row, Table, chosen

AGO: Final = re.compile(r"-(\d+)(ms|s|m|h|d)")
UNITS: Final = {"ms": "milliseconds", "s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
OFFSET: Final = re.compile(r"(?:o:)?(\d+)")
_AT: Final = {column.name: n for n, column in enumerate(COMMON)}
_OFFSET: Final = _AT["journal_offset"]
_EVENT: Final = _AT["event"]
_TIME: Final = _AT["committed_at"]
_CONVERSATION: Final = _AT["conversation_id"]
_CHANNEL: Final = _AT["conversation_channel"]


class BadSelection(ValueError):
    """A selection that means nothing; the message names the option and the rule."""


@dataclass(frozen=True, slots=True)
class Bound:
    """A point of the journal: an offset of each partition, or a broker's time in ms."""

    offset: int | None = None
    time: int | None = None
    ago: bool = field(default=False, compare=False)
    """It was said as how long ago: said again later it is another time, and means the same."""

    def __str__(self) -> str:
        if self.time is None:
            return f"o:{self.offset}"
        return datetime.fromtimestamp(self.time / 1000, UTC).isoformat().replace("+00:00", "Z")


def bound(text: str, option: str, now: datetime) -> Bound:
    """An ISO date or time (UTC unless it says otherwise), `-15m` (ms, s, m, h, d), or an offset.

    Raises `BadSelection`.
    """
    if (ago := AGO.fullmatch(text)) is not None:
        return Bound(time=_ms(now - timedelta(**{UNITS[ago[2]]: int(ago[1])})), ago=True)
    if (offset := OFFSET.fullmatch(text)) is not None:
        return Bound(offset=int(offset[1]))
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise BadSelection(
            f"{option}: {text!r} is no point of the journal: give a date or time (2026-11-30T20:00:00Z), how long ago "
            "(-15m), or an offset (1200)"
        ) from None
    return Bound(time=_ms(moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)))


def _ms(moment: datetime) -> int:
    return int(moment.timestamp() * 1000)


@dataclass(frozen=True, slots=True)
class Selection:
    """What is exported. The same for all of a target's life, so that its rows are what the selection says."""

    tables: tuple[Table, ...] = TABLES
    since: Bound | None = None
    until: Bound | None = None
    """Without it."""
    conversations: frozenset[str] = field(default_factory=frozenset)
    channels: frozenset[str] = field(default_factory=frozenset)
    """Of the conversations; a row of no conversation (membership) is of its member's channel."""
    events: frozenset[str] = field(default_factory=frozenset)

    def rows(self, table: Table, rows: list[Row], start: int) -> list[Row]:
        """Those of the rows that are wanted, from offset `start` on."""
        if rows and rows[0][_OFFSET] >= start and self.is_everything:
            return rows
        channel = table.index("channel") if table.name == "membership" else _CHANNEL
        return [row for row in rows if row[_OFFSET] >= start and self._takes(row, channel)]

    @property
    def is_everything(self) -> bool:
        """Whether every row of its tables is wanted."""
        return not (self.since or self.until or self.conversations or self.channels or self.events)

    def _takes(self, row: Row, channel: int) -> bool:
        return (
            (self.since is None or not _is_before(row, self.since))
            and (self.until is None or _is_before(row, self.until))
            and (not self.conversations or row[_CONVERSATION] in self.conversations)
            and (not self.channels or row[channel] in self.channels)
            and (not self.events or row[_EVENT] in self.events)
        )

    def settled(self, kept: Selection) -> Selection:
        """The same as somebody said it again of a target that keeps `kept`: what is so long ago is so since then."""
        return replace(self, since=_settled(self.since, kept.since), until=_settled(self.until, kept.until))

    def document(self) -> dict[str, Any]:
        """As a target keeps it."""
        return {
            "tables": [table.name for table in self.tables],
            "from": None if self.since is None else str(self.since),
            "to": None if self.until is None else str(self.until),
            "conversations": sorted(self.conversations),
            "channels": sorted(self.channels),
            "events": sorted(self.events),
        }


def _settled(said: Bound | None, kept: Bound | None) -> Bound | None:
    same = said is not None and said.ago and kept is not None and kept.time is not None
    return kept if same else said


def _is_before(row: Row, point: Bound) -> bool:
    if point.time is not None:
        return bool(row[_TIME] < point.time)
    assert point.offset is not None  # noqa: S101 -- a bound has one of the two
    return bool(row[_OFFSET] < point.offset)


def selection(
    *,
    tables: Collection[str] = (),
    since: str | None = None,
    until: str | None = None,
    conversations: Collection[str] = (),
    channels: Collection[str] = (),
    events: Collection[str] = (),
    now: datetime | None = None,
) -> Selection:
    """A selection of what somebody typed. Raises `BadSelection`."""
    now = datetime.now(UTC) if now is None else now
    known = {kind.__name__ for kind in EVENTS}
    if unknown := set(events) - known:
        raise BadSelection(f"--event: there is no journal event {', '.join(sorted(unknown))}")
    try:
        taken = chosen(tables)
    except ValueError as error:
        raise BadSelection(f"--table: {error}") from None
    return Selection(
        taken,
        None if since is None else bound(since, "--from", now),
        None if until is None else bound(until, "--to", now),
        frozenset(conversations),
        frozenset(channels),
        frozenset(events),
    )


def of_document(document: Mapping[str, Any]) -> Selection:
    """The selection that a target keeps."""
    return selection(
        tables=document["tables"],
        since=document["from"],
        until=document["to"],
        conversations=document["conversations"],
        channels=document["channels"],
        events=document["events"],
    )
