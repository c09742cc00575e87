"""The unmodified public clients `converger-agent` 0.1.1 and `converger` 0.1.1 against a whole Turnlog.

Each test has a group of agents of its own, so that one stack serves them all.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from streams.runtime.partitioning import partition_of
from tests.support.command import turnlog_async
from tests.support.program import Program, Refused, program
from tests.support.up import Up
from tests.support.waiting import until

HERE = Path(__file__).parent
CLIENTS = HERE / "clients"
PARTITIONS = 8  # `turnlog up` has so many unless told otherwise


@dataclass(frozen=True, slots=True)
class Person:
    """An end user in a conversation of its own, over REST."""

    client: Program
    conversation: str
    token: str

    async def say(self, text: str, key: str | None = None) -> str:
        posted = await self.client.call(
            "post_activity", token=self.token, conversation_id=self.conversation, text=text, idempotency_key=key
        )
        return str(posted["id"])

    async def activities(self, after: int = 0) -> list[dict[str, Any]]:
        page = await self.client.call(
            "list_activities", token=self.token, conversation_id=self.conversation, watermark=after, limit=100
        )
        return list(page["activities"])

    async def texts(self, number: int) -> list[str]:
        """All messages, once there are so many."""

        async def enough() -> list[str] | None:
            texts = [str(each["text"]) for each in await self.activities() if each["type"] == "message"]
            return texts if len(texts) >= number else None

        return list(await until(enough))


@dataclass(frozen=True, slots=True)
class World:
    """The stack, and what starts clients of it."""

    up: Up
    python: str
    group: str

    def agent(
        self, name: str, group: str | None = "", *, gateway: str | None = None, **environment: str
    ) -> AbstractAsyncContextManager[Program]:
        """An agent process on the public package; `group` "" is the test's own, None is none."""
        chosen = self.group if group == "" else group
        command = [self.python, str(CLIENTS / "agent.py"), gateway or self.up.gateways[0], name]
        return program(
            *command,
            *([chosen] if chosen is not None else []),
            environment={"SECRET": self.up.secret("agents"), **environment},
        )

    def user(self, gateway: str | None = None, **environment: str) -> AbstractAsyncContextManager[Program]:
        return program(
            self.python,
            str(CLIENTS / "user.py"),
            gateway or self.up.gateways[0],
            environment={"SECRET": self.up.secret("web"), **environment},
        )

    async def person(self, client: Program, name: str = "ana") -> Person:
        """A new conversation."""
        token = await client.call("generate_token", user_id=f"{name}-{uuid.uuid4().hex[:6]}")
        opened = await client.call("create_conversation", token=token["token"])
        return Person(client, opened["conversationId"], opened["token"])


@pytest.fixture
def world(up: Up, clients_python: str) -> World:
    return World(up, clients_python, f"g{uuid.uuid4().hex[:8]}")


@asynccontextmanager
async def started(*agents: AbstractAsyncContextManager[Program]) -> AsyncIterator[list[Program]]:
    """These programs, all connected."""
    async with AsyncExitStack() as stack:
        running = [await stack.enter_async_context(agent) for agent in agents]
        await asyncio.gather(*(each.until("ready") for each in running))
        yield running


def turns_of(agents: Iterable[Program]) -> list[dict[str, Any]]:
    return [event for agent in agents for event in agent.seen if event["event"] == "turn"]


# ------------------------------------------------------------------------------------------------------- answering
@pytest.mark.parametrize("grouped", [True, False], ids=["group", "no group"])
async def test_a_turn_over_rest_is_answered(world: World, *, grouped: bool) -> None:
    group = "" if grouped else None
    async with started(world.agent("A", group)) as (agent,), world.user() as client:
        person = await world.person(client)
        said = await person.say("hello")
        assert await person.texts(2) == ["hello", "A: hello"]
        own, answer = await person.activities()
        assert own["id"] == said
        assert answer["from"]["id"] != own["from"]["id"]
        turn = await agent.until("turn")
        assert (turn["conversation"], turn["seq"], turn["id"]) == (person.conversation, 1, said)
        ack = await agent.until("ack")
        assert (ack["seq"], ack["id"]) == (2, answer["id"])


