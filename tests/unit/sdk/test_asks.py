"""What a handler asks and shows, over a real socket, against a gateway that follows the test's script."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.support.scripted_gateway import Json, Peer, ScriptedGateway, scripted_gateway
from turnlog import Agent, AskTimeout, Reply, Turn
from turnlog.backoff import Backoff
from turnlog.reply import Action

pytestmark = pytest.mark.unit

ABLE = {"capabilities": {"adopt": True, "continue": True, "drain": True}}
ASK = "turn-1.1.ask.1"
ACTIONS: Sequence[Action] = [("Approve", {"ok": True}), {"label": "Reject", "value": {"ok": False}}, "Later"]


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


async def acked(peer: Peer, conversation: str = "c1", **wanted: Any) -> Json:
    """The next frame that has these values, acknowledged as the gateway does when it is stored."""
    frame = await peer.until(conversation, **wanted)
    await peer.ack(conversation, frame, seq=9)
    return frame


async def refund(turn: Turn, reply: Reply) -> str:
    return f"got {await reply.ask('Refund 249.90?', actions=ACTIONS)}"


async def answered(peer: Peer, answer: Any) -> Json:
    """The question's end, which names the answer, and what the handler says then."""
    resolved = await acked(peer, type="interrupt_resolved", id=ASK)
    assert resolved["data"] == {"answer": answer}
    assert (await peer.inner("c1"))["data"] == {"status": "started"}
    return await acked(peer, type="text")


async def asked(peer: Peer) -> Json:
    await peer.turn("c1", "refund", seq=1)
    frame = await acked(peer, type="interrupt")
    assert (await peer.inner("c1"))["data"] == {"status": "interrupted"}
    return frame


async def test_an_ask_is_an_interrupt_and_a_resume_is_its_answer(gateway: ScriptedGateway) -> None:
    async with serving(gateway, refund) as peer:
        ask = await asked(peer)
        assert ask == {
            "type": "interrupt",
            "id": ASK,
            "clientId": f"{ASK}.asked",
            "data": {
                "payload": {"title": "Refund 249.90?"},
                "actions": [
                    {"label": "Approve", "value": {"ok": True}},
                    {"label": "Reject", "value": {"ok": False}},
                    {"label": "Later"},
                ],
            },
            "run": "c1/1/agents",
            "runEpoch": 1,
        }
        await peer.say("c1", {"type": "resume", "answers": {ASK: {"ok": True}}})
        assert (await answered(peer, {"ok": True}))["data"]["text"] == "got {'ok': True}"


@pytest.mark.parametrize(
    ("words", "answer"),
    [("approve ", {"ok": True}), ("Later", "Later"), ("what for?", "what for?")],
)
async def test_the_persons_next_message_is_an_answer(gateway: ScriptedGateway, words: str, answer: Any) -> None:
    async with serving(gateway, refund) as peer:
        await asked(peer)
        await peer.turn("c1", words, seq=4, run="c1/1/agents")
        assert (await answered(peer, answer))["data"]["text"] == f"got {answer}"


async def test_a_message_answers_the_question_that_it_replies_to_else_the_oldest(gateway: ScriptedGateway) -> None:
    async def both(turn: Turn, reply: Reply) -> str:
        one, two = await asyncio.gather(reply.ask("one?", id="one"), reply.ask("two?", id="two"))
        return f"{one} {two}"

    async with serving(gateway, both) as peer:
        await peer.turn("c1", "hi", seq=1)
        for name in ("one", "two"):
            await acked(peer, type="interrupt", id=f"turn-1.1.ask.{name}")
        await peer.turn("c1", "second", seq=4, run="c1/1/agents", replyTo={"id": "turn-1.1.ask.two"})
        await acked(peer, type="interrupt_resolved", id="turn-1.1.ask.two")
        await peer.turn("c1", "first", seq=5, run="c1/1/agents")
        await acked(peer, type="interrupt_resolved", id="turn-1.1.ask.one")
        assert (await acked(peer, type="text"))["data"]["text"] == "first second"


async def test_an_ask_takes_no_place_among_those_answered_at_once(gateway: ScriptedGateway) -> None:
    async with serving(gateway, refund, most_at_once=1) as peer:
        await asked(peer)
        await peer.turn("c2", "refund", seq=1)
        assert (await acked(peer, "c2", type="interrupt"))["data"]["payload"] == {"title": "Refund 249.90?"}
        assert (await peer.inner("c2"))["data"] == {"status": "interrupted"}
        await peer.say("c1", {"type": "resume", "answers": {ASK: "Later"}})  # the first one waits for it still
        assert (await answered(peer, "Later"))["data"]["text"] == "got Later"


