"""The gateway's membership records: what is written, in what order, and what is not written at all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from connectors.gateway.membership import WRITES_MAX, Member, Membership
from connectors.gateway.ports import Headers, Unavailable, Written
from streams.core.commands import ApplyList, Command, Drain, Join, Leave
from streams.core.events import ListWanted
from streams.runtime.signals import Goodbye, Heartbeat, Signal
from tests.support.waiting import until

PARTITIONS = 2


class SlowIntake:
    """An `Intake` that takes a record only when the test lets it."""

    partitions = PARTITIONS

    def __init__(self) -> None:
        self.taken: list[tuple[int | None, Command | Signal]] = []
        self.tried = 0
        self.asked = asyncio.Event()
        self.open = asyncio.Event()
        self.open.set()
        self.broken: Exception | None = None
        self.unconfirmed: Exception | None = None
        self.on_their_way: list[asyncio.Future[Written]] | None = None
        """Records that the brokers have not confirmed yet, where the test holds them back."""

    async def send(
        self, command: Command | Signal, *, partition: int | None = None, headers: Headers = ()
    ) -> asyncio.Future[Written]:
        self.tried += 1
        self.asked.set()
        await self.open.wait()
        self.asked.clear()
        if self.broken is not None:
            raise self.broken
        self.taken.append((partition, command))
        written: asyncio.Future[Written] = asyncio.get_running_loop().create_future()
        if self.unconfirmed is not None:
            written.set_exception(self.unconfirmed)
            written.exception()
        elif self.on_their_way is not None:
            self.on_their_way.append(written)
        else:
            written.set_result(Written(partition or 0, len(self.taken)))
        return written

    def confirm(self) -> int:
        """The brokers have what is on its way; how much that was."""
        there, self.on_their_way = self.on_their_way or [], []
        for written in there:
            written.set_result(Written(0, 1))
        return len(there)

    def kinds(self) -> list[str]:
        return [type(command).__name__ for _, command in self.taken if not isinstance(command, Heartbeat)]


@pytest.fixture
def intake() -> SlowIntake:
    return SlowIntake()


@pytest.fixture
async def membership(intake: SlowIntake) -> AsyncIterator[Membership]:
    membership = Membership(intake, heartbeat_ms=60_000, on_ended=lambda: None)
    running = asyncio.create_task(membership.run())
    await membership.join(member(membership))  # behind the first heartbeat: from here on it is idle
    intake.taken.clear()
    yield membership
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


def member(membership: Membership) -> Member:
    return Member(id=membership.new_member_id(), channel="agents", group="agents", each=False, watermarks={})


async def test_a_join_whose_connection_has_gone_meanwhile_is_never_written(
    intake: SlowIntake, membership: Membership
) -> None:
    """It would be a member for ever: given turns, and heard of no more."""
    intake.open.clear()
    blocking = asyncio.create_task(membership.join(member(membership)))
    await intake.asked.wait()
    gone = member(membership)
    joining = asyncio.create_task(membership.join(gone))
    await asyncio.sleep(0)
    joining.cancel()
    await asyncio.gather(joining, return_exceptions=True)
    await membership.leave(gone.id, "closed")
    intake.open.set()
    await blocking
    await membership.join(member(membership))
    joined = {command.member for _, command in intake.taken if isinstance(command, Join)}
    assert gone.id not in joined
    assert [command.n for _, command in intake.taken if isinstance(command, Join)] == [2, 2, 3, 3]


async def test_a_join_that_was_begun_is_followed_by_its_leave(intake: SlowIntake, membership: Membership) -> None:
    intake.open.clear()
    gone = member(membership)
    joining = asyncio.create_task(membership.join(gone))
    await intake.asked.wait()
    joining.cancel()
    await asyncio.gather(joining, return_exceptions=True)
    await membership.leave(gone.id, "closed")
    intake.open.set()
    await membership.goodbye()
    assert intake.kinds() == ["Join"] * PARTITIONS + ["Leave"] * PARTITIONS + ["Goodbye"] * PARTITIONS


async def test_goodbye_comes_after_a_leave_that_is_being_written(intake: SlowIntake, membership: Membership) -> None:
    """A Goodbye before it would cut off the member's last frames, which the leave waits for."""
    staying = member(membership)
    await membership.join(staying)
    intake.open.clear()
    await membership.leave(staying.id, "drained")
    await intake.asked.wait()
    leaving = asyncio.create_task(membership.goodbye())
    await asyncio.sleep(0)
    intake.open.set()
    await leaving
    for partition in range(PARTITIONS):
        last = [command for where, command in intake.taken if where == partition][-2:]
        assert isinstance(last[0], Leave)
        assert isinstance(last[1], Goodbye)


