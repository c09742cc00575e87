"""A whole session of both sockets, recorded in both directions: each frame is as our and the public schemas say."""

from __future__ import annotations

import json
from collections.abc import Set
from typing import Any

import pytest

from connectors.gateway.protocol import limits, resume, viewer
from tests.support.gateway_world import Peer, Served, World, bearer, serve, settings_for
from tests.support.waiting import LIMIT_S
from tests.unit.gateway.conftest import SCHEMAS, own_frames, server_frames

# What agents say and the public copy has no schema of (its README): their natives, runs and errors, and what is ours.
WITHOUT_SCHEMA = {
    "run",
    "genui",
    "tool_call",
    "skill",
    "interrupt",
    "interrupt_resolved",
    "error",
    "event",
    "checkpoint",
}
WITHOUT_SCHEMA |= {"genui_components", "skills", "drain", "refuse"}

# Types that other tests show, by side.
ELSEWHERE: dict[str, Set[str]] = {
    "person-to-server": set(),
    "agent-to-server": {"refuse"},
    "server-to-person": set(),
    "server-to-agent": {"superseded", "edited"},
}

Record = list[tuple[str, dict[str, Any]]]


class Recorded(Peer):
    """A client's end of a socket; it writes down what goes either way. `kind`: person or agent."""

    record: Record

    async def send(self, frame: dict[str, Any]) -> None:
        self.record.append((f"{self.kind}-to-server", frame))
        await super().send(frame)

    async def frame(self, within_s: float = LIMIT_S) -> dict[str, Any]:
        frame = await super().frame(within_s)
        self.record.append((f"server-to-{self.kind}", frame))
        return frame

    @property
    def kind(self) -> str:
        return "agent" if self.of_agent else "person"

    of_agent = False


@pytest.fixture
def record(monkeypatch: pytest.MonkeyPatch) -> Record:
    """What the test's sockets said and got."""
    frames: Record = []
    monkeypatch.setattr(Recorded, "record", frames, raising=False)
    monkeypatch.setattr("tests.support.gateway_world.Peer", Recorded)
    return frames


def wire_types(record: Record, side: str) -> set[str]:
    """Types of what that side said; what is no type of the protocol's own is a message."""
    inner = [frame.get("frame", frame) for said_by, frame in record if said_by == side]
    known = every_type(side)
    return {frame["type"] if frame["type"] in known else "message" for frame in inner}


def every_type(side: str) -> set[str]:
    """Types that the models have."""
    own = own_frames()
    enveloped = own.models(side, enveloped=True) if "agent" in side else {}
    return {*own.models(side, enveloped=False), *enveloped}


async def the_whole_session(served: Served) -> None:
    opened = await served.http.post("/api/v1/converger/conversations", headers=bearer(await served.token()))
    conversation, token = opened.json()["conversationId"], opened.json()["token"]
    agents = await served.token("agents-secret", scope="channel")
    hello = {"protocol": "converger/1", "conversationId": conversation, "watermark": 0, "meta": {"page": "/orders"}}
    async with (
        served.socket(token, {**hello, "userId": "ann", "capabilities": ["superseded", "edited"]}) as ann,
        served.socket(token, {**hello, "userId": "zoe"}) as zoe,
        served.socket(agents) as bot,
    ):
        bot.of_agent = True  # type: ignore[attr-defined]
        await bot.send({"type": "hello", "protocol": "converger/1", "group": "bots", "capabilities": ["continue"]})
        bot.member = (await bot.until("welcome"))["data"]["connectionId"]
        await ann.until("welcome")
        await zoe.until("welcome")
        await _a_turn(ann, bot, conversation)
        await _of_the_connection(served, token, ann, bot)
        await _beside_messages(ann, bot, conversation)
        await _said_of_all_kinds(ann, bot, conversation)
        for action in ("close", "reopen"):
            await served.http.post(f"/api/v1/converger/conversations/{conversation}/{action}", headers=bearer(token))
            await ann.until("conversationUpdate")
        await _refused(ann, bot, conversation)
        await ann.send({"type": "sync", "watermark": 0})
        await ann.until("replayTruncated")
        await _gone_on_with(served, ann, bot, conversation)
        for peer in (ann, zoe):
            await peer.settled()


