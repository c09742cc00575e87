"""`turnlog topic grow` on real Kafka and Postgres: what was said goes on in more partitions as if nothing had been."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import psycopg
import pytest
from aiokafka import AIOKafkaProducer

from ops.audit.verify import Scope, verify_cluster
from ops.grow import copying, run
from ops.grow.database import Database
from ops.grow.plan import planned
from ops.grow.run import grow
from ops.grow.split import CannotGrow
from ops.history import open_history
from streams.core.events import Duplicate, Entry, TurnCommitted
from streams.core.fold import evolve
from streams.core.state import Conversation, Partition
from streams.runtime.belonging import moved_to
from streams.runtime.kafka_producers import KafkaJournalProducer
from streams.sealing.copies import KeyTopic
from streams.sealing.store import WrappedKey
from streams.settings import Settings
from tests.support.command import turnlog_async
from tests.support.deployment import MEMBER, Deployment, Talk, deployment
from tests.support.histories import Interrupting

BEFORE, AFTER = 2, 4


def quiet(_: str) -> None:
    """No progress wanted."""


def grown(place: Deployment, producer: AIOKafkaProducer) -> Deployment:
    """The same deployment in its new generation."""
    settings = place.settings.model_copy(update={"namespace": f"{place.settings.namespace}.g2"})
    return Deployment(settings, AFTER, producer)


async def talked(place: Deployment) -> Mapping[str, list[str]]:
    """Some conversations, all taken, and the worker stopped."""
    async with place.worker() as (running, _):
        talk = Talk(place)
        await talk.some(5)
        said = await talk.end()
        await place.all_taken(said)
        assert await running.stop() == 0
    return said


def folded(journal: Mapping[int, Sequence[Entry]]) -> dict[str, Conversation]:
    found: dict[str, Conversation] = {}
    for partition, entries in journal.items():
        state = Partition(partition)
        for entry in entries:
            evolve(state, entry)
        assert not found.keys() & state.conversations.keys(), "a conversation lies in two partitions"
        found |= state.conversations
    return found


async def test_a_grown_deployment_goes_on_where_it_was(settings: Settings) -> None:
    async with deployment(settings, BEFORE) as place:
        said = await talked(place)
        before = folded(await place.journal())
        await sealed_by(place.settings, WrappedKey("k1", "c1", b"sealed"), WrappedKey("k2", "c2", b"sealed"))
        await sealed_by(place.settings, WrappedKey("k2", "c2", None), WrappedKey("k3", "c3", b"sealed"))
        await asyncio.to_thread(destroy, settings, "k3")
        environment = place.environment
        looked = await turnlog_async(
            "topic", "grow", "--partitions", "4", "--dry-run", "-o", "json", environment=environment
        )
        assert looked.code == 0, looked.err
        assert looked.document["standing"] == []
        assert sum(part["conversations"] for part in looked.document["parts"]) == len(said)
        done = await turnlog_async("topic", "grow", "--partitions", "4", "--yes", "-o", "json", environment=environment)
        assert done.code == 0, done.err
        assert [part["events"] for part in done.document["parts"]] == [
            part["events"] for part in looked.document["parts"]
        ]
        refused = await turnlog_async("worker", environment=environment)
        assert refused.code == 2
        assert f"TURNLOG_NAMESPACE={settings.namespace}.g2" in refused.err
        async with AIOKafkaProducer(bootstrap_servers=settings.kafka, enable_idempotence=True) as producer:
            new = grown(place, producer)
            rebuilt = await turnlog_async("rebuild", "--yes", "-o", "json", environment=new.environment)
            assert rebuilt.code == 0, rebuilt.err
            transcript = rebuilt.document["tables"]["transcript"]
            assert transcript == {"before": 0, "after": sum(map(len, said.values()))}
            await goes_on(new, said, before)
        assert await sealed_by(new.settings) == [WrappedKey("k1", "c1", b"sealed")]


def destroy(settings: Settings, key: str) -> None:
    """As an erasure does whose tombstone came before the copy."""
    with psycopg.connect(settings.postgres) as connection:
        connection.execute(
            "INSERT INTO data_keys (key_id, conversation_id, wrapped, current, copied, erased_at)"
            " VALUES (%s, 'c3', NULL, false, true, now())",
            (key,),
        )


async def sealed_by(settings: Settings, *keys: WrappedKey) -> list[WrappedKey]:
    """Write keys into their topic, or take them out of it; those that are there then."""
    found: list[WrappedKey] = []

    async def seen(some: Sequence[WrappedKey]) -> None:
        found.extend(some)

    topic = KeyTopic(settings)
    try:
        await topic.put(keys)
        await topic.all(seen)
    finally:
        await topic.close()
    return found


async def goes_on(place: Deployment, said: Mapping[str, list[str]], before: Mapping[str, Conversation]) -> None:
    """Numbers, owners and keys of the new generation are those of the old one, and it passes every check."""
    journal = await place.journal()
    duplicates = sum(isinstance(entry.event, Duplicate) for entries in journal.values() for entry in entries)
    after = folded(journal)
    assert {name: (c.head, c.owners) for name, c in after.items()} == {
        name: (c.head, c.owners) for name, c in before.items()
    }
    async with place.worker() as (running, _):
        for conversation, texts in said.items():
            await place.turn(conversation, texts[0], key=texts[0])
            await place.turn(conversation, "after", key="after")
        await place.all_taken({name: [*texts, "after"] for name, texts in said.items()})
        assert await running.stop() == 0
    journal = await place.journal()
    events = [entry.event for entries in journal.values() for entry in entries]
    last = {e.conversation_id: e.seq for e in events if isinstance(e, TurnCommitted)}
    assert last == {name: before[name].head + 1 for name in said}
    assert sum(isinstance(event, Duplicate) for event in events) == duplicates + len(said)
    assert {place.home(name) for name in said} == set(range(AFTER))
    verdict = await verify_cluster(place.settings, Scope(), quiet)
    assert verdict.ok, verdict.findings.shown


async def moved(place: Deployment, *, dies_after: int | None = None) -> list[int]:
    """Grow it; how many events were written into each new partition by this attempt."""
    database = await Database.connect(place.settings.postgres)
    try:
        async with open_history(place.settings) as history:
            plan = await planned(place.settings, history, database, AFTER, None)
            chosen: Any = history if dies_after is None else Interrupting(history, dies_after)
            copied = await grow(plan, chosen, database, "ann", quiet)
            return [each.new for each in copied.values()]
    finally:
        await database.close()


async def dies(*_: object) -> None:
    raise asyncio.CancelledError


async def test_a_move_that_is_killed_anywhere_goes_on(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copying, "TRANSACTION_RECORDS", 20)
    async with deployment(settings, BEFORE) as place:
        said = await talked(place)
        journal = await place.journal()
        before, events = folded(journal), sum(map(len, journal.values()))
        for where, method in (
            (KafkaJournalProducer, "commit"),  # a transaction stays open
            (Database, "switch"),
            (run, "_mark"),  # the database belongs to the new topics, and the old ones do not say so
        ):
            with pytest.raises(asyncio.CancelledError):
                await moved(place, dies_after=events // 4)
            with monkeypatch.context() as patched:
                patched.setattr(where, method, dies)
                with pytest.raises(asyncio.CancelledError):
                    await moved(place)
        assert await moved(place) == []
        assert await moved_to(settings.kafka, place.topics.deployment, 5.0) == f"{settings.namespace}.g2"
        async with AIOKafkaProducer(bootstrap_servers=settings.kafka, enable_idempotence=True) as producer:
            await goes_on(grown(place, producer), said, before)


async def test_what_is_not_taken_or_runs_stands_in_the_way(settings: Settings) -> None:
    async with deployment(settings, BEFORE) as place:
        environment = place.environment
        async with place.worker() as (running, worker):
            await place.furnish(MEMBER)
            await place.furnished(MEMBER)
            refused = await turnlog_async("topic", "grow", "--partitions", "4", "--yes", environment=environment)
            assert (refused.code, refused.out) == (2, "")
            assert worker in refused.err
            assert await running.stop() == 0
        await place.open("late")
        refused = await turnlog_async("topic", "grow", "--partitions", "4", "--yes", environment=environment)
        assert refused.code == 2
        assert f"1 records of {place.topics.turns}[{place.home('late')}] were not taken yet" in refused.err
        odd = await turnlog_async("topic", "grow", "--partitions", "5", "--yes", environment=environment)
        assert "must be a multiple" in odd.err
        async with place.worker() as (running, _):
            await place.turn("late", "one")
            await place.all_taken({"late": ["one"]})
            assert await running.stop() == 0
        database = await Database.connect(settings.postgres)
        try:
            async with open_history(settings) as history:
                plan = await planned(settings, history, database, AFTER, None)
                await place.open("later")
                with pytest.raises(CannotGrow, match="has grown meanwhile"):
                    await grow(plan, history, database, "ann", quiet)
                assert set(await database.kept_topics()) == set(place.topics.of_record)
        finally:
            await database.close()
