"""Calling agents over HTTP, `/v1/threads/{thread}/invocations`: submit, look, follow, cancel, release.

A thread is a conversation; a submit opens it where there is none of that id. An invocation's id is the caller's, unique
in its thread: submitting it again with the same input gives its record, with another one `INVOCATION_CONFLICT`.
"""

from __future__ import annotations

import asyncio
import hashlib
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from connectors.gateway import http
from connectors.gateway.auth import LEEWAY_S
from connectors.gateway.authorization import Caller
from connectors.gateway.call_events import CallStream, output_of, page_of
from connectors.gateway.call_state import Call, error_of
from connectors.gateway.clock import wall_ms
from connectors.gateway.http import identifier, json_body, json_response, optional
from connectors.gateway.protocol.errors import ProtocolError
from connectors.gateway.protocol.parse import MAX_ID, check_text, json_text
from connectors.gateway.protocol.render import iso
from connectors.gateway.protocol.session import Claims, Scope
from streams.core.events import Invocation, Turn
from streams.core.ids import channel_of_group, invocation_message_id
from streams.core.invocations import DEADLINE_MAX_MS
from streams.core.routing import AGENT_KIND, ENQUEUE, INTERRUPT, REJECT

if TYPE_CHECKING:
    from connectors.gateway.gateway import Gateway

DEADLINE_DEFAULT_MS = 300_000
DEADLINE_MIN_MS = 1_000
WAIT_MAX_MS = 60_000
WAIT_SLICE_S = 1.0
"""How often one who waits looks whether the gateway stops."""
PAGE_DEFAULT, PAGE_MAX = 100, 500
# A record holds 384 KiB; the rest of it is ids, and the text once more.
INPUT_MAX_BYTES = 256 * 1024
ID_MAX = 200
POLICIES = (REJECT, ENQUEUE, INTERRUPT)


def routes(gateway: Gateway) -> list[Route]:
    """The callers' routes."""
    thread = "/v1/threads/{thread}"
    one = f"{thread}/invocations/{{invocation}}"
    return [
        http.route(gateway, thread, show_thread),
        http.route(gateway, f"{thread}/invocations", submit, method="POST"),
        http.route(gateway, one, show),
        http.route(gateway, f"{one}/events", list_events),
        http.route(gateway, f"{one}/stream", stream),
        http.route(gateway, f"{one}/cancel", cancel, method="POST"),
        http.route(gateway, f"{one}/release", release, method="POST"),
    ]


# ---------------------------------------------------------------------------------------------------------- submit
async def submit(gateway: Gateway, request: Request) -> Response:
    """Take a call: 202 once it is in the log, 200 when it has ended within `wait`; a repeat gets the first one's."""
    caller = await gateway.authorizer.submitter(request)
    thread = _thread(request)
    body = await json_body(request)
    wait_ms = _number(body, "wait", 0, low=0, high=WAIT_MAX_MS)
    invocation, text, data = _parsed(body)
    claims = await _claims(gateway, caller, thread, body, channel_of_group(invocation.group))
    turn = Turn(
        id=invocation_message_id(thread, invocation.id, invocation.input_hash),
        sender=claims.user,
        channel=claims.channel,
        type="text",
        text=text,
        data=None if data is None else json_text({"text": text, "input": data}),
        invocation=invocation,
    )
    await gateway.commands.invoke(thread, turn, http.trace_headers(request))
    call = await gateway.calls.find(thread, invocation.id)
    if call is None:
        raise ProtocolError("unavailable", "the call is taken; its record cannot be read yet", retry_after_ms=500)
    await _ended(gateway, caller, call, wait_ms)
    return json_response(await record(gateway, call), 202 if call.status is None else 200)


def _parsed(body: dict[str, Any]) -> tuple[Invocation, str, dict[str, Any] | None]:
    id_, agent = identifier(body, "id", ID_MAX), identifier(body, "agent", ID_MAX)
    if "/" in id_:
        raise ProtocolError("invalid_message", f"id: 1 to {ID_MAX} characters without `/`", details={"field": "id"})
    text, data = _input(body)
    policy = optional(body, "policy", str)
    if policy is not None and policy not in POLICIES:
        raise ProtocolError("invalid_message", f"policy: one of {', '.join(POLICIES)}", details={"field": "policy"})
    invocation = Invocation(
        id=id_,
        group=agent,
        deadline_ms=_deadline_ms(body),
        streamed=optional(body, "streamed", bool) or False,
        policy=policy,
        retry=optional(body, "retry", bool) or False,
        input_hash=_hash([agent, text, data]),
    )
    return invocation, text or "", data


