"""An agent that continues: it goes on behind what is stored of a run, after a takeover and after a reconnect."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.support.scripted_gateway import Json, Peer, ScriptedGateway, scripted_gateway
from turnlog import Agent, Ask, InvalidRequest, Reply, Resume, Streamed, Turn
from turnlog.backoff import Backoff
from turnlog.link import Link

pytestmark = pytest.mark.unit

ABLE = {"capabilities": {"adopt": True, "continue": True, "drain": True}}
OLD = "turn-1.1.s1"
"""The stream of the first owner."""


@pytest.fixture
async def gateway() -> AsyncIterator[ScriptedGateway]:
    async with scripted_gateway() as scripted:
        yield scripted


@asynccontextmanager
async def serving(gateway: ScriptedGateway, handler: Any, **options: Any) -> AsyncIterator[Peer]:
    backoff = Backoff(first=0.01, most=0.05)
    agent = Agent(gateway.url, token="t", backoff=backoff, **{"continues": True, "flush_every": 0.0, **options})
    agent.on_turn(handler)
    starting = asyncio.create_task(agent.start())
    peer = await gateway.welcomed(**ABLE)
    await starting
    try:
        yield peer
    finally:
        await agent.stop(budget=0)


def chunk(seq: int, text: str, stream: str = OLD) -> Json:
    said = {"type": "text", "content": text, "id": 1}
    return {"type": "genui", "seq": seq, "streamId": stream, "done": False, "chunk": said, "timestamp": 1}


def closing(seq: int, stream: str = OLD) -> Json:
    end = {"type": "event", "name": "stream_done", "id": 2}
    return {"type": "genui", "seq": seq, "streamId": stream, "done": True, "chunk": end, "timestamp": 1}


def message(seq: int, client_id: str, text: str) -> Json:
    return {
        "type": "text",
        "id": f"m-{seq}",
        "seq": seq,
        "from": "bot",
        "data": {"text": text},
        "clientId": client_id,
        "sender": {"id": "a", "role": "bot"},
        "timestamp": 1,
    }


def resume(*frames: Json, **more: Any) -> Json:
    return {"frames": list(frames), "interrupts": [], **more}


def status(name: str, *, epoch: int) -> Json:
    return {"type": "run", "data": {"status": name}, "run": "c1/1/agents", "runEpoch": epoch}


async def counting(turn: Turn) -> AsyncGenerator[str, None]:
    """Says `one two three`, from where an earlier owner stopped."""
    said = turn.resume.text if turn.resume is not None else ""
    for word in "one two three".removeprefix(said).split():
        yield f"{word} " if word != "three" else word


async def test_hello_says_that_it_can(gateway: ScriptedGateway) -> None:
    async with serving(gateway, counting) as peer:
        assert peer.hello["capabilities"] == ["adopt", "continue"]


async def test_a_stream_goes_on_under_its_id_behind_what_is_stored(gateway: ScriptedGateway) -> None:
    async with serving(gateway, counting) as peer:
        await peer.turn("c1", "count", seq=1, epoch=2, resume=resume(chunk(2, "one ")))
        assert (await peer.until("c1", type="run"))["runEpoch"] == 2
        chunks = [await peer.inner("c1") for _ in range(3)]
    assert [each["streamId"] for each in chunks] == [OLD] * 3
    assert [each["chunk"].get("content") for each in chunks] == ["two ", "three", None]
    assert chunks[2]["done"]


async def test_an_answer_that_was_whole_is_only_ended(gateway: ScriptedGateway) -> None:
    async with serving(gateway, counting) as peer:
        await peer.turn("c1", "count", seq=1, epoch=2, resume=resume(chunk(2, "one two three"), closing(3)))
        assert (await peer.inner("c1"))["data"] == {"status": "started"}
        assert (await peer.inner("c1"))["data"] == {"status": "finished"}


async def test_a_whole_text_whose_end_was_lost_is_closed(gateway: ScriptedGateway) -> None:
    async with serving(gateway, counting) as peer:
        await peer.turn("c1", "count", seq=1, epoch=2, resume=resume(chunk(2, "one two three")))
        await peer.until("c1", type="run")
        end = await peer.inner("c1")
        assert (end["streamId"], end["done"]) == (OLD, True)
        assert (await peer.inner("c1"))["data"] == {"status": "finished"}


async def test_what_the_handler_does_not_take_up_is_closed_for_it(gateway: ScriptedGateway) -> None:
    async def silent(turn: Turn) -> None:
        return None

    async with serving(gateway, silent) as peer:
        await peer.turn("c1", "count", seq=1, epoch=2, resume=resume(chunk(2, "one ")))
        await peer.until("c1", type="run")
        end = await peer.inner("c1")
        assert (end["streamId"], end["done"]) == (OLD, True)


async def test_a_new_stream_and_messages_are_numbered_behind_the_earlier_owners(gateway: ScriptedGateway) -> None:
    async def answer(turn: Turn, reply: Reply) -> None:
        async with reply.stream() as stream:
            await stream.write("more")
        await reply.text("third")

    stored = resume(message(2, "turn-1.m1", "first"), message(3, "turn-1.m2", "second"), chunk(4, "x"), closing(5))
    async with serving(gateway, answer) as peer:
        await peer.turn("c1", "hi", seq=1, epoch=2, resume=stored)
        assert (await peer.until("c1", type="genui"))["streamId"] == "turn-1.2.s2"
        assert (await peer.until("c1", type="text"))["clientId"] == "turn-1.m3"


async def test_a_handler_sees_all_that_was_done(gateway: ScriptedGateway) -> None:
    seen: asyncio.Queue[Resume | None] = asyncio.Queue()

    async def answer(turn: Turn) -> None:
        seen.put_nowait(turn.resume)

    ask = {"type": "interrupt", "seq": 3, "id": "ask-1", "data": {"payload": {"q": "sure?"}}}
    stored = resume(
        message(2, "turn-1.m1", "first"), ask, chunk(4, "half"), checkpoint={"step": 2}, interrupts=["ask-1"]
    )
    async with serving(gateway, answer) as peer:
        await peer.turn("c1", "hi", seq=1, epoch=2, resume=stored)
        known = await seen.get()
        assert known is not None
        assert [(frame.seq, frame.type) for frame in known.frames] == [(2, "text"), (3, "interrupt"), (4, "genui")]
        assert [frame.frame["data"]["text"] for frame in known.messages] == ["first"]
        assert known.asks == (Ask("ask-1", {"q": "sure?"}),)
        assert (known.checkpoint, known.text, known.streams) == (
            {"step": 2},
            "half",
            (Streamed(OLD, "half", done=False),),
        )
        await peer.turn("c2", "hi", seq=1)
        assert await seen.get() is None


async def test_a_long_resume_comes_in_parts(gateway: ScriptedGateway) -> None:
    async with serving(gateway, counting) as peer:
        run = {"run": "c1/1/agents", "runEpoch": 3}
        stale = {"type": "resume_part", **run, "runEpoch": 2, "frames": [chunk(2, "stale")]}
        await peer.say("c1", stale)
        await peer.say("c1", {"type": "resume_part", **run, "frames": [chunk(2, "one ")]})
        await peer.turn("c1", "count", seq=1, epoch=3, resume=resume(chunk(3, "two ")))
        assert (await peer.until("c1", type="genui"))["chunk"]["content"] == "three"


async def test_a_checkpoint_is_sent_behind_what_was_said_and_awaits_its_ack(gateway: ScriptedGateway) -> None:
    stored = asyncio.Event()

    async def answer(turn: Turn, reply: Reply) -> None:
        stream = reply.stream()
        await stream.write("so far")
        await reply.checkpoint({"at": 7})
        stored.set()

    async with serving(gateway, answer, flush_every=60.0) as peer:
        await peer.turn("c1", "hi", seq=1)
        assert (await peer.until("c1", type="genui"))["chunk"]["content"] == "so far"
        frame = await peer.inner("c1")
        assert frame == {
            "type": "checkpoint",
            "clientId": "turn-1.1.c1",
            "data": {"at": 7},
            "run": "c1/1/agents",
            "runEpoch": 1,
        }
        assert not stored.is_set()
        await peer.say("c1", {"type": "ack", "clientId": "turn-1.1.c1", "id": "k", "timestamp": 1})
        await stored.wait()


async def test_a_checkpoint_may_be_longer_than_a_frame_but_not_than_256_kib(gateway: ScriptedGateway) -> None:
    refused: asyncio.Queue[InvalidRequest] = asyncio.Queue()

    async def answer(turn: Turn, reply: Reply) -> None:
        await reply.checkpoint("x" * 200_000)
        with pytest.raises(InvalidRequest, match="checkpoint: 262146 bytes as JSON, at most 262144") as caught:
            await reply.checkpoint("x" * 262_144)
        refused.put_nowait(caught.value)

    async with serving(gateway, answer) as peer:
        await peer.turn("c1", "hi", seq=1)
        frame = await peer.until("c1", type="checkpoint")
        await peer.say("c1", {"type": "ack", "clientId": frame["clientId"], "id": "k", "timestamp": 1})
        assert (await refused.get()).code == "payload_too_large"


async def interrupted(turn: Turn, reply: Reply, more: asyncio.Event) -> None:
    async with reply.stream() as stream:
        await stream.write("one ")
        await stream.write("two ")
        await more.wait()
        await stream.write("three")


@pytest.mark.parametrize("stored", ["", "one ", "one two "])
async def test_after_a_reconnect_it_waits_to_be_told_what_is_stored_and_goes_on_behind_it(
    gateway: ScriptedGateway, stored: str
) -> None:
    more = asyncio.Event()

    async def answer(turn: Turn, reply: Reply) -> None:
        await interrupted(turn, reply, more)

    async with serving(gateway, answer) as peer:
        await peer.turn("c1", "count", seq=1)
        await peer.until("c1", chunk={"type": "text", "content": "two ", "id": 1})
        await peer.close(1011)
        more.set()
        again = await gateway.welcomed(**ABLE)
        await again.turn("c2", "elsewhere", seq=1)
        assert (await again.receive())["conversationId"] == "c2"  # nothing of c1 is said before it is known what is
        known = resume(*([chunk(2, stored)] if stored else []))
        await again.say("c1", {"type": "adopted", "run": "c1/1/agents", "runEpoch": 3, "resume": known})
        said = ""
        while True:
            envelope = await again.receive()
            frame = envelope["frame"]
            if envelope["conversationId"] != "c1" or frame["type"] != "genui":
                continue
            assert (frame["streamId"], frame["runEpoch"]) == (OLD, 3)
            said += frame["chunk"].get("content", "")
            if frame["done"]:
                break
    assert stored + said == "one two three"


async def test_a_piece_that_waited_for_its_turn_to_be_sent_is_not_sent_over_the_next_connection(
    gateway: ScriptedGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes on behind what was sent over the old one, which was lost."""
    waits, go_on, later = asyncio.Event(), asyncio.Event(), asyncio.Event()
    pace = Link.pace

    async def paced(link: Link) -> None:
        if waits.is_set():
            await go_on.wait()
        await pace(link)

    monkeypatch.setattr(Link, "pace", paced)

    async def answer(turn: Turn, reply: Reply) -> None:
        async with reply.stream() as stream:
            await stream.write("one ")
            waits.set()
            await stream.write("two ")
            await later.wait()
            await stream.write("three")

    async with serving(gateway, answer) as peer:
        await peer.turn("c1", "count", seq=1)
        await peer.until("c1", chunk={"type": "text", "content": "one ", "id": 1})
        await waits.wait()
        await peer.close(1011)
        again = await gateway.welcomed(**ABLE)
        waits.clear()
        await again.say("c1", {"type": "adopted", "run": "c1/1/agents", "runEpoch": 3, "resume": resume()})
        assert await again.inner("c1") == status("started", epoch=3)
        go_on.set()
        later.set()
        said = ""
        while not (frame := (await again.receive())["frame"]).get("done"):
            said += frame.get("chunk", {}).get("content", "")
    assert said == "one two three"


