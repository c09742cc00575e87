"""Group 5, sockets and streams: what went wrong for others must not go wrong here."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from urllib.parse import urlsplit

import pytest
from websockets.asyncio.client import connect

from connectors.gateway import server
from connectors.gateway.protocol import limits
from streams.core.events import MemberLeft, RunMoved
from tests.support.gateway_world import SUBPROTOCOL, Peer, Served, World, bearer, serve
from tests.support.tcp_proxy import proxy_to
from tests.support.waiting import until

CHUNKS = 60


async def streamed(agent: Peer, conversation: str, turn: dict[str, Any], numbers: range) -> None:
    """Chunks of one stream; the last of `CHUNKS` ends it, and the run."""
    named = {"run": turn["run"], "runEpoch": turn["runEpoch"]}
    for number in numbers:
        said = {"type": "text", "content": f"word{number} ", "id": number}
        await agent.say(conversation, {"type": "genui", "streamId": "s", "done": False, "chunk": said} | named)
        await agent.settled()  # else consecutive chunks may become one event
    if numbers.stop == CHUNKS:
        end = {"type": "event", "name": "stream_done", "id": CHUNKS}
        await agent.say(conversation, {"type": "genui", "streamId": "s", "done": True, "chunk": end} | named)
        await agent.say(conversation, {"type": "run", "data": {"status": "finished"}} | named)
        await agent.settled()


async def seen(person: Peer, last: int, upto: int) -> list[tuple[int, str | None]]:
    """Numbered frames behind `last` up to `upto`: their seq, and the text of a chunk."""
    frames = list[tuple[int, str | None]]()
    while not frames or frames[-1][0] < upto:
        frame = await person.frame()
        if "seq" in frame and frame["seq"] > last:
            frames.append((frame["seq"], frame["chunk"].get("content") if frame["type"] == "genui" else None))
    return frames


# ------------------------------------------------------------------------------- 40, resumed in the middle of a stream
@pytest.mark.parametrize("elsewhere", [False, True], ids=["same gateway", "another gateway, just started"])
@pytest.mark.parametrize("cut", [0, 1, 30, CHUNKS - 1, CHUNKS])
async def test_a_stream_cut_anywhere_reaches_its_reader_whole_and_once(
    world: World, served: Served, cut: int, *, elsewhere: bool
) -> None:
    conversation, token = await served.conversation()
    async with served.agent() as agent:
        async with served.socket(token, {"watermark": 0}) as person:
            await served.say(conversation, token, "count")
            turn = await agent.until("text")
            await agent.say(conversation, {"type": "run", "data": {"status": "started"}, "run": turn["run"]})
            await streamed(agent, conversation, turn, range(cut))
            before = await seen(person, 0, 1 + cut)
            person.raw.transport.abort()
        last = before[-1][0]
        # While nobody looks, some of it goes on.
        middle = max(cut, min(CHUNKS, cut + 7))
        await streamed(agent, conversation, turn, range(cut, middle))
        async with serve(world) as other:
            again = other if elsewhere else served
            async with again.socket(token, {"watermark": last}) as one, again.socket(token, {"watermark": last}) as two:
                if middle < CHUNKS:
                    await streamed(agent, conversation, turn, range(middle, CHUNKS))
                ends = 1 + CHUNKS + 1
                after, beside = [await seen(person, 0, ends) if last < ends else [] for person in (one, two)]
    assert after == beside, "two that resume at once get the same"
    assert [seq for seq, _ in before + after] == list(range(1, ends + 1))
    assert "".join(text or "" for _, text in before + after) == "".join(f"word{n} " for n in range(CHUNKS))


# ------------------------------------------------------------------------------------------------ 43, a slow reader
async def test_a_reader_that_stops_reading_holds_few_megabytes_and_the_others_get_all(served: Served) -> None:
    conversation, token = await served.conversation()
    answers, text = 500, "x" * 60_000
    async with (
        served.agent() as agent,
        served.socket(token, {"watermark": 0}) as other,
        # It reads its welcome, and then nothing: its buffer of one message is full and the kernel's fill up.
        connect(served.ws_url, subprotocols=[SUBPROTOCOL], additional_headers=bearer(token), max_queue=1) as slow,
    ):
        await slow.send(json.dumps({"type": "hello", "protocol": "converger/1", "watermark": 0}))
        await slow.recv()
        await other.until("welcome")
        viewers: list[Any] = list(served.gateway.hub._viewers[conversation])
        assert len(viewers) == 2
        await served.say(conversation, token, "talk")
        turn = await agent.until("text")
        named = {"run": turn["run"], "runEpoch": turn["runEpoch"]}
        await agent.say(conversation, {"type": "run", "data": {"status": "started"}} | named)
        most, got = 0, asyncio.create_task(seen_texts(other, answers))
        for number in range(answers):
            await agent.say(conversation, {"type": "text", "clientId": f"m{number}", "data": {"text": text}} | named)
            await agent.until("ack")
            held = [sum(len(frame) for frame in viewer._outbound) for viewer in viewers]
            most = max(most, *held)
        assert await got == list(range(2, answers + 2))
        assert most < limits.OUTBOUND_BYTES + 2 * len(text)
        await until(lambda: len(served.gateway.hub._viewers[conversation]) == 1)


async def seen_texts(person: Peer, count: int) -> list[int]:
    """The seqs of so many messages of agents."""
    seqs = list[int]()
    while len(seqs) < count:
        frame = await person.frame(within_s=60)
        if frame["type"] == "text" and frame["from"] == "bot":
            seqs.append(frame["seq"])
    return seqs


# ------------------------------------------------------------------------- 41, 44, half-open sockets and late closes
async def test_an_agent_that_went_silent_is_missed_and_its_turn_answered_by_another(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing comes from it any more, and no end of the connection either; what it was given counts as unanswered."""
    monkeypatch.setattr(server, "PING_S", 0.3)
    async with serve(world) as served:
        conversation, token = await served.conversation()
        address = urlsplit(served.url)
        async with proxy_to(address.hostname or "", address.port or 0) as proxy:
            near = Served(
                served.gateway, f"http://127.0.0.1:{proxy.port}", served.http, served.store, served.read_model
            )
            async with near.agent() as silent:
                await served.say(conversation, token, "hello")
                await silent.until("text")
                async with served.agent() as heir:
                    proxy.freeze()
                    moved = await heir.until("text")
                    assert (moved["data"]["text"], moved["runEpoch"]) == ("hello", 2)
                silent.raw.transport.abort()
    events = [entry.event for journal in world.journals for entry in journal.entries]
    (move,) = [event for event in events if isinstance(event, RunMoved) and event.run_epoch == 2]
    assert (move.from_member, move.to_member) == (silent.member, heir.member)
    assert silent.member in {event.member for event in events if isinstance(event, MemberLeft)}
