"""Keys of conversations in PostgreSQL and in their topic: neither alone loses one, and neither brings one back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest
import pytest_asyncio
from pydantic import SecretStr

from ops.erasure import Erasure
from streams.core.content import Assignment, Frame, RunStatus, Turn
from streams.core.events import (
    ConversationErased,
    ConversationHandedBack,
    ConversationHandedOver,
    ConversationOpened,
    Entry,
    Event,
    FrameCommitted,
    RunEnded,
    TurnCommitted,
)
from streams.core.invocations import RELEASED
from streams.core.runs import SYSTEM
from streams.fence.signing import MasterKeyError
from streams.projector.rows import Rows
from streams.projector.store import Position, PostgresProjection
from streams.sealing.copies import KeyTopic
from streams.sealing.keyring import Keyring
from streams.sealing.records import Missing
from streams.sealing.store import WHOLE_EVERY_S, CopiesUnavailable, DataKeyStore, Shredder, WrappedKey, Wrapping
from streams.sealing.token import DataKey
from streams.settings import Settings
from tests.support.deployment import deployment
from tests.support.exports import MemoryHistory, export, read_back
from tests.support.postgres import backups
from tests.support.scrubbing import holding

MASTER = Wrapping(SecretStr("a master key of the test's own"))


class Place:
    """One deployment's stores of keys."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.open()

    def open(self) -> None:
        """Connect when it is first needed."""
        settings = self.settings
        self.topic = KeyTopic(settings)
        self.store = DataKeyStore(settings.postgres, MASTER)
        self.shredder = Shredder(settings.postgres)
        self.projection = PostgresProjection(settings.postgres)

    async def close(self) -> None:
        for part in (self.topic, self.store, self.shredder, self.projection):
            await part.close()

    def sql(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.settings.postgres, autocommit=True) as connection:
            cursor = connection.execute(statement.encode(), parameters)
            return cursor.fetchall() if cursor.description else []

    async def copies(self) -> list[str]:
        """Ids of the keys that the topic has."""
        found: list[str] = []

        async def seen(keys: Sequence[WrappedKey]) -> None:
            found.extend(key.id for key in keys)

        await self.topic.all(seen)
        return found

    async def erase(self, conversation: str) -> None:
        """As a projector does that reads of it."""
        opened = ConversationOpened("web", conversation_id=conversation)
        await self.project(opened, ConversationErased("op", "asked", "e", conversation_id=conversation, seq=1))

    async def project(self, *events: Event) -> None:
        """As a projector does that reads these."""
        await self.projection.positions([0])
        [[lsn]] = self.sql("SELECT lsn FROM projector_positions WHERE partition = 0")
        entries = [Entry(lsn + n, n, 1, 1, event) for n, event in enumerate(events, start=1)]
        end = lsn + len(events)
        await self.projection.write(0, Position(lsn, lsn), Rows(entries), Position(end, end))


class Held:
    """The topic of keys, to which one writer's copy comes late, and may be said to have failed."""

    def __init__(self, topic: KeyTopic, *, fails: bool = False) -> None:
        self._topic = topic
        self._fails = fails
        self.begun, self.go_on = asyncio.Event(), asyncio.Event()

    async def put(self, keys: Sequence[WrappedKey]) -> None:
        self.begun.set()
        await self.go_on.wait()
        await self._topic.put(keys)
        if self._fails:
            raise CopiesUnavailable("nobody knows")

    async def all(self, seen: Callable[[Sequence[WrappedKey]], Awaitable[None]]) -> None:
        await self._topic.all(seen)


@pytest_asyncio.fixture
async def place(settings: Settings) -> AsyncIterator[Place]:
    async with deployment(settings, 1):
        place = Place(settings)
        yield place
        await place.close()


async def current(place: Place, conversation: str) -> DataKey:
    key = await place.store.current(conversation, place.topic)
    assert key is not None
    return key


async def test_processes_that_need_a_key_at_the_same_moment_agree_on_one(place: Place) -> None:
    others = [DataKeyStore(place.settings.postgres, MASTER) for _ in range(3)]
    keys = await asyncio.gather(*(store.current("c1", place.topic) for store in [place.store, *others]))
    for store in others:
        await store.close()
    assert len({key.secret for key in keys if key is not None}) == 1
    assert set(await place.copies()) == {key.id for key in keys if key is not None}


