"""A collector of traces (OTLP over HTTP) that keeps what it is sent."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import KeyValue

PATH = "/v1/traces"


@dataclass(frozen=True, slots=True)
class Told:
    """A span as its process told of it."""

    trace: str
    id: str
    parent: str
    """Empty: it is the first of its trace, as far as its process knows."""
    name: str
    service: str
    process: int
    about: dict[str, str | int]


@dataclass
class Collector:
    """What came, in the order in which it came."""

    url: str = ""
    spans: list[Told] = field(default_factory=list)

    def take(self, body: bytes) -> None:
        request = ExportTraceServiceRequest.FromString(body)
        for of in request.resource_spans:
            resource = _fields(of.resource.attributes)
            self.spans += [
                Told(
                    trace=span.trace_id.hex(),
                    id=span.span_id.hex(),
                    parent=span.parent_span_id.hex(),
                    name=span.name,
                    service=str(resource["service.name"]),
                    process=int(resource["process.pid"]),
                    about=_fields(span.attributes),
                )
                for scope in of.scope_spans
                for span in scope.spans
            ]

    def way_to(self, last: Told) -> list[Told]:
        """The spans from the first of the trace to this one."""
        by_id = {span.id: span for span in list(self.spans) if span.trace == last.trace}
        way = [last]
        while way[0].parent:
            way.insert(0, by_id[way[0].parent])
        return way


def _fields(attributes: Sequence[KeyValue]) -> dict[str, str | int]:
    return {each.key: each.value.string_value or each.value.int_value for each in attributes}


@contextmanager
def collector() -> Iterator[Collector]:
    """One that listens for as long as the block runs."""
    kept = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.path == PATH:
                kept.take(body)
            self.send_response(200 if self.path == PATH else 404)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Requests are not worth a line."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        kept.url = f"http://127.0.0.1:{server.server_port}"
        serving = Thread(target=server.serve_forever)
        serving.start()
        try:
            yield kept
        finally:
            server.shutdown()
            serving.join()
