"""Calling agents over HTTP: every state and limit, against the real core and a gateway on fakes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import msgspec
import pytest

from connectors.gateway.auth import LEEWAY_S
from connectors.gateway.calls import Calls
from connectors.gateway.clock import wall_ms
from connectors.gateway.ports import Unavailable
from streams.core.commands import EraseConversation, RefuseRun
from tests.support.gateway_world import API_KEY, MemoryStore, Peer, Served, World, bearer, serve, settings_for
from tests.support.waiting import until

THREADS = "/v1/threads"
AGENT = "agents/bots"


class Caller:
    """A program that calls agents with a token of the web channel."""

    def __init__(self, served: Served, headers: dict[str, str]) -> None:
        self.http = served.http
        self.headers = headers

    async def submit(self, id_: str = "i", thread: str = "t", **body: Any) -> httpx.Response:
        given = {"id": id_, "agent": AGENT, "input": {"text": "sum it up"}, **body}
        return await self.http.post(f"{THREADS}/{thread}/invocations", headers=self.headers, json=given)

    async def get(self, path: str = "i", thread: str = "t", **query: Any) -> httpx.Response:
        return await self.http.get(f"{THREADS}/{thread}/invocations/{path}", headers=self.headers, params=query)

    async def record(self, id_: str = "i", thread: str = "t", **query: Any) -> dict[str, Any]:
        answer = await self.get(id_, thread, **query)
        assert answer.status_code == 200, answer.text
        record: dict[str, Any] = answer.json()
        return record

    async def cancel(self, id_: str = "i", thread: str = "t") -> httpx.Response:
        return await self.http.post(f"{THREADS}/{thread}/invocations/{id_}/cancel", headers=self.headers, json={})

    async def release(self, **body: Any) -> httpx.Response:
        key = {"x-api-key": API_KEY}
        return await self.http.post(f"{THREADS}/t/invocations/i/release", headers=key, json=body)


def code(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


@pytest.fixture
async def caller(served: Served) -> Caller:
    return Caller(served, bearer(await served.token(user={"id": "ann"})))


async def given(agent: Peer) -> dict[str, Any]:
    """The next turn that an agent gets."""
    while "frame" not in (envelope := await agent.frame()) or envelope["frame"].get("from") != "user":
        pass
    frame: dict[str, Any] = envelope["frame"]
    return frame


def run(status: str) -> dict[str, Any]:
    return {"type": "run", "data": {"status": status}}


async def say(agent: Peer, turn: dict[str, Any], frame: dict[str, Any], thread: str = "t") -> None:
    await agent.say(thread, {**frame, "run": turn["run"], "runEpoch": turn["runEpoch"]})


async def is_in(caller: Caller, state: str) -> bool:
    return bool((await caller.record())["state"] == state)


async def orphaned(caller: Caller) -> bool:
    return (await caller.record())["member"] is None


@asynccontextmanager
async def at_work(served: Served, caller: Caller, **body: Any) -> AsyncIterator[tuple[Peer, dict[str, Any]]]:
    """An agent that works on a call."""
    async with served.agent() as agent:
        assert (await caller.submit(**body)).status_code == 202
        turn = await given(agent)
        await say(agent, turn, run("started"))
        await until(lambda: is_in(caller, "RUNNING"))
        yield agent, turn


# --------------------------------------------------------------------------------------------------- the usual way


async def test_a_call_is_given_with_its_terms_answered_and_read(served: Served, caller: Caller) -> None:
    async with served.agent() as agent:
        accepted = await caller.submit(input={"text": "sum it up", "data": {"pages": 3}}, deadlineMs=60_000)
        assert accepted.status_code == 202
        shown = accepted.json()
        assert (shown["state"], shown["seq"], shown["agent"], shown["output"]) == ("ACCEPTED", 1, AGENT, None)
        turn = await given(agent)
        assert turn["data"] == {"text": "sum it up", "input": {"pages": 3}}
        assert turn["invocation"] == {"id": "i", "deadlineMs": 60_000, "streamed": False}
        await say(agent, turn, run("started"))
        await say(agent, turn, {"type": "text", "data": {"text": "It is long."}, "clientId": "m1"})
        await say(agent, turn, run("finished"))
        record = await caller.record(wait=5_000)
    assert (record["state"], record["error"], record["events"]) == ("SUCCEEDED", None, 1)
    assert record["output"]["text"] == "It is long."
    assert record["createdAt"] <= record["startedAt"] <= record["endedAt"]
    assert (record["member"], record["runEpoch"], record["runId"]) == (agent.member, 1, turn["run"])


async def test_a_streamed_answer_is_its_text_and_its_events_come_in_pages(served: Served, caller: Caller) -> None:
    async with at_work(served, caller, streamed=True) as (agent, turn):
        for piece in ("It ", "is ", "long."):
            chunk = {"type": "text", "content": piece, "id": "c"}
            await say(agent, turn, {"type": "genui", "streamId": "s", "done": False, "chunk": chunk})
        done = {"type": "event", "name": "stream_done", "id": "d"}
        await say(agent, turn, {"type": "genui", "streamId": "s", "done": True, "chunk": done})
        await say(agent, turn, run("finished"))
        record = await caller.record(wait=5_000)
    assert (record["output"]["text"], record["events"]) == ("It is long.", 4)
    first = (await caller.get("i/events", limit=3)).json()
    assert ([event["n"] for event in first["events"]], first["next"], first["done"]) == ([1, 2, 3], 3, False)
    rest = (await caller.get("i/events", after=first["next"])).json()
    assert ([event["n"] for event in rest["events"]], rest["next"], rest["done"]) == ([4], 4, True)
    assert rest["events"][0]["type"] == "genui"


async def stream_of(caller: Caller, after: int | None = None) -> list[dict[str, Any]]:
    """The events of the stream, to its end."""
    headers = caller.headers | ({} if after is None else {"last-event-id": str(after)})
    events: list[dict[str, Any]] = []
    async with caller.http.stream("GET", f"{THREADS}/t/invocations/i/stream", headers=headers) as answer:
        assert answer.status_code == 200
        named: dict[str, Any] = {}
        async for line in answer.aiter_lines():
            field, _, value = line.partition(": ")
            if field in {"id", "event"}:
                named[field] = value
            elif field == "data":
                events.append({**named, "data": json.loads(value)})
                named = {}
    return events


async def test_a_stream_follows_it_to_its_record_and_resumes_behind_what_came(served: Served, caller: Caller) -> None:
    async with at_work(served, caller, streamed=True) as (agent, turn):
        following = asyncio.create_task(stream_of(caller))
        for number in (1, 2, 3):
            await say(agent, turn, {"type": "text", "data": {"text": str(number)}, "clientId": f"m{number}"})
        await say(agent, turn, run("finished"))
        events = await following
    assert [event.get("id") for event in events] == ["1", "2", "3", None]
    assert (events[-1]["event"], events[-1]["data"]["state"]) == ("end", "SUCCEEDED")
    assert events[-1]["data"]["output"]["text"] == "1\n\n2\n\n3"
    assert [event.get("id") for event in await stream_of(caller, after=2)] == ["3", None]


async def test_a_submit_that_waits_gets_the_record_of_its_end(served: Served, caller: Caller) -> None:
    async with served.agent() as agent:
        submitting = asyncio.create_task(caller.submit(wait=5_000))
        turn = await given(agent)
        await say(agent, turn, {"type": "text", "data": {"text": "done"}, "clientId": "m1"})
        answer = await submitting
    assert (answer.status_code, answer.json()["state"]) == (200, "SUCCEEDED")


async def test_a_turn_between_says_what_it_is_for_and_a_person_may_follow_the_thread(
    served: Served, caller: Caller
) -> None:
    async with at_work(served, caller):
        page = await served.http.get("/api/v1/converger/conversations/t/activities", headers=caller.headers)
    assert [activity["text"] for activity in page.json()["activities"]] == ["sum it up"]


# ------------------------------------------------------------------------------------------------ states and limits

ENDS = [
    (run("finished"), "SUCCEEDED", None),
    (run("error"), "FAILED", "AGENT_ERROR"),
    (run("aborted"), "CANCELLED", "CANCELLED"),
]


@pytest.mark.parametrize(("frame", "state", "error"), ENDS)
async def test_it_ends_as_its_agent_says(
    served: Served, caller: Caller, frame: dict[str, Any], state: str, error: str | None
) -> None:
    async with at_work(served, caller) as (agent, turn):
        await say(agent, turn, frame)
        record = await caller.record(wait=5_000)
    assert record["state"] == state
    assert (record["error"] or {}).get("code") == error


@pytest.mark.parametrize(
    ("terms", "passes_ms", "error"),
    [
        ({}, 300_000, "DEADLINE_EXCEEDED"),
        ({"deadlineMs": 1_000}, 1_000, "DEADLINE_EXCEEDED"),
        ({"deadlineMs": 3_600_000}, 3_600_000, "DEADLINE_EXCEEDED"),
        ({"deadlineMs": 0}, 300_000, "IDLE_TIMEOUT"),
        ({"deadlineMs": 3_600_000, "streamed": True}, 300_000, "IDLE_TIMEOUT"),
    ],
)
async def test_it_times_out(
    world: World, served: Served, caller: Caller, terms: dict[str, Any], passes_ms: int, error: str
) -> None:
    async with at_work(served, caller, **terms):
        world.pass_time(passes_ms - 1)
        assert (await caller.record())["state"] == "RUNNING"
        world.pass_time(1)
        record = await caller.record(wait=5_000)
    assert (record["state"], record["error"]["code"]) == ("TIMED_OUT", error)


async def test_its_agent_is_gone(served: Served, caller: Caller) -> None:
    async with at_work(served, caller):
        pass
    record = await caller.record(wait=5_000)
    assert (record["state"], record["error"]["code"]) == ("OWNER_GONE", "OWNER_GONE")


async def test_it_is_executed_again_where_its_caller_says_so(served: Served, caller: Caller) -> None:
    async with served.agent() as second:
        async with served.agent() as first:
            assert (await caller.submit(retry=True)).status_code == 202
            owner = first if (await caller.record())["member"] == first.member else second
            await given(owner)
            if owner is second:
                await owner.raw.close()
        other = first if owner is second else second
        if other is second:
            turn = await given(second)
            assert turn["runEpoch"] == 2


async def test_cancelling_waits_for_the_agent_to_say_that_it_has_stopped(served: Served, caller: Caller) -> None:
    async with at_work(served, caller) as (agent, turn):
        answer = await caller.cancel()
        assert (answer.status_code, answer.json()["state"]) == (202, "CANCELLING")
        told = await agent.until("abort")
        assert (told["run"], told["runEpoch"]) == (turn["run"], 1)
        assert (await caller.cancel()).json()["state"] == "CANCELLING", "again is no error"
        await say(agent, turn, run("aborted"))
        record = await caller.record(wait=5_000)
    assert record["state"] == "CANCELLED"
    assert (await caller.cancel()).json()["state"] == "CANCELLED"


async def test_what_finishes_while_it_is_cancelled_has_succeeded(served: Served, caller: Caller) -> None:
    async with at_work(served, caller) as (agent, turn):
        await caller.cancel()
        await say(agent, turn, run("finished"))
        assert (await caller.record(wait=5_000))["state"] == "SUCCEEDED"


async def test_before_it_has_begun_cancelling_ends_it(served: Served, caller: Caller) -> None:
    async with served.agent() as agent:
        await caller.submit()
        await given(agent)
        assert (await caller.cancel()).json()["state"] == "CANCELLED"
        await agent.until("abort")


async def test_an_id_is_created_once(served: Served, caller: Caller) -> None:
    async with served.agent():
        first = await caller.submit()
        again = await caller.submit(input={"text": "sum it up"})
        assert (again.status_code, again.json()["runId"]) == (202, first.json()["runId"])
        assert code(await caller.submit(input={"text": "else"})) == (409, "INVOCATION_CONFLICT")
        assert code(await caller.submit(agent="agents")) == (409, "INVOCATION_CONFLICT")


async def test_a_thread_has_one_claim_and_distinct_threads_go_together(served: Served, caller: Caller) -> None:
    async with served.agent():
        assert (await caller.submit("i")).status_code == 202
        assert code(await caller.submit("j")) == (409, "CONVERSATION_BUSY")
        assert (await caller.submit("j", thread="u")).status_code == 202
        claim = (await served.http.get(f"{THREADS}/t", headers=caller.headers)).json()
    assert (claim["claim"]["id"], claim["queued"]) == ("i", [])


async def test_in_line_it_is_accepted_and_shown_behind_the_claim(served: Served, caller: Caller) -> None:
    async with at_work(served, caller) as (agent, turn):
        waiting = await caller.submit("j", policy="enqueue")
        assert (waiting.status_code, waiting.json()["state"], waiting.json()["member"]) == (202, "ACCEPTED", None)
        claim = (await served.http.get(f"{THREADS}/t", headers=caller.headers)).json()
        assert (claim["claim"]["id"], [call["id"] for call in claim["queued"]]) == ("i", ["j"])
        await say(agent, turn, run("finished"))
        assert (await given(agent))["invocation"]["id"] == "j"


async def test_an_agent_that_is_not_there_cannot_be_called(served: Served, caller: Caller) -> None:
    answer = await caller.submit()
    assert code(answer) == (503, "AGENT_UNAVAILABLE")
    assert answer.json()["error"]["details"]["retryAfterMs"] > 0
    assert code(await caller.get()) == (404, "not_found"), "nothing of it is stored"


async def test_beyond_its_runs_a_member_takes_none(world: World, caller: Caller, served: Served) -> None:
    async with serve(world, settings_for(runs_per_member=2)) as small:
        tight = Caller(small, caller.headers)
        async with small.agent():
            for number in (1, 2):
                assert (await tight.submit(thread=f"t{number}")).status_code == 202
            record = (await tight.submit(thread="t3", wait=5_000)).json()
            assert (record["state"], record["error"]["code"]) == ("FAILED", "AGENT_BUSY")
            assert (await tight.cancel(thread="t1")).json()["state"] == "CANCELLED"
            assert (await tight.submit(thread="t4")).status_code == 202
    assert [type(command) for command in world.commands].count(RefuseRun) == 1


async def test_another_member_takes_what_the_first_does_not(world: World, caller: Caller) -> None:
    async with serve(world, settings_for(runs_per_member=1)) as small:
        tight = Caller(small, caller.headers)
        async with small.agent() as one, small.agent() as two:
            for number in (1, 2):
                assert (await tight.submit(thread=f"t{number}")).status_code == 202
            members = {(await tight.record(thread=f"t{number}"))["member"] for number in (1, 2)}
            assert members == {one.member, two.member}
            assert (await tight.submit(thread="t3", wait=5_000)).json()["error"]["code"] == "AGENT_BUSY"


async def test_an_agent_may_refuse_by_itself(served: Served, caller: Caller) -> None:
    async with served.agent() as agent:
        submitting = asyncio.create_task(caller.submit(wait=5_000))
        turn = await given(agent)
        await say(agent, turn, {"type": "refuse", "reason": "no more threads"})
        assert (await submitting).json()["error"]["code"] == "AGENT_BUSY"


async def test_too_many_events_end_it(served: Served, caller: Caller) -> None:
    async with at_work(served, caller) as (agent, turn):
        for number in range(1025):
            call = {"type": "tool_call", "data": {"id": f"x{number}", "name": "n", "status": "running"}}
            await say(agent, turn, call)
        record = await caller.record(wait=10_000)
        assert (record["state"], record["error"]["code"], record["events"]) == ("FAILED", "TOO_MANY_EVENTS", 1024)


async def test_an_operator_releases_what_is_orphaned_with_a_proof(world: World) -> None:
    store = MemoryStore()
    settled = '"group_settle_ms": 0'
    store.document_text = store.document_text.replace(settled, f'{settled}, "on_owner_loss": "continue"')
    async with serve(world, store=store) as served:
        caller = Caller(served, bearer(await served.token(user={"id": "ann"})))
        async with at_work(served, caller):
            assert code(await caller.release(proof="I looked")) == (409, "conflict")
        await until(lambda: orphaned(caller))
        assert code(await caller.release()) == (422, "invalid_message")
        record = (await caller.release(proof="the host is off")).json()
    assert (record["state"], record["error"]["code"]) == ("OWNER_GONE", "OWNER_GONE")
    assert "the host is off" in record["error"]["message"]


async def test_an_agent_that_drains_takes_no_submit_and_finishes_what_it_has(served: Served, caller: Caller) -> None:
    async with at_work(served, caller) as (agent, turn):
        await agent.send({"type": "drain"})
        await agent.settled()
        assert code(await caller.submit("j", thread="u")) == (503, "AGENT_UNAVAILABLE")
        await say(agent, turn, run("finished"))
        assert (await caller.record(wait=5_000))["state"] == "SUCCEEDED"


async def test_a_gateway_that_stops_takes_no_submit(served: Served, caller: Caller) -> None:
    async with at_work(served, caller) as (agent, turn):
        draining = asyncio.create_task(served.gateway.drain())
        await asyncio.sleep(0)
        answer = await caller.submit("j", thread="u")
        assert code(answer) == (503, "unavailable")
        await say(agent, turn, run("finished"))
        await draining


async def test_without_a_writer_a_submit_is_pending_and_repeating_it_is_safe(world: World, caller: Caller) -> None:
    async with serve(world, settings_for(commit_wait_ms=50)) as served, served.agent():
        slow = Caller(served, caller.headers)
        assert (await slow.submit("before")).status_code == 202
        for number in range(world.partitions):
            world.stop(number)
        assert code(await slow.submit("i", policy="enqueue")) == (503, "pending")
        for number in range(world.partitions):
            world.go_on(number)
        assert (await slow.submit("i", policy="enqueue")).status_code == 202


# ------------------------------------------------------------------------------------------------------------- input


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"id": ""}, "id"),
        ({"id": "x" * 201}, "id"),
        ({"agent": None}, "agent"),
        ({"input": {}}, "input"),
        ({"input": {"text": 7}}, "input.text"),
        ({"deadlineMs": 999}, "deadlineMs"),
        ({"deadlineMs": 3_600_001}, "deadlineMs"),
        ({"deadlineMs": True}, "deadlineMs"),
        ({"policy": "deliver"}, "policy"),
        ({"streamed": "yes"}, "streamed"),
        ({"wait": 60_001}, "wait"),
    ],
)
async def test_input_that_breaks_a_rule_is_named(caller: Caller, body: dict[str, Any], field: str) -> None:
    answer = await caller.submit(**body)
    assert code(answer) == (422, "invalid_message")
    assert field in answer.json()["error"]["message"]


@pytest.mark.parametrize("given", [{"text": "x" * 65_537}, {"data": {"x": "y" * 262_144}}])
async def test_an_input_that_is_too_large_is_refused(caller: Caller, given: dict[str, Any]) -> None:
    answer = await caller.submit(input=given)
    assert code(answer) == (413, "payload_too_large")
    assert "input" in answer.json()["error"]["message"]


async def test_the_largest_input_is_taken(served: Served, caller: Caller) -> None:
    async with served.agent() as agent:
        answer = await caller.submit(input={"text": "x" * 65_536, "data": {"x": "y" * (262_144 - 65_536 - 40)}})
        assert answer.status_code == 202, answer.text
        assert len((await given(agent))["data"]["text"]) == 65_536


@pytest.mark.parametrize("agent", ["nobody", "web", "shut", "other/x"])
async def test_an_agent_that_the_callers_channel_is_not_routed_to_is_forbidden(caller: Caller, agent: str) -> None:
    assert code(await caller.submit(agent=agent)) == (403, "forbidden")


async def test_a_thread_of_somebody_else_does_not_exist_for_a_caller(served: Served, caller: Caller) -> None:
    async with served.agent():
        assert (await caller.submit()).status_code == 202
        eve = Caller(served, bearer(await served.token(user={"id": "eve"})))
        for answer in (await eve.get(), await eve.cancel(), await eve.submit("j"), await eve.get("i/events")):
            assert code(answer) == (404, "conversation_not_found")
        tenant = Caller(served, {"x-api-key": API_KEY})
        assert (await tenant.record())["state"] == "ACCEPTED"


async def test_a_backend_calls_with_its_key_and_opens_the_thread(served: Served) -> None:
    tenant = Caller(served, {"x-api-key": API_KEY})
    async with served.agent() as agent:
        assert (await tenant.submit(sender="crm")).status_code == 202
        assert (await given(agent))["sender"]["id"] == "crm"
        assert code(await tenant.submit("j", thread="u", channel="shut")) == (403, "forbidden")


# ----------------------------------------------------------------------------------------------------- authorization


async def lookups(served: Served) -> float:
    value = served.gateway.metrics.registry.get_sample_value("turnlog_gateway_authorizations_total")
    assert value is not None
    return value


async def test_fifty_pollers_cost_one_look_up_a_caller_and_5_s(served: Served, caller: Caller) -> None:
    async with served.agent():
        await caller.submit()
        clock = served.gateway.authorizer.clock = Clock()
        before = await lookups(served)
        for _ in range(3):
            answers = await asyncio.gather(*(caller.get() for _ in range(50)))
            assert {answer.status_code for answer in answers} == {200}
            clock.now += 1.6
        assert await lookups(served) - before == 1
        clock.now += 0.3
        await asyncio.gather(*(caller.get(path) for path in ("i", "i/events") for _ in range(25)))
        assert await lookups(served) - before == 2
        other = Caller(served, bearer(await served.token(user={"id": "ann"})))
        await asyncio.gather(*(other.get() for _ in range(50)))
        assert await lookups(served) - before == 3


class Clock:
    """Seconds that pass when the test says so."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


