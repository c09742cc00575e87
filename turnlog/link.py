"""One channel socket that outlives its connections.

IDLE ──▶ CONNECTING ──▶ GREETING ──▶ UP          GREETING: hello is sent, welcome not yet received
           ▲   │            │         │
           │   ▼            ▼         ▼
           └─ WAITING ◀───────────────┘          WAITING: backoff, or what the server asked for
each of them ──▶ CLOSED                          by `close()`, or by a refusal that retrying cannot mend
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus
from websockets.typing import Subprotocol

from turnlog.backoff import Backoff
from turnlog.connection import Limits, Peer
from turnlog.errors import ProtocolViolation, TurnlogError, Unauthorized, Unavailable
from turnlog.tokens import Token, TokenSource
from turnlog.wire import MAX_FRAME_BYTES, SUBPROTOCOL, Frame, dump, parse, retry_after, socket_url

log = logging.getLogger("turnlog")

IDLE_TIMEOUT_S = 60.0
"""The protocol's default `limits.idleTimeoutMs`, for a welcome that names none."""
REFRESH_BEFORE_S = 60.0
"""A token is renewed this long before it ends (or at half of its life, when that is later)."""
GOOD_AFTER_S = 5.0
"""A connection that lasted this long was a success: the next backoff starts anew."""
WELCOME_TIMEOUT_S = 10.0

_REFUSED = {4400: "protocol", 4401: "credential", 4403: "channel inactive, or closed by its operator"}


class LinkState(Enum):
    """See the diagram above."""

    IDLE = auto()
    CONNECTING = auto()
    GREETING = auto()
    UP = auto()
    WAITING = auto()
    CLOSED = auto()


_NEXT: Mapping[LinkState, frozenset[LinkState]] = {
    LinkState.IDLE: frozenset({LinkState.CONNECTING, LinkState.CLOSED}),
    LinkState.CONNECTING: frozenset({LinkState.GREETING, LinkState.WAITING, LinkState.CLOSED}),
    LinkState.GREETING: frozenset({LinkState.UP, LinkState.WAITING, LinkState.CLOSED}),
    LinkState.UP: frozenset({LinkState.WAITING, LinkState.CLOSED}),
    LinkState.WAITING: frozenset({LinkState.CONNECTING, LinkState.CLOSED}),
    LinkState.CLOSED: frozenset(),
}


@dataclass(frozen=True, slots=True)
class Ended:
    """How a connection attempt ended."""

    why: str
    code: int | None = None
    """Close code of the socket; None: it never opened."""
    asked: float | None = None
    """Seconds the server asked to wait."""


class Pace:
    """At most `per_second` sends a second, up to a second's worth at once; None: as many as one likes."""

    def __init__(self, per_second: float | None = None) -> None:
        self._per_second = per_second
        self._free_at = 0.0
        """When everything that was sent so far has been paid for."""

    async def take(self) -> None:
        """Wait until one more may go; those who wait go in the order in which they came."""
        if self._per_second is None:
            return
        now = asyncio.get_running_loop().time()
        self._free_at = max(self._free_at, now) + 1 / self._per_second
        if (wait := self._free_at - now - 1) > 0:
            await asyncio.sleep(wait)