async def test_a_question_that_nobody_answers_in_time_is_closed_and_raises(gateway: ScriptedGateway) -> None:
    async def hasty(turn: Turn, reply: Reply) -> str:
        try:
            await reply.ask("quick?", timeout=0.01)
        except AskTimeout as error:
            return f"{error.code}: {error}"
        return "answered"

    async with serving(gateway, hasty) as peer:
        await asked(peer)
        said = await answered(peer, None)
        assert said["data"]["text"] == "ask_timeout: nobody answered within 0.01 s"


def interrupt(seq: int, ask_id: str = ASK) -> Json:
    return {"type": "interrupt", "seq": seq, "id": ask_id, "data": {"payload": {"title": "?"}}}


async def test_a_question_of_a_lost_process_is_not_asked_again_and_its_answer_reaches_the_new_one(
    gateway: ScriptedGateway,
) -> None:
    resume = {"frames": [interrupt(2)], "interrupts": [ASK]}
    async with serving(gateway, refund) as peer:
        await peer.turn("c1", "refund", seq=1, epoch=2, resume=resume)
        assert (await peer.inner("c1"))["data"] == {"status": "started"}
        assert (await peer.inner("c1"))["data"] == {"status": "interrupted"}
        await peer.say("c1", {"type": "resume", "answers": {ASK: "Later"}})
        assert (await answered(peer, "Later"))["data"]["text"] == "got Later"


@pytest.mark.parametrize(
    "answer",
    [
        {"type": "resume", "answers": {ASK: "Later"}},
        {"type": "text", "seq": 3, "id": "m-3", "from": "user", "data": {"text": "Later"}, "answers": ASK},
        {"type": "interrupt_resolved", "seq": 3, "id": ASK, "data": {"answer": "Later"}},
    ],
    ids=lambda answer: str(answer["type"]),
)
async def test_an_answer_that_the_lost_process_was_given_is_there_at_once(
    gateway: ScriptedGateway, answer: Json
) -> None:
    async with serving(gateway, refund) as peer:
        await peer.turn("c1", "refund", seq=1, epoch=2, resume={"frames": [interrupt(2), answer], "interrupts": []})
        assert (await peer.inner("c1"))["data"] == {"status": "started"}
        assert (await answered(peer, "Later"))["data"]["text"] == "got Later"


async def test_an_answer_that_overtakes_the_turn_of_its_run_is_kept_for_it(gateway: ScriptedGateway) -> None:
    async with serving(gateway, refund) as peer:
        answers = {"type": "resume", "answers": {ASK: "Later"}, "run": "c1/1/agents", "runEpoch": 2}
        await peer.say("c1", answers)
        await peer.say("c1", {**answers, "answers": {"x": 1}, "run": "c1/7/agents"})
        await peer.turn("c1", "refund", seq=1, epoch=2, resume={"frames": [interrupt(2)], "interrupts": [ASK]})
        assert (await peer.inner("c1"))["data"] == {"status": "started"}
        assert (await answered(peer, "Later"))["data"]["text"] == "got Later"


async def test_a_named_question_is_found_by_its_name_or_its_id_on_the_wire(gateway: ScriptedGateway) -> None:
    async def named(turn: Turn, reply: Reply) -> str:
        assert turn.resume is not None
        (ask, _) = turn.resume.asks
        return f"{await reply.ask('?', id=ask.id)} {await reply.ask('?', id='colour')}"

    colour = "turn-1.1.ask.colour"
    resume = {"frames": [interrupt(2, "x/0"), interrupt(3, colour)], "interrupts": ["x/0", colour]}
    async with serving(gateway, named) as peer:
        await peer.turn("c1", "refund", seq=1, epoch=2, resume=resume)
        await peer.say("c1", {"type": "resume", "answers": {"x/0": 1, colour: "red"}})
        await acked(peer, type="interrupt_resolved", id="x/0")
        await acked(peer, type="interrupt_resolved", id=colour)
        assert (await acked(peer, type="text"))["data"]["text"] == "1 red"


async def test_a_question_survives_a_lost_connection(gateway: ScriptedGateway) -> None:
    async with serving(gateway, refund) as peer:
        await asked(peer)
        await peer.close(1011)
        again = await gateway.welcomed(**ABLE)
        known = {"frames": [interrupt(2)], "interrupts": [ASK]}
        await again.say("c1", {"type": "adopted", "run": "c1/1/agents", "runEpoch": 2, "resume": known})
        assert (await again.inner("c1"))["data"] == {"status": "started"}
        await again.say("c1", {"type": "resume", "answers": {ASK: "Later"}})
        assert (await answered(again, "Later"))["data"]["text"] == "got Later"


