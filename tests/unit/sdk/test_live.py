"""A person's frames that are no messages: over real sockets, against a gateway that follows the test's script."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.support.scripted_gateway import Json, Peer, ScriptedGateway, scripted_gateway
from turnlog import AckTimeout, Ask, Conflict, IncompleteResume, NotInterrupted, TurnlogError, Unauthorized, Unavailable
from turnlog.live import Live
from turnlog.tokens import FixedToken

pytestmark = pytest.mark.unit


@asynccontextmanager
async def living(budget: float = 5.0, seen: int = 3) -> AsyncIterator[tuple[Live, ScriptedGateway]]:
    async with scripted_gateway() as gateway:
        live = Live(gateway.url, FixedToken("t-1"), "c1", seen=seen, budget=budget)
        try:
            yield live, gateway
        finally:
            await live.close()


async def acked(peer: Peer) -> Json:
    frame = await peer.receive()
    await peer.send({"type": "ack", "clientId": frame["clientId"], "id": "x", "seq": 0, "timestamp": 1})
    return frame


async def refused(peer: Peer, code: str, **more: Any) -> None:
    frame = await peer.receive()
    await peer.send({"type": "error", "data": {"code": code, "message": "m", "clientId": frame["clientId"], **more}})


async def test_it_begins_behind_what_is_known_and_names_its_conversation() -> None:
    async with living() as (live, gateway):
        peer = await gateway.welcomed(pending=[])
        assert peer.hello == {"type": "hello", "protocol": "converger/1", "conversationId": "c1", "watermark": 3}
        assert peer.token == "Bearer t-1"
        await live.show({"type": "typing", "isTyping": True})
        assert await peer.receive() == {"type": "typing", "isTyping": True}


async def test_what_is_said_awaits_its_ack() -> None:
    async with living() as (live, gateway):
        peer = await gateway.welcomed()
        saying = asyncio.create_task(live.say({"type": "resume", "answers": {"a": 1}}, key="k"))
        assert await acked(peer) == {"type": "resume", "answers": {"a": 1}, "clientId": "k"}
        await saying


async def test_what_was_not_acknowledged_is_sent_again_on_the_next_connection() -> None:
    async with living() as (live, gateway):
        peer = await gateway.welcomed()
        saying = asyncio.create_task(live.say({"type": "abort"}))
        first = await peer.receive()
        await peer.send({"type": "text", "seq": 4, "id": "m", "from": "bot", "data": {"text": "x"}, "timestamp": 1})
        await peer.close(1011)
        again = await gateway.welcomed()
        assert again.hello["watermark"] == 4
        assert await acked(again) == first
        await saying


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("not_interrupted", NotInterrupted),
        ("incomplete_resume", IncompleteResume),
        ("conflict", Conflict),
        ("unavailable", Unavailable),
    ],
)
async def test_a_refusal_is_raised_by_cause_and_not_repeated_unasked(code: str, kind: type[TurnlogError]) -> None:
    async with living() as (live, gateway):
        peer = await gateway.welcomed()
        saying = asyncio.create_task(live.say({"type": "resume", "answers": {"a": 1}}))
        await refused(peer, code)
        with pytest.raises(kind):
            await saying


async def test_a_refusal_that_asks_for_it_is_repeated_with_the_same_key() -> None:
    async with living() as (live, gateway):
        peer = await gateway.welcomed()
        saying = asyncio.create_task(live.say({"type": "abort"}, key="k"))
        await refused(peer, "unavailable", retryAfterMs=1)
        assert (await acked(peer))["clientId"] == "k"
        await saying


async def test_no_ack_in_time_is_told() -> None:
    async with living(budget=0.01) as (live, _gateway):
        with pytest.raises(AckTimeout, match=r"no acknowledgement of abort within 0\.01 s"):
            await live.say({"type": "abort"})


async def test_open_questions_are_known_from_the_welcome_and_as_they_come_and_go() -> None:
    async with living() as (live, gateway):
        yes = {"label": "Yes", "value": 1}
        peer = await gateway.welcomed(pending=[{"id": "a", "data": {"payload": {"title": "?"}, "actions": [yes]}}])
        assert await live.asks() == (Ask("a", {"title": "?"}, (yes,)),)
        await peer.send({"type": "interrupt", "seq": 4, "id": "b", "data": {"payload": "!"}, "timestamp": 1})
        await peer.send({"type": "interrupt_resolved", "seq": 5, "id": "a", "data": {"answer": 1}, "timestamp": 1})
        saying = asyncio.create_task(live.say({"type": "abort"}))
        await acked(peer)
        await saying
        assert await live.asks() == (Ask("b", "!"),)


@pytest.mark.parametrize(
    "ask",
    [
        lambda live: live.asks(),
        lambda live: live.show({"type": "typing", "isTyping": True}),
        lambda live: live.say({"type": "abort"}),
    ],
)
async def test_a_socket_that_is_refused_for_good_says_so(ask: Callable[[Live], Awaitable[None]]) -> None:
    async with living() as (live, gateway):
        asking = asyncio.ensure_future(ask(live))
        await (await gateway.accept()).close(4401, "token wrong")
        with pytest.raises(Unauthorized):
            await asking
        with pytest.raises(Unauthorized):
            await ask(live)
