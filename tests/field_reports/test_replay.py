"""Group 7, audit and replay: what went wrong for others must not go wrong here."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from itertools import groupby
from operator import attrgetter
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient

from ops.embedded import EmbeddedStack
from streams.core import ownership
from streams.core.commands import CommitTurn
from streams.core.events import TurnCommitted
from streams.core.fold import step
from streams.core.state import Partition
from streams.fence.port import Positions
from streams.runtime.kafka import KafkaEnds
from streams.runtime.kafka_readers import KafkaIntake
from streams.settings import Settings
from streams.topics import Topics, TopicsError, ensure, identities, require_same
from tests.field_reports.golden import STORIES, plain, recorded
from tests.support.command import turnlog_async
from tests.support.deployment import MEMBER, deployment
from tests.support.gateway_world import Served, World
from tests.support.partition_world import World as CoreWorld
from tests.support.partition_world import image, replay
from tests.support.waiting import until

HOUR_MS = 3_600_000


# ------------------------------------------------------------------------------------- 56, new code on old history
def test_every_recorded_decision_is_decided_again_word_for_word() -> None:
    """Another name, another argument, another order shows with the first command that is decided otherwise."""
    stories = {name: list(rows) for name, rows in groupby(recorded(), key=attrgetter("story"))}
    assert set(stories) == {*STORIES, "anything"}
    for name, rows in stories.items():
        state = Partition(0)
        for number, row in enumerate(rows):
            decided = as_recorded(plain(step(state, row.command, 1)), row.entries)
            assert decided == row.entries, f"{name}, command {number}: {row.command}"


def as_recorded(decided: Any, recorded: Any) -> Any:
    """`decided` without the fields that were added since, where they say nothing: old readers do without them."""
    if isinstance(decided, dict) and isinstance(recorded, dict):
        known = {name: as_recorded(value, recorded[name]) for name, value in decided.items() if name in recorded}
        return known | {name: value for name, value in decided.items() if name not in recorded and value}
    if isinstance(decided, list) and isinstance(recorded, list) and len(decided) == len(recorded):
        return [as_recorded(*pair) for pair in zip(decided, recorded, strict=True)]
    return decided


def test_a_journal_of_other_rules_is_replayed_as_it_was_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    """A release with another owner function takes over what was recorded; it decides only what comes after it."""
    world = CoreWorld()
    for number in range(5):
        world.join(f"m{number}", settle=True)
    for number in range(40):
        world.open(f"c{number}")
        world.say("hello", f"c{number}")
    live = image(world.state)
    owners = [event.assigned[0].member for event in world.of(TurnCommitted)]

    def last(members: Iterable[str], conversation_id: str) -> str:
        return max(members)

    monkeypatch.setattr(ownership, "winner", last)
    state = replay(world.journal)
    assert image(state) == live
    assert [state.conversations[f"c{n}"].runs[f"c{n}/1/agents/support"].member for n in range(40)] == owners
    assert len(set(owners)) > 1, "the new function would have given all of them to one"


# ------------------------------------------------------------------------------------------ 58, the sender's clock
async def test_senders_whose_clocks_are_wrong_leave_the_order_of_the_log(world: World, served: Served) -> None:
    _, token = await served.conversation()
    wrong = [5 * HOUR_MS, 5 * HOUR_MS, -120_000, 0, 30_000_000_000_000, -HOUR_MS, 0]
    now = int(time.time() * 1000)
    async with served.socket(token, {"watermark": 0}) as person:
        await person.until("welcome")
        for number, skew in enumerate(wrong):
            frame = {"type": "text", "clientId": f"k{number}", "data": {"text": f"m{number}"}, "timestamp": now + skew}
            await person.send(frame)
            await person.until("ack")
    async with served.socket(token, {"watermark": 0}) as again:
        shown = [await again.until("text") for _ in wrong]
    assert [(frame["seq"], frame["data"]["text"]) for frame in shown] == [(n + 1, f"m{n}") for n in range(len(wrong))]
    stamps = [frame["timestamp"] for frame in shown]
    assert stamps == sorted(stamps), "what viewers see is the broker's time, which the log is in the order of"
    turns = [command.turn for command in world.commands if isinstance(command, CommitTurn)]
    assert [turn.client_at for turn in turns] == [now + skew for skew in wrong], "kept, as a field"


# -------------------------------------------------------------------------------- 59, times that retention goes by
@pytest.mark.parametrize("stamp", [0, 1_700_000_000, 4_070_908_800_000], ids=["1970", "seconds for ms", "2099"])
async def test_a_producers_own_time_is_not_what_the_intake_is_kept_by(
    stack: EmbeddedStack, admin: AIOKafkaAdminClient, fresh_namespace: str, stamp: int
) -> None:
    topics = Topics(fresh_namespace)
    await ensure(admin, topics, partitions=1)
    before = int(time.time() * 1000)
    async with AIOKafkaProducer(bootstrap_servers=stack.kafka) as producer:
        await producer.send_and_wait(topics.turns, b"imported", b"c1", partition=0, timestamp_ms=stamp)
    ends = KafkaEnds(stack.kafka, 10)
    intake = KafkaIntake(stack.kafka, ends, topics, 0, limit_s=10)
    try:
        await intake.open(Positions())
        async with asyncio.timeout(20):
            while not (polled := await intake.poll(10, 200, membership=True)).turns:
                pass
    finally:
        await intake.close()
        await ends.close()
    assert before - HOUR_MS < polled.turns[0].timestamp < before + HOUR_MS


# -------------------------------------------------------------------------- 14, 60, topics that are not those of before
async def test_a_worker_refuses_an_intake_that_was_made_anew_under_its_name(settings: Settings) -> None:
    """Filled beyond the old positions it would look as ever, and what lies before them would be skipped."""
    async with deployment(settings, 1) as place:
        async with place.worker() as (running, _):
            await place.furnish(MEMBER)
            await place.furnished(MEMBER)
            await place.open("c1")
            await place.turn("c1", "before")
            await place.all_taken({"c1": ["before"]})
            assert await running.stop() == 0
        admin = AIOKafkaAdminClient(bootstrap_servers=settings.kafka)
        await admin.start()
        try:
            before = await identities(admin, place.topics)
            await admin.delete_topics([place.topics.turns])
            await until(lambda: made_anew(admin, place.topics))
            after = await identities(admin, place.topics)
        finally:
            await admin.close()
        assert {name for name in before if before[name] != after[name]} == {place.topics.turns}
        ended = await turnlog_async("worker", environment=place.environment)
        assert ended.code == 2
        assert f"{place.topics.turns} is not the topic that the database belongs to" in ended.err


async def made_anew(admin: AIOKafkaAdminClient, topics: Topics) -> bool:
    """Deleting a topic takes a while, in which it is there for some questions and not for others."""
    try:
        return bool(await ensure(admin, topics))
    except TopicsError:
        return False


async def test_a_worker_refuses_a_database_that_belongs_to_another_namespace(settings: Settings) -> None:
    """They would share its leases: each would wait for the partitions that the other's workers hold."""
    async with deployment(settings, 1) as place:
        async with place.worker() as (running, _):
            assert await running.stop() == 0
        other = settings.model_copy(update={"namespace": f"{settings.namespace}-b"})
        async with deployment(other, 1) as beside:
            ended = await turnlog_async("worker", environment=beside.environment)
        assert ended.code == 2
        assert "the database belongs to another deployment" in ended.err


def test_topics_in_another_order_are_the_same_and_another_id_is_named() -> None:
    require_same({"turns": "1", "frames": "2"}, {"frames": "2", "turns": "1"})
    with pytest.raises(TopicsError, match=r"^frames is not the topic"):
        require_same({"turns": "1", "frames": "2"}, {"turns": "1", "frames": "3"})