class Link:
    """Keeps one socket open to one of `urls` until `close()`; tries them in turn."""

    def __init__(self, urls: Sequence[str], tokens: TokenSource, *, backoff: Backoff) -> None:
        self._urls = tuple(urls)
        self._tokens = tokens
        self._backoff = backoff
        self._dials = 0
        self._token_refused = False
        self._socket: ClientConnection | None = None
        self._closing = asyncio.Event()
        self._up = asyncio.Event()
        self.state = LinkState.IDLE
        self.generation = 0
        """Number of the current or last connection that was welcomed; each is another member of the group."""
        self.connection: str | None = None
        """The gateway's id for the current or last connection: the member's id in the log."""
        self.limits = Limits()
        self.abilities: frozenset[str] = frozenset()
        """What this gateway says that it can do beyond the public protocol: `continue`, `drain`."""
        self._pace = Pace()
        self._refreshed: asyncio.Queue[float | None] = asyncio.Queue()
        """When a renewed token ends, as the gateway says it, for `_renew`."""

    async def run(self, peer: Peer) -> None:
        """Until `close()`. Raises `Unauthorized` or `ProtocolViolation` when the gateway refuses for good."""
        try:
            while not self._closing.is_set():
                ended = await self._connection(peer)
                if self._closing.is_set():
                    break
                delay = self._delay_after(ended)
                self._enter(LinkState.WAITING)
                log.warning("turnlog: connection ended (%s); next attempt in %.2f s", ended.why, delay)
                await _wait(self._closing, delay)
        finally:
            self._enter(LinkState.CLOSED)

    async def close(self) -> None:
        """Close the socket in order: what was sent before is read by the gateway first."""
        self._closing.set()
        if self._socket is not None:
            await self._socket.close(1000)

    async def wait_up(self, timeout: float | None) -> bool:
        """Whether the link is up, within `timeout` seconds."""
        return await _wait(self._up, timeout)

    async def pace(self) -> None:
        """Wait until the gateway takes one more frame, where it says how many a second it does."""
        await self._pace.take()

    async def send(self, frame: Mapping[str, object]) -> bool:
        """Hand `frame` to the connection; False when there is none. True does not mean that it arrived."""
        if self._socket is None or self.state is not LinkState.UP:
            return False
        try:
            # Returns once the socket's buffer has room: a gateway that reads slower is written to slower.
            await self._socket.send(dump(frame))
        except ConnectionClosed:
            return False
        return True

    # ------------------------------------------------------------------------------------------ one connection

    async def _connection(self, peer: Peer) -> Ended:
        url = self._urls[self._dials % len(self._urls)]
        self._dials += 1
        self._enter(LinkState.CONNECTING)
        try:
            token = await self._tokens.get(url)
            dial = connect(
                socket_url(url),
                subprotocols=[Subprotocol(SUBPROTOCOL)],
                additional_headers={"Authorization": f"Bearer {token.value}"},
                max_size=MAX_FRAME_BYTES,
            )
            async with dial as socket:
                return await self._serve(socket, peer, url, token)
        except Unavailable as error:
            return Ended(str(error), asked=error.retry_after)
        except InvalidStatus as error:
            return _refused_upgrade(error)
        except (OSError, InvalidHandshake, ConnectionClosed) as error:
            return Ended(str(error) or type(error).__name__)

    async def _serve(self, socket: ClientConnection, peer: Peer, url: str, token: Token) -> Ended:
        self._enter(LinkState.GREETING)
        self._socket = socket
        helpers: list[asyncio.Task[None]] = []
        opened = time.monotonic()
        try:
            if self._closing.is_set():  # closed while it dialled
                return Ended("closed")
            await socket.send(dump(peer.hello()))
            welcome = await self._welcome(socket, peer)
            self._take(welcome)
            self._token_refused = False
            helpers.append(asyncio.create_task(self._ping(socket, _idle_timeout(welcome) / 2)))
            helpers.append(asyncio.create_task(self._renew(socket, url, token, welcome)))
            self.generation += 1
            self._enter(LinkState.UP)
            peer.received({"type": "welcome", "data": welcome})
            self._up.set()
            await peer.welcomed()
            async for raw in socket:
                self._received(peer, parse(raw))
        except ConnectionClosed:
            pass  # told by the close code below
        except TimeoutError:
            await socket.close(1002, "no welcome")
        except ProtocolViolation as error:
            log.warning("turnlog: %s", error)
            await socket.close(1002, "not a JSON object")
        finally:
            self._up.clear()
            self._socket = None
            await _stop(helpers)
            if time.monotonic() - opened >= GOOD_AFTER_S:
                self._backoff.reset()
        code, reason = socket.close_code, socket.close_reason or ""
        return Ended(f"close code {code} {reason}".strip(), code=code, asked=retry_after(reason))

    async def _welcome(self, socket: ClientConnection, peer: Peer) -> Frame:
        async with asyncio.timeout(WELCOME_TIMEOUT_S):
            while True:
                frame = parse(await socket.recv())
                if frame.get("type") == "welcome":
                    data = frame.get("data")
                    return data if isinstance(data, dict) else {}
                peer.received(frame)

    def _received(self, peer: Peer, frame: Frame) -> None:
        if frame.get("type") == "tokenRefreshed":
            data = frame.get("data")
            self._refreshed.put_nowait(_expiry(data if isinstance(data, dict) else {}))
        else:
            peer.received(frame)

    def _take(self, welcome: Frame) -> None:
        name = welcome.get("connectionId")
        self.connection = name if isinstance(name, str) else None
        abilities = welcome.get("capabilities")
        known = abilities.items() if isinstance(abilities, dict) else ()
        self.abilities = frozenset(name for name, able in known if able is True)
        self.limits = Limits.of(welcome)
        self._pace = Pace(self.limits.frames_per_second)

    async def _ping(self, socket: ClientConnection, every: float) -> None:
        try:
            while True:
                await asyncio.sleep(every)
                await socket.send(dump({"type": "ping"}))
        except ConnectionClosed:
            return

    async def _renew(self, socket: ClientConnection, url: str, token: Token, welcome: Frame) -> None:
        """Present a fresh token before the current one ends, for as long as the connection lasts."""
        expires = token.expires if token.expires is not None else _expiry(welcome)
        backoff = Backoff()
        while self._tokens.renewable and expires is not None:
            left = expires - time.monotonic()
            await asyncio.sleep(max(left - REFRESH_BEFORE_S, left / 2, 0.0))
            try:
                token = await self._tokens.get(url)
                self._refreshed = asyncio.Queue()
                await socket.send(dump({"type": "auth", "token": token.value}))
                # A refusal leaves this waiting: the connection then ends with the old token, and the next begins anew.
                expires = token.expires if token.expires is not None else await self._refreshed.get()
            except ConnectionClosed:
                return
            except TurnlogError as error:
                # The connection lives on until the old token ends; the server's close code then decides.
                log.warning("turnlog: the token could not be renewed: %s", error)
                if not error.retryable:
                    return
                await asyncio.sleep(backoff.next(error.retry_after))

    def _delay_after(self, ended: Ended) -> float:
        """Seconds until the next attempt. Raises when the close code says that there is no point in one."""
        if ended.code == 4401 and self._tokens.renewable and not self._token_refused:
            self._token_refused = True  # one more attempt, with a token made for it
            return self._backoff.next(ended.asked)
        if ended.code in _REFUSED:
            kind = ProtocolViolation if ended.code == 4400 else Unauthorized
            raise kind(f"the gateway refused the connection: {_REFUSED[ended.code]} ({ended.why})", code="unauthorized")
        return self._backoff.next(ended.asked)

    def _enter(self, state: LinkState) -> None:
        if state is not self.state:
            if state not in _NEXT[self.state]:
                raise AssertionError(f"link: {self.state.name} never becomes {state.name}")
            self.state = state


async def _wait(event: asyncio.Event, timeout: float | None) -> bool:
    try:
        async with asyncio.timeout(timeout):
            await event.wait()
    except TimeoutError:
        return event.is_set()
    return True


async def _stop(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(result, BaseException) and not isinstance(result, asyncio.CancelledError):
            raise result


def _refused_upgrade(error: InvalidStatus) -> Ended:
    status = error.response.status_code
    header = error.response.headers.get("Retry-After", "")
    asked = float(header) if header.isdigit() else None
    return Ended(f"HTTP {status} instead of a socket", code=4401 if status in {401, 403} else None, asked=asked)


def _idle_timeout(welcome: Frame) -> float:
    limits = welcome.get("limits")
    ms = limits.get("idleTimeoutMs") if isinstance(limits, dict) else None
    return ms / 1000 if isinstance(ms, int) and ms > 0 else IDLE_TIMEOUT_S


def _expiry(welcome: Frame) -> float | None:
    ms = welcome.get("expiresAt")
    return time.monotonic() + (ms / 1000 - time.time()) if isinstance(ms, int) else None