async def test_each_submit_is_looked_up(served: Served, caller: Caller) -> None:
    async with served.agent():
        before = await lookups(served)
        await caller.submit()
        await caller.submit()
        assert await lookups(served) - before == 2


async def test_a_verdict_ends_with_its_token_and_a_refusal_is_not_kept(world: World) -> None:
    async with serve(world, settings_for(token_ttl_s=1)) as served, served.agent():
        caller = Caller(served, bearer(await served.token(user={"id": "ann"})))
        await caller.submit()
        clock = served.gateway.authorizer.clock = Clock()
        await caller.record()
        before = await lookups(served)
        clock.now += 1.1
        await caller.record()
        assert await lookups(served) - before == 1, "its token was at its end then"
        wrong = Caller(served, {"x-api-key": "tlk_wrong"})
        before = await lookups(served)
        for _ in range(2):
            assert code(await wrong.get()) == (401, "unauthorized")
        assert await lookups(served) - before == 2


async def test_a_key_store_that_is_away_refuses_who_is_not_known_and_serves_who_is(served: Served) -> None:
    tenant = Caller(served, {"x-api-key": API_KEY})
    async with served.agent():
        await tenant.submit()
        await tenant.record()
        served.store.broken = Unavailable("away")
        assert (await tenant.record())["state"] == "ACCEPTED"
        assert code(await tenant.submit("j", thread="u")) == (503, "unavailable")


