"""The example that data teams start from, as they run it: a process that knows the schema file and nothing else."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient

from ops.embedded import EmbeddedStack
from streams.core.events import BatchCommitted, Entry, Event, Turn, TurnCommitted, WriterOpened
from streams.runtime.codec import Codec
from streams.topics import Topics, ensure

ROOT = Path(__file__).parents[2]
CODEC = Codec()


def turn(conversation_id: str, seq: int) -> TurnCommitted:
    said = Turn(id=f"m-{seq}", sender="ana", channel="web", type="text", text="good morning")
    return TurnCommitted(conversation_id=conversation_id, seq=seq, turn=said)


def entries(events: Iterable[Event], first_lsn: int = 1) -> list[Entry]:
    return [Entry(lsn, 5, 7, 1, event) for lsn, event in enumerate(events, first_lsn)]


async def write(stack: EmbeddedStack, topic: str, batches: list[list[Entry]], aborted: list[Entry]) -> None:
    """Each batch is a transaction of partition 1; between the first and the rest one is aborted."""
    producer = AIOKafkaProducer(bootstrap_servers=stack.kafka, transactional_id=f"{topic}-writer")
    await producer.start()
    try:
        for number, batch in enumerate(batches):
            async with producer.transaction():
                for entry in batch:
                    await producer.send_and_wait(topic, CODEC.encode_entry(entry), partition=1)
            if number == 0 and aborted:
                await producer.begin_transaction()
                for entry in aborted:
                    await producer.send_and_wait(topic, CODEC.encode_entry(entry), partition=1)
                await producer.abort_transaction()
    finally:
        await producer.stop()


async def run_example(
    stack: EmbeddedStack, topic: str, *more: str, environment: dict[str, str] | None = None
) -> tuple[int | None, list[Any], str]:
    """`environment` names the broker instead of `--kafka`, when it is given."""
    named = () if environment is not None else ("--kafka", stack.kafka)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-I",  # isolated: nothing of this repository can be imported
        str(ROOT / "docs/examples/read_journal.py"),
        *(*named, "--topic", topic, "--schema", str(ROOT / "schemas/avro/journal.avsc"), *more),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, **(environment or {})},
    )
    out, err = await process.communicate()
    return process.returncode, [json.loads(line) for line in out.splitlines()], err.decode()


@pytest.fixture
async def topic(stack: EmbeddedStack, fresh_namespace: str) -> str:
    topics = Topics(fresh_namespace)
    admin = AIOKafkaAdminClient(bootstrap_servers=stack.kafka)
    await admin.start()
    try:
        await ensure(admin, topics, partitions=2)
    finally:
        await admin.close()
    return topics.conversations


async def test_a_whole_journal_is_read_to_its_end_without_what_was_aborted(stack: EmbeddedStack, topic: str) -> None:
    first = entries([WriterOpened(writer_epoch=1, worker="w"), turn("c-1", 1), turn("c-2", 1), turn("c-1", 2)])
    second = entries([turn("c-2", 2), BatchCommitted(turns=4, frames=0, membership=0)], first_lsn=5)
    await write(stack, topic, [first, second], aborted=entries([turn("c-1", 9)], first_lsn=99))
    code, [verdict], errors = await run_example(stack, topic)
    assert (code, errors) == (0, "")
    assert verdict == {"ok": True, "events": 6, "partitions": 1, "conversations": 2, "problems": []}


async def test_events_are_printed_as_json(stack: EmbeddedStack, topic: str) -> None:
    await write(stack, topic, [entries([turn("c-1", 1)])], aborted=[])
    _, [event, verdict], _ = await run_example(stack, topic, "--print")
    assert event["event"][0] == "TurnCommitted"
    assert event["event"][1]["turn"]["text"] == "good morning"
    assert verdict["ok"]


async def test_what_is_missing_is_named(stack: EmbeddedStack, topic: str) -> None:
    await write(stack, topic, [entries([turn("c-1", 1)]), entries([turn("c-1", 3)], first_lsn=4)], aborted=[])
    code, [verdict], _ = await run_example(stack, topic)
    assert code == 1
    assert verdict["problems"] == [
        "partition 1: lsn 4 where 2 was next",
        "conversation c-1: seq 3 where 2 was next",
    ]


async def test_a_topic_that_is_not_there_is_named(stack: EmbeddedStack, fresh_namespace: str) -> None:
    code, _, errors = await run_example(stack, f"{fresh_namespace}.nowhere")
    assert code == 2
    assert f"there is no topic {fresh_namespace}.nowhere" in errors


async def test_the_broker_is_the_one_that_the_environment_names(stack: EmbeddedStack, topic: str) -> None:
    code, [verdict], errors = await run_example(stack, topic, environment={"TURNLOG_KAFKA": stack.kafka})
    assert (code, errors) == (0, "")
    assert verdict["events"] == 0


async def test_a_broker_that_is_not_there_is_named_with_the_way_out(stack: EmbeddedStack, topic: str) -> None:
    code, _, errors = await run_example(stack, topic, environment={"TURNLOG_KAFKA": "127.0.0.1:1"})
    assert code == 2
    assert "Traceback" not in errors
    assert "no Kafka answers at 127.0.0.1:1" in errors
    assert "--kafka" in errors
