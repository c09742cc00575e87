"""Another agent as a function: invoke it, follow it, call it off.

    async with AgentProxy("https://gateway.example", "agents/research", channel_secret=secret) as research:
        record = await research.invoke("What is new in Kafka 4?")
        print(record.text)

An invocation is durable: it is in the log before `submit` returns, and its record can be read by its id from anywhere,
later too. Its id is accepted once in its thread, so that nothing is executed twice because a caller asked twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import httpx

from turnlog.credentials import Credentials
from turnlog.errors import (
    AgentBusy,
    BotUnavailable,
    Busy,
    ConversationNotFound,
    InvocationNotFound,
    SubmissionUncertain,
    TurnlogError,
    Unauthorized,
    Unavailable,
)
from turnlog.following import follow
from turnlog.http import Http, NoAnswer, NotSent, Tries
from turnlog.invocations import Event, Page, Record, page_in, record_in
from turnlog.portal import Portal
from turnlog.submission import Options, deadline_ms, submission
from turnlog.tokens import checked
from turnlog.traced import carried
from turnlog.wire import base_url

if TYPE_CHECKING:
    from langchain_core.tools import StructuredTool

WAIT_S = 30.0
"""How long one request waits for an invocation's end; then the next one does."""
MARGIN_S = 15.0
"""By how much a request may last longer than it asked the gateway to wait."""
CANCEL_S = 5.0
"""How long a caller that was cancelled itself takes to say so."""
_NOT_TAKEN = frozenset({"unavailable", "rate_limited"})
"""Answers after which the log does not have what was submitted."""
USER = "agent-proxy"
"""Whose the threads are, of a proxy that is told no user."""


