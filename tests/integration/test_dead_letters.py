"""Dead letters as operators settle them, on real Kafka with real workers."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import psycopg
import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition
from pydantic import SecretStr

from ops.cli.command_line import run
from ops.dlq.letters import REPLAYED_FROM, Wanted, listed
from ops.dlq.settling import DROPPED, REPLAYED, Decision, Unfinished, settle
from streams.core.commands import CommitTurn
from streams.core.events import Turn
from streams.runtime.commit import DeadLetters
from streams.runtime.records import DeadLetter
from streams.sealing.copies import KeyTopic
from streams.sealing.store import DataKeyStore, Wrapping
from streams.settings import Settings
from tests.support.command import Ended, turnlog_async
from tests.support.deployment import Deployment, deployment
from tests.support.waiting import until

MEMBER = "gw-1.1"
EVERYTHING = Wanted()
MASTER_KEY = "a master key of the test's own, long enough"
REPLAY = Decision(REPLAYED, "eve", "mended")


@pytest.fixture
async def place(settings: Settings) -> AsyncIterator[Deployment]:
    async with deployment(settings, 2) as made:
        yield made


async def dlq(place: Deployment, *arguments: str) -> Ended:
    return await turnlog_async("dlq", *arguments, "-o", "json", environment=place.environment)


def turn_of(place: Deployment, conversation: str, text: str) -> bytes:
    turn = Turn(id=text, sender="ann", channel="web", type="text", text=text)
    command = CommitTurn(at=0, timestamp=0, ref=text, conversation_id=conversation, turn=turn)
    return place.codec.encode_command(command)


class Outbox:
    """Writes letters as a worker does."""

    def __init__(self, place: Deployment) -> None:
        self._place = place

    async def send(self, topic: str, partition: int, value: bytes, **_: object) -> int:
        await self._place.garbage(topic, partition, value)
        return 0


async def post_letters(place: Deployment, count: int, value: bytes | None = None) -> list[str]:
    """So many letters that can be replayed, as if they had been refused, each with a turn or with `value`; their
    origins."""
    letters = [
        DeadLetter(
            error="wrong_partition",
            reason="for the test",
            origin=f"{place.topics.turns}/{n % 2}/{n}",
            topic=place.topics.turns,
            partition=n % 2,
            offset=n,
            key=b"c1",
            value=value or turn_of(place, "c1", f"t{n}"),
            at=n,
        )
        for n in range(count)
    ]
    await DeadLetters(Outbox(place), place.codec, place.topics.dead_letters).write(letters)
    return [letter.origin for letter in letters]


async def replayed(place: Deployment) -> Counter[str]:
    """How often each letter's record is in the intake, for who reads committed."""
    names = [TopicPartition(place.topics.turns, partition) for partition in range(2)]
    consumer = AIOKafkaConsumer(
        bootstrap_servers=place.settings.kafka, isolation_level="read_committed", auto_offset_reset="earliest"
    )
    await consumer.start()
    found: Counter[str] = Counter()
    try:
        ends = await consumer.end_offsets(names)
        consumer.assign(names)
        while any([await consumer.position(name) < ends[name] for name in names]):
            for records in (await consumer.getmany(timeout_ms=100)).values():
                found.update(value.decode() for r in records for name, value in r.headers if name == REPLAYED_FROM)
    finally:
        await consumer.stop()
    return found


async def test_a_letter_is_replayed_where_it_belongs_once_and_what_would_be_refused_again_stays(
    place: Deployment,
) -> None:
    async with place.worker():
        await place.furnish(MEMBER)
        await place.furnished(MEMBER)
        await place.open("c1")
        home, turns = place.home("c1"), place.topics.turns
        await place.garbage(turns, 1 - home, turn_of(place, "c1", "lost its way"), key=b"c1")
        await place.garbage(turns, home, b"garbage", key=b"c1")

        async def two_letters() -> bool:
            return len((await listed(place.settings, Wanted()))[0]) == 2

        await until(two_letters)
        rows = (await dlq(place, "list")).document
        stray, garbage = sorted(rows, key=lambda row: str(row["error"]), reverse=True)
        assert (stray["error"], stray["key"], stray["status"]) == ("wrong_partition", "c1", "open")
        masked = (await dlq(place, "show", stray["origin"])).document
        assert (masked["command"], masked["fields"]["turn"]["text"]) == ("CommitTurn", "(12 characters)")

        looked = await settle(place.settings, EVERYTHING, REPLAY, dry_run=True)
        assert looked.before == {"open": 2, "replayed": 0, "dropped": 0}
        assert looked.after["open"] == 1

        done = await dlq(place, "replay", "--all", "--yes", "--by", "eve", "--why", "mended")
        assert done.code == 1, "one stays"
        assert [one["origin"] for one in done.document["done"]] == [stray["origin"]]
        assert [one["error"] for one in done.document["refused"]] == [garbage["error"]]
        assert done.document["before"] == looked.before, "the look changed nothing"
        assert done.document["after"] == {"open": 1, "replayed": 1, "dropped": 0}
        await place.all_taken({"c1": ["lost its way"]})

        again = await settle(place.settings, Wanted(origins={stray["origin"]}), REPLAY)
        assert not again.done
        assert [(one["action"], one["by"], one["why"]) for one in again.already] == [("replayed", "eve", "mended")]

        dropped = await settle(place.settings, Wanted(errors={garbage["error"]}), Decision(DROPPED, "bob", "noise"))
        assert dropped.after == {"open": 0, "replayed": 1, "dropped": 1}
        late = await settle(place.settings, Wanted(origins={garbage["origin"]}), REPLAY)
        assert (late.done, late.already[0]["action"]) == ([], "dropped")
    await place.require_sound()


