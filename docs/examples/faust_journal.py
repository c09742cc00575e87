"""Follow the journal with faust: each turn and who it was given to, as lines of JSON.

    pip install 'turnlog[faust]'
    TURNLOG_KAFKA=localhost:9092 python faust_journal.py worker

Start several of them: faust shares the partitions among them. Each goes on where its group was; after a crash some
records come again, with the same partition and lsn.
"""

from __future__ import annotations

import json
import os
from typing import Any

from turnlog.data.events import TurnCommitted
from turnlog.data.faust import JournalApp, journal_topic, records

app = JournalApp("turns-to-json", broker=f"kafka://{os.environ.get('TURNLOG_KAFKA', 'localhost:9092')}")
journal = journal_topic(app, namespace=os.environ.get("TURNLOG_NAMESPACE", ""))


@app.agent(journal)
async def tell(stream: Any) -> None:
    async for record in records(stream):
        event = record.entry.event
        if isinstance(event, TurnCommitted):
            given = [assignment.member for assignment in event.assigned]
            said = {"conversation": event.conversation_id, "seq": event.seq, "text": event.turn.text, "given_to": given}
            print(json.dumps({"partition": record.partition, "lsn": record.entry.lsn, **said}), flush=True)


if __name__ == "__main__":
    app.main()
