"""A process's keys: one a conversation, order kept, what is lost found again, what is destroyed forgotten."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any

import pytest

from streams.core.commands import Command, CommitFrame, CommitTurn
from streams.core.content import Frame, Turn
from streams.core.events import ConversationErased, Entry, TurnCommitted
from streams.sealing.keyring import LOOK_AGAIN_S, Keyring
from streams.sealing.records import Missing
from streams.sealing.store import KeyCopies, NoKeys, WrappedKey
from streams.sealing.token import DataKey, key_id_of, new_key

pytestmark = pytest.mark.unit


class NoCopies:
    """`KeyCopies` that nobody reads."""

    async def put(self, keys: Sequence[WrappedKey]) -> None: ...

    async def all(self, seen: Callable[[Sequence[WrappedKey]], Awaitable[None]]) -> None: ...


class MemoryKeys:
    """`Keys` in memory. `lost`: keys that only the topic has, until it is read again."""

    def __init__(self) -> None:
        self.kept: dict[str, DataKey | Missing] = {}
        self.lost: dict[str, DataKey | Missing] = {}
        self.asked = 0
        self.restored = 0
        self.hold: asyncio.Event | None = None
        self.answers: asyncio.Event | None = None
        """Until it is set, what is found is on its way."""

    async def current(self, conversation_id: str, copies: KeyCopies) -> DataKey | None:
        self.asked += 1
        if conversation_id == "erased":
            return None
        if self.hold is not None:
            await self.hold.wait()
        key = new_key(conversation_id)
        self.kept[key.id] = key
        return key

    async def find(self, key_ids: Collection[str]) -> Mapping[str, DataKey | Missing]:
        self.asked += 1
        found = {key_id: self.kept[key_id] for key_id in key_ids if key_id in self.kept}
        if self.answers is not None:
            await self.answers.wait()
        return found

    async def restore(self, copies: KeyCopies) -> None:
        self.restored += 1
        self.kept.update(self.lost)


class World:
    def __init__(self, limit: int = 100) -> None:
        self.keys = MemoryKeys()
        self.now = 0.0
        self.ring = Keyring(self.keys, NoCopies(), limit=limit, clock=lambda: self.now)
        self.other = Keyring(self.keys, NoCopies(), limit=limit, clock=lambda: self.now)


@pytest.fixture
def world() -> World:
    return World()


def say(text: str, conversation_id: str = "c1") -> CommitTurn:
    turn = Turn(id=f"id of {text}", sender="anna", channel="web", type="text", text=text)
    return CommitTurn(at=0, timestamp=0, conversation_id=conversation_id, turn=turn)


async def sealed(ring: Keyring, command: Command) -> Entry:
    found = await ring.seal(command)
    assert isinstance(found, CommitTurn)
    return Entry(1, 0, 0, 1, TurnCommitted(found.turn, conversation_id=found.conversation_id, seq=1))


def text_of(entry: Entry) -> str | None:
    assert isinstance(entry.event, TurnCommitted)
    return entry.event.turn.text


async def test_what_one_process_seals_another_opens(world: World) -> None:
    entries = [await sealed(world.ring, say("hello")), await sealed(world.ring, say("you", "c2"))]
    assert all(key_id_of(text_of(entry) or "") for entry in entries)
    assert [text_of(entry) for entry in await world.other.open(entries)] == ["hello", "you"]


async def test_a_conversation_has_one_key_and_it_is_asked_for_once(world: World) -> None:
    for text in ("a", "b", "c"):
        await sealed(world.ring, say(text))
    assert world.keys.asked == 1


async def test_what_says_nothing_needs_no_key(world: World) -> None:
    frame = CommitFrame(
        at=0, timestamp=0, conversation_id="c1", frame=Frame(id="f", type="read", watermark=1), sender="bot",
        channel="web", group="g", member="m", gateway="gw",
    )  # fmt: skip
    assert await world.ring.seal(frame) is frame
    assert world.keys.asked == 0


async def test_commands_of_a_conversation_keep_their_order_while_its_key_is_fetched(world: World) -> None:
    world.keys.hold = asyncio.Event()
    done: list[str] = []
    first = asyncio.Event()

    async def send(text: str) -> None:
        await world.ring.seal(say(text))
        done.append(text)
        first.set()

    async with asyncio.TaskGroup() as tasks:
        for text in "abc":
            tasks.create_task(send(text))
        await asyncio.sleep(0)
        world.keys.hold.set()
        await first.wait()
        tasks.create_task(send("d"))  # the key is at hand by now, and others still wait for their turn
    assert done == ["a", "b", "c", "d"]


async def test_a_key_that_the_database_lost_is_found_in_the_topic(world: World) -> None:
    entry = await sealed(world.ring, say("hello"))
    world.keys.lost, world.keys.kept = world.keys.kept, {}
    assert [text_of(each) for each in await world.other.open([entry])] == ["hello"]
    assert world.keys.restored == 1


async def test_a_key_that_nobody_knows_is_not_looked_for_in_the_topic_at_every_turn(world: World) -> None:
    entry = await sealed(world.ring, say("hello"))
    world.keys.kept.clear()
    for _ in range(3):
        assert [text_of(each) for each in await world.other.open([entry])] == [Missing.SEALED.value]
    assert world.keys.restored == 1
    world.now += LOOK_AGAIN_S
    await world.other.open([entry])
    assert world.keys.restored == 2


async def test_an_erasure_is_known_from_the_journal_on(world: World) -> None:
    entry = await sealed(world.ring, say("hello"))
    erased = Entry(2, 0, 0, 1, ConversationErased("op", "asked", "e", conversation_id="c1", seq=2))
    assert text_of((await world.ring.open([entry, erased]))[0]) == "hello"
    assert text_of((await world.ring.open([entry]))[0]) == Missing.ERASED.value
    other: list[Any] = [await sealed(world.ring, say("still here", "c2"))]
    assert text_of((await world.ring.open(other))[0]) == "still here"


async def test_what_is_said_in_an_erased_conversation_is_written_nowhere(world: World) -> None:
    command = await world.ring.seal(say("hello", "erased"))
    assert isinstance(command, CommitTurn)
    assert command.turn.text == Missing.ERASED.value


async def test_keys_held_are_bounded() -> None:
    world = World(limit=2)
    entries = [await sealed(world.ring, say(str(n), f"c{n}")) for n in range(5)]
    for entry, text in zip(entries, "01234", strict=True):
        assert text_of((await world.ring.open([entry]))[0]) == text


async def test_without_a_master_key_what_is_sealed_stays_sealed(world: World) -> None:
    entry = await sealed(world.ring, say("hello"))
    blind = Keyring(NoKeys(), NoCopies())
    assert text_of((await blind.open([entry]))[0]) == Missing.SEALED.value


def erased_now(conversation_id: str = "c1") -> Entry:
    return Entry(2, 0, 0, 1, ConversationErased("op", "asked", "e", conversation_id=conversation_id, seq=2))


async def test_a_key_that_is_not_destroyed_yet_is_not_kept_once_its_conversation_is_erased(world: World) -> None:
    entry = await sealed(world.ring, say("hello"))
    await world.other.open([erased_now()])  # the projector is behind: Postgres still has the key
    assert text_of((await world.other.open([entry]))[0]) == Missing.ERASED.value


async def test_a_key_that_was_asked_for_before_its_conversation_was_erased_is_not_kept(world: World) -> None:
    entry = await sealed(world.ring, say("hello"))
    world.keys.answers = asyncio.Event()
    reader = asyncio.create_task(world.other.open([entry]))
    await asyncio.sleep(0)
    await world.other.open([erased_now()])
    world.keys.answers.set()
    assert text_of((await reader)[0]) == Missing.ERASED.value
    assert text_of((await world.other.open([entry]))[0]) == Missing.ERASED.value


async def test_who_waits_for_the_key_of_a_conversation_that_is_erased_meanwhile_gets_none(world: World) -> None:
    world.keys.hold = asyncio.Event()
    speaker = asyncio.create_task(world.ring.seal(say("hello")))
    await asyncio.sleep(0)
    await world.ring.open([erased_now()])
    world.keys.hold.set()
    command = await speaker
    assert isinstance(command, CommitTurn)
    assert command.turn.text == Missing.ERASED.value


async def test_what_is_held_of_each_conversation_goes_with_its_keys() -> None:
    world = World(limit=2)
    for n in range(5):
        await sealed(world.ring, say(str(n), f"c{n}"))
        await world.ring.open([erased_now(f"x{n}")])
    assert {*world.ring._ids_of} == {"c3", "c4"}
    assert {*world.ring._erased} == {"x3", "x4"}
