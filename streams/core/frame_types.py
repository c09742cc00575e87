"""The types of agents' frames that are treated in a way of their own; any other is a message."""

from __future__ import annotations

from typing import Final

STRUCTURED: Final = frozenset({"genui", "tool_call", "interrupt", "interrupt_resolved", "event", "skill"})
"""Numbered, but no message: none of these alone answers an unannounced run (a finished stream does)."""

UNNUMBERED: Final = frozenset({"error", "skills", "genui_components"})

CHECKPOINT: Final = "checkpoint"
INTERRUPT: Final = "interrupt"

NOT_KEPT: Final = frozenset(
    {
        "typing", "presence", "ack", "deliveryStatus", "heartbeat", "tokenRefreshed", "replayTruncated", "welcome",
        "conversationUpdate", "resume", "abort", "edit", "hello", "ping", "auth", "sync",
    }
)  # fmt: skip
"""Shown live or never: no journal event comes of them."""

CONTROL: Final = frozenset({"read", "run", CHECKPOINT})
"""They are about a run, and no part of its answer."""