async def test_neither_the_table_nor_the_topic_tells_the_key(place: Place) -> None:
    key = await current(place, "c1")
    [[wrapped]] = place.sql("SELECT wrapped FROM data_keys")
    assert key.secret not in bytes(wrapped)
    stranger = DataKeyStore(place.settings.postgres, Wrapping(SecretStr("another")))
    with pytest.raises(MasterKeyError):
        await stranger.find([key.id])
    await stranger.close()


async def test_a_key_that_was_not_copied_before_its_maker_died_is_copied_before_it_is_used(place: Place) -> None:
    key = await current(place, "c1")
    await place.topic.put([WrappedKey(key.id, "", None)])
    place.sql("UPDATE data_keys SET copied = false")
    assert (await current(place, "c1")).secret == key.secret
    assert await place.copies() == [key.id]


async def test_what_a_database_lost_comes_back_from_the_topic_beside_what_was_made_since(place: Place) -> None:
    lost = await current(place, "c1")
    place.sql("DELETE FROM data_keys")
    made = await current(place, "c1")
    assert made.id != lost.id
    assert await place.store.find([lost.id]) == {}
    await place.store.restore(place.topic)
    found = await place.store.find([lost.id, made.id])
    assert {key.secret for key in found.values() if isinstance(key, DataKey)} == {lost.secret, made.secret}
    assert (await current(place, "c1")).id == made.id


async def test_an_erasure_destroys_every_key_and_its_copy(place: Place) -> None:
    gone, kept = await current(place, "c1"), await current(place, "c2")
    await place.erase("c1")
    assert await place.store.find([gone.id]) == {gone.id: Missing.ERASED}
    assert await place.shredder.shred(place.topic) == 1
    assert await place.shredder.shred(place.topic) == 0
    assert await place.copies() == [kept.id]
    assert isinstance((await place.store.find([kept.id]))[kept.id], DataKey)


async def test_a_key_of_an_erased_conversation_that_only_the_topic_had_is_not_brought_back(place: Place) -> None:
    key = await current(place, "c1")
    place.sql("DELETE FROM data_keys")
    await place.erase("c1")
    await place.store.restore(place.topic)
    assert await place.store.find([key.id]) == {key.id: Missing.ERASED}
    await place.shredder.shred(place.topic)
    assert await place.copies() == []


async def test_an_erased_conversation_gets_no_other_key(place: Place) -> None:
    await current(place, "c1")
    await place.erase("c1")
    assert await place.store.current("c1", place.topic) is None


async def test_a_key_that_was_made_while_its_conversation_was_erased_is_destroyed_too(place: Place) -> None:
    await place.erase("c1")
    place.sql("UPDATE conversations SET status = 'open'")
    key = await current(place, "c1")  # by a gateway whose read model had not been told yet
    place.sql("UPDATE conversations SET status = 'erased', updated_at = extract(epoch FROM now()) * 1000")
    assert await place.shredder.shred(place.topic) == 1
    assert await place.store.find([key.id]) == {key.id: Missing.ERASED}


async def test_a_key_that_was_made_while_an_old_erasure_was_read_is_destroyed_too(place: Place) -> None:
    """As after `topic grow`, a restore or a rebuild: what is erased now happened long ago."""
    now = [1_000.0]
    shredder = Shredder(place.settings.postgres, clock=lambda: now[0])
    await place.erase("c1")
    for look in range(2):
        place.sql("UPDATE conversations SET status = 'open'")
        key = await current(place, "c1")
        place.sql("UPDATE conversations SET status = 'erased'")
        assert await shredder.shred(place.topic) == (1 if look == 0 else 0)
        now[0] += WHOLE_EVERY_S
        await shredder.shred(place.topic)
        assert await place.store.find([key.id]) == {key.id: Missing.ERASED}
        assert await place.copies() == []
    await shredder.close()


@pytest.mark.parametrize("fails", [False, True], ids=["copied", "in doubt"])
async def test_a_copy_that_comes_after_its_tombstone_does_not_outlive_it(place: Place, *, fails: bool) -> None:
    held = Held(place.topic, fails=fails)
    paused = asyncio.create_task(place.store.current("c1", held))
    await held.begun.wait()
    key = await current(place, "c1")  # another gateway copies it, and seals what is said with it
    await place.erase("c1")
    await place.shredder.shred(place.topic)
    held.go_on.set()
    if fails:
        with pytest.raises(CopiesUnavailable):
            await paused
    else:
        assert await paused is None, "it seals nothing any more"
    assert await place.copies() == [key.id], "this is what must not stay"
    assert await place.shredder.shred(place.topic) == 1
    assert await place.copies() == []


