"""What operators look at by a gateway, `/v1/operator`: conversations, one's journal, members, partitions.

The console is made of it. It changes nothing.

What was said is masked: of a field with words only its length is told. `?showText=1` shows it, and is written into the
journal of the conversation's partition with the name of who looked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
import structlog
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from connectors.gateway import http
from connectors.gateway.http import conversation_id, json_response, need_operator, number
from connectors.gateway.journal_pages import JournalPage, Placed
from connectors.gateway.operate import standing
from connectors.gateway.operator_api import PREFIX
from connectors.gateway.ports import ConversationInfo, ListQuery
from connectors.gateway.protocol.errors import ProtocolError
from connectors.gateway.protocol.parse import MAX_ID
from connectors.gateway.protocol.render import iso
from streams.core.events import ConversationErased
from streams.sealing.records import FRAME_WORDS, TURN_WORDS, blanked, reason_of

if TYPE_CHECKING:
    from connectors.gateway.gateway import Gateway

log = structlog.get_logger(__name__)

PAGE: Final = 50
PAGE_MAX: Final = 200
EVENTS: Final = 500
EVENTS_MAX: Final = 1_000
STATUSES: Final = frozenset({"open", "closed"})
TEXT_SHOWN: Final = "text_shown"
"""`action` of the journal's `OperatorActed`."""
WORDS: Final = frozenset({*TURN_WORDS, *FRAME_WORDS, "resume", "raw"})
"""Fields of events, and of the turns and frames in them, that hold what people and agents may write freely; of an event
of a later release, all of it may."""
OFFSET_MAX: Final = 10**18 - 1


def routes(gateway: Gateway) -> list[Route]:
    """The routes of operators who look."""
    one = f"{PREFIX}/conversations/{{conversation_id}}"
    return [
        http.route(gateway, f"{PREFIX}/me", me),
        http.route(gateway, f"{PREFIX}/conversations", search),
        http.route(gateway, one, show),
        http.route(gateway, f"{one}/events", events),
        http.route(gateway, f"{PREFIX}/members", members),
        http.route(gateway, f"{PREFIX}/partitions", partitions),
    ]


async def me(gateway: Gateway, request: Request) -> Response:
    """Whose token it is."""
    return json_response({"name": await need_operator(gateway, request)})


async def search(gateway: Gateway, request: Request) -> Response:
    """A page of conversations, the latest activity first."""
    await need_operator(gateway, request)
    status = _asked(request, "status")
    if status is not None and status not in STATUSES:
        raise ProtocolError("bad_request", f"status: one of {', '.join(sorted(STATUSES))}")
    query = ListQuery(
        limit=number(request, "limit", PAGE, low=1, high=PAGE_MAX),
        cursor=_asked(request, "cursor"),
        status=status,
        channel=_asked(request, "channel"),
        named=_asked(request, "q"),
    )
    found, cursor = await gateway.read_model.conversations(query)
    return json_response({"conversations": [_glance(info) for info in found], "next": cursor})


async def show(gateway: Gateway, request: Request) -> Response:
    """One conversation: where it lies, who owns it, what runs."""
    await need_operator(gateway, request)
    info = await gateway.conversation(conversation_id(request))
    return json_response(_glance(info) | await standing(gateway, info.id))


async def events(gateway: Gateway, request: Request) -> Response:
    """A page of the conversation's journal, in order."""
    by = await need_operator(gateway, request)
    limit = number(request, "limit", EVENTS, low=1, high=EVENTS_MAX)
    offset = number(request, "offset", -1, low=0, high=OFFSET_MAX)
    shown, why = request.query_params.get("showText") == "1", _asked(request, "why") or ""
    info = await gateway.conversation(conversation_id(request))
    partition = gateway.partition_of(info.id)
    if shown:
        # Before anything is shown: what nobody can find written down was not shown.
        log.info("an operator is shown what was said", operator=by, conversation=info.id)
        await gateway.commands.note_action(partition, action=TEXT_SHOWN, subject=info.id, by=by, reason=why)
    page = await gateway.pages.page(
        partition,
        info.id,
        offset=offset if offset >= 0 else None,
        since_ms=info.opened_at,
        limit=limit,
        opened=shown,
    )
    if shown and _is_erased(info, page):
        # What nobody had sealed cannot be shredded, but need not be shown.
        page = replace(page, found=[replace(each, entry=blanked(each.entry)) for each in page.found])
    return json_response({"conversation": info.id, "partition": partition, **_page(page, shown=shown)})


