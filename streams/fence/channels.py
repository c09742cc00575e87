"""Channels and routes: one versioned document, checked where it is written, kept in Postgres, broadcast by gateways.

What a person writes (a YAML or JSON file) is the document without its version; the store numbers what is applied.
Nothing in it is secret: secrets are in `credentials.py`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any, Self

from psycopg import AsyncConnection
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from streams.fence.connection import Session
from streams.fence.lease import CALL_LIMIT_S
from streams.fence.middleware import Steps
from streams.fence.queries import load_queries

QUERIES = load_queries("streams.fence", "channels.sql")

# Groups are named `<channel>/<group>` and `<channel>/~<member>`: a channel's id has neither `/` nor `~`.
CHANNEL_ID = r"^[a-z0-9][a-z0-9._-]{0,63}$"
ChannelId = Annotated[str, Field(pattern=CHANNEL_ID)]
# As an agent's `hello` may name it.
GROUP_NAME = r"^[^/~][^/]{0,63}$"
GroupName = Annotated[str, Field(pattern=GROUP_NAME)]
HOUR_MS = 60 * 60 * 1000
DAYS_MOST = 36_500


class ChannelKind(StrEnum):
    """What connects to a channel. Agents connect to `websocket` channels; all others are people's."""

    WEB = "web"
    WEBSOCKET = "websocket"
    WEBHOOK = "webhook"
    TELEGRAM = "telegram"
    WHATSAPP = "whatsapp"
    SLACK = "slack"
    API = "api"
    """Programs that call agents."""


class Ungrouped(StrEnum):
    """Connections without a group: they share one, or each gets every turn."""

    SHARED = "shared"
    EACH = "each"


class OnOwnerLoss(StrEnum):
    """What becomes of an open run whose member goes away."""

    CONTINUE = "continue"
    """The new owner goes on where it stopped, if it can; else `restart`. What happens where nothing is said."""
    RESTART = "restart"
    FAIL = "fail"


class Policy(StrEnum):
    """What becomes of a turn during a run of the same conversation and group. Invocations: `reject` where it would be
    `deliver`."""

    DELIVER = "deliver"
    ENQUEUE = "enqueue"
    REJECT = "reject"
    INTERRUPT = "interrupt"


class Busy(StrEnum):
    """What becomes of a turn that every member of its group refused."""

    WAIT = "wait"
    REFUSE = "refuse"


class Unassigned(StrEnum):
    """What becomes of a turn while its channel has no member; `wait`: for `wait_ms`, 0 for ever."""

    WAIT = "wait"
    REFUSE = "refuse"


class Replies(StrEnum):
    """Where answers are shown beside the conversation's own channel: in all that it is routed to, or only where what
    they answer came from."""

    ALL = "all"
    ORIGIN = "origin"


class Sees(StrEnum):
    """Which of the conversations that are routed to a channel its people see: those of the same person, or all."""

    PARTICIPANT = "participant"
    ALL = "all"


class InvalidDocument(ValueError):
    """A document that breaks rules: one line each, naming the field and the rule."""