async def test_a_person_on_a_socket_sees_the_answers_in_order(world: World) -> None:
    async with started(world.agent("A")), world.user() as client:
        person = await world.person(client)
        welcome = await client.call("connect", name="s", token=person.token, conversation_id=person.conversation)
        assert welcome["conversationId"] == person.conversation
        for number in range(3):
            ack = await client.call("send", name="s", text=f"line {number}")
            assert ack["seq"] == 2 * number + 1
            answer = await client.call("receive", name="s")
            assert (answer["seq"], answer["data"]["text"]) == (2 * number + 2, f"A: line {number}")
        assert await client.call("watermark", name="s") == 6


async def test_another_gateway_replays_what_is_behind_the_watermark(world: World) -> None:
    async with started(world.agent("A")), world.user() as client, world.user(world.up.gateways[1]) as elsewhere:
        person = await world.person(client)
        for number in range(3):
            await person.say(f"line {number}")
            await person.texts(2 * number + 2)
        arguments = {"token": person.token, "conversation_id": person.conversation}
        await elsewhere.call("connect", name="all", **arguments)
        assert [(await elsewhere.call("receive", name="all"))["seq"] for _ in range(6)] == [1, 2, 3, 4, 5, 6]
        await elsewhere.call("connect", name="rest", watermark=4, **arguments)
        frames = [await elsewhere.call("receive", name="rest") for _ in range(2)]
        assert [(each["seq"], each["data"]["text"]) for each in frames] == [(5, "line 2"), (6, "A: line 2")]


async def test_a_person_whose_network_went_away_misses_nothing(world: World) -> None:
    async with started(world.agent("A")), world.user() as client:
        person = await world.person(client)
        await client.call("connect", name="s", token=person.token, conversation_id=person.conversation)
        await client.call("send", name="s", text="before")
        assert (await client.call("receive", name="s"))["seq"] == 2
        await client.call("cut", name="s")
        await person.say("meanwhile")
        await person.texts(4)
        assert [(await client.call("receive", name="s"))["seq"] for _ in range(2)] == [3, 4]
        assert (await client.call("send", name="s", text="after"))["seq"] == 5


async def test_a_repeated_send_is_stored_once_and_gets_the_first_ones_ack(world: World) -> None:
    async with started(world.agent("A")) as (agent,), world.user() as client:
        person = await world.person(client)
        await client.call("connect", name="s", token=person.token, conversation_id=person.conversation)
        first = await client.call("send", name="s", text="once", client_id="c-1")
        again = await client.call("send", name="s", text="once", client_id="c-1")
        assert (again["id"], again["seq"], again["timestamp"]) == (first["id"], first["seq"], first["timestamp"])
        posted = await person.say("over rest", key="k-1")
        assert await person.say("over rest", key="k-1") == posted
        assert Counter(await person.texts(4)) == Counter(["once", "A: once", "over rest", "A: over rest"])
        assert len(turns_of([agent])) == 2


async def test_streams_and_rich_messages_reach_the_person_whole(world: World) -> None:
    async with started(world.agent("A")), world.user() as client:
        person = await world.person(client)
        await client.call("connect", name="s", token=person.token, conversation_id=person.conversation)
        await client.call("send", name="s", text="stream please")
        frames: list[dict[str, Any]] = []
        while not frames or not frames[-1]["done"]:
            frames.append(await client.call("receive", name="s"))
        assert "".join(each["chunk"].get("content", "") for each in frames) == "A: stream please"
        assert [each["seq"] for each in frames] == list(range(2, 2 + len(frames)))
        await client.call("send", name="s", text="buttons please")
        buttons = await client.call("receive", name="s")
        assert (buttons["type"], buttons["data"]["buttons"][0]["label"]) == ("buttons", "Yes")


async def test_a_failing_agent_fails_its_run_and_answers_the_next_turn(world: World) -> None:
    async with started(world.agent("A")), world.user() as client:
        person = await world.person(client)
        await client.call("connect", name="s", token=person.token, conversation_id=person.conversation)
        await client.call("send", name="s", text="fail")
        statuses = []
        while "error" not in statuses:
            frame = await client.call("receive", name="s", persistent=False)
            statuses += [frame["data"]["status"]] if frame["type"] == "run" else []
        await client.call("send", name="s", text="again")
        assert (await client.call("receive", name="s"))["data"]["text"] == "A: again"


