"""Traces of a turn's way, through Kafka's headers: gateway → sequencer → gateway → agent → answer.

Off unless `TURNLOG_TRACES` names a collector (OTLP over HTTP): then `OFF` stands in the place of a tracer, and whoever
asks it pays one attribute look-up. The context travels as W3C `traceparent`, in records' headers; one that a client
sent is continued either way. Which traces are taken is OpenTelemetry's own matter (`OTEL_TRACES_SAMPLER`).

    turnlog.send            gateway     a command, until Kafka has it
    └ turnlog.commit        sequencer   its batch's transaction
      └ turnlog.deliver     gateway     the committed turn, to the socket of its agent
        └ turnlog.agent     gateway     until the agent's first frame came back
          └ turnlog.send    gateway     each frame of the answer
            └ turnlog.commit …          and so on, to `turnlog.deliver` of who watches
"""

from __future__ import annotations

import time
from typing import Any, Final, Protocol

from streams.settings import Settings, SettingsError

TRACEPARENT: Final = "traceparent"
EXPORT_PATH: Final = "/v1/traces"


class Span(Protocol):
    """A piece of work that is being done."""

    @property
    def traceparent(self) -> bytes:
        """What its children have in their header."""

    def end(self) -> None:
        """It is done. Of what is never ended nothing is told."""


class Tracer(Protocol):
    """Where spans come from."""

    on: bool
    """False: nobody wants any, and nothing else of it may be asked."""

    def begin(self, name: str, parent: bytes | None, *, since_ns: int | None = None, **attributes: str | int) -> Span:
        """A span from now on, or since then (ns since the epoch); `parent`: a `traceparent`, None for a new trace."""

    def close(self) -> None:
        """Send what is left."""


class _Off:
    on = False

    def begin(self, name: str, parent: bytes | None, *, since_ns: int | None = None, **attributes: str | int) -> Span:  # noqa: ARG002
        raise AssertionError("tracing is off: ask `on` first")

    def close(self) -> None:
        """Nothing is left."""


OFF: Final[Tracer] = _Off()


def open_tracer(settings: Settings, service: str) -> Tracer:
    """The tracer of this process. Raises `SettingsError` where OpenTelemetry is wanted and not installed."""
    if not settings.traces:
        return OFF
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415
    except ImportError as error:
        raise SettingsError(f"TURNLOG_TRACES: {error.name} is not there: pip install 'turnlog[tracing]'") from error
    exporter = OTLPSpanExporter(endpoint=settings.traces.rstrip("/") + EXPORT_PATH)
    return OpenTelemetryTracer(service, BatchSpanProcessor(exporter))


class OpenTelemetryTracer:
    """`Tracer` on OpenTelemetry's SDK."""

    on = True

    def __init__(self, service: str, processor: Any) -> None:
        """`processor`: gets every span that has ended."""
        from opentelemetry.sdk.resources import Resource  # noqa: PLC0415 -- an extra: only where tracing is on
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415

        self._provider = TracerProvider(resource=Resource.create({"service.name": service}))
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("turnlog")

    def begin(self, name: str, parent: bytes | None, *, since_ns: int | None = None, **attributes: str | int) -> Span:
        """See `Tracer`. A `parent` that is none begins a trace."""
        return _Span(
            self._tracer.start_span(name, context=_context(parent), start_time=since_ns, attributes=attributes)
        )

    def close(self) -> None:
        """See `Tracer`."""
        self._provider.shutdown()


class _Span:
    def __init__(self, span: Any) -> None:
        self._span = span

    @property
    def traceparent(self) -> bytes:
        context = self._span.get_span_context()
        return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}".encode()

    def end(self) -> None:
        self._span.end()


def _context(parent: bytes | None) -> Any:
    from opentelemetry.context import Context  # noqa: PLC0415
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator  # noqa: PLC0415

    carrier = {} if parent is None else {TRACEPARENT: parent.decode("latin-1")}
    return TraceContextTextMapPropagator().extract(carrier, Context())


def now_ns() -> int:
    """Wall clock, as spans have it."""
    return time.time_ns()