# ----------------------------------------------------------------------------------------------------------- read model


async def test_another_gateway_knows_it_from_the_read_model(world: World, served: Served, caller: Caller) -> None:
    async with at_work(served, caller) as (agent, turn):
        await say(agent, turn, {"type": "text", "data": {"text": "so far"}, "clientId": "m1"})
        await agent.until("ack")
        async with serve(world) as late:
            gateway = late.gateway
            gateway.calls = Calls(
                late.read_model, gateway.history, partition_of=gateway.partition_of, last_lsn=gateway.recent.last_lsn
            )
            gateway.hub.on_entry = [gateway.calls.apply]
            elsewhere = Caller(late, caller.headers)
            record = await elsewhere.record()
            assert record["events"] == 1
            assert (record["state"], record["member"]) == ("RUNNING", agent.member)
            waiting = asyncio.create_task(elsewhere.record(wait=5_000))
            await say(agent, turn, run("finished"))
            assert (await waiting)["output"]["text"] == "so far"
            assert code(await elsewhere.get("nothing")) == (404, "not_found")


async def test_while_the_read_model_is_away_what_the_tail_saw_is_served(served: Served, caller: Caller) -> None:
    async with at_work(served, caller):
        served.read_model.broken = Unavailable("away")
        assert (await caller.record())["state"] == "RUNNING"
        assert code(await caller.get("another")) == (503, "unavailable")