async def test_a_copy_that_comes_while_its_tombstone_is_written_does_not_outlive_it(place: Place) -> None:
    held, tombstone = Held(place.topic), Held(place.topic)
    paused = asyncio.create_task(place.store.current("c1", held))
    await held.begun.wait()
    await place.erase("c1")
    shredding = asyncio.create_task(place.shredder.shred(Twice(place.topic, tombstone)))
    await tombstone.begun.wait()  # the tombstone is there, and not noted yet
    held.go_on.set()
    await paused
    tombstone.go_on.set()
    await shredding
    assert await place.copies() == []


class Twice:
    """Writes at once, and again when it may."""

    def __init__(self, topic: KeyTopic, held: Held) -> None:
        self._topic = topic
        self._held = held

    async def put(self, keys: Sequence[WrappedKey]) -> None:
        await self._topic.put(keys)
        if not self._held.go_on.is_set():
            self._held.begun.set()
            await self._held.go_on.wait()

    async def all(self, seen: Callable[[Sequence[WrappedKey]], Awaitable[None]]) -> None:
        await self._topic.all(seen)


async def test_an_erasure_first_looks_for_keys_that_the_database_lost(place: Place) -> None:
    lost = await current(place, "c1")
    place.sql("DELETE FROM data_keys")
    erasure = Erasure(place.settings)
    await erasure._restore_keys()
    await erasure.close()
    await place.erase("c1")
    await place.shredder.shred(place.topic)
    assert await place.store.find([lost.id]) == {lost.id: Missing.ERASED}
    assert await place.copies() == []


def turn(conversation: str, seq: int, text: str, *, sender: str, channel: str) -> TurnCommitted:
    said = Turn(id=f"{conversation}.{seq}", sender=sender, channel=channel, type="text", text=text)
    return TurnCommitted(said, conversation_id=conversation, seq=seq)


async def test_only_what_nobody_sealed_counts_as_plain(place: Place) -> None:
    token = (await current(place, "c1")).seal("hello")
    closed = Frame(id="ask", type="interrupt_resolved", data='{"answer":null}')
    await place.project(
        ConversationOpened("web", conversation_id="c1", metadata=token),
        turn("c1", 1, token, sender="anna", channel="web"),
        FrameCommitted(closed, SYSTEM, "web", "g", "m", conversation_id="c1", seq=2),
        ConversationOpened("web", conversation_id="c2", metadata='{"name": "Anna"}'),
        turn("c2", 1, "hello", sender="anna", channel="web"),
        FrameCommitted(Frame(id="b", type="buttons", extra="{}"), "bot", "web", "g", "m", conversation_id="c2", seq=2),
    )
    erasure = Erasure(place.settings)
    plain = [found.plain for each in ("c1", "c2") if (found := await erasure.find(each)) is not None]
    await erasure.close()
    assert plain == [0, 3]


async def test_why_somebody_did_something_is_erased_too_and_an_operators_proof_is_not(place: Place) -> None:
    reason = 'she said: "\\zebra\\", "reason":"' + "ä" * 3
    opened = ConversationOpened("web", conversation_id="c1")
    said = turn("c1", 1, "hello", sender="anna", channel="web")
    given = tuple(Assignment(group, "m", f"c1/1/{group}") for group in ("g", "h"))
    ended = ("c1/1/g", 1, "g", "m", 1, RunStatus.CANCELLED, "cancelled")
    released = ("c1/1/h", 1, "h", "m", 1, RunStatus.OWNER_GONE, RELEASED)
    await place.project(
        opened,
        msgspec.structs.replace(said, assigned=given),
        RunEnded(*ended, by="anna", detail=reason, conversation_id="c1"),
        RunEnded(*released, by="op", detail="its pod is deleted", conversation_id="c1"),
        ConversationHandedOver("desk", "eve", reason, "u2", conversation_id="c1", seq=2),
        ConversationHandedBack("desk", reason, "u3", conversation_id="c1", seq=3),
        ConversationHandedOver("desk", "eve", "", "u4", conversation_id="c1", seq=4),
    )
    assert "zebra" in str(place.sql("SELECT data FROM transcript"))
    await place.project(ConversationErased("op", "asked", "e", conversation_id="c1", seq=5))
    updates = place.sql("SELECT data::json ->> 'status', data::json ->> 'reason' FROM transcript WHERE kind = 'update'")
    handed = [("handed_over", "[erased]"), ("handed_back", "[erased]"), ("handed_over", "")]
    assert sorted(updates) == sorted([*handed, ("erased", "asked")])
    assert set(place.sql("SELECT run_id, detail FROM runs")) == {("c1/1/g", None), ("c1/1/h", "its pod is deleted")}


