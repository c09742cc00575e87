"""Another agent as a function, over real sockets, against an HTTP server that follows the test's script."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.support.scripted_http import CUT, Answer, ScriptedHttp, scripted_http
from tests.support.waiting import until
from turnlog import (
    AgentBusy,
    AgentProxy,
    AgentUnavailable,
    ConversationBusy,
    Event,
    InvocationCancelled,
    InvocationConflict,
    InvocationFailed,
    InvocationNotFound,
    InvocationTimedOut,
    OwnerGone,
    State,
    SubmissionUncertain,
    TooManyEvents,
    TurnlogError,
    Unavailable,
)

pytestmark = pytest.mark.unit

PATH = "/v1/threads/t/invocations"
ONE = f"{PATH}/i"


def record(state: str, text: str = "", *, status: int = 200, **more: Any) -> Answer:
    output = {"text": text, "messages": [{"type": "text", "text": text, "data": None}]} if text else None
    body = {"id": "i", "thread": "t", "state": state, "output": output, "events": 0}
    return Answer(status, body | more)


def refusal(status: int, code: str, *, after_ms: int | None = None) -> Answer:
    error: dict[str, Any] = {"code": code, "message": f"it is {code}"}
    if after_ms is not None:
        error |= {"retryAfterMs": after_ms, "details": {"budgetMs": 60_000}}
    return Answer(status, {"error": error})


def event(n: int, text: str) -> dict[str, Any]:
    frame = {"type": "text", "seq": n + 1, "id": f"m-{n}", "from": "bot", "data": {"text": text}}
    return {"n": n, "type": "text", "data": frame, "at": "2026-01-01T00:00:00.000Z"}


def sse(*events: dict[str, Any], end: bool = True) -> Answer:
    parts = [f"id: {each['n']}\nevent: {each['type']}\ndata: {json.dumps(each)}\n\n" for each in events]
    if end:
        parts.append("event: end\ndata: {}\n\n")
    return Answer(200, "".join(parts).encode(), {"Content-Type": "text/event-stream"})


@asynccontextmanager
async def proxying(*answers: Answer, **options: Any) -> AsyncIterator[tuple[AgentProxy, ScriptedHttp]]:
    options.setdefault("token", "t-1")
    async with scripted_http(*answers) as http, AgentProxy(http.url, "agents/research", **options) as proxy:
        yield proxy, http


def asked(http: ScriptedHttp) -> list[tuple[str, str]]:
    return [(each.method, each.path) for each in http.asked]


async def test_an_invocation_is_submitted_waited_for_and_its_answer_returned() -> None:
    script = (record("ACCEPTED", status=202), record("RUNNING"), record("SUCCEEDED", "42"))
    async with proxying(*script, deadline=60) as (proxy, http):
        answer = await proxy.invoke("the question", data={"k": 1}, thread="t", id="i")
    assert (answer.text, answer.value, answer.state, answer.ended) == ("42", "42", State.SUCCEEDED, True)
    assert asked(http) == [("POST", PATH), ("GET", f"{ONE}?wait=30000"), ("GET", f"{ONE}?wait=30000")]
    assert http.asked[0].headers["authorization"] == "Bearer t-1"
    assert http.asked[0].body == {
        "id": "i",
        "agent": "agents/research",
        "input": {"text": "the question", "data": {"k": 1}},
        "streamed": False,
        "deadlineMs": 60_000,
        "wait": 30_000,
    }


async def test_without_a_thread_or_an_id_both_are_new_each_time() -> None:
    done = record("SUCCEEDED", "x")
    async with proxying(done, done) as (proxy, http):
        await proxy.invoke("a")
        await proxy.invoke("a")
    assert len({each.path for each in http.asked}) == len({each.body["id"] for each in http.asked}) == 2


async def test_a_json_value_comes_back_as_what_the_function_returned() -> None:
    output = {"text": "", "messages": [{"type": "result", "text": "", "data": {"value": [1, 2]}}]}
    async with proxying(record("SUCCEEDED", output=output)) as (proxy, _http):
        assert (await proxy.invoke(data={"a": 1})).value == [1, 2]


def _body(state: str) -> dict[str, Any]:
    body: dict[str, Any] = record(state).body
    return body


@pytest.mark.parametrize(
    ("state", "code", "kind"),
    [
        ("FAILED", "AGENT_ERROR", InvocationFailed),
        ("FAILED", "AGENT_BUSY", AgentBusy),
        ("FAILED", "AGENT_UNAVAILABLE", AgentUnavailable),
        ("FAILED", "TOO_MANY_EVENTS", TooManyEvents),
        ("FAILED", "ONE_OF_TOMORROW", InvocationFailed),
        ("CANCELLED", "CANCELLED", InvocationCancelled),
        ("TIMED_OUT", "DEADLINE_EXCEEDED", InvocationTimedOut),
        ("TIMED_OUT", "IDLE_TIMEOUT", InvocationTimedOut),
        ("OWNER_GONE", "OWNER_GONE", OwnerGone),
        ("FAILED", None, InvocationFailed),
        ("CANCELLED", None, InvocationCancelled),
        ("TIMED_OUT", None, InvocationTimedOut),
        ("OWNER_GONE", None, OwnerGone),
    ],
)
async def test_every_end_that_is_no_success_has_its_error(
    state: str, code: str | None, kind: type[TurnlogError]
) -> None:
    error = None if code is None else {"code": code, "message": "why"}
    async with proxying(record(state, error=error)) as (proxy, _http):
        with pytest.raises(kind) as caught:
            await proxy.invoke("x")
    assert type(caught.value) is kind
    if isinstance(caught.value, InvocationFailed):
        assert caught.value.record.state == state


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (refusal(409, "INVOCATION_CONFLICT"), InvocationConflict),
        (refusal(409, "CONVERSATION_BUSY"), ConversationBusy),
        (refusal(503, "AGENT_BUSY", after_ms=1), AgentBusy),
        (refusal(503, "AGENT_UNAVAILABLE", after_ms=1), AgentUnavailable),
    ],
)
async def test_a_refused_submit_is_raised_and_not_repeated(answer: Answer, kind: type[TurnlogError]) -> None:
    async with proxying(answer) as (proxy, http):
        with pytest.raises(kind):
            await proxy.submit("x")
        assert len(http.asked) == 1


async def test_a_record_that_has_not_ended_is_no_success() -> None:
    async with proxying(record("RUNNING")) as (proxy, _http):
        running = await proxy.status("t", "i")
    with pytest.raises(RuntimeError, match="invocation i of thread t is RUNNING"):
        running.succeeded()


async def test_what_the_log_does_not_have_is_submitted_again_under_its_id() -> None:
    async with proxying(refusal(503, "unavailable", after_ms=1), record("ACCEPTED", status=202)) as (proxy, http):
        assert (await proxy.submit("x", thread="t", id="i")).state is State.ACCEPTED
    assert [each.body["id"] for each in http.asked] == ["i", "i"]


@pytest.mark.parametrize("lost", [CUT, refusal(503, "pending", after_ms=1), refusal(500, "internal")])
async def test_a_submit_without_an_answer_is_looked_up_and_never_sent_again(lost: Answer) -> None:
    async with proxying(lost, refusal(404, "not_found"), record("RUNNING")) as (proxy, http):
        assert (await proxy.submit("x", thread="t", id="i")).state is State.RUNNING
    assert asked(http) == [("POST", PATH), ("GET", ONE), ("GET", ONE)]


async def test_a_submit_whose_fate_stays_unknown_says_so_with_its_id() -> None:
    async with proxying(CUT, refusal(404, "not_found"), budget=0) as (proxy, http):
        with pytest.raises(SubmissionUncertain, match="invocation i of thread t") as caught:
            await proxy.submit("x", thread="t", id="i")
    assert (caught.value.thread, caught.value.id, caught.value.retryable) == ("t", "i", True)
    assert [method for method, _ in asked(http)] == ["POST", "GET"]


async def test_a_gateway_that_is_not_there_leaves_nothing_uncertain() -> None:
    async with scripted_http() as gone:
        url = gone.url
    async with AgentProxy(url, "agents", token="t", budget=0) as proxy:
        with pytest.raises(Unavailable) as caught:
            await proxy.submit("x")
    assert not isinstance(caught.value, SubmissionUncertain)


@pytest.mark.parametrize("credential", [{"token": "t"}, {"channel_secret": "s"}, {"api_key": "k"}], ids=str)
async def test_a_gateway_that_is_not_there_is_told_of_at_once_and_given_up_within_the_budget(
    credential: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    async with scripted_http() as gone:
        url = gone.url
    began = time.monotonic()
    async with AgentProxy(url, "agents", budget=0.5, **credential) as proxy:  # type: ignore[arg-type]
        with pytest.raises(Unavailable) as caught:
            await proxy.invoke("x")
    assert time.monotonic() - began < 5
    assert not isinstance(caught.value, SubmissionUncertain), "nothing was sent"
    assert url in str(caught.value)
    [told] = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert "trying again for up to" in told
    assert url in told


async def test_a_token_that_cannot_be_had_yet_leaves_nothing_uncertain() -> None:
    token = Answer(200, {"token": "t-1", "expires_in": 60})
    later = refusal(503, "unavailable", after_ms=1)
    async with proxying(later, token, record("ACCEPTED", status=202), token=None, channel_secret="s") as (proxy, http):
        assert (await proxy.submit("x", thread="t", id="i")).state is State.ACCEPTED
    assert [method for method, _ in asked(http)] == ["POST", "POST", "POST"]


async def test_looking_is_repeated_and_an_unknown_id_is_told() -> None:
    async with proxying(CUT, refusal(503, "unavailable"), record("RUNNING"), refusal(404, "not_found")) as (proxy, _):
        assert (await proxy.status("t", "i")).state is State.RUNNING
        with pytest.raises(InvocationNotFound):
            await proxy.status("t", "i")


async def test_events_come_in_pages() -> None:
    body = {"events": [event(3, "a"), event(4, "b")], "next": 4, "done": True}
    async with proxying(Answer(200, body)) as (proxy, http):
        page = await proxy.page("t", "i", after=2, limit=2)
    assert ([each.n for each in page.events], page.next, page.done) == ([3, 4], 4, True)
    assert asked(http) == [("GET", f"{ONE}/events?after=2&limit=2")]


async def test_events_are_pushed_and_replayed_behind_the_last_one_seen_after_a_lost_connection() -> None:
    script = (
        sse(event(1, "a"), event(2, "b"), end=False),
        record("RUNNING", events=2),
        CUT,
        record("RUNNING", events=3),
        sse(event(2, "b"), event(4, "d")),  # one that was seen, and one is missing: asked for again
        record("RUNNING", events=4),
        sse(event(3, "c"), event(4, "d")),
    )
    async with proxying(*script) as (proxy, http):
        seen = [each async for each in proxy.events("t", "i")]
    assert [(each.n, each.text) for each in seen] == [(1, "a"), (2, "b"), (3, "c"), (4, "d")]
    streams = [each.headers["last-event-id"] for each in http.asked if each.path == f"{ONE}/stream"]
    assert streams == ["0", "2", "2", "2"]


async def test_a_stream_that_just_ends_is_over_when_the_record_says_so() -> None:
    async with proxying(sse(event(1, "a"), end=False), record("SUCCEEDED", "a", events=1)) as (proxy, _http):
        assert [each.n async for each in proxy.events("t", "i")] == [1]


async def test_a_streamed_call_gives_its_events_and_then_raises_what_it_ended_with() -> None:
    failed = record("FAILED", error={"code": "AGENT_ERROR", "message": "why"})
    async with proxying(record("ACCEPTED", status=202), sse(event(1, "a")), failed) as (proxy, http):
        seen: list[Event] = []

        async def follow() -> None:
            async for each in proxy.stream_invoke("x"):
                seen.append(each)  # noqa: PERF401 - what came before the error counts

        with pytest.raises(InvocationFailed, match="why"):
            await follow()
    assert [each.text for each in seen] == ["a"]
    assert http.asked[0].body["streamed"] is True


async def test_who_breaks_a_streamed_call_off_cancels_it() -> None:
    script = (record("ACCEPTED", status=202), sse(event(1, "a"), event(2, "b")), record("CANCELLING", status=202))
    async with (
        proxying(*script) as (proxy, http),
        contextlib.aclosing(proxy.stream_invoke("x", thread="t", id="i")) as events,
    ):
        async for _ in events:
            break
    assert asked(http)[-1] == ("POST", f"{ONE}/cancel")
    assert http.asked[-1].body == {"reason": "its caller went away"}


async def test_a_caller_that_is_cancelled_cancels_its_invocation() -> None:
    answers = (record("RUNNING", status=202), record("CANCELLING", status=202))
    async with proxying(*answers) as (proxy, http):
        looked = asyncio.Event()

        async def status(*_: Any, **__: Any) -> Any:
            looked.set()
            await asyncio.Event().wait()

        proxy.status = status  # type: ignore[method-assign]
        calling = asyncio.create_task(proxy.invoke("x", thread="t", id="i"))
        await looked.wait()
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling
    assert asked(http)[-1] == ("POST", f"{ONE}/cancel")


async def test_a_thread_says_what_it_is_busy_with() -> None:
    claim = _body("RUNNING")
    async with proxying(Answer(200, {"thread": "t", "claim": claim}), Answer(200, {"claim": None})) as (proxy, http):
        busy = await proxy.claim("t")
        assert busy is not None
        assert busy.state is State.RUNNING
        assert await proxy.claim("t") is None
    assert asked(http) == [("GET", "/v1/threads/t")] * 2


TOKEN = Answer(200, {"token": "fresh", "expires_in": 1800})


async def test_a_secret_buys_one_token_for_its_user_and_another_when_that_has_expired() -> None:
    script = (TOKEN, record("SUCCEEDED"), record("SUCCEEDED"), refusal(401, "token_expired"), TOKEN, record("RUNNING"))
    async with proxying(*script, token=None, channel_secret="s3cret", user="back-office") as (proxy, http):
        await proxy.submit("x", thread="t")
        await proxy.status("t", "i")
        await proxy.status("t", "i")
    assert http.asked[0].body == {"user": {"id": "back-office"}}
    assert [each.headers["authorization"] for each in http.asked].count("Bearer s3cret") == 2
    assert "s3cret" not in repr(vars(proxy))


async def test_an_api_key_names_its_user_as_sender() -> None:
    async with proxying(record("SUCCEEDED"), token=None, api_key="k", user="billing") as (proxy, http):
        await proxy.submit("x")
    assert http.asked[0].headers["x-api-key"] == "k"
    assert http.asked[0].body["sender"] == "billing"


async def test_a_duplicate_has_the_same_credential_and_what_is_changed() -> None:
    async with proxying(record("SUCCEEDED"), record("SUCCEEDED"), deadline=10, policy="enqueue") as (proxy, http):
        async with proxy.duplicate(agent="agents/other", deadline=0, retry=True) as twin:
            await twin.submit("x")
        await proxy.submit("x")  # its own connections are open still
    first, second = (each.body for each in http.asked)
    assert (first["agent"], first["deadlineMs"]) == ("agents/other", 0)
    assert (first["policy"], first["retry"]) == ("enqueue", True)
    assert (second["agent"], second["deadlineMs"], "retry" in second) == ("agents/research", 10_000, False)


async def test_callers_without_an_event_loop_are_served() -> None:
    async with proxying(record("SUCCEEDED", "42"), record("SUCCEEDED", "43")) as (proxy, _http):
        assert (await asyncio.to_thread(proxy.invoke_sync, "x")).text == "42"
        assert (await asyncio.to_thread(proxy.invoke_sync, "x")).text == "43"


@pytest.mark.parametrize("deadline", [0.5, 3601, -1])
def test_a_deadline_out_of_range_is_refused_here(deadline: float) -> None:
    with pytest.raises(ValueError, match="deadline: 1 to 3600 seconds, or 0 for none"):
        AgentProxy("http://h", "agents", token="t", deadline=deadline)


async def test_no_input_is_refused_here() -> None:
    async with AgentProxy("http://h", "agents", token="t") as proxy:
        with pytest.raises(ValueError, match="text, data, or both"):
            await proxy.submit()


needs_langchain = pytest.mark.skipif(
    importlib.util.find_spec("langchain_core") is None, reason="the extra `langchain` is not installed"
)


@needs_langchain
async def test_as_a_tool_it_serves_both_kinds_of_callers_in_one_thread_per_callers_thread() -> None:
    done = record("SUCCEEDED", "42")
    async with proxying(*[done] * 5) as (proxy, http):
        (tool,) = proxy.as_tools(description="Finds things out.")
        assert (tool.name, tool.description) == ("agents_research", "Finds things out.")
        assert await tool.ainvoke({"text": "x"}) == "42"
        assert await asyncio.to_thread(tool.invoke, {"text": "x"}) == "42"
        config: Any = {"configurable": {"thread_id": "c-1"}}
        await tool.ainvoke({"text": "x"}, config)
        await asyncio.to_thread(tool.invoke, {"text": "x"}, config)
        (fixed,) = proxy.as_tools(thread="mine")
        await fixed.ainvoke({"text": "x"}, config)
    threads = [each.path.split("/")[3] for each in http.asked]
    assert threads[0] == threads[1]
    assert threads[2:] == ["c-1~agents_research", "c-1~agents_research", "mine"]


async def test_a_thread_that_waits_for_an_answer_is_told_when_the_proxy_is_closed() -> None:
    """With nobody there it tries again and again; and what it sleeps in ends with the proxy."""
    proxy = AgentProxy("http://127.0.0.1:1", "agents", token="t", budget=600)
    calling = asyncio.create_task(asyncio.to_thread(proxy.invoke_sync, "x"))
    await until(lambda: proxy._portal is not None and proxy._portal._loop is not None)
    async with asyncio.timeout(30):
        await proxy.close()
        with pytest.raises(Unavailable, match="closed"):
            await calling


async def test_a_call_that_goes_on_when_its_proxy_is_closed_ends() -> None:
    proxy = AgentProxy("http://127.0.0.1:1", "agents", token="t", budget=600)
    calling = asyncio.create_task(proxy.invoke("x"))
    await asyncio.sleep(0)
    await proxy.close()
    async with asyncio.timeout(30):
        with pytest.raises(Unavailable, match="closed"):
            await calling
        with pytest.raises(Unavailable, match="closed"):
            await anext(proxy.events("t", "i"))


async def test_a_submit_without_an_answer_is_uncertain_also_when_the_proxy_is_closed_then() -> None:
    async with proxying(CUT, *[refusal(404, "not_found")] * 20, budget=600) as (proxy, http):
        calling = asyncio.create_task(proxy.submit("x"))
        await until(lambda: http.asked)
        await proxy.close()
        async with asyncio.timeout(30):
            with pytest.raises(SubmissionUncertain):
                await calling