async def _a_turn(ann: Peer, bot: Peer, conversation: str) -> None:
    """With everything that a person and a bot may say in it."""
    await ann.send({"type": "typing", "isTyping": True})
    message = {"type": "text", "clientId": "c-1", "data": {"text": "refund ORD-42"}, "metadata": {"a": 1}}
    await ann.send({**message, "meta": {"locale": "tr-TR"}})
    await ann.until("ack")
    turn = await bot.until("text")
    await ann.send({"type": "typing", "isTyping": False})
    await bot.until("typing")
    for frame in (
        {"type": "read", "watermark": turn["seq"]},
        {"type": "run", "data": {"status": "started"}},
        {"type": "typing", "isTyping": True},
        {"type": "skills", "hash": "9f3a", "skills": [{"name": "refunds", "description": "Gives money back."}]},
        {"type": "genui_components", "hash": "4be1", "unchanged": True},
        {"type": "tool_call", "data": {"id": "t1", "name": "get_order", "status": "running", "params": {"id": 42}}},
        {"type": "tool_call", "data": {"id": "t1", "name": "get_order", "status": "completed", "result": 249.9}},
        {"type": "skill", "data": {"id": "s1", "name": "refunds", "status": "loaded", "source": "server"}},
        {"type": "genui", "streamId": "g1", "done": False, "chunk": {"type": "ui", "component": "card", "id": 1}},
        {"type": "genui", "streamId": "g1", "done": False, "chunk": {"type": "text", "content": "One", "id": 2}},
        {"type": "genui", "streamId": "g1", "done": True, "chunk": {"type": "event", "name": "stream_done", "id": 3}},
        {"type": "event", "data": {"name": "reaction", "text": "👍"}},
        {"type": "checkpoint", "clientId": "p.1.k1", "data": {"step": 1}},
        {
            "type": "interrupt",
            "id": "approve/0:interrupt#0",
            "data": {
                "payload": {"title": "249.90 TRY refund"},
                "actions": [{"label": "Approve", "value": {"approved": True}}],
            },
        },
        {"type": "run", "data": {"status": "interrupted"}},
    ):
        await bot.say(conversation, frame)
    await ann.until("interrupt")
    await ann.send({"type": "text", "clientId": "c-2", "data": {"text": "yes"}, "replyTo": {"id": turn["id"]}})
    await bot.until("text")
    await bot.say(
        conversation, {"type": "interrupt_resolved", "id": "approve/0:interrupt#0", "data": {"answer": "yes"}}
    )
    done = {
        "type": "text",
        "clientId": f"p.{turn['id']}.m1",
        "data": {"text": "Refund complete: ORD-42"},
        "actions": [{"label": "Thanks", "value": "thanks"}],
        "metadata": {"b": 2},
        "replyTo": {"id": turn["id"]},
    }
    await bot.say(conversation, done)
    await bot.until("ack")
    await bot.say(conversation, {"type": "error", "data": {"code": "model_slow", "message": "it took 9 s"}})
    await bot.say(conversation, {"type": "run", "data": {"status": "finished"}})
    assert (await ann.until_refused())["code"] == "model_slow"
    while (await ann.until("run"))["data"]["status"] != "finished":
        pass