@pytest.mark.parametrize("by", ["resume", "message"])
async def test_a_question_is_answered_and_the_run_goes_on(world: World, by: str) -> None:
    async with started(world.agent("A")), world.user() as client:
        person = await world.person(client)
        await client.call("connect", name="s", token=person.token, conversation_id=person.conversation)
        await client.call("send", name="s", text="ask for a refund")
        question = await client.call("receive", name="s")
        assert (question["type"], question["data"]["payload"]) == ("interrupt", {"title": "ask for a refund"})
        answer: Any = {"approved": True}
        if by == "resume":
            answers = {question["id"]: answer}
            await client.call("frame", name="s", frame={"type": "resume", "answers": answers})
        else:
            answer = "yes, please"
            await client.call("send", name="s", text=answer)
        resolved = await client.call("receive", name="s")
        assert (resolved["type"], resolved["id"]) == ("interrupt_resolved", question["id"])
        said = await client.call("receive", name="s")
        assert said["data"]["text"] == f"A: {json.dumps(answer)}"


async def test_an_abort_stops_the_handler_and_the_next_turn_is_answered(world: World) -> None:
    async with started(world.agent("A")) as (agent,), world.user() as client:
        person = await world.person(client)
        await client.call("connect", name="s", token=person.token, conversation_id=person.conversation)
        await client.call("send", name="s", text="work on this")
        await agent.until("turn", text="work on this")
        await client.call("frame", name="s", frame={"type": "abort"})
        await agent.until("cancelled")
        await client.call("send", name="s", text="and now?")
        assert (await client.call("receive", name="s"))["data"]["text"] == "A: and now?"


async def test_what_a_person_sent_as_the_network_went_away_is_stored_once(world: World) -> None:
    async with started(world.agent("A")) as (agent,), world.user() as client:
        person = await world.person(client)
        await client.call("connect", name="s", token=person.token, conversation_id=person.conversation)
        await client.call("cut", name="s")
        ack = await client.call("send", name="s", text="unacked")
        assert ack["seq"] == 1
        assert await person.texts(2) == ["unacked", "A: unacked"]
        assert len(turns_of([agent])) == 1


async def test_what_an_agent_said_as_its_network_went_away_is_stored_once(world: World) -> None:
    async with started(world.agent("A")) as (agent,), world.user() as client:
        person = await world.person(client)
        await person.say("cut the line")
        assert await person.texts(2) == ["cut the line", "A: cut the line"]
        ack = await agent.until("ack")
        assert ack["seq"] == 2
        await person.say("again")
        assert (await person.texts(4))[2:] == ["again", "A: again"]


async def test_a_closed_conversation_says_so_and_takes_turns_again_once_reopened(world: World) -> None:
    async with started(world.agent("A")), world.user() as client:
        person = await world.person(client)
        where = {"token": person.token, "conversation_id": person.conversation}
        assert (await client.call("close_conversation", **where))["status"] == "closed"
        with pytest.raises(Refused) as refused:
            await person.say("anyone?")
        assert (refused.value.args[0]["status"], refused.value.args[0]["code"]) == (409, "conversation_closed")
        await client.call("reopen_conversation", **where)
        await person.say("now?")
        assert (await person.texts(2))[-2:] == ["now?", "A: now?"]


async def test_both_sides_of_a_socket_see_a_conversation_close_and_reopen(world: World) -> None:
    async with started(world.agent("A")) as (agent,), world.user() as client:
        person = await world.person(client)
        where = {"token": person.token, "conversation_id": person.conversation}
        await client.call("connect", name="s", **where)
        await client.call("send", name="s", text="work on this")
        await agent.until("turn", text="work on this")
        await client.call("close_conversation", **where)
        update = await client.call("receive", name="s")
        assert (update["type"], update["data"]["status"]) == ("conversationUpdate", "closed")
        await agent.until("cancelled")
        agent.write(f"say {person.conversation} anybody?")
        assert (await agent.until("refused", text="anybody?"))["code"] == "conversation_closed"
        with pytest.raises(Refused) as refused:
            await client.call("send", name="s", text="anyone?")
        assert refused.value.args[0] == {"kind": "protocol", "code": "conversation_closed"}
        await client.call("reopen_conversation", **where)
        assert (await client.call("receive", name="s"))["data"]["status"] == "active"
        agent.write(f"say {person.conversation} here again")
        assert (await client.call("receive", name="s"))["data"]["text"] == "here again"
        await client.call("send", name="s", text="now?")
        assert (await client.call("receive", name="s"))["data"]["text"] == "A: now?"


