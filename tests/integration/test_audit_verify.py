"""The audit on real servers: content with what workers wrote, and it finds what was put in behind their backs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec
import psycopg
import pytest
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete

from ops.audit.source import CouldNotVerify
from ops.audit.verify import Scope, verify_cluster
from ops.audit.violations import Verdict
from streams.core.events import Entry, TurnCommitted
from streams.settings import Settings
from tests.support.command import turnlog_async
from tests.support.deployment import CODEC, Deployment, Talk, deployment

PARTITIONS = 2


@pytest.fixture
async def place(settings: Settings) -> AsyncIterator[Deployment]:
    """A deployment in which people have talked; its worker has stopped and stored its checkpoints."""
    async with deployment(settings, PARTITIONS) as made:
        async with made.worker() as (running, _):
            talk = Talk(made)
            await talk.some(5)
            said = await talk.end()
            await made.all_taken(said)
            await made.garbage(made.topics.turns, 0, b"garbage")
            await made.garbage(made.topics.turns, 1, None)
            await made.open("last")
            await made.turn("last", "one", key="one")
            await made.all_taken({**said, "last": ["one"]})
            assert await running.stop() == 0
        yield made


def quiet(_: str) -> None:
    """No progress wanted."""


async def verified(place: Deployment, **scope: Any) -> Verdict:
    return await verify_cluster(place.settings, Scope(**scope), quiet)


def invariants(verdict: Verdict) -> set[int]:
    return {violation.invariant for violation in verdict.findings.shown}


async def append(place: Deployment, partition: int, entry: Entry) -> None:
    """What nobody may do: write to the journal without being its sequencer."""
    async with AIOKafkaProducer(bootstrap_servers=place.settings.kafka) as producer:
        key = None if entry.event.conversation_id is None else entry.event.conversation_id.encode()
        value = CODEC.encode_entry(entry)
        await producer.send_and_wait(place.topics.conversations, value, key, partition=partition)


def change_row(place: Deployment, statement: str) -> None:
    with psycopg.connect(place.settings.postgres, autocommit=True) as connection:
        assert connection.execute(statement.encode()).rowcount > 0


async def test_what_workers_wrote_breaks_nothing_and_is_counted(place: Deployment) -> None:
    verdict = await verified(place)
    assert verdict.ok, verdict.findings.shown
    journal = await place.journal()
    turns = sum(isinstance(entry.event, TurnCommitted) for entries in journal.values() for entry in entries)
    assert (verdict.tally.events, verdict.tally.turns) == (sum(map(len, journal.values())), turns)
    assert verdict.tally.open == turns  # nobody answers here
    parts = [(await verified(place, partition=partition)).tally.turns for partition in range(PARTITIONS)]
    assert sum(parts) == turns


async def test_one_conversation_is_told_of_alone(place: Deployment) -> None:
    verdict = await verified(place, conversation="last")
    assert (verdict.ok, verdict.tally.turns) == (True, 1)


async def test_a_conversation_that_is_not_there_cannot_be_verified(place: Deployment) -> None:
    ended = await turnlog_async("audit", "verify", "--conversation", "no-such", environment=place.environment)
    assert (ended.code, ended.out) == (2, "")
    assert "nothing of a conversation no-such" in ended.err


async def test_an_intake_that_is_kept_no_longer_is_told(place: Deployment) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=place.settings.kafka)
    await admin.start()
    try:
        await admin.delete_records({TopicPartition(place.topics.turns, 0): RecordsToDelete(before_offset=1)})
    finally:
        await admin.close()
    told: list[str] = []
    assert (await verify_cluster(place.settings, Scope(), told.append)).ok
    assert [line for line in told if line.startswith("partition 0") and "(invariant 11)" in line]


async def test_a_repeated_record_is_found(place: Deployment) -> None:
    partition, entry = await last_turn(place)
    await append(place, partition, entry)
    assert invariants(await verified(place)) >= {1, 7, 9}
    ended = await turnlog_async("audit", "verify", "-o", "json", environment=place.environment)
    assert (ended.code, ended.document["ok"]) == (1, False)
    assert ended.document["violations"][0].keys() >= {"invariant", "partition", "lsn", "conversation", "problem"}


async def test_a_turn_that_was_never_said_is_found(place: Deployment) -> None:
    partition, entry = await last_turn(place)
    assert isinstance(entry.event, TurnCommitted)
    last = (await place.journal())[partition][-1]
    turn = msgspec.structs.replace(entry.event.turn, key="invented")
    event = msgspec.structs.replace(entry.event, turn=turn, seq=entry.event.seq + 1, ref="invented")
    run = msgspec.structs.replace(event.assigned[0], run_id=f"{event.conversation_id}/{event.seq}/other")
    event = msgspec.structs.replace(event, assigned=(run,))
    await append(place, partition, msgspec.structs.replace(entry, lsn=last.lsn + 1, at=last.at, event=event))
    batch = msgspec.structs.replace(last, lsn=last.lsn + 2)
    await append(place, partition, batch)
    assert 11 in invariants(await verified(place))


async def last_turn(place: Deployment) -> tuple[int, Entry]:
    journal = await place.journal()
    return next(
        (partition, entry)
        for partition, entries in journal.items()
        for entry in reversed(entries)
        if isinstance(entry.event, TurnCommitted)
    )


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE checkpoints SET lsn = lsn + 1000",
        "UPDATE checkpoints SET turns = turns + 1",
        "UPDATE checkpoints SET state = set_byte(state, length(state) - 1, 1)",
        "UPDATE conversation_states SET state = set_byte(state, length(state) - 1, 1)",
        "UPDATE conversation_states SET hot = NOT hot",
        "DELETE FROM conversation_states WHERE conversation_id = 'last'",
    ],
)
async def test_a_checkpoint_that_is_not_the_journals_is_found(place: Deployment, statement: str) -> None:
    change_row(place, statement)
    assert invariants(await verified(place)) == {10}


async def test_a_journal_without_its_beginning_cannot_be_verified(place: Deployment) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=place.settings.kafka)
    await admin.start()
    try:
        first = TopicPartition(place.topics.conversations, 0)
        await admin.delete_records({first: RecordsToDelete(before_offset=3)})
    finally:
        await admin.close()
    with pytest.raises(CouldNotVerify, match="offsets 0 to 2 are not there any more"):
        await verified(place)
    ended = await turnlog_async("audit", "verify", environment=place.environment)
    assert (ended.code, ended.out) == (2, "")
    assert "offsets 0 to 2" in ended.err


async def test_a_record_that_cannot_be_decoded_cannot_be_verified(place: Deployment) -> None:
    await place.garbage(place.topics.conversations, 0, b"garbage", None)
    with pytest.raises(CouldNotVerify, match="cannot be decoded"):
        await verified(place)
