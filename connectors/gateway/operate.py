"""What operators and scripts ask a gateway: a conversation's owners and runs, members, leases; health and metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from connectors.gateway import http
from connectors.gateway.http import claims_of, conversation_id, json_response, need_api_key
from connectors.gateway.openapi import DOCUMENT, PAGE
from connectors.gateway.protocol import wire_schema

if TYPE_CHECKING:
    from connectors.gateway.gateway import Gateway

PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"


def routes(gateway: Gateway) -> list[Route]:
    """The operators' routes."""
    return [
        http.route(gateway, "/v1/conversations/{conversation_id}", show_conversation),
        http.route(gateway, "/v1/members", list_members),
        http.route(gateway, "/v1/leases", list_leases),
        http.route(gateway, "/healthz", healthz, gated=False),
        http.route(gateway, "/readyz", readyz, gated=False),
        http.route(gateway, "/metrics", metrics, gated=False),
        http.route(gateway, "/openapi.json", openapi, gated=False),
        http.route(gateway, "/asyncapi.json", asyncapi, gated=False),
        http.route(gateway, "/docs", docs, gated=False),
    ]


async def show_conversation(gateway: Gateway, request: Request) -> Response:
    """Who owns it, how far it is, what runs; for its own token, or an API key."""
    wanted = conversation_id(request)
    if "x-api-key" in request.headers:
        await need_api_key(gateway, request)
        info = await gateway.conversation(wanted)
    else:
        claims = await claims_of(gateway, http.bearer(request))
        info = await gateway.conversation_for(claims, wanted)
    known = {"conversation": wanted, "status": info.status, "channel": info.channel, "head_seq": info.head_seq}
    return json_response(known | await standing(gateway, wanted))


async def standing(gateway: Gateway, conversation: str) -> dict[str, Any]:
    """Where it lies, who owns it and what runs: no older than what this gateway has seen of its partition."""
    partition = gateway.partition_of(conversation)
    position = await gateway.history.until(partition, gateway.recent.last_lsn(partition))
    runs = await gateway.read_model.open_runs(conversation)
    return {
        "partition": partition,
        "owners": await gateway.read_model.owners(conversation),
        "open_runs": [msgspec.to_builtins(run) for run in runs],
        "as_of_lsn": position.lsn,
    }


async def list_members(gateway: Gateway, request: Request) -> Response:
    """Every member that some partition knows, and how many do; `as_of_lsn` by partition."""
    await need_api_key(gateway, request)
    as_of = {str(p): (await gateway.read_model.position(p)).lsn for p in range(gateway.intake.partitions)}
    members = [msgspec.to_builtins(member) for member in await gateway.read_model.members()]
    return json_response({"members": members, "as_of_lsn": as_of})


async def list_leases(gateway: Gateway, request: Request) -> Response:
    """Which worker may write which partition; `as_of_lsn`: the newest entry that this gateway saw of it."""
    await need_api_key(gateway, request)
    leases = [
        {**msgspec.to_builtins(lease), "as_of_lsn": gateway.recent.last_lsn(lease.partition)}
        for lease in await gateway.read_model.leases()
    ]
    return json_response({"leases": leases})


async def healthz(gateway: Gateway, request: Request) -> Response:  # noqa: ARG001 -- every handler is given it
    """The process runs."""
    return json_response({"status": "ok", "gateway": gateway.membership.incarnation, "phase": gateway.phase})


async def readyz(gateway: Gateway, request: Request) -> Response:
    """Whether it takes requests, and which servers answer: 503 while it catches up, stops, or cannot reach Kafka."""
    refusal = gateway.unready()
    document = {"ready": refusal is None, "phase": gateway.phase, "dependencies": gateway.dependencies()}
    if refusal is not None:
        return http.error_response(refusal, http.request_id(request), document)
    return json_response({"status": "ready", **document})


async def metrics(gateway: Gateway, request: Request) -> Response:  # noqa: ARG001 -- every handler is given it
    """Prometheus' text format."""
    return Response(gateway.metrics.text(), media_type=PROMETHEUS)


async def openapi(gateway: Gateway, request: Request) -> Response:  # noqa: ARG001 -- every handler is given it
    """The API's description."""
    document: dict[str, Any] = DOCUMENT
    return json_response(document)


async def asyncapi(gateway: Gateway, request: Request) -> Response:  # noqa: ARG001 -- every handler is given it
    """The socket's description."""
    return json_response(wire_schema.asyncapi())


async def docs(gateway: Gateway, request: Request) -> Response:  # noqa: ARG001 -- every handler is given it
    """The API's description for people."""
    return HTMLResponse(PAGE)