async def test_what_is_said_beside_messages_reaches_the_other_side(world: World) -> None:
    async with started(world.agent("A")) as (agent,), world.user() as client:
        person = await world.person(client)
        await client.call("connect", name="s", token=person.token, conversation_id=person.conversation)
        ack = await client.call("message", name="s", kind="text", data={"text": "show it"}, metadata={"m": 1})
        shown: list[dict[str, Any]] = []
        while not shown or shown[-1].get("data", {}).get("status") != "finished":
            shown.append(await client.call("receive", name="s", persistent=False))
        kinds = [each["type"] for each in shown if "seq" in each]
        assert kinds == ["tool_call", "tool_call", "genui", "text"]
        tool = next(each for each in reversed(shown) if each["type"] == "tool_call")
        assert (tool["data"]["name"], tool["data"]["result"]) == ("look_up", {"total": 9})
        text = next(each for each in shown if each["type"] == "text")
        assert (text["replyTo"], text["metadata"], text["actions"][0]["label"]) == (
            {"id": ack["id"]},
            {"k": 1},
            "Again",
        )
        assert {"typing", "run", "deliveryStatus"} <= {each["type"] for each in shown if "seq" not in each}
        await client.call("typing", name="s", is_typing=True)
        await client.call("read", name="s")
        for frame in (
            {"type": "client_tools", "tools": [{"name": "scan"}]},
            {"type": "genui_event", "streamId": "s", "eventType": "picked", "payload": 1},
            {"type": "survey", "rating": 5},
        ):
            await client.call("frame", name="s", frame=frame)

        def heard() -> bool:
            frames = [each["frame"] for each in agent.seen if each["event"] == "frame"]
            reads = [f for f in frames if f["type"] == "deliveryStatus" and f["data"]["status"] == "read"]
            return bool(reads) and {"typing", "client_tools", "genui_event", "survey"} <= {f["type"] for f in frames}

        await until(heard)


async def test_the_tenants_side_of_the_package_lists_reads_writes_closes_and_reopens(world: World) -> None:
    added = await turnlog_async("key", "add", f"k-{world.group}", "-o", "json", environment=world.up.environment)
    assert added.code == 0, added.err
    async with started(world.agent("A")), world.user(API_KEY=added.document["key"]) as client:
        person = await world.person(client)
        where = {"conversation_id": person.conversation}
        await person.say("hello")
        await person.texts(2)
        posted = await client.call("tenant.post_activity", text="from the desk", idempotency_key="d-1", **where)
        assert (await client.call("tenant.post_activity", text="from the desk", idempotency_key="d-1", **where))[
            "id"
        ] == (posted["id"])
        await person.texts(4)
        page = await client.call("tenant.list_activities", limit=100, **where)
        said = [each["text"] for each in page["data"]]
        assert said == ["hello", "A: hello", "from the desk", "A: from the desk"]
        found = await client.call("tenant.list_conversations", channel_id="web", limit=100)
        assert person.conversation in [each["id"] for each in found["data"]]
        assert (await client.call("tenant.get_conversation", **where))["status"] == "active"
        assert (await client.call("tenant.close_conversation", **where))["status"] == "closed"
        assert (await client.call("tenant.reopen_conversation", **where))["status"] == "active"


# ---------------------------------------------------------------------------------------------------------- groups
async def test_two_agents_of_a_group_share_the_conversations_and_each_turn_is_answered_once(world: World) -> None:
    async with started(world.agent("A"), world.agent("B")) as agents, world.user() as client:
        people = [await world.person(client) for _ in range(24)]
        for person in people:
            await person.say("hello")
        answers = [(await person.texts(2))[1] for person in people]
        assert set(answers) == {"A: hello", "B: hello"}
        given = Counter(turn["conversation"] for turn in turns_of(agents))
        assert given == Counter(person.conversation for person in people)


