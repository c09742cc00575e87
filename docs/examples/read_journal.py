"""Read Turnlog's journal with nothing of Turnlog but a schema file, and prove that nothing is missing in it.

    pip install aiokafka fastavro
    python read_journal.py --kafka localhost:9092 --schema schemas/avro/journal.avsc

It reads every committed record once, up to the end as it was at the start, and checks what a reader may rely on: `lsn`
is 1, 2, 3, … along each partition, and `seq` is 1, 2, 3, … along each conversation (0: not numbered). With --print it
prints each event as a line of JSON. The last line is the verdict; the exit code is 0, 1 when something is missing, or 2
when the journal could not be read. Without --kafka, TURNLOG_KAFKA names the broker, as `turnlog up` prints it.

Give --schema once for each version that wrote into the topic: `schemas/history/journal/` has them all.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import os
import pathlib
import sys
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaConnectionError
from fastavro import parse_schema, schemaless_reader
from fastavro.schema import fingerprint, to_parsing_canonical_form

# Avro's single-object encoding: two bytes of marker, eight of the schema's fingerprint, then the record.
MARKER = b"\xc3\x01"
HEADER_BYTES = 10


class CouldNotRead(Exception):
    """There is nothing to judge; the message says why."""


def load_schemas(files: list[str]) -> dict[bytes, Any]:
    """Header to schema."""
    schemas = {}
    for file in files:
        definition = json.loads(pathlib.Path(file).read_text(encoding="utf-8"))
        digest = fingerprint(to_parsing_canonical_form(definition), "CRC-64-AVRO")
        schemas[MARKER + bytes.fromhex(digest)] = parse_schema(definition)
    return schemas


def decode(value: bytes, schemas: dict[bytes, Any]) -> dict[str, Any]:
    """One journal record as a dictionary; `event` is the pair of its type and its fields."""
    schema = schemas.get(value[:HEADER_BYTES])
    if schema is None:
        raise CouldNotRead(
            f"a record was written with a schema that was not given: header {value[:HEADER_BYTES].hex()}"
        )
    entry: Any = schemaless_reader(io.BytesIO(value[HEADER_BYTES:]), schema, return_record_name=True)
    name, fields = entry["event"]
    entry["event"] = (name.removeprefix("turnlog.v1."), fields)
    return dict(entry)


class Checker:
    """Counts along every partition and conversation, and remembers every number that was not the next one."""

    def __init__(self) -> None:
        self.lsn: dict[int, int] = {}
        self.seq: dict[str, int] = {}
        self.events = 0
        self.problems: list[str] = []

    def check(self, partition: int, entry: dict[str, Any]) -> None:
        self.events += 1
        expected = self.lsn.get(partition, 0) + 1
        if entry["lsn"] != expected:
            self.problems.append(f"partition {partition}: lsn {entry['lsn']} where {expected} was next")
        self.lsn[partition] = entry["lsn"]
        if entry["seq"]:
            conversation = entry["conversation_id"]
            expected = self.seq.get(conversation, 0) + 1
            if entry["seq"] != expected:
                self.problems.append(f"conversation {conversation}: seq {entry['seq']} where {expected} was next")
            self.seq[conversation] = entry["seq"]


async def partitions_of(kafka: str, topic: str) -> list[TopicPartition]:
    """Every partition of `topic`."""
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka)
    try:
        await admin.start()
        [described] = await admin.describe_topics([topic])
    except KafkaConnectionError:
        raise CouldNotRead(f"no Kafka answers at {kafka}: --kafka or TURNLOG_KAFKA names another") from None
    finally:
        await admin.close()
    if not described["partitions"]:
        raise CouldNotRead(f"there is no topic {topic} on {kafka}: --topic names another")
    return [TopicPartition(topic, number) for number in range(len(described["partitions"]))]


async def read(kafka: str, topic: str, schemas: dict[bytes, Any], show: bool) -> Checker:
    """Every committed record of `topic`, up to the end as it is now, through a checker."""
    partitions = await partitions_of(kafka, topic)
    # read_committed, or events of a writer that lost its partition would be seen.
    consumer = AIOKafkaConsumer(
        bootstrap_servers=kafka, isolation_level="read_committed", enable_auto_commit=False, auto_offset_reset="none"
    )
    await consumer.start()
    try:
        consumer.assign(partitions)
        await consumer.seek_to_beginning()
        ends = await consumer.end_offsets(partitions)
        checker = Checker()
        while True:
            # The last offset may be a transaction's marker, which no reader is given: the position tells, not a record.
            behind = [where for where in partitions if await consumer.position(where) < ends[where]]
            if not behind:
                return checker
            for where, records in (await consumer.getmany(*behind, timeout_ms=1000)).items():
                for record in records:
                    entry = decode(record.value, schemas)
                    checker.check(where.partition, entry)
                    if show:
                        print(json.dumps({"partition": where.partition, "offset": record.offset, **entry}))
    finally:
        await consumer.stop()


def main() -> int:
    """The command line; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    kafka = os.environ.get("TURNLOG_KAFKA", "localhost:9092")
    parser.add_argument("--kafka", default=kafka, help="bootstrap address; else TURNLOG_KAFKA, else localhost:9092")
    parser.add_argument("--topic", default="conversations", help="with the deployment's namespace, if it has one")
    parser.add_argument("--schema", action="append", help="journal schema, .avsc; may be given several times")
    parser.add_argument("--print", action="store_true", help="print each event as a line of JSON")
    given = parser.parse_args()
    try:
        schemas = load_schemas(given.schema or ["schemas/avro/journal.avsc"])
        checker = asyncio.run(read(given.kafka, given.topic, schemas, given.print))
    except (CouldNotRead, FileNotFoundError) as error:
        print(error, file=sys.stderr)
        return 2
    verdict = {
        "ok": not checker.problems,
        "events": checker.events,
        "partitions": len(checker.lsn),
        "conversations": len(checker.seq),
        "problems": checker.problems,
    }
    print(json.dumps(verdict))
    return 1 if checker.problems else 0


if __name__ == "__main__":
    sys.exit(main())
