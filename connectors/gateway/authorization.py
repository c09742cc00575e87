"""Who calls agents over HTTP, and which threads are theirs.

A verdict on a caller's credential is kept for 5 s, and never past its token's end, for those who only look at what they
called, or cancel it: however many of them poll at once, it is looked up once in that time. A refusal is never kept, and
who submits is always looked up. Whose a thread is does not change, and is kept for as long as there is room.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec
from starlette.requests import Request

from connectors.gateway import http
from connectors.gateway.clock import steady_s, wall_ms
from connectors.gateway.protocol.errors import ProtocolError
from connectors.gateway.protocol.session import Claims

if TYPE_CHECKING:
    from connectors.gateway.gateway import Gateway

FRESH_S = 5.0
VERDICTS_MAX = 10_000
THREADS_MAX = 50_000


class Caller(msgspec.Struct, frozen=True):
    """Who asks. `claims` None: an operator or backend, by its API key, to whom every thread is open."""

    claims: Claims | None

    def may_see(self, channel: str, participant: str | None, thread: str) -> bool:
        """Whether a thread of this channel and participant is the caller's."""
        claims = self.claims
        if claims is None:
            return True
        if claims.conversation_id is not None:
            return claims.conversation_id == thread and claims.channel == channel
        return claims.channel == channel and claims.user == participant


class _Verdict(msgspec.Struct, frozen=True):
    caller: Caller
    until_s: float
    """On the steady clock."""


class Authorizer:
    """See the module."""

    def __init__(self, gateway: Gateway, clock: Callable[[], float] = steady_s) -> None:
        self._gateway = gateway
        self.clock = clock
        """Seconds, on a clock that only goes forward."""
        self._verdicts: OrderedDict[bytes, _Verdict] = OrderedDict()
        self._asked: dict[bytes, asyncio.Task[Caller]] = {}
        self._threads: OrderedDict[str, tuple[str, str | None]] = OrderedDict()

    async def submitter(self, request: Request) -> Caller:
        """The caller, looked up now. Raises the `ProtocolError` that refuses it."""
        return await self._look_up(_credential(request))

    async def viewer(self, request: Request) -> Caller:
        """The caller, as of 5 s ago at most. Raises as `submitter`."""
        credential = _credential(request)
        digest = hashlib.sha256("\n".join(credential).encode("utf-8", "surrogatepass")).digest()
        verdict = self._verdicts.get(digest)
        if verdict is not None and self.clock() < verdict.until_s:
            return verdict.caller
        task = self._asked.get(digest)
        if task is None:
            task = self._asked[digest] = asyncio.get_running_loop().create_task(self._decide(digest, credential))
            task.add_done_callback(lambda _: self._asked.pop(digest, None))
        return await asyncio.shield(task)  # one who goes away must not take the answer from the others

    async def check(self, caller: Caller, thread: str) -> None:
        """Raise `conversation_not_found` unless the thread exists and is the caller's."""
        owner = self._threads.get(thread)
        if owner is None:
            info = await self._gateway.conversation(thread)
            owner = self._threads[thread] = (info.channel, info.participant)
            if len(self._threads) > THREADS_MAX:
                self._threads.popitem(last=False)
        # Whether a thread of somebody else exists is not told.
        if not caller.may_see(*owner, thread):
            raise ProtocolError("conversation_not_found", "no such thread")

    async def _decide(self, digest: bytes, credential: tuple[str, str]) -> Caller:
        caller = await self._look_up(credential)
        fresh_s = FRESH_S
        if caller.claims is not None:
            fresh_s = min(fresh_s, (caller.claims.expires_at - wall_ms()) / 1000)
        self._verdicts[digest] = _Verdict(caller, self.clock() + fresh_s)
        self._verdicts.move_to_end(digest)
        if len(self._verdicts) > VERDICTS_MAX:
            self._verdicts.popitem(last=False)
        return caller

    async def _look_up(self, credential: tuple[str, str]) -> Caller:
        self._gateway.metrics.authorizations.inc()
        kind, value = credential
        if kind == "key":
            await http.check_api_key(self._gateway, value)
            return Caller(None)
        return Caller(await http.claims_of(self._gateway, value))


def _credential(request: Request) -> tuple[str, str]:
    key = request.headers.get("x-api-key")
    return ("key", key) if key is not None else ("token", http.bearer(request))
