"""A projector asks for what is due once, and again after a while; what could not be written is asked for later."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import pytest
import pytest_asyncio

from streams.core.commands import EraseIdle
from streams.core.erasure import DAY_MS
from streams.projector.metrics import ProjectorMetrics
from streams.projector.retention import ASK_AGAIN_S, DueConversation, Retention

NOW_MS = 100 * DAY_MS


class Unavailable(Exception):
    """A server that does not answer."""


class World:
    """A projector's surroundings: what is due, what was asked for, and a clock."""

    def __init__(self) -> None:
        self.by_channel: dict[str, int] = {"web": 30}
        self.found: list[DueConversation] = []
        self.looked: list[Collection[int] | None] = []
        self.asked: list[tuple[int, EraseIdle]] = []
        self.refused: set[str] = set()
        self.restored = 0
        self.restores = True
        self.now_s = 1_000.0
        self.metrics = ProjectorMetrics()
        self.retention = Retention(
            self, self.ask, self.restore, self.metrics, clock=lambda: self.now_s, now_ms=lambda: NOW_MS
        )

    async def rules(self) -> Mapping[str, int]:
        return self.by_channel

    async def due(
        self, rules: Mapping[str, int], now_ms: int, partitions: Collection[int] | None, *, each: int, most: int
    ) -> Sequence[DueConversation]:
        assert (rules, now_ms) == (self.by_channel, NOW_MS)
        assert 0 < each <= most
        self.looked.append(partitions)
        return self.found

    async def ask(self, partition: int, command: EraseIdle) -> None:
        if command.conversation_id in self.refused:
            raise Unavailable
        self.asked.append((partition, command))

    async def restore(self) -> None:
        if not self.restores:
            raise Unavailable
        self.restored += 1

    def overdue(self) -> float | None:
        return self.metrics.registry.get_sample_value("turnlog_projector_retention_overdue_seconds")


@pytest_asyncio.fixture
async def world() -> World:
    """Its rules have been seen once."""
    world = World()
    await world.retention.look([3])
    return world


def conversation(id_: str, *, days: int = 31) -> DueConversation:
    at = NOW_MS - days * DAY_MS
    return DueConversation(id_, 3, "web", "open", 7, as_of_lsn=70, idle_since=at - 5, updated_at=at)


async def test_it_asks_with_what_it_knew(world: World) -> None:
    world.found = [conversation("c", days=32), conversation("d")]
    assert await world.retention.look([3, 4]) == 2
    assert world.looked == [[3, 4]]
    [(partition, command), (_, other)] = world.asked
    assert (partition, command.conversation_id, command.head_seq, command.as_of_lsn) == (3, "c", 7, 70)
    assert command.idle_since == NOW_MS - 32 * DAY_MS - 5
    assert command.ref
    assert command.ref != other.ref
    assert world.overdue() == 2 * DAY_MS / 1000


async def test_what_was_asked_for_is_asked_for_again_only_after_a_while(world: World) -> None:
    world.found = [conversation("c")]
    await world.retention.look([3])
    world.now_s += ASK_AGAIN_S - 1
    world.found = [conversation("c"), conversation("d")]
    assert await world.retention.look([3]) == 1
    world.now_s += 1
    assert await world.retention.look([3]) == 1
    assert [command.conversation_id for _, command in world.asked] == ["c", "d", "c"]


async def test_a_rule_is_followed_once_the_sequencers_had_time_to_be_told_of_it(world: World) -> None:
    world.found = [conversation("c")]
    world.by_channel = {"web": 20}
    assert await world.retention.look([3]) == 0
    assert (world.looked, world.overdue()) == ([], 0)
    assert await world.retention.look([3]) == 1


async def test_where_no_channel_has_a_rule_nothing_is_looked_for(world: World) -> None:
    world.found = [conversation("c")]
    await world.retention.look([3])
    world.by_channel = {}
    assert await world.retention.look([3]) == 0
    assert (len(world.looked), world.overdue()) == (1, 0)


async def test_who_follows_no_partition_looks_for_nothing(world: World) -> None:
    world.found = [conversation("c")]
    assert await world.retention.look([]) == 0
    assert world.looked == []


async def test_keys_that_the_database_lost_are_put_back_once_before_anything_is_asked_for(world: World) -> None:
    await world.retention.look([3])
    assert world.restored == 0, "it reads a whole topic"
    world.found, world.restores = [conversation("c")], False
    with pytest.raises(Unavailable):
        await world.retention.look([3])
    assert world.asked == []
    world.restores = True
    await world.retention.look([3])
    world.found = [conversation("d")]
    await world.retention.look([3])
    assert (world.restored, len(world.asked)) == (1, 2)


async def test_what_could_not_be_written_is_asked_for_at_the_next_look(world: World) -> None:
    world.found, world.refused = [conversation("c"), conversation("d")], {"c"}
    with pytest.raises(Unavailable):
        await world.retention.look([3])
    world.refused = set()
    assert await world.retention.look([3]) == 1
    assert [command.conversation_id for _, command in world.asked] == ["d", "c"]