async def test_each_group_answers(world: World) -> None:
    groups = (f"{world.group}x", f"{world.group}y")
    async with started(*(world.agent(group[-1], group) for group in groups)), world.user() as client:
        person = await world.person(client)
        await person.say("hello")
        assert Counter(await person.texts(3)) == Counter(["hello", "x: hello", "y: hello"])


# -------------------------------------------------------------------------------------------------------- takeover
async def test_unanswered_turns_of_a_killed_agent_go_to_the_other_once_and_answered_ones_to_none(world: World) -> None:
    async with started(world.agent("A")) as (a,), world.user() as client:
        people = [await _neighbour(world, client) for _ in range(12)]
        for person in people:
            await person.say("first")
            await person.texts(2)
        for person in people:
            await person.say("hold this")
        held = {turn["id"] for turn in (await a.count(24, "turn")) if turn["text"] == "hold this"}
        async with started(world.agent("B")) as (b,):
            # From when B is eligible in their partition on, new turns of the conversations that it wins are B's: some
            # owner has then seen a later turn than the one that it is to take over.
            await until(lambda: _someone_else_answers(world, client, b))
            for person in people:
                await person.say("later")  # A's client keeps its own behind what it holds
            await b.until("turn", text="later")
            a.kill()
            await until(lambda: held <= {turn["id"] for turn in turns_of([b])})
            b.write("release")
            for person in people:
                texts = Counter(await person.texts(6))
                assert texts == Counter(["first", "A: first", "hold this", "B: hold this", "later", "B: later"])
        mine = {person.conversation for person in people}
        given = Counter(turn["text"] for turn in turns_of([b]) if turn["conversation"] in mine)
        assert given == {"hold this": len(people), "later": len(people)}


async def _neighbour(world: World, client: Program) -> Person:
    """Somebody in a conversation of the first partition: a member is eligible from a moment of each partition on."""
    while True:
        person = await world.person(client)
        if partition_of(person.conversation, PARTITIONS) == 0:
            return person


async def _someone_else_answers(world: World, client: Program, agent: Program) -> bool:
    """Whether a new conversation's turn goes to `agent`."""
    person = await _neighbour(world, client)
    await person.say("whose?")
    await person.texts(2)
    return any(turn["conversation"] == person.conversation for turn in turns_of([agent]))


async def test_the_only_agent_started_anew_gets_what_it_had_not_answered_once_more(world: World) -> None:
    async with world.user() as client:
        async with started(world.agent("A")) as (a,):
            answered, waiting = await world.person(client), await world.person(client)
            await answered.say("first")
            await answered.texts(2)
            await waiting.say("hold this")
            await a.until("turn", text="hold this")
            a.kill()
        async with started(world.agent("A2")) as (again,):
            turn = await again.until("turn", conversation=waiting.conversation)
            again.write("release")
            assert await waiting.texts(2) == ["hold this", "A2: hold this"]
            await answered.say("second")
            assert (await answered.texts(4))[2:] == ["second", "A2: second"]
            assert [each["text"] for each in turns_of([again])] == ["hold this", "second"]
            assert turn["text"] == "hold this"


async def test_an_agent_whose_gateway_was_killed_answers_what_it_still_has_once(world: World) -> None:
    """Until the dead gateway expires, its member holds the run: an answer is refused then, and the turn given again."""
    second = world.up.document["gateways"][1]
    async with started(world.agent("A", gateway=world.up.gateways[1])) as (agent,), world.user() as client:
        person = await world.person(client)
        await person.say("hold this")
        await agent.until("turn", text="hold this")
        os.kill(_pid_of(second), signal.SIGKILL)  # `up` starts it again on the same port
        agent.write("release")
        assert await person.texts(2) == ["hold this", "A: hold this"]
        await person.say("and now?")
        assert (await person.texts(4))[2:] == ["and now?", "A: and now?"]
        given = [turn["text"] for turn in turns_of([agent])]
        assert given in (["hold this", "and now?"], ["hold this", "hold this", "and now?"])


