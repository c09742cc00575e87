"""A person's frames may begin in a trace; a turn carries its own to its agent, and the agent's frames one back; nobody
is shown any."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from streams.core.commands import CommitFrame, CommitPersonFrame, CommitTurn
from streams.core.events import FrameCommitted
from tests.support.gateway_world import Served, World

GIVEN = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
BACK = "00-4bf92f3577b34da6a3ce929d0e0e4736-53995c3f42cd8ad8-01"


@pytest.fixture
def sent(world: World, monkeypatch: pytest.MonkeyPatch) -> dict[str, list[tuple[str, bytes]]]:
    """By type of the frame, the headers that its command went with."""
    seen: dict[str, list[tuple[str, bytes]]] = {}
    send = world.send

    async def noted(command: Any, **given: Any) -> Any:
        if isinstance(command, CommitTurn):
            seen["turn"] = list(given.get("headers", ()))
        elif isinstance(command, CommitFrame | CommitPersonFrame):
            seen[command.frame.type] = list(given.get("headers", ()))
        return await send(command, **given)

    monkeypatch.setattr(world, "send", noted)
    return seen


async def test_a_turn_carries_its_trace_and_the_answer_goes_with_the_agents(
    world: World, served: Served, sent: dict[str, list[tuple[str, bytes]]]
) -> None:
    served.gateway.carried = lambda run, member: GIVEN if run.endswith("/agents/bots") and member else None
    conversation, token = await served.conversation()
    async with served.agent() as agent:
        await served.say(conversation, token, "hello")
        turn = await agent.until("text")
        assert turn["traceparent"] == GIVEN
        named = {"run": turn["run"], "runEpoch": turn["runEpoch"], "traceparent": BACK}
        chunk = {"type": "text", "content": "hi"}
        await agent.say(conversation, {"type": "genui", "streamId": "s", "done": False, "chunk": chunk, **named})
        await agent.say(conversation, {"type": "text", "clientId": "m1", "data": {"text": "hi"}, **named})
        await agent.until("ack")
    assert sent == {"turn": []} | {kind: [("traceparent", BACK.encode())] for kind in ("genui", "text")}
    stored = [e.event.frame for e in world.journal_of(conversation) if isinstance(e.event, FrameCommitted)]
    assert [frame.type for frame in stored][:2] == ["genui", "text"]
    assert not [frame for frame in stored if "traceparent" in (frame.extra or "")]


async def test_where_nobody_traces_nothing_is_carried_and_what_is_no_context_is_not_passed_on(
    served: Served, sent: dict[str, list[tuple[str, bytes]]]
) -> None:
    conversation, token = await served.conversation()
    async with served.agent() as agent:
        await served.say(conversation, token, "hello")
        assert "traceparent" not in await agent.until("text")
        frame = {"type": "text", "clientId": "m1", "data": {"text": "hi"}, "traceparent": "garbage\n"}
        await agent.say(conversation, frame)
        await agent.until("ack")
    assert sent == {"turn": [], "text": []}


@pytest.mark.parametrize("given", [BACK, "garbage", 7, None])
async def test_what_a_person_says_on_a_socket_goes_with_the_trace_that_it_names(
    world: World, served: Served, sent: dict[str, list[tuple[str, bytes]]], given: object
) -> None:
    conversation, token = await served.conversation()
    async with served.agent() as agent, served.socket(token, {}) as person:
        await person.send({"type": "text", "clientId": "c1", "data": {"text": "hello"}, "traceparent": given})
        await person.until("ack")
        await person.send({"type": "survey", "clientId": "c2", "rating": 5, "traceparent": given})
        await person.until("ack")
        assert "traceparent" not in await agent.until("survey")
    carried = [("traceparent", BACK.encode())] if given == BACK else []
    assert sent == {"turn": carried, "survey": carried}
    assert b"traceparent" not in msgspec.json.encode([entry.event for entry in world.journal_of(conversation)])
