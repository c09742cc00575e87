"""Two channels of people on one conversation, on a whole Turnlog: who is shown what, and streams that are masked."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import httpx
import pytest

import turnlog.followed
from tests.acceptance.test_people_frames import socket
from tests.support.command import turnlog_async
from tests.support.gateway_world import Peer
from tests.support.up import Up, add_channels
from tests.support.waiting import until
from turnlog import Agent, Turn, Viewed

CLIENT = "/api/v1/converger"


async def said(peer: Peer, upto: int) -> list[tuple[int, str]]:
    """What it is shown up to this seq: text, chunks' text, or what stands in its place."""
    found: list[tuple[int, str]] = []
    while not found or found[-1][0] < upto:
        frame = await peer.frame(within_s=30)
        if "seq" in frame and frame["type"] != "ack":
            shown = frame.get("chunk") or frame["data"]
            found.append((frame["seq"], shown.get("text") or shown.get("content") or shown.get("name") or ""))
    return found


async def answer(turn: Turn) -> AsyncGenerator[str, None]:
    yield f"{(turn.channel or '').partition('-')[0]}: pay 1234"
    yield "-5678 now"


async def test_two_channels_share_a_conversation_and_each_is_shown_what_is_for_it(up: Up, tmp_path: Path) -> None:
    name = uuid.uuid4().hex[:8]
    shop, desk, agents = f"shop-{name}", f"desk-{name}", f"bots-{name}"
    channels: list[dict[str, Any]] = [
        {"id": shop, "kind": "web", "middleware": [{"mask": {"pattern": r"\d{4}-\d{4}", "with": "****"}}]},
        {"id": desk, "kind": "web", "sees": "all"},
        {"id": agents, "kind": "websocket", "group_settle_ms": 0},
    ]
    routes = [{"from": shop, "to": [agents, desk], "replies": "origin"}]
    secrets = await add_channels(up, tmp_path, channels, routes)
    agent = Agent(up.gateways[0], channel_secret=secrets[agents], flush_every=0)
    agent.on_turn(answer)
    async with httpx.AsyncClient(base_url=up.gateways[0], timeout=30) as here:

        async def token_of(channel: str, user: str) -> str | None:  # gateways look for a new document once a second
            headers = {"authorization": f"Bearer {secrets[channel]}"}
            got = await here.post(f"{CLIENT}/tokens/generate", headers=headers, json={"user": {"id": user}})
            return got.json().get("token") if got.is_success else None

        ann, eve = await until(lambda: token_of(shop, "ann")), await until(lambda: token_of(desk, "eve"))
        opened = await here.post(f"{CLIENT}/conversations", headers={"authorization": f"Bearer {ann}"})
        id_ = opened.json()["conversationId"]
        hello: dict[str, Any] = {"conversationId": id_, "watermark": 0}
        await agent.start()
        try:
            async with socket(up.gateways[0], ann, hello) as one, socket(up.gateways[1], eve, hello) as two:
                await one.send({"type": "text", "clientId": "a-1", "data": {"text": "mine"}})
                seen = await said(two, 4)
                assert [text for _, text in seen] == ["mine", "hidden", "hidden", "hidden"]
                await two.send({"type": "text", "clientId": "e-1", "data": {"text": "ours"}})
                live = await said(one, 8)
                assert [seq for seq, _ in live] == [*range(2, 9)], "its own turn is not shown to it again"
                assert "".join(text for _, text in live) == "shop: pay **** nowoursdesk: pay **** now"
                assert "".join(text for _, text in await said(two, 8)).startswith("desk: pay 1234-5678 now")
            async with socket(up.gateways[1], ann, {**hello, "watermark": 2}) as again:
                assert await said(again, 8) == live[1:], "a replay from within a stream is what was shown live"
        finally:
            await agent.stop()


