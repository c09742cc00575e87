"""A sequencer's spans, where tracing is on: one for each command of a batch that came with a trace."""

from __future__ import annotations

from collections.abc import Sequence

from streams.core.events import Entry
from streams.tracing import Span, Tracer


def begin_spans(tracer: Tracer, partition: int, entries: Sequence[Entry], traces: dict[int, bytes]) -> list[Span]:
    """Begin them: the batch's transaction is about to begin. `traces`: by an entry's index, the `traceparent` of its
    command; it becomes the span's, which the journal's record gets."""
    spans = []
    for index, parent in traces.items():
        entry = entries[index]
        span = tracer.begin(
            "turnlog.commit",
            parent,
            conversation=entry.event.conversation_id or "",
            event=type(entry.event).__name__,
            partition=partition,
            writer_epoch=entry.writer_epoch,
            lsn=entry.lsn,
        )
        traces[index] = span.traceparent
        spans.append(span)
    return spans
