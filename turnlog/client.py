"""A person's side: open a conversation, say something once, see everything once.

async with Client("https://gateway.example", channel_secret=secret, user="ana") as client:
    conversation = await client.open()
    await conversation.send("Where is my order?", key="order-question-1")
    async for message in conversation.messages():
        print(message.role, message.text)
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any
from urllib.parse import quote
from weakref import WeakSet

import httpx

from turnlog.errors import Unauthorized
from turnlog.http import Http
from turnlog.live import Live
from turnlog.seen import Ask
from turnlog.tokens import FixedToken, SecretToken, Token, TokenSource, checked, token_in
from turnlog.traced import carried
from turnlog.viewer import Frames, Messages
from turnlog.wire import API_PATH, base_url

TOKEN_MARGIN_S = 30.0


@dataclass(frozen=True, slots=True)
class Sent:
    """A message that is in the conversation's log."""

    id: str
    key: str
    """The idempotency key it was sent with."""


@dataclass(frozen=True, slots=True)
class Activity:
    """One stored message, as the REST history shows it."""

    id: str
    type: str
    sender: str
    text: str | None
    raw: dict[str, Any] = field(repr=False)
    edited_at: str | None = None
    """When its person last edited it, ISO 8601; None: never."""


class Client:
    """One end user of a channel. One credential: the channel's secret (on a server only), or a `token`.

    A gateway that cannot just now says when to ask again: that is done for `budget` seconds, with the same idempotency
    key. Any other failure is raised at once, and it is the caller's to say it again, with the same key. `insist`: go on
    trying for `budget` seconds in either case.
    """

    def __init__(
        self,
        url: str,
        *,
        channel_secret: str | None = None,
        token: str | None = None,
        user: str | None = None,
        budget: float = 30.0,
        insist: bool = False,
    ) -> None:
        if (channel_secret is None) == (token is None):
            raise ValueError("pass exactly one of channel_secret and token")
        self.url = base_url(url)
        self._tokens: TokenSource = (
            FixedToken(token) if token is not None else SecretToken(channel_secret or "", user=user)
        )
        self._http = Http(self.url, budget=budget, insist=insist)
        self._streams: WeakSet[Frames] = WeakSet()
        self._sockets: list[Live] = []
        self._budget = budget

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close its connections, and with them the frames and messages that are being read."""
        for frames in list(self._streams):
            await frames.aclose()
        for live in self._sockets:
            await live.close()
        self._sockets.clear()
        await self._http.close()

    async def open(self, *, key: str | None = None) -> Conversation:
        """A new conversation. Repeating with the same `key` gives the same one."""
        token = await self._tokens.get(self.url)
        response = await self.request(
            "POST", f"{API_PATH}/conversations", token, headers={"X-Idempotency-Key": key or uuid.uuid4().hex}
        )
        return Conversation(self, str(checked(response)["conversationId"]), token_in(response))

    async def conversation(self, conversation: str) -> Conversation:
        """One that exists. Raises `ConversationNotFound`."""
        return Conversation(self, conversation, await self.token_for(conversation))

    async def token_for(self, conversation: str) -> Token:
        """A token bound to the conversation."""
        token = await self._tokens.get(self.url)
        path = f"{API_PATH}/conversations/{quote(conversation, safe='')}"
        return token_in(await self.request("GET", path, token))

    async def request(
        self,
        method: str,
        path: str,
        token: Token,
        *,
        headers: Mapping[str, str] | None = None,
        json: Mapping[str, Any] | None = None,
        params: Mapping[str, str | int] | None = None,
    ) -> httpx.Response:
        """A request that is safe to repeat (a read, or keyed), repeated within the budget; a 2xx answer."""
        sent = {"Authorization": f"Bearer {token.value}", **(headers or {})}
        return await self._http.request(method, path, headers=sent, json=json, params=params)

    def live(self, tokens: TokenSource, conversation: str, *, seen: int) -> Live:
        """A conversation's socket; closed with this client."""
        live = Live(self.url, tokens, conversation, seen=seen, budget=self._budget)
        self._sockets.append(live)
        return live

    def frames(self, path: str, token: Callable[[], Awaitable[Token]], *, after: int) -> Frames:
        """What a viewer sees of an event stream; closed with this client."""

        async def connect(seen: int) -> httpx.Response:
            headers = {"Accept": "text/event-stream", "Authorization": f"Bearer {(await token()).value}"}
            if seen:
                headers["Last-Event-ID"] = str(seen)
            return await self._http.stream(path, headers=headers)

        frames = Frames(connect, after=after)
        self._streams.add(frames)
        return frames


