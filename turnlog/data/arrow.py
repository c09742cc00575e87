"""Journal events as an Arrow table, a row an event: for those who want the events and not the tables."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from turnlog.data.decoding import event_name

if TYPE_CHECKING:
    from turnlog.data.events import Event
    from turnlog.data.journal import Record

MOMENT: Final = pa.timestamp("ms", tz="UTC")
EVENTS_SCHEMA: Final = pa.schema(
    [
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("journal_offset", pa.int64(), nullable=False),
        pa.field("lsn", pa.int64(), nullable=False),
        pa.field("event", pa.string(), nullable=False),
        pa.field("committed_at", MOMENT, nullable=False),
        pa.field("log_time", MOMENT, nullable=False),
        pa.field("writer_epoch", pa.int64(), nullable=False),
        pa.field("conversation_id", pa.string()),
        pa.field("seq", pa.int64(), nullable=False),
        pa.field("fields", pa.string(), nullable=False, metadata={"doc": "The event's own fields, a JSON object."}),
    ]
)


def events_table(records: Sequence[Record]) -> pa.Table:
    """The records as rows of `EVENTS_SCHEMA`."""
    rows = [
        (
            record.partition,
            record.offset,
            record.entry.lsn,
            event_name(event),
            record.entry.timestamp,
            record.entry.at,
            record.entry.writer_epoch,
            event.conversation_id,
            event.seq,
            json.dumps(_fields(event), ensure_ascii=False, default=_plain),
        )
        for record in records
        for event in (record.entry.event,)
    ]
    columns = zip(*rows, strict=True) if rows else ((),) * len(EVENTS_SCHEMA)
    arrays = [pa.array(values, field.type) for values, field in zip(columns, EVENTS_SCHEMA, strict=True)]
    return pa.Table.from_arrays(arrays, schema=EVENTS_SCHEMA)


def _fields(event: Event) -> dict[str, Any]:
    fields = dataclasses.asdict(event)
    del fields["conversation_id"], fields["seq"]
    return fields


def _plain(value: Any) -> Any:
    """What JSON has no word for: bytes, which no event of this release holds."""
    return value.hex() if isinstance(value, bytes) else str(value)