async def test_records_of_an_incarnation_that_ended_meanwhile_carry_its_name(
    intake: SlowIntake, membership: Membership
) -> None:
    ended = membership.incarnation
    intake.open.clear()
    joining = asyncio.create_task(membership.join(member(membership)))
    await intake.asked.wait()
    membership.restart("expired")
    intake.open.set()
    await joining
    assert {command.gateway for _, command in intake.taken if isinstance(command, Join)} == {ended}


async def test_a_goodbye_that_kafka_does_not_take_holds_nobody_up(intake: SlowIntake, membership: Membership) -> None:
    intake.broken = Unavailable("Kafka is away")
    await membership.goodbye()
    assert intake.kinds() == []


async def test_a_list_names_the_last_frame_of_those_that_it_lacks_because_they_left(
    intake: SlowIntake, membership: Membership
) -> None:
    """A partition that missed the Leave takes the list in its place."""
    gone = member(membership)
    await membership.join(gone)
    wrote: asyncio.Future[Written] = asyncio.get_running_loop().create_future()
    gone.wrote(wrote)
    leaving = asyncio.create_task(membership.leave(gone.id, "left"))
    wrote.set_result(Written(1, 41))
    await leaving
    membership.list_wanted(1, ListWanted(gateway=membership.incarnation, of="members", have=0))
    membership.list_wanted(0, ListWanted(gateway=membership.incarnation, of="members", have=0))
    await membership.goodbye()
    lists = {partition: command for partition, command in intake.taken if isinstance(command, ApplyList)}
    assert {partition: listed.frames_end for partition, listed in lists.items()} == {0: 0, 1: 42}
    assert all(gone.id not in {each.member for each in listed.members} for listed in lists.values())


@pytest.mark.parametrize("failure", ["broken", "unconfirmed"])
async def test_a_drain_that_kafka_did_not_take_is_said_again_until_it_does(intake: SlowIntake, failure: str) -> None:
    membership = Membership(intake, heartbeat_ms=5, on_ended=lambda: None)
    running = asyncio.create_task(membership.run())
    draining = member(membership)
    await membership.join(draining)
    setattr(intake, failure, Unavailable("Kafka is away"))
    tried = intake.tried
    membership.drain([draining.id], "agent_stops")
    await until(lambda: intake.tried > tried + 2 * PARTITIONS)
    intake.taken.clear()
    setattr(intake, failure, None)
    await until(lambda: intake.kinds().count("Drain") >= PARTITIONS)
    beats = len(intake.taken)
    await until(lambda: len(intake.taken) >= beats + 3 * PARTITIONS)
    told = [(partition, command.member) for partition, command in intake.taken if isinstance(command, Drain)]
    assert sorted(told) == [(partition, draining.id) for partition in range(PARTITIONS)], "once each, and then no more"
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_thousand_agents_that_come_at_once_leave_room_for_what_people_say(
    intake: SlowIntake, membership: Membership
) -> None:
    intake.on_their_way = []
    joining = asyncio.gather(*(membership.join(member(membership)) for _ in range(1_500)))
    most = confirmed = 0
    while confirmed < 1_500 * PARTITIONS:
        await until(lambda: intake.on_their_way)
        most = max(most, now := intake.confirm())
        confirmed += now
    await joining
    assert most == WRITES_MAX < 1_500 * PARTITIONS
    assert {command.n for _, command in intake.taken if isinstance(command, Join)} == set(range(2, 1_502))


async def test_heartbeats_do_not_wait_for_those_who_queue_nor_those_for_heartbeats(intake: SlowIntake) -> None:
    membership = Membership(intake, heartbeat_ms=1, on_ended=lambda: None)
    queued = [asyncio.ensure_future(membership.join(member(membership))) for _ in range(2_000)]
    await asyncio.sleep(0)
    running = asyncio.create_task(membership.run())
    await asyncio.gather(*queued)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    order = "".join("h" if isinstance(command, Heartbeat) else "j" for _, command in intake.taken)
    assert "jhh" in order.rstrip("h"), "a heartbeat among the joins"
    assert "h" * PARTITIONS + "j" in order
