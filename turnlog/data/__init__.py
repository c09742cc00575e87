"""The journal, for stream consumers and data teams: typed, ordered, committed. Needs the extra `data`.

    from datetime import timedelta

    from turnlog.data import Journal
    from turnlog.data.events import TurnCommitted

    async with Journal("localhost:9092") as journal:
        async for record in journal.records(since=timedelta(minutes=15)):
            if isinstance(record.entry.event, TurnCommitted):
                print(record.entry.event.conversation_id, record.entry.event.turn.text)

It reads committed records only, checks that none is missing, and decodes each with the schema that wrote it. It needs
Kafka's address and nothing else of a deployment. `journal.batches()` gives Arrow tables of events, `journal.tables()`
the tables `turns`, `frames`, `ownership`, `membership`, `runs` and `conversations`; `turnlog.data.faust` has a topic
for faust apps. What a reader may rely on is in `docs/reference/data-contract.md`.
"""

from turnlog.data.decoding import CannotDecode, Decoder, Registry
from turnlog.data.events import Entry, Event, Unknown
from turnlog.data.journal import Journal, JournalUnavailable, MissingRecords, Record

__all__ = [
    "CannotDecode",
    "Decoder",
    "Entry",
    "Event",
    "Journal",
    "JournalUnavailable",
    "MissingRecords",
    "Record",
    "Registry",
    "Unknown",
]
