"""Whatever comes over a socket or by REST: no 5xx, no close as for a fault, no hang, nothing unhandled in the log."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from typing import Any
from urllib.parse import quote

import httpx
import jsonschema
import pytest
import structlog
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from websockets.exceptions import ConnectionClosed

from connectors.gateway.openapi import DOCUMENT, ERROR
from connectors.gateway.protocol import wire_schema
from tests.support.fuzz import anything, as_text, described_by, no_json, spoiled
from tests.support.gateway_world import API_KEY, Served, World, bearer, serve, settings_for

# A client's frame may close its connection for these reasons; 1011 would be a fault of the gateway.
CLOSES = {1000, 1009, 1012, 4400, 4401, 4403, 4408, 4503}
PATIENCE_S = 60.0
SCHEMAS = wire_schema.schemas()
few = settings(
    max_examples=40, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture], deadline=None
)


class Place:
    """A gateway with a conversation, whose agent holds a run, on an event loop of its own that all examples share."""

    def __init__(self, runner: asyncio.Runner, served: Served, conversation: str, token: str, agents: str) -> None:
        self.run = runner.run
        self.served = served
        self.conversation = conversation
        self.token = token
        self.agents = agents


@contextmanager
def quiet_log() -> Iterator[None]:
    """Nothing is logged as an error, by structlog or by the event loop, meanwhile."""
    with structlog.testing.capture_logs() as logs:
        yield
    assert [entry for entry in logs if entry["log_level"] in {"error", "critical"}] == []


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    unhandled: list[dict[str, Any]] = []
    with asyncio.Runner() as runner:
        runner.get_loop().set_exception_handler(lambda _, context: unhandled.append(context))
        stack = AsyncExitStack()
        yield runner.run(_placed(runner, stack))
        runner.run(stack.aclose())
    assert unhandled == []


async def _placed(runner: asyncio.Runner, stack: AsyncExitStack) -> Place:
    served = await stack.enter_async_context(serve(World(), settings_for(member_ttl_ms=600_000)))
    conversation, token = await served.conversation()
    agent = await stack.enter_async_context(served.agent("bots"))
    await served.say(conversation, token, "hello")
    await agent.until("text")
    agents = await served.token("agents-secret", scope="channel")
    return Place(runner, served, conversation, token, agents)


# --------------------------------------------------------------------------------------------------------- sockets
def frames(side: str, *, enveloped: bool) -> st.SearchStrategy[Any]:
    """Frames of a side, good ones and spoiled ones. Drains and hellos come seldom enough."""
    choices = SCHEMAS[side]["anyOf"]
    chosen = choices[-1]["properties"]["frame"]["anyOf"] if enveloped else [each for each in choices if "$ref" in each]
    good = st.one_of(*(described_by(each, SCHEMAS[side]["$defs"]) for each in chosen))
    return good | spoiled(good) | anything


@st.composite
def enveloped_frames(draw: st.DrawFn) -> Any:
    """An agent's frames of the conversation, of one that is not there, or of none."""
    conversation = draw(st.sampled_from(["$HERE", "$HERE", "$HERE", "nowhere", "", 7, None]))
    return {"conversationId": conversation, "frame": draw(frames("agent-to-server", enveloped=True))}


persons = st.lists(as_text(frames("person-to-server", enveloped=False)) | no_json, max_size=12)
agents = st.lists(as_text(enveloped_frames() | frames("agent-to-server", enveloped=False)) | no_json, max_size=12)
hellos = as_text(described_by({"$ref": "#/$defs/Hello"}, SCHEMAS["agent-to-server"]["$defs"])) | st.just(
    '{"type":"hello"}'
)


async def _survives(place: Place, token: str, hello: str, texts: list[str]) -> None:
    """The connection answers a ping at the end, or was closed for a reason that is the client's."""
    async with asyncio.timeout(PATIENCE_S), place.served.socket(token) as peer:
        try:
            await peer.raw.send(hello)
            for text in texts:
                await peer.raw.send(text.replace("$HERE", place.conversation))
            await peer.settled()
        except ConnectionClosed:
            assert peer.raw.close_code in CLOSES, (peer.raw.close_code, peer.raw.close_reason)
    # And whoever else is served goes on.
    answer = await place.served.http.get("/healthz")
    assert answer.status_code == 200