async def _beside_messages(ann: Peer, bot: Peer, conversation: str) -> None:
    """An answer by `resume`, interactions, declared tools; an edit, an answer wanted anew, an abort; a survey."""
    await ann.send({"type": "text", "clientId": "c-3", "data": {"text": "and ORD-43?"}})
    turn = await bot.until("text")
    await bot.say(conversation, {"type": "read", "watermark": turn["seq"]})
    await bot.say(conversation, {"type": "interrupt", "id": "ask/1", "data": {"payload": {"title": "Sure?"}}})
    await ann.until("interrupt")
    await ann.send({"type": "resume", "clientId": "r-1", "answers": {"ask/1": {"approved": True}}})
    await ann.until("ack")
    assert (await bot.until("resume"))["answers"] == {"ask/1": {"approved": True}}
    await bot.say(conversation, {"type": "interrupt_resolved", "id": "ask/1", "data": {"answer": {"approved": True}}})
    for frame in (
        {"type": "genui_event", "streamId": "g1", "eventType": "submit", "scope": "component", "payload": {"a": 1}},
        {"type": "client_tools", "tools": [{"name": "pick_date", "parameters": {"type": "object"}}]},
        {"type": "client_skills", "skills": [{"name": "page", "description": "The page.", "instructions": "Use it."}]},
    ):
        await ann.send(frame)
        assert (await bot.until(str(frame["type"]))).items() >= frame.items()
    await ann.send({"type": "edit", "messageId": turn["id"], "data": {"text": "and ORD-44?"}})
    assert (await bot.until("text"))["data"] == {"text": "and ORD-44?"}
    await ann.send({"type": "regenerate", "messageId": turn["id"]})
    assert (await bot.until("text"))["data"] == {"text": "and ORD-44?"}
    await ann.send({"type": "abort"})
    await bot.until("abort")
    await ann.send({"type": "survey", "rating": 5, "comment": "Quick and helpful"})
    assert (await bot.until("survey"))["rating"] == 5


async def _of_the_connection(served: Served, token: str, ann: Peer, bot: Peer) -> None:
    agents = await served.token("agents-secret", scope="channel")
    refreshed = await served.http.post("/api/v1/converger/tokens/refresh", headers=bearer(token))
    for peer, fresh in ((ann, refreshed.json()["token"]), (bot, agents)):
        await peer.send({"type": "ping", "nonce": "p-1"})
        await peer.until("heartbeat")
        await peer.send({"type": "auth", "token": fresh})
        await peer.until("tokenRefreshed")


async def _said_of_all_kinds(ann: Peer, bot: Peer, conversation: str) -> None:
    """Each message type of the protocol, a renderer's own, and one without clientId."""
    shown = (
        ("image", {"src": "https://example.test/receipt.png", "caption": "Your receipt"}),
        ("file", {"url": "https://example.test/invoice.pdf", "name": "invoice.pdf", "size": 48_213}),
        ("video", {"src": "https://example.test/howto.mp4"}),
        ("audio", {"src": "https://example.test/note.ogg", "voice": True, "durationMs": 4_200}),
        ("location", {"latitude": 41.0082, "longitude": 28.9784}),
        ("contact", {"name": "Support desk", "phones": [{"number": "+90 212 000 00 00"}]}),
        ("quick-reply", {"text": "Was this helpful?", "actions": [{"label": "Yes", "value": "yes"}]}),
        ("buttons", {"text": "How?", "buttons": [{"label": "Track an order", "value": "/track"}]}),
        ("card", {"title": "Pro Plan", "buttons": [{"label": "Choose Pro"}]}),
        ("carousel", {"cards": [{"title": "Basic"}, {"title": "Pro"}]}),
        ("order-summary", {"orderId": "ORD-42", "total": 249.9}),
    )
    for number, (kind, data) in enumerate(shown):
        named = {"clientId": f"k-{number}"} if number else {}
        await ann.send({"type": kind, "data": data, **named})
        turn = await bot.until(kind)
        await bot.say(conversation, {"type": kind, "clientId": f"p.{turn['id']}.m1", "data": data})
        await bot.until("ack")
        while "sender" not in (shown_frame := await ann.until(kind)) or shown_frame["from"] != "bot":
            pass
    await ann.send({"type": "read", "watermark": 4})
    await bot.until("deliveryStatus")


async def _refused(ann: Peer, bot: Peer, conversation: str) -> None:
    await ann.raw.send("no JSON")
    assert (await ann.until_refused())["code"] == "bad_request"
    await bot.raw.send(json.dumps({"conversationId": conversation, "frame": {"type": "hello"}}))
    assert (await bot.until_refused())["code"] == "bad_request"


