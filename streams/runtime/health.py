"""`/metrics`, `/healthz` and `/readyz` of a worker, from a thread of their own: a busy loop answers too."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app

StartResponse = Callable[[str, list[tuple[str, str]]], object]
Status = Callable[[], tuple[bool, dict[str, Any]]]


class _Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 -- the base class's name
        """Scrapes are not worth a log line."""


class HealthServer:
    """An HTTP server in a thread. `ready` and `healthy` answer from any thread: (good, document)."""

    def __init__(self, registry: CollectorRegistry, *, healthy: Status, ready: Status) -> None:
        self._metrics = make_wsgi_app(registry)
        self._pages = {"/healthz": healthy, "/readyz": ready}
        self._server: WSGIServer | None = None
        self._thread: threading.Thread | None = None

    def start(self, host: str, port: int) -> str:
        """Listen on `port`, 0 for a free one; returns the base URL. Raises `OSError` when the port is taken."""
        self._server = make_server(host, port, self._answer, handler_class=_Quiet)
        self._thread = threading.Thread(target=self._server.serve_forever, name="health", daemon=True)
        self._thread.start()
        shown = f"[{host}]" if ":" in host else host
        return f"http://{shown}:{self._server.server_port}"

    def stop(self) -> None:
        """Stop listening. Safe to call twice."""
        if self._server is not None and self._thread is not None:
            self._server.shutdown()
            self._thread.join()
            self._server.server_close()
            self._server = None

    def _answer(self, environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "")
        if path == "/metrics":
            body: Iterable[bytes] = self._metrics(environ, start_response)
            return body
        page = self._pages.get(path)
        if page is None:
            return _json(start_response, "404 Not Found", {"pages": ["/metrics", *self._pages]})
        good, document = page()
        return _json(start_response, "200 OK" if good else "503 Service Unavailable", document)


def _json(start_response: StartResponse, status: str, document: dict[str, Any]) -> Iterable[bytes]:
    body = json.dumps(document).encode() + b"\n"
    start_response(status, [("Content-Type", "application/json"), ("Content-Length", str(len(body)))])
    return [body]