def _pid_of(gateway: dict[str, Any]) -> int:
    return int(gateway["pid"])


async def test_history_holds_what_was_said_before_this_process(world: World) -> None:
    async with world.user() as client:
        person = await world.person(client)
        async with started(world.agent("A")) as (a,):
            await person.say("one")
            await person.texts(2)
            assert await a.stop() == 0
        async with started(world.agent("B")):
            await person.say("history")
            assert (await person.texts(4))[3] == "B: [1, 2, 3]"


# ---------------------------------------------------------------------------------------------------------- tokens
@asynccontextmanager
async def brief_tokens(up: Up, seconds: int) -> AsyncIterator[str]:
    """One more gateway, whose tokens are short-lived."""
    command = [sys.executable, "-m", "ops.cli", "gateway", "--port", "0", "-o", "json"]
    async with program(*command, environment={**up.environment, "TURNLOG_TOKEN_TTL_S": str(seconds)}) as gateway:
        ready = await gateway.until("ready")
        yield str(ready["url"])
        assert await gateway.stop() == 0


async def test_an_expired_token_is_refused_by_its_name_and_a_refreshed_one_is_taken(world: World) -> None:
    async with brief_tokens(world.up, 2) as gateway, world.user(gateway) as client:
        person = await world.person(client)
        fresh = await client.call("refresh_token", token=person.token)

        async def refused() -> dict[str, Any] | None:
            answer = await client.ask("list_activities", token=person.token, conversation_id=person.conversation)
            return answer.get("error")

        error = await until(refused)
        assert (error["status"], error["code"]) == (401, "token_expired")
        assert fresh["token"] != person.token
        closed = await client.ask("connect", name="s", token=person.token, conversation_id=person.conversation)
        assert closed["error"] == {"kind": "closed", "code": 4401}


async def test_a_person_on_a_socket_outlives_the_token(world: World) -> None:
    async with (
        brief_tokens(world.up, 3) as gateway,
        started(world.agent("A", gateway=gateway, REFRESH_MARGIN="2")),
        world.user(gateway) as client,
    ):
        person = await world.person(client)
        await client.call("connect", name="s", token=person.token, conversation_id=person.conversation)
        ended = asyncio.ensure_future(_tokens_of_now_have_ended(world, gateway))
        token = person.token
        while not ended.done():
            token = (await client.call("refresh_token", token=token))["token"]
            await client.call("refresh", name="s", token=token)
            await asyncio.wait({ended}, timeout=1)
        await ended
        await client.call("send", name="s", text="still there?")
        assert (await client.call("receive", name="s"))["data"]["text"] == "A: still there?"


async def test_an_agent_outlives_its_token(world: World) -> None:
    async with (
        brief_tokens(world.up, 3) as gateway,
        started(world.agent("A", gateway=gateway, REFRESH_MARGIN="2")) as (agent,),
        world.user() as client,
    ):
        person = await world.person(client)
        await _tokens_of_now_have_ended(world, gateway)
        await person.say("still there?")
        assert await person.texts(2) == ["still there?", "A: still there?"]
        assert [each["event"] for each in agent.seen].count("ready") == 1


async def _tokens_of_now_have_ended(world: World, gateway: str) -> None:
    """Returns once a token made now at this gateway has ended: every older one has, too."""
    async with world.user(gateway) as client:
        person = await world.person(client)

        async def refused() -> bool:
            answer = await client.ask("list_activities", token=person.token, conversation_id=person.conversation)
            return "error" in answer

        await until(refused)


async def test_a_wrong_secret_ends_the_agent_with_unauthorized(world: World) -> None:
    async with world.agent("A", SECRET="wrong") as agent:
        ended = await agent.until("ended")
        assert ended["code"] == "unauthorized"


# ------------------------------------------------------------------------------------------------------- the proof
async def test_the_audit_is_content_with_all_of_it(world: World) -> None:
    """Whatever the tests before it did to this stack."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "ops.cli", "audit", "verify", "-o", "json"),
        env={**os.environ, **world.up.environment},
        stdout=asyncio.subprocess.PIPE,
    )
    said, _ = await process.communicate()
    report = json.loads(said)
    assert (report["ok"], report["violations"]) == (True, [])