async def members(gateway: Gateway, request: Request) -> Response:
    """Every member that some partition knows."""
    await need_operator(gateway, request)
    found = [msgspec.to_builtins(member) for member in await gateway.read_model.members()]
    return json_response({"members": found, "partitions": gateway.intake.partitions})


async def partitions(gateway: Gateway, request: Request) -> Response:
    """Who writes each partition, at which epoch, how far it is, and how far the read model is behind it."""
    await need_operator(gateway, request)
    leases = {lease.partition: lease for lease in await gateway.read_model.leases()}
    found = []
    for partition in range(gateway.intake.partitions):
        lease, head = leases.get(partition), gateway.recent.last_lsn(partition)
        known = (await gateway.read_model.position(partition)).lsn
        found.append(
            {
                "partition": partition,
                "worker": None if lease is None else lease.worker,
                "writer_epoch": 0 if lease is None else lease.writer_epoch,
                "live": lease is not None and lease.live,
                "expires_in_ms": 0 if lease is None else lease.expires_in_ms,
                "head_lsn": head,
                "read_model_lsn": known,
                "lag": max(0, head - known),
            }
        )
    return json_response({"partitions": found})


def _asked(request: Request, name: str) -> str | None:
    """A word of the query string; None where it is empty or not there."""
    value = request.query_params.get(name, "").strip()
    if len(value) > MAX_ID or "\0" in value:
        raise ProtocolError("bad_request", f"{name}: at most {MAX_ID} characters, and no NUL")
    return value or None


def _glance(info: ConversationInfo) -> dict[str, Any]:
    return {
        "id": info.id,
        "status": info.status,
        "channel": info.channel,
        "participant": info.participant,
        "external_id": info.external_id,
        "head_seq": info.head_seq,
        "opened_at": iso(info.opened_at),
        "updated_at": iso(info.updated_at),
    }


def _is_erased(info: ConversationInfo, page: JournalPage) -> bool:
    """By the read model, which may be behind what lies on the page."""
    return info.erased or any(isinstance(each.entry.event, ConversationErased) for each in page.found)


def _page(page: JournalPage, *, shown: bool) -> dict[str, Any]:
    return {
        "events": [_event(each, shown=shown) for each in page.found],
        "next": page.next,
        "first": page.first,
        "end": page.end,
        "done": page.next >= page.end,
    }


def _event(placed: Placed, *, shown: bool) -> dict[str, Any]:
    entry = placed.entry
    fields = _told(msgspec.to_builtins(entry.event))
    for told in ("seq", "conversation_id"):
        fields.pop(told, None)
    masked: dict[str, int] = {}
    if not shown:
        fields = _masked(fields, masked, "")
        if (why := reason_of(entry.event)) in fields:
            masked[why] = len(fields.pop(why))
    return {
        "offset": placed.offset,
        "lsn": entry.lsn,
        "seq": entry.event.seq,
        "at": iso(entry.timestamp),
        "writer_epoch": entry.writer_epoch,
        "type": type(entry.event).__name__,
        "fields": fields,
        "masked": masked,
    }


def _told(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields without those that are empty."""
    return {name: _told(value) if isinstance(value, dict) else value for name, value in fields.items() if value}


def _masked(fields: dict[str, Any], masked: dict[str, int], before: str) -> dict[str, Any]:
    """The fields without their words, whose lengths are added to `masked`."""
    kept: dict[str, Any] = {}
    for name, value in fields.items():
        if name in WORDS:
            masked[f"{before}{name}"] = len(value)
        else:
            kept[name] = _masked(value, masked, f"{before}{name}.") if isinstance(value, dict) else value
    return kept
