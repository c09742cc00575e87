"""The web server: routes to handlers, and uvicorn without its own signal handling."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, cast

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.routing import WebSocketRoute
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketClose
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from connectors.gateway import invocations, operate, operator_api, operator_views, rest, sse, tenant
from connectors.gateway.connection import ABORT_EXTENSION
from connectors.gateway.handshake import serve_socket
from connectors.gateway.http import http_exception
from connectors.gateway.protocol.errors import ProtocolError
from connectors.gateway.protocol.limits import HARD_CAP_BYTES
from connectors.web import page

if TYPE_CHECKING:
    from websockets.http11 import Request

    from connectors.gateway.gateway import Gateway

SOCKET_PATH = "/socket/converger/v1"
# WebSocket pings find peers that are gone without a word.
PING_S = 20.0
BACKLOG = 2_048
SHUTDOWN_S = 3
STARTING_RETRY_MS = 1_000
# A request's headers are one packet; who takes longer is no client.
HEADERS_S = 10.0


class AbortableProtocol(WebSocketsSansIOProtocol):
    """Offers to cut the connection, for a peer that takes nothing any more, not even a close frame."""

    def handle_connect(self, event: Request) -> None:
        """Add the extension to the connection's scope."""
        super().handle_connect(event)
        if not self.close_sent:
            extensions: dict[str, Any] = self.scope["extensions"]
            extensions[ABORT_EXTENSION] = self.transport.abort


class ImpatientProtocol(HttpToolsProtocol):
    """Closes a connection that does not send a request's headers in time: silent sockets would fill the process."""

    headers_s = HEADERS_S

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._patience: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the first request."""
        super().connection_made(cast("asyncio.Transport", transport))
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Wait for the rest of the headers, or for nothing more."""
        before = self.cycle
        super().data_received(data)
        if self.transport.get_protocol() is not self or self.cycle is not before:
            self._wait_no_more()  # it became a WebSocket, or its headers are here
        elif self._patience is None and getattr(before, "response_complete", False):
            self._wait()  # the next request of a connection that is kept open has begun

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is waited for."""
        self._wait_no_more()
        super().connection_lost(exc)

    def _wait(self) -> None:
        self._patience = self.loop.call_later(self.headers_s, self.transport.close)

    def _wait_no_more(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None


class Server(uvicorn.Server):
    """Stops when it is told to; signals are the process's business, which drains first."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Take none."""
        yield


class Front:
    """The ASGI application from the first moment on: until the gateway is there, it says what is waited for."""

    def __init__(self, waiting: Callable[[], tuple[bool, dict[str, Any]]]) -> None:
        """`waiting`: what `/readyz` answers until `open`, from any thread."""
        self._waiting = waiting
        self._app: Starlette | None = None

    def open(self, gateway: Gateway) -> None:
        """From here on the gateway answers."""
        self._app = application(gateway)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if self._app is not None:
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await WebSocketClose(code=1013)(scope, receive, send)
        else:
            _, document = self._waiting()
            status = 200 if scope["path"] == "/healthz" else 503
            if scope["path"] not in {"/healthz", "/readyz"}:
                error = ProtocolError("unavailable", "the gateway is starting", retry_after_ms=STARTING_RETRY_MS)
                document = error.body("")
            headers = {"retry-after": str(STARTING_RETRY_MS // 1000)} if status == 503 else None
            await JSONResponse(document, status, headers)(scope, receive, send)


def application(gateway: Gateway) -> Starlette:
    """The ASGI application of a gateway that is there."""

    async def endpoint(websocket: WebSocket) -> None:
        await serve_socket(gateway, websocket)

    routes = [
        *rest.routes(gateway),
        *tenant.routes(gateway),
        *sse.routes(gateway),
        *invocations.routes(gateway),
        *operate.routes(gateway),
        *operator_api.routes(gateway),
        *operator_views.routes(gateway),
        *page.routes(page.CHAT),
        *page.routes(page.CONSOLE),
        WebSocketRoute(SOCKET_PATH, endpoint),
    ]
    return Starlette(routes=routes, exception_handlers={HTTPException: http_exception})


def listen(host: str, port: int) -> socket.socket:
    """The listening socket; `port` 0 takes a free one. Raises `OSError`."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    listener.setblocking(False)  # noqa: FBT003 -- the only way to say it
    return listener


def tells_of_no_cancellation(record: logging.LogRecord) -> bool:
    """False for what ended because the process ends at once, as a second signal wants: uvicorn calls that an error."""
    return not (record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError))


def server(app: ASGIApp) -> Server:
    """A server for the application; `serve(sockets=[…])` runs it until `should_exit`."""
    logging.getLogger("uvicorn.error").addFilter(tells_of_no_cancellation)
    config = uvicorn.Config(
        app,
        http=ImpatientProtocol,
        ws=AbortableProtocol,
        ws_max_size=HARD_CAP_BYTES,
        ws_ping_interval=PING_S,
        ws_ping_timeout=PING_S,
        # Frames are small and wait for nothing: deflating each costs more time than it saves bytes.
        ws_per_message_deflate=False,
        lifespan="off",
        access_log=False,
        log_config=None,
        server_header=False,
        timeout_graceful_shutdown=SHUTDOWN_S,
        timeout_keep_alive=75,
    )
    return Server(config)


async def until_listening(running: Server) -> None:
    """Wait until the server takes connections; uvicorn has nothing to be told by."""
    while not running.started:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