def _input(body: dict[str, Any]) -> tuple[str | None, dict[str, Any] | None]:
    given = optional(body, "input", dict) or {}
    text, data = optional(given, "text", str, "input."), optional(given, "data", dict, "input.")
    if text is None and data is None:
        raise ProtocolError("invalid_message", "input: needs `text`, `data`, or both", details={"field": "input"})
    check_text(text, "input.text")
    size = len(json_text(given).encode())
    if size > INPUT_MAX_BYTES:
        raise ProtocolError(
            "payload_too_large",
            f"input: {size} bytes as JSON, at most {INPUT_MAX_BYTES} are taken",
            details={"field": "input", "size": size, "limit": INPUT_MAX_BYTES},
        )
    return text, data


def _deadline_ms(body: dict[str, Any]) -> int:
    deadline_ms = _number(body, "deadlineMs", DEADLINE_DEFAULT_MS, low=0, high=DEADLINE_MAX_MS)
    if 0 < deadline_ms < DEADLINE_MIN_MS:
        raise ProtocolError(
            "invalid_message",
            f"deadlineMs: {DEADLINE_MIN_MS} to {DEADLINE_MAX_MS}, or 0 for none",
            details={"field": "deadlineMs"},
        )
    return deadline_ms


def _hash(given: list[Any]) -> str:
    """The same for the same input, in whichever order its fields came."""
    return hashlib.sha256(msgspec.json.encode(given, order="sorted")).hexdigest()


async def _claims(gateway: Gateway, caller: Caller, thread: str, body: dict[str, Any], agents: str) -> Claims:
    """Whose the turn is, on a channel that is routed to these agents; their thread is opened if there is none."""
    claims = caller.claims or _backend(gateway, body, agents)
    channel = gateway.directory.config.channels.get(agents)
    routed = agents in gateway.directory.config.routes.get(claims.channel, ())
    if channel is None or not channel.active or channel.kind != AGENT_KIND or not routed:
        raise ProtocolError(
            "forbidden", f"agent: channel {claims.channel} is not routed to an agents' channel {agents}"
        )
    try:
        await gateway.authorizer.check(caller, thread)
    except ProtocolError as error:
        if error.code != "conversation_not_found" or await gateway.history.conversation(thread) is not None:
            raise
        if claims.conversation_id not in {None, thread}:
            raise
        await gateway.commands.open_thread(thread, claims)
        await gateway.authorizer.check(caller, thread)
    return claims


def _backend(gateway: Gateway, body: dict[str, Any], agents: str) -> Claims:
    """For an API key: the channel that it names, else the first that is routed to the agents."""
    named = optional(body, "channel", str)
    config = gateway.directory.config
    routed = [id_ for id_, to in config.routes.items() if agents in to and (named in {None, id_})]
    active = [id_ for id_ in routed if (channel := config.channels.get(id_)) is not None and channel.active]
    if not active:
        raise ProtocolError(
            "forbidden", f"agent: no active channel{f' {named}' if named else ''} is routed to {agents}"
        )
    sender = optional(body, "sender", str) or "tenant"
    if not 0 < len(sender) <= MAX_ID:
        raise ProtocolError("invalid_message", f"sender: a string of 1 to {MAX_ID} characters")
    return Claims(channel=active[0], scope=Scope.CONVERSATION, user=sender, named=True, expires_at=0)


# ------------------------------------------------------------------------------------------------------------ look
async def show_thread(gateway: Gateway, request: Request) -> Response:
    """The thread's live claim, and the calls that wait in line behind it."""
    thread = _thread(request)
    await gateway.authorizer.check(await gateway.authorizer.viewer(request), thread)
    calls = [await record(gateway, call) for call in await gateway.calls.open_in(thread)]
    return json_response({"thread": thread, "claim": calls[0] if calls else None, "queued": calls[1:]})


async def show(gateway: Gateway, request: Request) -> Response:
    """The record; `wait`: once it has ended, or after so many ms."""
    caller, call = await _viewed(gateway, request)
    await _ended(gateway, caller, call, http.number(request, "wait", 0, low=0, high=WAIT_MAX_MS))
    return json_response(await record(gateway, call))


async def list_events(gateway: Gateway, request: Request) -> Response:
    """What came of it after the nth, in order."""
    _, call = await _viewed(gateway, request)
    after = http.number(request, "after", 0, low=0, high=10**9)
    limit = http.number(request, "limit", PAGE_DEFAULT, low=1, high=PAGE_MAX)
    return json_response(await page_of(gateway, call, after, limit))


