"""Read Turnlog's journal with confluent-kafka and fastavro, into DuckDB, with nothing of Turnlog but its schema files.

    pip install confluent-kafka fastavro duckdb
    python confluent_reader.py --kafka localhost:9092 --schemas schemas/history/journal --duckdb conversations.duckdb

It reads every committed record up to the end as it was at the start, and writes what people and agents said into the
table `said`, and each event as JSON into `events`. Run it again: it goes on where it was, for the position of each
partition is in the table `positions`, in the same transaction as the rows. Without --kafka, TURNLOG_KAFKA names the
broker, as `turnlog up` prints it.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import pathlib
from typing import Any

import duckdb
from confluent_kafka import Consumer, KafkaError, TopicPartition
from fastavro import parse_schema, schemaless_reader
from fastavro.schema import fingerprint, to_parsing_canonical_form

# Avro's single-object encoding: two bytes of marker, eight of the schema's fingerprint, then the record.
MARKER = b"\xc3\x01"
HEADER_BYTES = 10
TABLES = """
CREATE TABLE IF NOT EXISTS positions (partition INTEGER PRIMARY KEY, next_offset BIGINT);
CREATE TABLE IF NOT EXISTS events (partition INTEGER, lsn BIGINT, conversation_id VARCHAR, seq BIGINT, event VARCHAR,
                                   committed_at TIMESTAMPTZ, fields JSON);
CREATE TABLE IF NOT EXISTS said (conversation_id VARCHAR, seq BIGINT, committed_at TIMESTAMPTZ, who VARCHAR,
                                 text VARCHAR);
"""


def load_schemas(folder: str) -> dict[bytes, Any]:
    """Header to schema, for every version that ever wrote a record."""
    schemas = {}
    for file in sorted(pathlib.Path(folder).glob("*.avsc")):
        definition = json.loads(file.read_text(encoding="utf-8"))
        digest = fingerprint(to_parsing_canonical_form(definition), "CRC-64-AVRO")
        schemas[MARKER + bytes.fromhex(digest)] = parse_schema(definition)
    return schemas


def decode(value: bytes, schemas: dict[bytes, Any]) -> dict[str, Any]:
    """One record; `event` is the pair of its type and its fields."""
    schema = schemas[value[:HEADER_BYTES]]
    entry: Any = schemaless_reader(
        io.BytesIO(value[HEADER_BYTES:]), schema, None, return_record_name=True, return_record_name_override=True
    )
    name, fields = entry["event"]
    return {**entry, "event": name.removeprefix("turnlog.v1."), "fields": fields}


def text_of(frame: dict[str, Any]) -> str | None:
    """What a frame says; of a streamed answer each frame is a piece, whose text is in its data."""
    if frame["type"] != "genui" or frame["key_id"] is not None or not frame["data"]:
        text: str | None = frame["text"]
        return text
    chunk = json.loads(frame["data"])
    return chunk.get("content") if chunk.get("type") == "text" else None


def store(database: Any, partition: int, entries: list[dict[str, Any]], position: int) -> None:
    """Rows and position, together or not at all."""
    events, said = [], []
    for entry in entries:
        where = (entry["conversation_id"], entry["seq"])
        events.append(
            (partition, entry["lsn"], *where, entry["event"], entry["timestamp"], json.dumps(entry["fields"]))
        )
        if entry["event"] == "TurnCommitted":
            said.append((*where, entry["timestamp"], "person", entry["fields"]["turn"]["text"]))
        if entry["event"] == "FrameCommitted" and entry["seq"]:
            said.append((*where, entry["timestamp"], entry["fields"]["sender"], text_of(entry["fields"]["frame"])))
    database.begin()
    if events:
        database.executemany("INSERT INTO events VALUES (?, ?, ?, ?, ?, epoch_ms(?::BIGINT), ?)", events)
    if said:
        database.executemany("INSERT INTO said VALUES (?, ?, epoch_ms(?::BIGINT), ?, ?)", said)
    database.execute("INSERT OR REPLACE INTO positions VALUES (?, ?)", (partition, position))
    database.commit()


def read(kafka: str, topic: str, schemas: dict[bytes, Any], database: Any) -> int:
    """Everything that is not in the database yet; returns how many events that were."""
    consumer = Consumer(
        {
            "bootstrap.servers": kafka,
            "group.id": "not-used",  # positions are in the database
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",  # what is gone is said, not skipped
            "isolation.level": "read_committed",  # or events of a writer that lost its partition would be seen
        }
    )
    partitions = consumer.list_topics(topic, timeout=10).topics[topic].partitions
    known = dict(database.execute("SELECT partition, next_offset FROM positions").fetchall())
    consumer.assign([TopicPartition(topic, number, known.get(number, 0)) for number in partitions])
    behind, read_so_far = set(partitions), 0
    try:
        while behind:
            chunks: dict[int, list[dict[str, Any]]] = {}
            positions = {}
            message: Any
            for message in consumer.consume(1000, timeout=5):
                if message.error() is None:
                    chunks.setdefault(message.partition(), []).append(decode(message.value(), schemas))
                    positions[message.partition()] = message.offset() + 1
                elif message.error().code() == KafkaError._PARTITION_EOF:
                    behind.discard(message.partition())
                else:
                    raise RuntimeError(message.error())
            for number, entries in chunks.items():
                store(database, number, entries, positions[number])
                read_so_far += len(entries)
    finally:
        consumer.close()
    return read_so_far


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kafka", default=os.environ.get("TURNLOG_KAFKA", "localhost:9092"))
    parser.add_argument("--topic", default="conversations", help="with the deployment's namespace, if it has one")
    parser.add_argument("--schemas", default="schemas/history/journal", help="folder of the journal's schemas, .avsc")
    parser.add_argument("--duckdb", default="conversations.duckdb", help="the database, made when it is not there")
    given = parser.parse_args()
    with duckdb.connect(given.duckdb) as database:
        database.execute(TABLES)
        events = read(given.kafka, given.topic, load_schemas(given.schemas), database)
        [(turns,)] = database.execute("SELECT count(*) FROM said WHERE who = 'person'").fetchall()
    print(json.dumps({"new_events": events, "turns": turns}))


if __name__ == "__main__":
    main()
