"""What the SDK sends, held against the public schemas where they are beside this checkout."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.support.scripted_gateway import scripted_gateway
from tests.support.wire_schemas import WireSchemas
from turnlog import Agent, Reply, Turn

SCHEMAS = Path(__file__).parents[3].parent / "shared" / "converger-v1"
WITHOUT_SCHEMA = frozenset({"run", "genui", "tool_call", "skill", "interrupt", "interrupt_resolved", "event"})
"""Agents' frames that the public copy does not describe from the client's side: all but `run` as the server's."""


@pytest.mark.skipif(not SCHEMAS.exists(), reason="the public schemas are not beside this checkout")
async def test_every_frame_is_a_good_one() -> None:
    schemas = WireSchemas(SCHEMAS)
    sent: list[dict[str, Any]] = []
    async with scripted_gateway() as gateway:
        agent = Agent(gateway.url, token="t", group="g", flush_every=0.0)

        @agent.on_turn
        async def answer(turn: Turn, reply: Reply) -> None:
            await reply.typing()
            await reply.text("one", actions=["Yes", {"label": "No", "value": "n"}], metadata={"k": 1})
            await reply.message("buttons", {"text": "?", "buttons": [{"label": "Go", "value": "go"}]})
            async with reply.stream() as stream:
                await stream.write("two")
            async with reply.tool("get_order", {"id": 7}) as call:
                call.result = {"total": 9}
            await reply.skill("pdf", source="server")
            await reply.genui("order-card", {"id": 7})
            await reply.event("note", text="seen", value=1)
            form = {"component": "form", "props": {}}
            await reply.ask("Sure?", actions=["Yes", ("No", {"no": 1})], ui=form, event="submit", tool={"name": "sign"})

        _, peer = await asyncio.gather(agent.start(), gateway.welcomed())
        assert schemas.errors("c2s", peer.hello) == []
        await peer.turn("c1", "hi", seq=1)
        while not sent or sent[-1]["frame"].get("data") != {"status": "finished"}:
            sent.append(await peer.receive())
            if "clientId" in sent[-1]["frame"]:
                await peer.ack("c1", sent[-1]["frame"], seq=len(sent))
            if sent[-1]["frame"].get("data") == {"status": "interrupted"}:
                await peer.turn("c1", "no", seq=90, run="c1/1/agents")
        await agent.stop()
    described = [each for each in sent if each["frame"]["type"] not in WITHOUT_SCHEMA]
    assert [each["frame"]["type"] for each in described] == ["typing", "text", "buttons"]
    assert [schemas.errors("c2s-envelope", each) for each in described] == [[], [], []]
    numbered = [each["frame"] for each in sent if each["frame"]["type"] in WITHOUT_SCHEMA - {"run"}]
    kinds = [frame["type"] for frame in numbered]
    shown = ["tool_call", "tool_call", "skill", "genui", "event", "interrupt", "interrupt_resolved"]
    assert kinds == ["genui", "genui", *shown, "genui"]
    stored = {"seq": 9, "timestamp": 1, "from": "bot"}
    given = [stored | ({"id": "m"} if frame["type"] == "event" else {}) | frame for frame in numbered]
    assert [(frame["type"], schemas.errors("s2c", frame)) for frame in given] == [(kind, []) for kind in kinds]