async def test_a_number_of_any_length_is_refused_by_name(served: Served, caller: Caller) -> None:
    async with at_work(served, caller):
        answer = await caller.get("i/events", after="9" * 5_000)
    assert code(answer) == (400, "bad_request")
    assert "after" in answer.json()["error"]["message"]


@pytest.mark.parametrize("field", ["reason", "proof"])
async def test_why_it_ends_is_said_in_short(served: Served, caller: Caller, field: str) -> None:
    async with at_work(served, caller):
        body = {"proof": "its host was turned off", field: "x" * 1_001}
        answers = [await caller.release(**body)]
        if field == "reason":
            path = f"{THREADS}/t/invocations/i/cancel"
            answers.append(await served.http.post(path, headers=caller.headers, json={"reason": body["reason"]}))
        for answer in answers:
            assert code(answer) == (422, "invalid_message")
            assert answer.json()["error"]["details"] == {"field": field}
        assert (await caller.record())["state"] == "RUNNING"


async def test_a_long_answer_is_not_kept_for_every_call(served: Served, caller: Caller) -> None:
    """5,000 calls are in memory at a time: what they said is where the rest of history is."""
    async with at_work(served, caller) as (agent, turn):
        await say(agent, turn, {"type": "text", "data": {"text": "x" * 60_000}})
        await say(agent, turn, run("finished"))
        record = await caller.record(wait=5_000)
    assert len(record["output"]["text"]) == 60_000
    kept = await served.gateway.calls.find("t", "i")
    assert kept is not None
    assert kept.output is None
    assert (await caller.record())["output"] == record["output"]