class AgentProxy:
    """One agent, called by this process.

    `agent`: its channel, or `channel/group`. One credential: the secret of a channel that is routed to the agent's
    (`channel_secret`), a `token`, `get_token`, or a tenant's `api_key`. `user`: whose the threads are; a thread is open
    to that user only (and to API keys).

    `deadline`: seconds that an invocation may take, 1 to 3600; 0: as long as it says something now and then; None: the
    gateway's 300. `policy`: what becomes of one whose thread is busy: `reject` (`ConversationBusy`), `enqueue` or
    `interrupt`; None: what the agent's group says. `retry`: it may be executed again when its process is lost.
    `budget`: seconds to go on trying, where that is safe, when the gateway cannot just now or is not there; the first
    failure is logged as a warning. Then `Unavailable` is raised, or `SubmissionUncertain` where a submit got lost.
    """

    def __init__(
        self,
        url: str,
        agent: str,
        *,
        channel_secret: str | None = None,
        token: str | None = None,
        get_token: Callable[[], Awaitable[str]] | None = None,
        api_key: str | None = None,
        user: str = USER,
        deadline: float | None = None,
        policy: str | None = None,
        retry: bool = False,
        budget: float = 30.0,
    ) -> None:
        if not agent:
            raise ValueError("agent: name its channel, or channel/group")
        deadline_ms(deadline)
        self._options = Options(base_url(url), agent, user, deadline, policy, retry, budget)
        self._credentials = Credentials(
            self._options.url, user, channel_secret=channel_secret, token=token, get_token=get_token, api_key=api_key
        )
        self._http = Http(self._options.url, budget=budget)
        self._once_only = threading.Lock()
        self._portal: Portal | None = None
        self._sync: AgentProxy | None = None
        """The one that serves callers without an event loop, in the portal's."""

    @property
    def agent(self) -> str:
        """`channel` or `channel/group`."""
        return self._options.agent

    async def __aenter__(self) -> AgentProxy:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close its connections. What was invoked goes on; who waits for it here is told so: `Unavailable`, or
        `SubmissionUncertain` where it is not known whether it was accepted."""
        await self._http.close()
        if self._portal is not None and self._sync is not None:
            portal, sync = self._portal, self._sync
            self._portal = self._sync = None
            await asyncio.to_thread(portal.run, sync.close())
            await asyncio.to_thread(portal.close)

    def duplicate(
        self,
        *,
        agent: str | None = None,
        user: str | None = None,
        deadline: float | None = None,
        policy: str | None = None,
        retry: bool | None = None,
        budget: float | None = None,
    ) -> AgentProxy:
        """Another one with the same credential and connections of its own (for another event loop, say).

        What is named here is different; the rest as it is.
        """
        deadline_ms(deadline)
        named = {"agent": agent, "user": user, "deadline": deadline, "policy": policy, "retry": retry, "budget": budget}
        changed = {name: value for name, value in named.items() if value is not None}
        twin = object.__new__(AgentProxy)
        twin._options = replace(self._options, **changed)  # type: ignore[arg-type]
        twin._credentials = self._credentials.duplicate(twin._options.user)
        twin._http = Http(twin._options.url, budget=twin._options.budget)
        twin._once_only = threading.Lock()
        twin._portal = twin._sync = None
        return twin

    # ------------------------------------------------------------------------------------------------- calling
    async def invoke(
        self,
        text: str | None = None,
        *,
        data: Mapping[str, Any] | None = None,
        thread: str | None = None,
        id: str | None = None,  # noqa: A002 - its name everywhere
        deadline: float | None = None,
        traceparent: str | None = None,
    ) -> Record:
        """Call the agent and return how it ended. Raises what it ended with, when that was no success.

        `thread`: a conversation that goes on from call to call, one call at a time; None: a new one. A caller that is
        cancelled itself cancels the invocation. `traceparent`: the trace that it is of (W3C trace context); None:
        that of the caller's span, where its program uses OpenTelemetry.
        """
        thread, id = thread or _new_id(), id or _new_id()  # noqa: A001
        async with self._called_off_with_caller(thread, id):
            record = await self.submit(
                text, data=data, thread=thread, id=id, deadline=deadline, wait=WAIT_S, traceparent=traceparent
            )
            while not record.ended:
                record = await self.status(record.thread, record.id, wait=WAIT_S)
        return record.succeeded()

    async def stream_invoke(
        self,
        text: str | None = None,
        *,
        data: Mapping[str, Any] | None = None,
        thread: str | None = None,
        id: str | None = None,  # noqa: A002 - its name everywhere
        deadline: float | None = None,
        traceparent: str | None = None,
    ) -> AsyncGenerator[Event, None]:
        """Call the agent and give each event as it is stored. Raises, behind the last one, what it ended with.

        Breaking off the loop and closing the generator cancels the invocation.
        """
        thread, id = thread or _new_id(), id or _new_id()  # noqa: A001
        async with self._called_off_with_caller(thread, id):
            await self.submit(
                text, data=data, thread=thread, id=id, deadline=deadline, streamed=True, traceparent=traceparent
            )
            async for event in self.events(thread, id):
                yield event
            record = await self.status(thread, id)
        record.succeeded()

    def invoke_sync(self, text: str | None = None, **how: Any) -> Record:
        """As `invoke`, for callers without an event loop."""
        portal, proxy = self._in_portal()
        return portal.run(proxy.invoke(text, **how))

    async def submit(
        self,
        text: str | None = None,
        *,
        data: Mapping[str, Any] | None = None,
        thread: str | None = None,
        id: str | None = None,  # noqa: A002 - its name everywhere
        deadline: float | None = None,
        streamed: bool = False,
        wait: float = 0,
        traceparent: str | None = None,
    ) -> Record:
        """Have it accepted, and return its record; `wait`: its end, for at most so many seconds (60).

        The same input under the same `id` gives the record of the first time; another input raises
        `InvocationConflict`. Raises `ConversationBusy`, `AgentBusy`, `AgentUnavailable`, and `SubmissionUncertain` when
        no answer came and the record is not there to be read.
        """
        thread, id = thread or _new_id(), id or _new_id()  # noqa: A001
        body = submission(self._options, id, text, data, deadline, streamed=streamed, wait=wait)
        if self._credentials.is_key:
            body["sender"] = self._options.user
        trace = carried(traceparent)
        tries = Tries(self._options.budget, insist=True)
        while True:
            try:
                response = await self._once("POST", _path(thread), more=trace, json=body, timeout=MARGIN_S + wait)
                return record_in(checked(response))
            except NotSent as error:
                await tries.wait(error)
            except NoAnswer as error:
                return await self._looked_up(thread, id, error)
            except (Busy, AgentBusy, BotUnavailable):
                raise  # when to come again is the caller's to decide
            except Unavailable as error:
                if error.retry_after is None or error.code not in _NOT_TAKEN:
                    return await self._looked_up(thread, id, error)
                await tries.wait(error)

    async def _looked_up(self, thread: str, id: str, failure: Unavailable) -> Record:  # noqa: A002
        """The record of one whose submit got no answer: it is not sent again."""
        tries = Tries(self._options.budget, insist=True)
        while True:
            try:
                return await self.status(thread, id)
            except InvocationNotFound:
                waiting = failure
            except Unavailable as error:
                waiting = error
            try:
                await tries.wait(waiting)
            except Unavailable as error:
                raise SubmissionUncertain(
                    f"invocation {id} of thread {thread}: no answer to its submit ({failure}), and no record of it so"
                    " far; it may be accepted still",
                    thread=thread,
                    id=id,
                ) from error

    # ------------------------------------------------------------------------------------------------- looking
    async def status(self, thread: str, id: str, *, wait: float = 0) -> Record:  # noqa: A002
        """Its record; `wait`: once it has ended, or after so many seconds. Raises `InvocationNotFound`."""
        params = {"wait": round(wait * 1000)} if wait else {}
        response = await self._read("GET", _path(thread, id), params=params, timeout=MARGIN_S + wait)
        return record_in(checked(response))

    async def claim(self, thread: str) -> Record | None:
        """The invocation that the thread is busy with, if any."""
        body = checked(await self._read("GET", f"/v1/threads/{quote(thread, safe='')}"))
        claim = body.get("claim")
        return record_in(claim) if isinstance(claim, dict) else None

    async def page(self, thread: str, id: str, *, after: int = 0, limit: int = 100) -> Page:  # noqa: A002
        """Its events behind the `after`th, at most `limit` (500)."""
        params = {"after": after, "limit": limit}
        return page_in(checked(await self._read("GET", _path(thread, id, "/events"), params=params)))

    def events(self, thread: str, id: str, *, after: int = 0) -> AsyncGenerator[Event, None]:  # noqa: A002
        """Its events behind the `after`th as they come, each once and in order, over lost connections, to its end."""

        async def connect(seen: int) -> httpx.Response:
            headers = {"Accept": "text/event-stream", "Last-Event-ID": str(seen), **await self._credentials.headers()}
            return await self._http.stream(_path(thread, id, "/stream"), headers=headers)

        async def ended(seen: int) -> bool:
            record = await self.status(thread, id)
            return record.ended and record.events <= seen

        return follow(connect, ended, self._credentials.renew, after=after)

    # ------------------------------------------------------------------------------------------------ ending
    async def cancel(self, thread: str, id: str, *, reason: str | None = None) -> Record:  # noqa: A002
        """Ask it to stop, and return its record: CANCELLING until its process says that the work has really ended."""
        body = {} if reason is None else {"reason": reason}
        return record_in(checked(await self._read("POST", _path(thread, id, "/cancel"), json=body)))

    @contextlib.asynccontextmanager
    async def _called_off_with_caller(self, thread: str, id: str) -> AsyncIterator[None]:  # noqa: A002
        try:
            yield
        except (asyncio.CancelledError, GeneratorExit):
            with contextlib.suppress(TurnlogError, TimeoutError):
                async with asyncio.timeout(CANCEL_S):
                    await self.cancel(thread, id, reason="its caller went away")
            raise

    # ------------------------------------------------------------------------------------------------- tools
    def as_tools(
        self, *, name: str | None = None, description: str | None = None, thread: str | None = None
    ) -> list[StructuredTool]:
        """The agent as a LangChain tool: `[StructuredTool]`, for callers with and without an event loop.

        Its thread is kept from call to call: `thread`, else one per `configurable.thread_id` of the caller's run, else
        one of its own. Needs the extra `langchain`.
        """
        from turnlog.langchain import tool_of  # noqa: PLC0415 - an extra

        return [tool_of(self, name=name, description=description, thread=thread)]

    def _in_portal(self) -> tuple[Portal, AgentProxy]:
        with self._once_only:
            if self._portal is None or self._sync is None:
                self._portal, self._sync = Portal(), self.duplicate()
            return self._portal, self._sync

    # -------------------------------------------------------------------------------------------------- HTTP
    async def _once(
        self, method: str, path: str, *, more: Mapping[str, str] | None = None, **how: Any
    ) -> httpx.Response:
        more = more or {}
        try:
            return await self._http.once(method, path, headers={**more, **await self._credentials.headers()}, **how)
        except Unauthorized as error:
            if error.code != "token_expired" or not self._credentials.renew():
                raise
            return await self._http.once(method, path, headers={**more, **await self._credentials.headers()}, **how)

    async def _read(self, method: str, path: str, **how: Any) -> httpx.Response:
        """What is safe to repeat: looking, and asking for an end."""
        tries = Tries(self._options.budget, insist=True)
        while True:
            try:
                return await self._once(method, path, **how)
            except Unavailable as error:
                await tries.wait(error)
            except ConversationNotFound as error:
                raise InvocationNotFound(str(error), code=error.code, conversation=error.conversation) from error


def _new_id() -> str:
    return uuid.uuid4().hex


def _path(thread: str, id: str | None = None, rest: str = "") -> str:  # noqa: A002
    one = "" if id is None else f"/{quote(id, safe='')}"
    return f"/v1/threads/{quote(thread, safe='')}/invocations{one}{rest}"