async def test_a_question_that_was_lost_with_its_connection_is_sent_again(gateway: ScriptedGateway) -> None:
    async with serving(gateway, refund) as peer:
        await peer.turn("c1", "refund", seq=1)
        lost = await peer.until("c1", type="interrupt")
        await peer.close(1011)
        again = await gateway.welcomed(**ABLE)
        nothing: Json = {"frames": [], "interrupts": []}
        await again.say("c1", {"type": "adopted", "run": "c1/1/agents", "runEpoch": 2, "resume": nothing})
        assert await acked(again, type="interrupt") == lost | {"runEpoch": 2}


async def test_a_run_that_begins_anew_asks_anew(gateway: ScriptedGateway) -> None:
    async with serving(gateway, refund) as peer:
        await asked(peer)
        await peer.turn("c1", "refund", seq=None, number=1, epoch=2)
        again = await acked(peer, type="interrupt")
        assert (again["id"], again["runEpoch"]) == ("turn-1.2.ask.1", 2)
        await peer.say("c1", {"type": "resume", "answers": {"turn-1.2.ask.1": "Later"}})
        await acked(peer, type="interrupt_resolved")
        assert (await acked(peer, type="text"))["data"]["text"] == "got Later"


async def test_a_components_event_answers_and_other_frames_go_to_their_handler(gateway: ScriptedGateway) -> None:
    async def form(turn: Turn, reply: Reply) -> str:
        return f"got {await reply.ask(ui={'component': 'form'}, event='submit')}"

    heard: asyncio.Queue[tuple[str, Json]] = asyncio.Queue()
    agent = Agent(gateway.url, token="t")
    agent.on_turn(form)

    @agent.on_frame
    async def frame(conversation: str, frame: Json) -> None:
        heard.put_nowait((conversation, frame))

    starting = asyncio.create_task(agent.start())
    peer = await gateway.welcomed(**ABLE)
    await starting
    ask = await asked(peer)
    assert ask["data"] == {"payload": {}, "ui": {"component": "form"}, "event": "submit"}
    other = {"type": "genui_event", "streamId": "s", "eventType": "hover"}
    await peer.say("c1", other)
    assert await heard.get() == ("c1", other)
    tools = {"type": "client_tools", "tools": [{"name": "pick_date"}]}
    await peer.say("c1", tools)
    assert await heard.get() == ("c1", tools)
    await peer.say("c1", {"type": "genui_event", "streamId": "s", "eventType": "submit", "payload": {"a": 1}})
    assert (await answered(peer, {"a": 1}))["data"]["text"] == "got {'a': 1}"
    await agent.stop(budget=0)


async def test_a_question_id_that_the_wire_could_not_carry_is_refused(gateway: ScriptedGateway) -> None:
    async def bad(turn: Turn, reply: Reply) -> str:
        with pytest.raises(ValueError, match="id: 'no way' is neither"):
            await reply.ask("?", id="no way")
        return "refused"

    async with serving(gateway, bad) as peer:
        await peer.turn("c1", "hi", seq=1)
        assert (await acked(peer, type="text"))["data"]["text"] == "refused"


async def test_a_tool_is_shown_as_it_runs_and_ends(gateway: ScriptedGateway) -> None:
    async def look_up(turn: Turn, reply: Reply) -> None:
        async with reply.tool("get_order", {"id": 7}) as call:
            call.result = {"total": 9}
        with pytest.raises(LookupError):
            async with reply.tool("get_customer"):
                raise LookupError("secret")

    async with serving(gateway, look_up) as peer:
        await peer.turn("c1", "hi", seq=1)
        seen = [(await acked(peer, type="tool_call"))["data"] for _ in range(4)]
    order = {"id": "turn-1.t1", "name": "get_order", "params": {"id": 7}}
    customer = {"id": "turn-1.t2", "name": "get_customer"}
    assert seen == [
        {**order, "status": "running"},
        {**order, "status": "completed", "result": {"total": 9}},
        {**customer, "status": "running"},
        {**customer, "status": "error", "error": "LookupError"},
    ]


