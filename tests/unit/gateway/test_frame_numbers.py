"""A gateway numbers the frames of each member, per partition: a piece that lies twice in the intake is stored once."""

from __future__ import annotations

from itertools import groupby

from streams.core.commands import CommitFrame
from tests.support.gateway_world import Served, World


def sent(world: World, conversation: str | None = None) -> list[CommitFrame]:
    frames = [command for command in world.commands if isinstance(command, CommitFrame)]
    return [frame for frame in frames if conversation in {None, frame.conversation_id}]


async def test_a_members_frames_are_numbered_in_the_order_of_each_partition(world: World, served: Served) -> None:
    conversations: list[tuple[str, str]] = []
    while len({served.gateway.partition_of(conversation) for conversation, _ in conversations}) < world.partitions:
        conversations += [await served.conversation(f"user-{len(conversations)}") for _ in range(3)]
    async with served.agent() as agent:
        for conversation, token in conversations:
            await served.say(conversation, token, "hello")
            turn = await agent.until("text")
            await agent.say(conversation, {"type": "read", "watermark": turn["seq"]})
            await agent.say(conversation, {"type": "text", "clientId": "m1", "data": {"text": "hi"}})
            await agent.until("ack")
        in_order = sorted(sent(world), key=lambda frame: served.gateway.partition_of(frame.conversation_id))
        numbers = {
            partition: [frame.n for frame in frames]
            for partition, frames in groupby(in_order, lambda frame: served.gateway.partition_of(frame.conversation_id))
        }
    assert len(numbers) == world.partitions
    assert all(of_one == list(range(1, len(of_one) + 1)) for of_one in numbers.values())


async def test_another_connection_begins_anew(world: World, served: Served) -> None:
    conversation, token = await served.conversation()
    for number in (1, 2):
        async with served.agent() as agent:
            await served.say(conversation, token, "hello")
            turn = await agent.until("text")
            await agent.say(conversation, {"type": "text", "clientId": f"p.{turn['id']}.m1", "data": {"text": "hi"}})
            await agent.until("ack")
        assert len(sent(world)) == number
    assert [frame.n for frame in sent(world)] == [1, 1]
    assert len({frame.member for frame in sent(world)}) == 2


async def test_a_piece_that_is_written_again_is_stored_and_shown_once(world: World, served: Served) -> None:
    conversation, token = await served.conversation()
    async with served.agent() as agent, served.socket(token, {"watermark": 0}) as person:
        await person.until("welcome")
        await served.say(conversation, token, "hello")
        turn = await agent.until("text")
        await agent.say(conversation, {"type": "read", "watermark": turn["seq"]})
        for text in ("answ", "er"):
            chunk = {"type": "text", "content": text, "id": 1}
            piece = {"type": "genui", "streamId": "s1", "done": False, "chunk": chunk}
            await agent.say(conversation, piece)
        await agent.settled()
        for frame in sent(world, conversation):
            await world.send(frame)
        await agent.say(conversation, {"type": "run", "data": {"status": "finished"}})
        await agent.settled()
        shown = [frame for frame in await person.settled() if frame["type"] == "genui"]
    assert world.kinds(conversation).count("FrameCommitted") == len(shown) == 3, (
        "two pieces, and the close of the stream"
    )