async def _gone_on_with(served: Served, ann: Peer, bot: Peer, conversation: str) -> None:
    """The bot leaves in the middle of an answer; one that continues is given it, one that comes back adopts it."""
    await ann.send({"type": "sync", "watermark": 0})
    await ann.send({"type": "text", "clientId": "c-9", "data": {"text": "count"}})
    turn = await bot.until("text")
    chunk = {"type": "genui", "streamId": "s1", "done": False, "chunk": {"type": "text", "content": "one ", "id": 1}}
    await bot.say(conversation, {"type": "read", "watermark": turn["seq"]})
    for _ in range(3):
        await bot.say(conversation, chunk)
    await bot.settled()
    agents = await served.token("agents-secret", scope="channel")
    async with served.socket(agents) as second:
        second.of_agent = True  # type: ignore[attr-defined]
        await second.send({"type": "hello", "group": "bots", "capabilities": ["continue"], "watermarks": {}})
        await second.until("welcome")
        await bot.send({"type": "drain"})
        await bot.settled()
        await bot.raw.close()
        given = await second.until("text")
        assert given["resume"]["frames"], given
        await second.say(conversation, {"type": "sync", "watermark": 0})
        await second.until("conversationUpdate")
        named = {"run": given["run"], "runEpoch": given["runEpoch"]}
        await second.say(conversation, {"type": "run", "data": {"status": "finished"}, **named})
        await ann.send({"type": "text", "clientId": "c-10", "data": {"text": "again"}})
        while (given := await second.until("text"))["data"]["text"] != "again":
            pass  # it is being shown what was said before
        await second.say(conversation, {"type": "read", "watermark": given["seq"]})
        await second.say(conversation, chunk)
        await second.settled()
        await second.raw.close()
        async with served.socket(agents) as third:
            third.of_agent = True  # type: ignore[attr-defined]
            known = {conversation: given["seq"]}
            await third.send({"type": "hello", "group": "bots", "capabilities": ["adopt"], "watermarks": known})
            adopted = await third.until("adopted")
            named = {"run": adopted["run"], "runEpoch": adopted["runEpoch"]}
            await third.say(conversation, {"type": "run", "data": {"status": "finished"}, **named})
            await third.say(conversation, {**chunk, "run": given["run"], "runEpoch": 1})
            assert (await third.until_refused())["code"] == "fenced"
            await third.until("abort")
            await ann.send({"type": "text", "clientId": "c-11", "data": {"text": "more"}})
            given = await third.until("text")
            await third.say(conversation, {"type": "read", "watermark": given["seq"]})
            await third.say(conversation, chunk)
            await third.settled()
    async with served.socket(agents) as fourth:
        fourth.of_agent = True  # type: ignore[attr-defined]
        await fourth.send({"type": "hello", "group": "bots"})
        await fourth.until("text")
    await ann.until("superseded")


async def test_every_frame_of_a_whole_session_is_as_the_schemas_say(
    world: World, record: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(viewer, "REPLAY_MAX", 5)
    monkeypatch.setattr(limits, "REPLAY_BATCH", 5)
    monkeypatch.setattr(resume, "PART_BYTES", 64)
    async with serve(world, settings_for(member_ttl_ms=60_000)) as served:
        await the_whole_session(served)
    own, public = own_frames(), server_frames()
    for side, frame in record:
        assert own.errors(side, frame) == [], (side, frame)
        if public is not None:
            if side.startswith("server"):
                public.check_from_server(frame)
            elif frame.get("frame", frame)["type"] not in WITHOUT_SCHEMA:
                assert public.errors("c2s-envelope" if "frame" in frame else "c2s", frame) == [], frame
    assert len(record) > 150
    assert SCHEMAS.is_dir() == (public is not None)
    for side, elsewhere in ELSEWHERE.items():
        assert every_type(side) - wire_types(record, side) == elsewhere, side