async def test_a_run_of_which_the_gateway_says_nothing_after_a_reconnect_is_given_up_and_nothing_of_it_is_sent(
    gateway: ScriptedGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without an epoch, half of it might be refused, and the other half stored: the run may come here in between."""
    monkeypatch.setattr("turnlog.outbox.PLACED_WITHIN_S", 0.05)
    more, given_up = asyncio.Event(), asyncio.Event()

    async def answer(turn: Turn, reply: Reply) -> None:
        if turn.conversation == "c2":
            return
        try:
            await interrupted(turn, reply, more)
        finally:
            if turn.cancelled.is_set():
                given_up.set()

    async with serving(gateway, answer) as peer:
        await peer.turn("c1", "count", seq=1)
        await peer.until("c1", chunk={"type": "text", "content": "two ", "id": 1})
        await peer.close(1011)
        again = await gateway.welcomed(**ABLE)
        more.set()
        await given_up.wait()
        await again.turn("c2", "elsewhere", seq=1)
        assert (await again.receive())["conversationId"] == "c2"
        await again.turn("c1", "count", seq=None, number=1, epoch=3)
        said = ""
        while True:
            envelope = await again.receive()
            frame = envelope["frame"]
            if envelope["conversationId"] == "c1":
                assert frame["runEpoch"] == 3
                said += frame.get("chunk", {}).get("content", "")
            if frame.get("done"):
                break
    assert said == "one two three"


async def test_the_end_of_a_run_is_said_only_once_the_gateway_of_a_new_connection_has_said_whose_it_is(
    gateway: ScriptedGateway,
) -> None:
    more = asyncio.Event()

    async def answer(turn: Turn) -> None:
        if turn.conversation == "c1":
            await more.wait()

    async with serving(gateway, answer) as peer:
        await peer.turn("c1", "quiet", seq=1)
        await peer.until("c1", type="run")
        await peer.close(1011)
        again = await gateway.welcomed(**ABLE)
        await again.turn("c2", "elsewhere", seq=1)
        await again.until("c2", data={"status": "finished"})
        more.set()
        await again.turn("c3", "elsewhere", seq=1)
        assert (await again.receive())["conversationId"] == "c3"
        assert (await again.receive())["frame"]["data"] == {"status": "finished"}
        await again.say("c1", {"type": "adopted", "run": "c1/1/agents", "runEpoch": 3, "resume": resume()})
        frame = await again.until("c1", type="run", data={"status": "finished"})
    assert frame["runEpoch"] == 3


async def test_a_run_that_is_given_again_goes_on_behind_what_is_stored(gateway: ScriptedGateway) -> None:
    more = asyncio.Event()

    async def answer(turn: Turn, reply: Reply) -> None:
        await interrupted(turn, reply, more)

    async with serving(gateway, answer) as peer:
        await peer.turn("c1", "count", seq=1)
        await peer.until("c1", chunk={"type": "text", "content": "two ", "id": 1})
        await peer.turn("c1", "count", seq=None, number=1, epoch=2, resume=resume(chunk(2, "one "), chunk(3, "two ")))
        await peer.until("c1", type="run", runEpoch=2)
        more.set()
        frame = await peer.inner("c1")
        assert (frame["streamId"], frame["chunk"]["content"], frame["runEpoch"]) == (OLD, "three", 2)


async def test_an_answer_to_a_question_takes_nothing_from_a_run_that_waits_to_go_on(gateway: ScriptedGateway) -> None:
    free = asyncio.Event()

    async def answer(turn: Turn) -> AsyncGenerator[str, None]:
        if turn.text == "before":
            await free.wait()
        async for piece in counting(turn):
            yield piece

    async with serving(gateway, answer) as peer:
        await peer.turn("c1", "before", seq=1)
        await peer.until("c1", type="run")
        await peer.turn("c1", "count", seq=2, epoch=2, resume=resume(chunk(3, "one ")))
        await peer.turn("c1", "yes, please", seq=4, epoch=2, run="c1/2/agents")
        free.set()
        await peer.until("c1", type="run", data={"status": "started"}, run="c1/2/agents")
        assert (await peer.until("c1", type="genui", run="c1/2/agents"))["chunk"]["content"] == "two "


async def test_a_run_that_moved_meanwhile_is_not_waited_for(gateway: ScriptedGateway) -> None:
    more = asyncio.Event()

    async def answer(turn: Turn, reply: Reply) -> None:
        await interrupted(turn, reply, more)

    async with serving(gateway, answer) as peer:
        await peer.turn("c1", "count", seq=1)
        await peer.until("c1", chunk={"type": "text", "content": "two ", "id": 1})
        await peer.close(1011)
        more.set()
        again = await gateway.welcomed(**ABLE)
        await again.say("c1", {"type": "abort"})
        await again.turn("c1", "count", seq=None, number=1, epoch=4)
        assert await again.inner("c1") == status("started", epoch=4)  # of the lost one there is nothing to say


async def test_a_run_that_a_new_connection_cancels_by_name_is_said_to_be_aborted(gateway: ScriptedGateway) -> None:
    async def answer(turn: Turn, reply: Reply) -> None:
        await interrupted(turn, reply, asyncio.Event())

    async with serving(gateway, answer) as peer:
        await peer.turn("c1", "count", seq=1)
        await peer.until("c1", chunk={"type": "text", "content": "two ", "id": 1})
        await peer.close(1011)
        again = await gateway.welcomed(**ABLE)
        await again.say("c1", {"type": "abort", "run": "c1/1/agents", "runEpoch": 2, "reason": "cancelled"})
        assert await again.inner("c1") == status("aborted", epoch=2)