class _Bound:
    """A conversation's own token, as a socket wants it."""

    renewable = True

    def __init__(self, good: Callable[[], Awaitable[Token]]) -> None:
        self._good = good

    async def get(self, url: str) -> Token:  # noqa: ARG002 - the protocol's signature
        return await self._good()


class Conversation:
    """One conversation, seen and spoken in by its user."""

    def __init__(self, client: Client, id: str, token: Token) -> None:  # noqa: A002 - its name everywhere
        self._client = client
        self.id = id
        self._token = token
        self._socket: Live | None = None

    async def send(
        self,
        text: str,
        *,
        key: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        reply_to: str | None = None,
        traceparent: str | None = None,
    ) -> Sent:
        """Say something; returns once it is committed. Stored once per `key`, however often it is sent.

        `traceparent`: the trace that it is of (W3C trace context); None: that of the caller's span, where its program
        uses OpenTelemetry.
        """
        key = key or uuid.uuid4().hex
        body: dict[str, Any] = {"type": "message", "text": text}
        if metadata:
            body["channelData"] = dict(metadata)
        if reply_to:
            body["replyToId"] = reply_to
        headers = {"X-Idempotency-Key": key, **carried(traceparent)}
        response = await self._request("POST", "/activities", headers=headers, json=body)
        return Sent(id=str(checked(response)["id"]), key=key)

    async def activities(self, *, after: int = 0, limit: int = 100) -> list[Activity]:
        """The stored messages after a watermark, oldest first."""
        response = await self._request("GET", "/activities", params={"watermark": after, "limit": limit})
        return [
            Activity(
                str(each["id"]),
                str(each["type"]),
                str(each["from"]["id"]),
                each.get("text"),
                each,
                each.get("editedAt"),
            )
            for each in checked(response)["activities"]
        ]

    # ------------------------------------------------------------------------------------ what is no message
    async def asks(self) -> tuple[Ask, ...]:
        """The agent's questions that are open now."""
        return await (await self._live()).asks()

    async def answer(self, answers: Mapping[str, Any], *, key: str | None = None) -> None:
        """Answer questions, by their ids; returns once that is in the log.

        A message answers too (`send`, with `reply_to` where several questions are open). Raises `NotInterrupted` when
        none of them is open, `IncompleteResume` when another question of the same run is left out.
        """
        await (await self._live()).say({"type": "resume", "answers": dict(answers)}, key=key)

    async def abort(self, *, key: str | None = None) -> None:
        """Call off what agents are answering."""
        await (await self._live()).say({"type": "abort"}, key=key)

    async def edit(self, message: str, text: str, *, key: str | None = None) -> None:
        """Replace one's own latest message (`Sent.id`), which is then answered anew. Raises `Conflict` for another."""
        frame = {"type": "edit", "messageId": message, "data": {"text": text}}
        await (await self._live()).say(frame, key=key)

    async def regenerate(self, message: str, *, key: str | None = None) -> None:
        """Have the latest message answered anew. `message`: its id, or its answer's."""
        await (await self._live()).say({"type": "regenerate", "messageId": message}, key=key)

    async def survey(self, *, rating: float | None = None, comment: str | None = None, key: str | None = None) -> None:
        """Say how it was."""
        given = {name: value for name, value in (("rating", rating), ("comment", comment)) if value is not None}
        await (await self._live()).say({"type": "survey", **given}, key=key)

    async def typing(self, typing: bool = True) -> None:
        """Show, or hide, that one writes. It may get lost."""
        await (await self._live()).show({"type": "typing", "isTyping": typing})

    async def read(self, seq: int) -> None:
        """Say that everything up to `seq` was read. It may get lost."""
        await (await self._live()).show({"type": "read", "watermark": seq})

    async def happened(
        self, stream: str, event: str, payload: Any = None, *, component: str | None = None, key: str | None = None
    ) -> None:
        """Tell the agent what the person did to a component that it showed. `stream`: `seen.Shown.stream`.

        Raises `BotUnavailable` when no agent is there to be told; so do the next two.
        """
        frame: dict[str, Any] = {"type": "genui_event", "streamId": stream, "eventType": event, "payload": payload}
        await (await self._live()).say(frame | ({"component": component} if component is not None else {}), key=key)

    async def offer_tools(self, tools: Sequence[Mapping[str, Any]], *, key: str | None = None) -> None:
        """Tell the agent which tools this client runs for it: `{name, description?, parameters?}` each."""
        await (await self._live()).say({"type": "client_tools", "tools": [dict(each) for each in tools]}, key=key)

    async def offer_skills(self, skills: Sequence[Mapping[str, Any]], *, key: str | None = None) -> None:
        """Tell the agent which skills this client has: `{name, description, instructions}` each."""
        await (await self._live()).say({"type": "client_skills", "skills": [dict(each) for each in skills]}, key=key)

    async def frame(self, frame: Mapping[str, Any]) -> None:
        """Send any other frame that a person's client may. It may get lost."""
        await (await self._live()).show(frame)

    async def _live(self) -> Live:
        if self._socket is None:
            path = f"/v1/conversations/{quote(self.id, safe='')}"
            head = checked(await self._client.request("GET", path, await self._good_token())).get("head_seq")
            if self._socket is None:
                seen = head if isinstance(head, int) else 0
                self._socket = self._client.live(_Bound(self._good_token), self.id, seen=seen)
        return self._socket

    # -------------------------------------------------------------------------------------------------- its life
    async def end(self) -> None:
        """Close the conversation."""
        await self._request("POST", "/close")

    async def reopen(self) -> None:
        """Take messages again."""
        await self._request("POST", "/reopen")

    def frames(self, *, after: int = 0) -> Frames:
        """Everything that a viewer gets, numbered frames after `after` each once and in order, without end; each says
        what it is as `viewed.seen` (`turnlog.seen`).

        Reconnects by itself and goes on behind the last number seen, with a fresh token when its own is about to end.
        Raises `Unauthorized` when none can be had.
        """
        path = f"/v1/conversations/{quote(self.id, safe='')}/stream"
        return self._client.frames(path, self._good_token, after=after)

    def messages(self, *, after: int = 0) -> Messages:
        """Whole messages: streamed answers joined, those of a lost owner left out; edited ones again."""
        return Messages(self.frames(after=after), after=after)

    async def _request(self, method: str, path: str, **arguments: Any) -> httpx.Response:
        full = f"{API_PATH}/conversations/{quote(self.id, safe='')}{path}"
        token = await self._good_token()
        try:
            return await self._client.request(method, full, token, **arguments)
        except Unauthorized as error:
            if error.code != "token_expired":
                raise
            self._token = await self._client.token_for(self.id)
            return await self._client.request(method, full, self._token, **arguments)

    async def _good_token(self) -> Token:
        """Its token, or a fresh one when that is about to end."""
        if self._token.expires is not None and self._token.expires - time.monotonic() < TOKEN_MARGIN_S:
            self._token = await self._client.token_for(self.id)
        return self._token