async def test_an_agents_channel_opens_a_conversation_follows_it_at_any_gateway_and_others_answer_in_it(
    up: Up, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(turnlog.followed, "WAITING_MAX", 2)
    name = uuid.uuid4().hex[:8]
    bridge, phone, bots = f"bridge-{name}", f"phone-{name}", f"bots-{name}"
    of_agents: list[dict[str, Any]] = [{"id": id_, "kind": "websocket", "group_settle_ms": 0} for id_ in (bridge, bots)]
    channels = [*of_agents, {"id": phone, "kind": "web"}]
    secrets = await add_channels(up, tmp_path, channels, [{"from": bridge, "to": [bots, phone]}])
    agent = Agent(up.gateways[0], channel_secret=secrets[bots], flush_every=0)
    agent.on_turn(answer)
    async with httpx.AsyncClient(base_url=up.gateways[0], timeout=30) as here:
        # Gateways look for a new document once a second, each by itself.
        async def token_of(channel: str, gateway: str = up.gateways[0], **body: Any) -> str | None:
            headers = {"authorization": f"Bearer {secrets[channel]}"}
            got = await here.post(f"{gateway}{CLIENT}/tokens/generate", headers=headers, json=body)
            return got.json().get("token") if got.is_success else None

        ann = {"authorization": f"Bearer {await until(lambda: token_of(phone, user={'id': 'ann'}))}"}
        owner = await until(lambda: token_of(bridge, scope="channel"))
        assert await until(lambda: token_of(bridge, up.gateways[1], scope="channel"))
        opened = await here.post(
            f"{CLIENT}/conversations", headers={"authorization": f"Bearer {owner}"}, json={"user": {"id": "ann"}}
        )
        id_ = opened.json()["conversationId"]
        await agent.start()
        try:
            async with socket(up.gateways[1], owner, {}) as one:
                await one.say(id_, {"type": "text", "clientId": "o-1", "data": {"text": "Your order is here"}})
                assert (await one.until("ack"))["seq"] == 1
                said_by_ann = {"text": "thanks"}
                posted = await here.post(f"{CLIENT}/conversations/{id_}/activities", headers=ann, json=said_by_ann)
                assert posted.status_code == 201, posted.text
                live = await followed(one, 4)
            assert [(seq, side) for seq, side, _ in live] == [(2, "user"), (3, "bot"), (4, "bot")]
            assert live[0][2] == "thanks"
            async with socket(up.gateways[0], owner, {"watermarks": {id_: 2}}) as again:
                assert await followed(again, 4) == live[1:], "a replay is what was shown live"
            heard: list[int] = []
            may, waits = asyncio.Event(), asyncio.Event()
            bridging = Agent(up.gateways[1], channel_secret=secrets[bridge])

            @bridging.on_activity
            async def hear(conversation: str, viewed: Viewed) -> None:
                if viewed.seq is not None:
                    waits.set()
                    await may.wait()
                    heard.append(viewed.seq)

            bridging.follow(id_, after=1)
            await bridging.start()
            try:
                await waits.wait()
                own = (await bridging.say(id_, "anything else?")).seq
                posted = await here.post(f"{CLIENT}/conversations/{id_}/activities", headers=ann, json={"text": "no"})
                assert posted.status_code == 201, posted.text
                await until(lambda: "is asked for anew" in caplog.text)  # it has four to hear, of which two may wait
                may.set()
                await until(lambda: posted.json()["seq"] + 1 in heard)
                assert heard == [seq for seq in range(2, max(heard) + 1) if seq != own], "in order, but its own"
            finally:
                await bridging.stop()
        finally:
            await agent.stop()
        proved = await turnlog_async("audit", "verify", "--conversation", id_, environment=up.environment)
        assert proved.code == 0, proved.out


async def followed(peer: Peer, upto: int) -> list[tuple[int, str, str]]:
    """What a connection of the owning channel is shown up to this seq: seq, side, text."""
    found: list[tuple[int, str, str]] = []
    while not found or found[-1][0] < upto:
        frame = (await peer.frame(within_s=30)).get("frame", {})
        if "seq" in frame and frame["type"] != "ack":
            shown = frame.get("chunk") or frame["data"]
            found.append((frame["seq"], frame.get("from", "bot"), shown.get("text") or shown.get("content") or ""))
    return found