class VersionConflict(Exception):
    """Somebody else applied a document in between; the message names both versions."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True, populate_by_name=True)


class GroupSettings(_Strict):
    """What differs for one group of a channel. Durations in milliseconds; None: as the channel has it."""

    policy: Policy | None = None
    busy: Busy | None = None
    on_owner_loss: OnOwnerLoss | None = None
    watchdog_ms: int | None = Field(None, ge=1_000, le=24 * HOUR_MS)
    deadline_ms: int | None = Field(None, ge=0, le=24 * HOUR_MS)


class Channel(_Strict):
    """One channel. Durations in milliseconds; the agents' settings have no meaning for people's channels."""

    id: ChannelId
    kind: ChannelKind
    active: bool = True
    group_settle_ms: int = Field(1_000, ge=0, le=60_000)
    ungrouped: Ungrouped = Ungrouped.SHARED
    on_owner_loss: OnOwnerLoss | None = None
    adopt_ms: int = Field(5_000, ge=0, le=HOUR_MS)
    watchdog_ms: int = Field(300_000, ge=1_000, le=24 * HOUR_MS)
    begin_ms: int = Field(0, ge=0, le=24 * HOUR_MS)
    wait_ms: int = Field(0, ge=0, le=30 * 24 * HOUR_MS)
    unassigned: Unassigned = Unassigned.WAIT
    interrupt_ttl_ms: int = Field(24 * HOUR_MS, ge=1_000, le=30 * 24 * HOUR_MS)
    deadline_ms: int = Field(0, ge=0, le=24 * HOUR_MS)
    policy: Policy = Policy.DELIVER
    max_waiting: int = Field(100, ge=1, le=10_000)
    busy: Busy = Busy.WAIT
    grace_ms: int = Field(30_000, ge=0, le=HOUR_MS)
    sees: Sees = Sees.PARTICIPANT
    groups: dict[GroupName, GroupSettings] = {}
    middleware: Steps = ()
    retain_days: int | None = Field(None, ge=1, le=DAYS_MOST, strict=True)
    """Its conversations are erased once nothing was said in them for so many days; None: never."""

    @model_validator(mode="after")
    def _changes_what_people_see(self) -> Self:
        if self.middleware and self.kind is ChannelKind.WEBSOCKET:
            raise ValueError("middleware: it is of people's channels, what agents are given is not changed")
        return self


class Route(_Strict):
    """Conversations of channel `from`: their turns are given to the agents of the websocket channels among `to`; people
    of the others are shown them, and write in them. Where `from` is itself a websocket channel, its agents open these
    conversations, follow them and write in them, and are given no turns of them."""

    from_: ChannelId = Field(alias="from")
    to: tuple[ChannelId, ...] = Field(min_length=1)
    replies: Replies = Replies.ALL


class ChannelDocument(_Strict):
    """All channels and routes. Equal documents are equal whatever the order that their fields were written in."""

    channels: tuple[Channel, ...] = Field(min_length=1)
    routes: tuple[Route, ...] = ()

    @model_validator(mode="after")
    def _names_fit(self) -> Self:
        kinds = {channel.id: channel.kind for channel in self.channels}
        _refuse_repeats("channels", [channel.id for channel in self.channels])
        _refuse_repeats("routes", [route.from_ for route in self.routes])
        for route in self.routes:
            _refuse_repeats(f"route from {route.from_}", list(route.to))
            for name in (route.from_, *route.to):
                if name not in kinds:
                    raise ValueError(f"routes: channel {name} is not in channels")
            if route.from_ in route.to:
                raise ValueError(f"routes: from {route.from_}: to {route.from_}: a channel is not routed to itself")
        return self

    def channel(self, name: str) -> Channel | None:
        """The channel of that id, if there is one."""
        return next((channel for channel in self.channels if channel.id == name), None)

    def retained(self) -> dict[str, int]:
        """Channels that do not keep their conversations for ever, each with its `retain_days`."""
        return {channel.id: channel.retain_days for channel in self.channels if channel.retain_days is not None}

    def plain(self) -> dict[str, Any]:
        """As JSON-ready values, every default written out."""
        return self.model_dump(mode="json", by_alias=True)


class Versioned(_Strict):
    """A document as it was applied."""

    version: int
    document: ChannelDocument

    def broadcast(self) -> str:
        """The JSON that `ConfigChanged.document` carries: the document with its version."""
        return json.dumps({"version": self.version, **self.document.plain()}, separators=(",", ":"))


def parse_document(raw: object) -> ChannelDocument:
    """The document in what a YAML or JSON file holds. Raises `InvalidDocument` that names each field and its rule."""
    if not isinstance(raw, Mapping):
        raise InvalidDocument("the document must be an object with `channels` and `routes`")
    try:
        # `version` is the store's: a document that was listed can be edited and applied as it is.
        return ChannelDocument.model_validate({key: value for key, value in raw.items() if key != "version"})
    except ValidationError as error:
        raise InvalidDocument("\n".join(map(_explained, _independent(error.errors())))) from None


def changes(old: ChannelDocument | None, new: ChannelDocument) -> Sequence[str]:
    """What applying `new` over `old` changes, a line each: `+` added, `-` removed, `~` changed. Empty: nothing."""
    before, after = _flat(old), _flat(new)
    lines = [f"- {name}" for name in before if name not in after]
    for name, fields in after.items():
        known = before.get(name)
        if known is None:
            lines.append(f"+ {name} {_shown(fields)}")
        elif known != fields:
            differing = {key: value for key, value in fields.items() if known[key] != value}
            lines += [f"~ {name}: {key} {_shown(known[key])} → {_shown(value)}" for key, value in differing.items()]
    return lines


class ChannelStore:
    """The document's versions in Postgres. Raises `FenceUnavailable` when it cannot be reached."""

    def __init__(self, dsn: str) -> None:
        self._session = Session(dsn, "channels", limit_s=CALL_LIMIT_S)

    async def close(self) -> None:
        """Close the connection."""
        await self._session.close()

    async def current(self) -> Versioned | None:
        """The document in force; None: never one."""
        return await self._session.run(_current)

    async def apply(self, document: ChannelDocument, *, over: int | None = None) -> Versioned:
        """Make it the current one and return it with its version; the version stays when nothing differs.

        `over`: the version that the caller looked at (0: none); another one in force raises `VersionConflict`.
        """

        async def apply(connection: AsyncConnection[Any]) -> Versioned:
            async with connection.transaction():
                await connection.execute(QUERIES["lock_documents"])
                current = await _current(connection)
                version = 0 if current is None else current.version
                if over is not None and over != version:
                    raise VersionConflict(f"version {version} is in force, not {over}: look at it and apply again")
                if current is not None and current.document == document:
                    return current
                parameters = {"version": version + 1, "document": json.dumps(document.plain())}
                await connection.execute(QUERIES["store_document"], parameters)
                return Versioned(version=version + 1, document=document)

        return await self._session.run(apply)


async def _current(connection: AsyncConnection[Any]) -> Versioned | None:
    row = await (await connection.execute(QUERIES["current_document"])).fetchone()
    if row is None:
        return None
    # A newer release may have stored fields that this one does not know.
    return Versioned(version=row[0], document=ChannelDocument.model_validate(row[1], extra="ignore"))


def _refuse_repeats(where: str, names: Sequence[str]) -> None:
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise ValueError(f"{where}: {', '.join(repeated)} more than once")


def _independent(problems: Sequence[Any]) -> Sequence[Any]:
    """Without what only follows from others: a list all of whose entries are wrong is called empty besides."""
    return [
        problem
        for problem in problems
        if problem["type"] != "too_short"
        or not any(other["loc"][:-1][: len(problem["loc"])] == problem["loc"] for other in problems)
    ]


def _explained(problem: Any) -> str:
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in problem["loc"]).lstrip(".")
    rule = "must not be empty" if problem["type"] == "too_short" else str(problem["msg"]).removeprefix("Value error, ")
    return f"{path}: {rule}" if path else rule


def _flat(document: ChannelDocument | None) -> dict[str, dict[str, Any]]:
    if document is None:
        return {}
    plain = document.plain()
    named = {f"channel {channel['id']}": channel for channel in plain["channels"]}
    return named | {f"route from {route['from']}": route for route in plain["routes"]}


def _shown(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