def opener(place: Place) -> Keyring:
    """What a gateway opens by."""
    return Keyring(place.store, place.topic)


async def test_a_database_that_is_restored_from_before_an_erasure_reads_it_again(place: Place, tmp_path: Path) -> None:
    key = await current(place, "c1")
    given = (Assignment("g", "m", "c1/1/g"),)
    said = turn("c1", 1, key.seal("a zebra"), sender="anna", channel="web")
    kept = Frame(id="k", type="checkpoint", data=key.seal('{"zebra": 1}'), key_id=key.id)
    events: list[Event] = [
        ConversationOpened("web", conversation_id="c1", metadata=key.seal('{"zebra": 1}')),
        msgspec.structs.replace(said, assigned=given, turn=msgspec.structs.replace(said.turn, key_id=key.id)),
        FrameCommitted(kept, "bot", "web", "g", "m", "c1/1/g", 1, conversation_id="c1"),
        ConversationHandedOver("desk", "eve", key.seal("a zebra"), "u", conversation_id="c1", seq=2),
    ]
    erasure = ConversationErased("op", "request 7", "e", conversation_id="c1", seq=3)
    await place.project(*events)
    entries = [Entry(n, n, 1, 1, event) for n, event in enumerate([*events, erasure], start=1)]
    with backups(place.settings.postgres) as kept_database:
        await place.close()
        await asyncio.to_thread(kept_database.make)
        place.open()
        await place.project(erasure)
        assert await place.shredder.shred(place.topic) == 1
        assert "zebra" not in str(await opener(place).open(entries))
        await place.close()
        await asyncio.to_thread(kept_database.restore)
        place.open()
    assert str(await opener(place).open(entries)).count("zebra") == 4, "this is what must not stay"
    assert len(place.sql("SELECT data FROM run_checkpoints")) == 1
    # A projector goes on where the restored database is, and comes upon the erasure again.
    await place.project(erasure)
    assert str(await opener(place).open(entries)).count("[erased]") == 3  # nothing stands for what it was opened with
    assert "zebra" not in str(await opener(place).open(entries))
    assert place.sql("SELECT data FROM run_checkpoints") == []
    assert place.sql("SELECT wrapped FROM data_keys") == [(None,)]
    assert await place.shredder.shred(place.topic) == 1, "its tombstone is written once more: it may not have been"
    assert await place.copies() == []
    await place.store.restore(place.topic)
    assert await place.store.find([key.id]) == {key.id: Missing.ERASED}
    # An export made before or after holds tokens alone, which nobody opens any more.
    await export(MemoryHistory([entries]), "jsonl", tmp_path)
    assert [row["key_id"] for row in read_back("jsonl", tmp_path, "turns")] == [key.id]
    assert holding(tmp_path) == set()


async def test_a_person_is_found_by_the_channel_that_he_or_she_comes_from(place: Place) -> None:
    await place.project(
        ConversationOpened("web", "anna", conversation_id="own"),
        ConversationOpened("desk", "otto", conversation_id="others"),
        turn("others", 1, "hello", sender="anna", channel="web"),
        ConversationOpened("desk", "anna", conversation_id="another anna's"),
        turn("another anna's", 1, "hello", sender="anna", channel="desk"),
    )
    erasure = Erasure(place.settings)
    of_web, of_all = await erasure.of_participant("anna", "web"), await erasure.of_participant("anna", None)
    await erasure.close()
    assert set(of_web) == {"own", "others"}
    assert set(of_all) == {"own", "others", "another anna's"}
