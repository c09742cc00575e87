"""What operators do by a gateway, `/v1/operator`: each is written into the journal with who did it and why.

Who: the name of the token (`turnlog key operator add`). Why: `why` of the body, which every call needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from connectors.gateway import http
from connectors.gateway.http import conversation_id, identifier, json_body, json_response, need_operator
from connectors.gateway.protocol.errors import ProtocolError
from connectors.gateway.protocol.parse import MAX_ID

if TYPE_CHECKING:
    from connectors.gateway.gateway import Gateway

PREFIX = "/v1/operator"
LEASE_RELEASED = "lease_released"
"""`action` of the journal's `OperatorActed`."""
PARTITION_DIGITS = 9


def routes(gateway: Gateway) -> list[Route]:
    """The routes of operators."""
    one = f"{PREFIX}/conversations/{{conversation_id}}"
    return [
        http.route(gateway, f"{one}/move", move, method="POST"),
        http.route(gateway, f"{one}/release", release, method="POST"),
        http.route(gateway, f"{one}/close", close, method="POST"),
        http.route(gateway, f"{PREFIX}/members/{{member}}/drain", drain, method="POST"),
        http.route(gateway, f"{PREFIX}/leases/{{partition}}/release", release_lease, method="POST"),
    ]


async def move(gateway: Gateway, request: Request) -> Response:
    """Give a conversation to a member: its open runs now, its turns for as long as the member is there."""
    by, body = await _asked(gateway, request)
    conversation, why, to = conversation_id(request), _why(body), identifier(body, "to", MAX_ID)
    headers = http.trace_headers(request)
    await gateway.commands.move_conversation(conversation, to=to, group="", by=by, reason=why, headers=headers)
    return json_response({"conversation": conversation, "to": to, "by": by})


async def release(gateway: Gateway, request: Request) -> Response:
    """Take a conversation from who has it: its open runs go to the next in rank, and a move is undone."""
    by, body = await _asked(gateway, request)
    conversation, why = conversation_id(request), _why(body)
    group = identifier(body, "group", MAX_ID) if body.get("group") is not None else ""
    headers = http.trace_headers(request)
    await gateway.commands.move_conversation(conversation, to=None, group=group, by=by, reason=why, headers=headers)
    return json_response({"conversation": conversation, "to": None, "by": by})


async def close(gateway: Gateway, request: Request) -> Response:
    """Close a conversation: its open runs end; closing a closed one changes nothing."""
    by, body = await _asked(gateway, request)
    info = await gateway.conversation(conversation_id(request))
    await gateway.commands.close_conversation(info.id, by, http.trace_headers(request), reason=_why(body))
    return json_response({"conversation": info.id, "status": "closed", "by": by})


async def drain(gateway: Gateway, request: Request) -> Response:
    """Give a member nothing new and let it finish; it cannot be undone. 202: every partition was told."""
    by, body = await _asked(gateway, request)
    member, why = str(request.path_params["member"]), _why(body)
    if member not in {each.member for each in await gateway.read_model.members()}:
        raise ProtocolError("not_found", f"there is no member {member[:MAX_ID]}")
    await gateway.commands.drain_member(member, by=by, reason=why)
    return json_response({"member": member, "by": by}, 202)


async def release_lease(gateway: Gateway, request: Request) -> Response:
    """Take a partition's lease from its worker, which is fenced; whoever is due claims it with a new writer epoch.

    It is written down first: a release that nobody knows of does not happen.
    """
    by, body = await _asked(gateway, request)
    why = _why(body)
    partition = _partition(gateway, request)
    lease = next((each for each in await gateway.read_model.leases() if each.partition == partition), None)
    if lease is None or not lease.live:
        raise ProtocolError("not_found", f"no worker holds the lease of partition {partition}")
    subject = f"{lease.worker} epoch {lease.writer_epoch}"
    await gateway.commands.note_action(partition, action=LEASE_RELEASED, subject=subject, by=by, reason=why)
    released = await gateway.directory.release_lease(lease)
    document = {"partition": partition, "worker": lease.worker, "writer_epoch": lease.writer_epoch}
    return json_response({**document, "released": released, "by": by}, 202)


async def _asked(gateway: Gateway, request: Request) -> tuple[str, dict[str, Any]]:
    return await need_operator(gateway, request), await json_body(request)


def _why(body: dict[str, Any]) -> str:
    why = http.reason(body, "why")
    if not why.strip():
        raise ProtocolError("invalid_message", "why: say why, for the journal", details={"field": "why"})
    return why


def _partition(gateway: Gateway, request: Request) -> int:
    text = str(request.path_params["partition"])
    if not (text.isascii() and text.isdigit() and len(text) <= PARTITION_DIGITS):
        raise ProtocolError("not_found", "the path names no partition")
    if (partition := int(text)) >= gateway.intake.partitions:
        raise ProtocolError("not_found", f"partitions are 0 to {gateway.intake.partitions - 1}")
    return partition
