"""Traces of a turn's way, through Kafka's headers: gateway → sequencer → gateway → agent → answer → read model.

Off unless `TURNLOG_TRACES` names a collector (OTLP over HTTP): then `OFF` stands in the place of a tracer, and whoever
asks it pays one attribute look-up. The context travels as W3C `traceparent`, in records' headers; one that a client
sent is continued either way. Which traces are taken is OpenTelemetry's own matter (`OTEL_TRACES_SAMPLER`).

    turnlog.send            gateway     a command, until Kafka has it
    └ turnlog.commit        sequencer   its batch's transaction
      ├ turnlog.project     projector   its batch's transaction, with the read model's rows
      └ turnlog.deliver     gateway     the committed turn, to the socket of its agent
        └ turnlog.agent     gateway     until the agent's first frame came back; the delivered turn carries its context
          └ turnlog.answer  agent       its handler, where the SDK is asked for it (`Agent(tracing=True)`)
            └ turnlog.send  gateway     each frame of the answer; it carries back the context that it was sent in
              └ turnlog.commit …        and so on, to `turnlog.deliver` of who watches
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import socket
import threading
from collections.abc import Callable, Iterable
from typing import Any, Final, Protocol

import structlog

from streams.settings import Settings, SettingsError

log = structlog.get_logger(__name__)

TRACEPARENT: Final = "traceparent"
_TRACEPARENT: Final = re.compile(r"(?!ff)([0-9a-f]{2})-((?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2})(-.*)?")
TRACEPARENT_MAX: Final = 512
"""Version 00 has 55 characters; a later one that is longer than this is nobody's."""
EXPORT_PATH: Final = "/v1/traces"
LAST_SPANS: Final = "the last spans"
"""Name of the thread that sends them."""
CLOSE_WITHIN_S: Final = 1.0
"""How long the end of a process waits for its last spans to be taken. A collector that answers takes milliseconds."""


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

    def begin(self, name: str, parent: bytes | None, **attributes: str | int) -> Span:
        """A span from now on; `parent`: a `traceparent`, None for a new trace."""

    async def close(self, within_s: float = CLOSE_WITHIN_S) -> None:
        """Send what is left. What a collector has not taken within so many seconds is lost."""


class _Off:
    on = False

    def begin(self, name: str, parent: bytes | None, **attributes: str | int) -> Span:  # noqa: ARG002
        raise AssertionError("tracing is off: ask `on` first")

    async def close(self, within_s: float = CLOSE_WITHIN_S) -> None:
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
    return OpenTelemetryTracer(service, BatchSpanProcessor(exporter), give_up=exporter.shutdown)


class OpenTelemetryTracer:
    """`Tracer` on OpenTelemetry's SDK."""

    on = True

    def __init__(self, service: str, processor: Any, give_up: Callable[[], None] = lambda: None) -> None:
        """`processor`: gets every span that has ended. `give_up`: no more tries to send what is not sent."""
        from opentelemetry.sdk.resources import Resource  # noqa: PLC0415 -- an extra: only where tracing is on
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415

        # `close` ends it: OpenTelemetry's own hook would hold up the interpreter's end for as long as it likes.
        self._provider = TracerProvider(
            resource=Resource.create(
                {"service.name": service, "host.name": socket.gethostname(), "process.pid": os.getpid()}
            ),
            shutdown_on_exit=False,
        )
        self._provider.add_span_processor(processor)
        self._give_up = give_up
        self._tracer = self._provider.get_tracer("turnlog")

    def begin(self, name: str, parent: bytes | None, **attributes: str | int) -> Span:
        """See `Tracer`. A `parent` that is none begins a trace."""
        return _Span(self._tracer.start_span(name, context=_context(parent), attributes=attributes))

    async def close(self, within_s: float = CLOSE_WITHIN_S) -> None:
        """See `Tracer`. The exporter blocks while it sends, and for ten seconds where nobody answers: that is done in
        a thread, which holds up neither the loop nor, being a daemon, the process's end."""
        loop, closed = asyncio.get_running_loop(), asyncio.Event()

        def shut_down() -> None:
            self._provider.shutdown()
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(closed.set)

        threading.Thread(target=shut_down, name=LAST_SPANS, daemon=True).start()
        try:
            async with asyncio.timeout(within_s):
                await closed.wait()
        except TimeoutError:
            log.warning("the collector did not take the last spans in time; they are lost", within_s=within_s)
            self._give_up()


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


def traceparent_in(headers: Iterable[tuple[str, bytes | None]]) -> bytes | None:
    """The `traceparent` among a record's headers; None: there is none."""
    return next((value for name, value in headers if name == TRACEPARENT), None)


def traceparent_of(value: object) -> str | None:
    """What a caller sent as `traceparent`, as version 00 has it; None where it is none, which is to be ignored.

    W3C Trace Context, 3.2: a later version may have more behind a further `-`, and is read as far as it is known.
    """
    found = _TRACEPARENT.fullmatch(value) if isinstance(value, str) and len(value) <= TRACEPARENT_MAX else None
    if found is None or (found[1] == "00" and found[3] is not None):
        return None
    return f"00-{found[2]}"