@few
@given(hello=st.just('{"type":"hello"}') | as_text(anything) | hellos | no_json, texts=persons)
def test_whatever_a_person_sends_is_answered_or_ends_its_connection_by_a_reason(
    place: Place, hello: str, texts: list[str]
) -> None:
    with quiet_log():
        place.run(_survives(place, place.token, hello, texts))


@few
@given(hello=hellos, texts=agents)
def test_whatever_an_agent_sends_is_answered_or_ends_its_connection_by_a_reason(
    place: Place, hello: str, texts: list[str]
) -> None:
    with quiet_log():
        place.run(_survives(place, place.agents, hello, texts))


# ------------------------------------------------------------------------------------------------------------ REST
OPERATIONS = [
    (method, path, operation)
    for path, methods in DOCUMENT["paths"].items()
    for method, operation in methods.items()
    if not path.endswith("/stream")  # they do not end
]
# What would make an endpoint wait, or is a credential.
GIVEN = {"wait": st.sampled_from(["0", "-1", "x"]), "waitMs": st.just("0"), "token": st.nothing()}
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
numbers = st.integers(-2, 2**70).map(str) | st.sampled_from(["", "1.5", "0x1", "NaN"])


@st.composite
def requests(draw: st.DrawFn) -> dict[str, Any]:
    """A request to some endpoint: its parameters and body, good or not, with some credential or with none."""
    method, path, operation = draw(st.sampled_from(OPERATIONS))
    while "{" in path:
        before, _, rest = path.partition("{")
        _, _, after = rest.partition("}")
        value = draw(st.sampled_from(["$HERE", "$HERE", "nowhere", "..", "a/b"]) | texts.filter(bool))
        path = before + (value if value == "$HERE" else quote(value, safe="")) + after
    query = {}
    headers = {}
    for parameter in operation.get("parameters", ()):
        if parameter["in"] == "query" and draw(st.booleans()):
            query[parameter["name"]] = draw(GIVEN.get(parameter["name"], texts | numbers) | st.just("1"))
        elif parameter["in"] == "header" and draw(st.booleans()):
            headers[parameter["name"]] = draw(
                st.text(st.characters(codec="latin-1", exclude_categories=["Cc"]), max_size=30)
            )
    body = b""
    described = operation.get("requestBody")
    if described is not None:
        schema = described["content"]["application/json"]["schema"]
        good = described_by(schema, {})
        body = draw(as_text(good | spoiled(good) | anything) | no_json).encode("utf-8", "surrogatepass")
        body = draw(st.just(body) | st.binary(max_size=30))
    credential = draw(st.sampled_from(["token", "token", "key", "key", "secret", "agents", "none", "wrong"]))
    return {"method": method, "path": path, "query": query, "headers": headers, "body": body, "credential": credential}


def _credential(place: Place, name: str) -> dict[str, str]:
    return {
        "token": bearer(place.token),
        "key": {"x-api-key": API_KEY},
        "secret": bearer("web-secret"),
        "agents": bearer(place.agents),
        "wrong": bearer("wrong") | {"x-api-key": "wrong"},
    }.get(name, {})


async def _answered(place: Place, request: dict[str, Any]) -> httpx.Response:
    url = place.served.url + request["path"].replace("$HERE", place.conversation)
    headers = {name: value.strip().encode("latin-1") for name, value in request["headers"].items()}
    headers |= {name: value.encode() for name, value in _credential(place, request["credential"]).items()}
    async with asyncio.timeout(PATIENCE_S):
        return await place.served.http.request(
            request["method"].upper(), url, params=request["query"], headers=headers, content=request["body"]
        )


@settings(few, max_examples=150)
@given(request=requests())
def test_whatever_is_asked_over_rest_is_answered_by_no_5xx(place: Place, request: dict[str, Any]) -> None:
    with quiet_log():
        answer = place.run(_answered(place, request))
    assert answer.status_code < 500, answer.text
    if answer.status_code >= 400:
        jsonschema.validate(answer.json(), ERROR, jsonschema.Draft202012Validator)