async def test_what_an_erased_call_came_to_is_kept_in_no_memory(world: World, served: Served, caller: Caller) -> None:
    async with at_work(served, caller) as (agent, turn):
        await say(agent, turn, {"type": "text", "data": {"text": "It is long."}})
        await say(agent, turn, run("finished"))
        await caller.record(wait=5_000)
    kept = await served.gateway.calls.find("t", "i")
    assert kept is not None
    assert kept.output is not None
    erase = EraseConversation(at=0, timestamp=0, conversation_id="t", by="op", reason="asked", id="e")
    await (await world.send(erase))
    await until(lambda: kept.output is None)
    await caller.record()
    assert kept.output is None, "who reads it just as it is erased does not keep it either"


async def test_a_wait_ends_with_the_token(served: Served, caller: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    """A record is for who may see it when it is told, not when it was asked for."""
    async with at_work(served, caller):
        soon = wall_ms() + 200 - LEEWAY_S * 1000
        verify = served.gateway.tokens.verify
        monkeypatch.setattr(
            served.gateway.tokens, "verify", lambda token: msgspec.structs.replace(verify(token), expires_at=soon)
        )
        served.gateway.authorizer._verdicts.clear()
        async with asyncio.timeout(3):
            assert (await caller.record(wait=60_000))["state"] == "RUNNING"


async def test_an_id_that_no_path_can_name_is_refused(caller: Caller) -> None:
    answer = await caller.submit("a/b")
    assert (code(answer), answer.json()["error"]["details"]) == ((422, "invalid_message"), {"field": "id"})