async def stream(gateway: Gateway, request: Request) -> Response:
    """The same as server-sent events, each with its n as id; the last one, `end`, is the record."""
    caller, call = await _viewed(gateway, request)
    last = request.headers.get("last-event-id") or ""
    if last and not (last.isascii() and last.isdigit() and len(last) <= 9):
        raise ProtocolError("invalid_watermark", "Last-Event-ID: must be the n of an event of this call")
    after = int(last) if last else http.number(request, "after", 0, low=0, high=10**9)
    return CallStream(gateway, call, after, caller, record).response()


async def _viewed(gateway: Gateway, request: Request) -> tuple[Caller, Call]:
    """Who asks, and the path's call, if it is theirs."""
    thread = _thread(request)
    caller = await gateway.authorizer.viewer(request)
    await gateway.authorizer.check(caller, thread)
    id_: str = request.path_params["invocation"]
    call = await gateway.calls.find(thread, id_) if 0 < len(id_) <= ID_MAX and "\0" not in id_ else None
    if call is None:
        raise ProtocolError("not_found", "the thread has no such invocation")
    return caller, call


# ------------------------------------------------------------------------------------------------------------- end
async def cancel(gateway: Gateway, request: Request) -> Response:
    """Ask it to stop: one that has not begun ends at once. Of one that is over nothing changes."""
    caller, call = await _viewed(gateway, request)
    reason = http.reason(await json_body(request)) or "cancelled by its caller"
    if call.status is None:
        by = caller.claims.user if caller.claims is not None else "tenant"
        await gateway.commands.cancel_run(call.thread, call.run_id, by, reason, http.trace_headers(request))
    return json_response(await record(gateway, call), 202)


async def release(gateway: Gateway, request: Request) -> Response:
    """An operator ends a call whose worker is known to have stopped; refused while its member is connected."""
    await http.need_api_key(gateway, request)
    _, call = await _viewed(gateway, request)
    body = await json_body(request)
    proof = http.reason(body, "proof")
    if not proof.strip():
        rule = "say how it is known that the old worker has stopped"
        raise ProtocolError("invalid_message", f"proof: {rule}", details={"field": "proof"})
    reason = http.reason(body) or "released by an operator"
    if call.status is None:
        await gateway.commands.release_run(
            call.thread,
            call.run_id,
            by="tenant",
            reason=reason,
            proof=proof,
            headers=http.trace_headers(request),
        )
    return json_response(await record(gateway, call))


# ---------------------------------------------------------------------------------------------------------- answers
async def _ended(gateway: Gateway, caller: Caller, call: Call, wait_ms: int) -> None:
    """Wait for its end, at most so long, and no longer than the gateway serves and the caller's token is good."""
    if caller.claims is not None:
        wait_ms = min(wait_ms, caller.claims.expires_at + LEEWAY_S * 1000 - wall_ms())  # no sooner than it is refused
    loop = asyncio.get_running_loop()
    deadline = loop.time() + wait_ms / 1000
    with call.news() as news:
        while call.status is None and gateway.refusal() is None:
            left_s = deadline - loop.time()
            if left_s <= 0:
                return
            news.clear()
            try:
                async with asyncio.timeout(min(left_s, WAIT_SLICE_S)):
                    await news.wait()
            except TimeoutError:
                continue


async def record(gateway: Gateway, call: Call) -> dict[str, Any]:
    """The call as its readers are told."""
    output = await output_of(gateway, call) if call.status is not None else None
    return {
        "id": call.id,
        "thread": call.thread,
        "agent": call.agent,
        "state": call.state.value,
        "runId": call.run_id,
        "seq": call.turn_seq,
        "member": call.member,
        "runEpoch": call.run_epoch,
        "output": output,
        "error": error_of(call),
        "createdAt": iso(call.created_at),
        "startedAt": None if call.started_at is None else iso(call.started_at),
        "endedAt": None if call.ended_at is None else iso(call.ended_at),
        "events": len(call.frames),
    }


# ------------------------------------------------------------------------------------------------------------ input
def _thread(request: Request) -> str:
    value: str = request.path_params["thread"]
    if not 0 < len(value) <= MAX_ID or "\0" in value or "/" in value:
        raise ProtocolError("invalid_message", f"thread: 1 to {MAX_ID} characters without `/`")
    return value


def _number(body: dict[str, Any], field: str, default: int, *, low: int, high: int) -> int:
    value = optional(body, field, int)
    if value is None:
        return default
    if not low <= value <= high:
        raise ProtocolError("invalid_message", f"{field}: an integer from {low} to {high}", details={"field": field})
    return int(value)