async def test_a_sealed_letter_is_opened_by_its_key_for_who_may_see_it(place: Deployment) -> None:
    topic, store = KeyTopic(place.settings), DataKeyStore(place.settings.postgres, Wrapping(SecretStr(MASTER_KEY)))
    try:
        key = await store.current("c1", topic)
    finally:
        await store.close()
        await topic.close()
    assert key is not None
    turn = Turn(id="t", sender="ann", channel="web", type="text", text=key.seal("a zebra"), key_id=key.id)
    command = CommitTurn(at=0, timestamp=0, conversation_id="c1", turn=turn)
    [origin] = await post_letters(place, 1, place.codec.encode_command(command))

    async def shown(*options: str, **more: str) -> Any:
        environment = {**place.environment, **more}
        ended = await turnlog_async("dlq", "show", origin, *options, "-o", "json", environment=environment)
        assert ended.code == 0, ended.err
        return ended.document["fields"]["turn"]["text"]

    assert await shown() == f"({len(key.seal('a zebra'))} characters)"
    assert await shown("--show-text", TURNLOG_MASTER_KEY=MASTER_KEY) == "a zebra"
    assert await shown("--show-text") == "[sealed]", "without the master key"
    with psycopg.connect(place.settings.postgres, autocommit=True) as connection:
        # As a projector does that erases it.
        connection.execute("UPDATE data_keys SET wrapped = NULL, current = false, erased_at = now()")
    assert await shown("--show-text", TURNLOG_MASTER_KEY=MASTER_KEY) == "[erased]"


async def test_letters_are_chosen_by_reason_topic_and_time(place: Deployment) -> None:
    await post_letters(place, 4)
    day = 86_400_000
    none = Wanted(errors={"truncated"}), Wanted(topics={"frames"}), Wanted(until=0), Wanted(since=day)
    for wanted in none:
        assert (await listed(place.settings, wanted))[0] == []
    some = await dlq(place, "list", "--error", "wrong_partition", "--topic", "turns", "--to", "-1h")
    assert [row["offset"] for row in some.document] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(("replay", "--yes"), "which letters?"), (("list", "--from", "yesterday"), "--from: 'yesterday' is no time")],
)
def test_a_choice_that_says_nothing_is_refused(
    arguments: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["dlq", *arguments]) == 64
    assert said in capsys.readouterr().err


async def test_who_settles_is_fenced_by_the_next_and_no_letter_is_replayed_twice(place: Deployment) -> None:
    origins = await post_letters(place, 300)
    second: list[asyncio.Task[object]] = []

    def begin_another(_: int) -> None:
        if not second:
            second.append(asyncio.create_task(settle(place.settings, EVERYTHING, Decision(DROPPED, "bob", "noise"))))

    async def first() -> None:
        for _ in range(100):  # it goes on as if nobody else were there, until it is refused
            await settle(place.settings, EVERYTHING, REPLAY, notify=begin_another)

    with suppress(Unfinished):
        await first()
    await asyncio.gather(*second, return_exceptions=True)
    result = await settle(place.settings, EVERYTHING, REPLAY, dry_run=True)
    found = await replayed(place)
    assert result.before["open"] == 0
    assert result.before["replayed"] == len(found)
    assert result.before["replayed"] + result.before["dropped"] == len(origins)
    assert set(found.values()) == {1}


async def test_a_replay_that_is_killed_and_run_again_replays_each_letter_once(place: Deployment) -> None:
    origins = await post_letters(place, 320)
    for _ in range(2):
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "ops.cli", "dlq", "replay", "--all", "--yes"),
            env={**os.environ, **place.environment},
            stderr=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
        )
        assert process.stderr is not None
        assert b"letters are settled" in await process.stderr.readline()
        process.send_signal(signal.SIGKILL)
        await process.wait()
    await settle(place.settings, EVERYTHING, REPLAY)
    assert await replayed(place) == Counter(origins)
