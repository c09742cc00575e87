"""The trace that a caller is in, for what it sends: W3C trace context, with OpenTelemetry or without."""

from __future__ import annotations

import re
import sys

TRACEPARENT = "traceparent"
_GOOD = re.compile(r"[0-9a-f]{2}(-[0-9a-f]+){3}[-\x21-\x7e]*", re.ASCII)
"""What can go into a header; whether it is one, its receiver says."""


def carried(traceparent: str | None = None) -> dict[str, str]:
    """The header, or field of a frame, that has what is sent go on with a trace; nothing, where there is none.

    That is the given one, else that of the caller's span, where its program uses OpenTelemetry. One that cannot be a
    `traceparent` counts as none.
    """
    found = traceparent if traceparent is not None and _GOOD.fullmatch(traceparent) else _of_the_span()
    return {} if found is None else {TRACEPARENT: found}


def _of_the_span() -> str | None:
    # Nothing is imported for it: whoever has a span has this module.
    current = getattr(sys.modules.get("opentelemetry.trace"), "get_current_span", None)
    if current is None:
        return None
    context = current().get_span_context()
    if not context.is_valid:
        return None
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"