async def test_a_tool_that_a_lost_process_had_completed_is_not_used_again(gateway: ScriptedGateway) -> None:
    async def look_up(turn: Turn, reply: Reply) -> str:
        async with reply.tool("get_order", {"id": 7}) as call:
            if not call.done:
                call.result = "looked up again"
        return str(call.result)

    data = {"id": "turn-1.t1", "name": "get_order", "status": "completed", "result": "known"}
    stored = {"frames": [{"type": "tool_call", "seq": 2, "data": data}], "interrupts": []}
    async with serving(gateway, look_up) as peer:
        await peer.turn("c1", "hi", seq=1, epoch=2, resume=stored)
        assert (await peer.inner("c1"))["data"] == {"status": "started"}
        assert (await acked(peer, type="text"))["data"]["text"] == "known"


async def test_a_component_is_updated_in_place_and_ended_for_its_handler(gateway: ScriptedGateway) -> None:
    async def card(turn: Turn, reply: Reply) -> None:
        shown = await reply.genui("order-card", {"id": 7})
        await shown.update({"id": 7, "total": 9})
        await reply.skill("pdf", source="server")
        await reply.event("note", text="seen", value=1)

    async with serving(gateway, card) as peer:
        await peer.turn("c1", "hi", seq=1)
        await peer.until("c1", type="run")
        frames = []
        for _ in range(5):
            frames.append(await peer.inner("c1"))
            await peer.ack("c1", frames[-1], seq=9)
    chunks = [frame["chunk"] for frame in frames if frame["type"] == "genui"]
    first = {"type": "ui", "component": "order-card", "id": 1}
    end = {"type": "event", "name": "stream_done", "id": 2}
    assert chunks == [{**first, "props": {"id": 7}}, {**first, "props": {"id": 7, "total": 9}}, end]
    assert [frame["data"] for frame in frames if "data" in frame] == [
        {"id": "turn-1.k1", "name": "pdf", "status": "loaded", "source": "server"},
        {"name": "note", "text": "seen", "value": 1},
    ]


async def test_no_more_sends_wait_for_their_ack_than_the_gateway_takes(gateway: ScriptedGateway) -> None:
    async def many(turn: Turn, reply: Reply) -> None:
        if turn.text == "mark":
            return
        await asyncio.gather(*(reply.text(str(number)) for number in range(3)))

    agent = Agent(gateway.url, token="t")
    agent.on_turn(many)
    starting = asyncio.create_task(agent.start())
    peer = await gateway.welcomed(limits={"maxInFlight": 1})
    await starting
    await peer.turn("c1", "hi", seq=1)
    for number in range(3):
        message = await peer.until("c1", type="text")
        assert message["data"]["text"] == str(number)
        await peer.turn(f"c-{number}", "mark", seq=1)
        marks = [await peer.inner(f"c-{number}") for _ in range(2)]  # and no second message
        assert [mark["data"]["status"] for mark in marks] == ["started", "finished"]
        await peer.ack("c1", message, seq=number + 2)
    await agent.stop(budget=0)


@pytest.mark.parametrize(("continues", "invoked"), [(True, False), (False, False), (True, True)])
async def test_a_draining_process_leaves_what_waits_for_people_at_once_where_others_go_on_with_it(
    gateway: ScriptedGateway, *, continues: bool, invoked: bool
) -> None:
    """Where they would begin anew, or not at all, the person has the budget's time to answer."""
    work = asyncio.Event()

    async def handler(turn: Turn, reply: Reply) -> str | None:
        if turn.text == "work":
            await work.wait()
            return None
        return await refund(turn, reply)

    agent = Agent(gateway.url, token="t", continues=continues, flush_every=0.0)
    agent.on_turn(handler)
    starting = asyncio.create_task(agent.start())
    peer = await gateway.welcomed(**ABLE)
    await starting
    called: dict[str, Any] = {"invocation": {"id": "i", "deadlineMs": 0, "streamed": False}} if invoked else {}
    await peer.turn("c1", "refund", seq=1, **called)
    await acked(peer, type="interrupt")
    assert (await peer.inner("c1"))["data"] == {"status": "interrupted"}
    await peer.turn("c2", "work", seq=1)
    assert (await peer.inner("c2"))["data"] == {"status": "started"}
    stopping = asyncio.create_task(agent.stop(budget=60))
    assert await peer.receive() == {"type": "drain"}
    assert not stopping.done(), "one is at work"
    work.set()
    assert (await peer.inner("c2"))["data"] == {"status": "finished"}
    if continues and not invoked:
        async with asyncio.timeout(10):
            await stopping
        assert [frame async for frame in peer.socket] == [], "nothing is said of it: it goes on elsewhere"
    else:
        await peer.say("c1", {"type": "resume", "answers": {ASK: "Later"}})
        assert (await answered(peer, "Later"))["data"]["text"] == "got Later"
        await stopping
