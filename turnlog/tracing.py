"""Traces of what an agent does with its turns (OpenTelemetry; the extra `tracing`). Off unless `Agent` is asked for it.

A turn carries the context of its delivery where the gateway traces, and every frame of the answer carries one back, so
that the answer is in the turn's trace. Without this module that is the delivery's own; with it, of the span
`turnlog.answer`, in which the handler runs: what else the handler traces (its model, its tools) is a child of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, TypeAlias

from turnlog.turn import Turn

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer, TracerProvider

Answering: TypeAlias = Callable[[Turn], AbstractContextManager[str | None]]
"""Entered around a turn's handler; gives the `traceparent` that its frames carry, None for none."""


def untraced(turn: Turn) -> AbstractContextManager[str | None]:
    """Nothing is traced here: the frames carry what the turn did."""
    return nullcontext(turn.traceparent)


def answering(provider: TracerProvider | None) -> Answering:
    """A span around each handler. `provider` None: the program's own, as `opentelemetry.trace` knows it.

    Raises `RuntimeError` where OpenTelemetry is not installed.
    """
    try:
        from opentelemetry import trace  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise RuntimeError("tracing: OpenTelemetry is not there: pip install 'turnlog[tracing]'") from error
    tracer = trace.get_tracer("turnlog", tracer_provider=provider)
    return lambda turn: _answer(tracer, turn)


@contextmanager
def _answer(tracer: Tracer, turn: Turn) -> Iterator[str | None]:
    from opentelemetry.context import Context  # noqa: PLC0415 - an extra
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator  # noqa: PLC0415 - an extra

    propagator = TraceContextTextMapPropagator()
    parent = propagator.extract({"traceparent": turn.traceparent or ""}, Context())
    about = {"conversation": turn.conversation, "turn": turn.id, "run": turn.run, "run_epoch": turn.run_epoch}
    known = {name: value for name, value in about.items() if value is not None}
    with tracer.start_as_current_span("turnlog.answer", context=parent, attributes=known):
        carried: dict[str, str] = {}
        propagator.inject(carried)
        yield carried.get("traceparent", turn.traceparent)
