"""Group 3, one writer and one owner: what went wrong for others must not go wrong here."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from psycopg.conninfo import conninfo_to_dict, make_conninfo

from streams.core.events import FrameCommitted, Refused, RefusedReason, RunEnded, TurnCommitted
from streams.fence.port import Lease
from streams.runtime.partition import PartitionState, Sequencer
from streams.settings import Settings
from tests.field_reports.golden import double_text
from tests.support.deployment import Deployment, Talk, deployment, shares, until_shared
from tests.support.fake_kafka import FakeReader
from tests.support.partition_world import GROUP, image, replay
from tests.support.sequencing import World, settle
from tests.support.tcp_proxy import proxy_to
from tests.support.waiting import until


# --------------------------------------------------------------------------- 12, given back while it was recovering
async def test_a_partition_taken_away_during_its_replay_opens_at_its_next_owner_and_disturbs_no_other() -> None:
    world = World(partitions=2)
    world.configure()
    first = await world.writer()
    await settle(first)
    await first.close()
    world.store.leases[0].expires_at = 0
    before = world.journal()
    reading = asyncio.Event()

    class Stuck(FakeReader):
        async def open(self, offset: int) -> int:
            reading.set()
            await asyncio.Event().wait()
            raise AssertionError("it waits for ever")

    slow = replace(world.ports("wk-slow"), new_reader=lambda partition: Stuck(world.kafka, partition))
    async with asyncio.timeout(10):
        recovering = await claimed(slow, 0)
        beside = await claimed(world.ports("wk-beside"), 1)
        await until(lambda: beside.phase is PartitionState.RUNNING)
        await reading.wait()
        await recovering.stop()
        assert world.journal() == before, "nothing was decided on a state that was not whole"
        heir = await claimed(world.ports("wk-heir"), 0)
        await until(lambda: heir.phase is PartitionState.RUNNING)
        assert beside.phase is PartitionState.RUNNING
        assert beside.lease.token.writer_epoch == 1
        await heir.stop()
        await beside.stop()


async def claimed(ports: object, partition: int) -> Sequencer:
    await ports.leases.open()  # type: ignore[attr-defined]
    lease = await ports.leases.claim(partition)  # type: ignore[attr-defined]
    assert isinstance(lease, Lease)
    running = Sequencer(lease, ports, drain_s=0.1)  # type: ignore[arg-type]
    await running.start()
    return running


# ------------------------------------------------------------------------------------------- 23, a split that heals
async def test_a_worker_cut_off_from_postgres_alone_is_replaced_and_takes_its_part_again_when_the_cut_heals(
    settings: Settings,
) -> None:
    """It reaches Kafka all the while: what it would write there is nobody's business once its lease has ended."""
    short = settings.model_copy(update={"lease_ttl_ms": 3_000, "lease_heartbeat_ms": 500})
    address = conninfo_to_dict(settings.postgres)
    async with (
        deployment(short, 4) as place,
        proxy_to(str(address["host"]), int(str(address["port"]))) as proxy,
    ):
        behind = make_conninfo(settings.postgres, host="127.0.0.1", hostaddr="127.0.0.1", port=str(proxy.port))
        cut_off = Deployment(short.model_copy(update={"postgres": behind}), 4, place._producer)
        async with cut_off.worker() as (_, far), place.worker() as (_, near):
            await until_shared(place, {far: 2, near: 2})
            talk = Talk(place, conversations=4)
            await talk.some(5)
            proxy.freeze()
            await until(lambda: only(place, near))
            await talk.some(5)
            proxy.thaw()
            await until_shared(place, {far: 2, near: 2})
            await talk.some(5)
            await place.all_taken(await talk.end())
        await place.require_sound()


async def only(place: Deployment, worker: str) -> bool:
    return set(await shares(place)) == {worker}


# ------------------------------------------------------------------------- 25, written to while it is still answering
def test_messages_written_during_an_answer_keep_their_order_and_a_late_tool_result_changes_nothing() -> None:
    world = double_text()
    turns = world.of(TurnCommitted)
    assert [(event.turn.text, event.seq) for event in turns] == [("one", 1), ("two", 3), ("three", 4)]
    late = world.journal[-1].event
    assert isinstance(late, Refused)
    assert late.reason is RefusedReason.FENCED
    for seq in (3, 4):
        world.send("m1", text=f"answer to {seq}", run=f"c/{seq}/{GROUP}", client_id=f"a{seq}")
    ended = [(event.run_id, event.status) for event in world.of(RunEnded)]
    assert ended == [(f"c/{seq}/{GROUP}", "answered") for seq in (1, 3, 4)]
    shown = [event.frame.client_id for event in world.of(FrameCommitted)]
    assert shown == ["t1", "a1", "a3", "a4"], "each answer once, the late result not at all"
    assert image(replay(world.journal)) == image(world.state)
