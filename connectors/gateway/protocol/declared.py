"""What a person's client declares of its connection: a context for agents, and the tools and skills that it has.

Agents get it with each of the connection's messages, in their `meta`, so that whoever is given a turn has it, also one
who takes it over later. What a message's own `meta` says counts more.
"""

from __future__ import annotations

from typing import Any, Final

from connectors.gateway.protocol import limits, messages
from connectors.gateway.protocol.errors import ProtocolError
from connectors.gateway.protocol.parse import json_text
from connectors.gateway.protocol.parse_person import MODELS

Fields = dict[str, Any]

FRAMES: Final = {"client_tools": "tools", "client_skills": "skills"}
"""Frames that replace what was declared, and the field that has it; hello has fields of the same names."""


class Declared:
    """One connection's. Raises `payload_too_large` for what does not go with a message, `invalid_message` for what is
    no tool or skill."""

    def __init__(self) -> None:
        self._context: Fields = {}

    def hello(self, frame: Fields) -> None:
        """All that hello declares."""
        said = {name: frame[name] for name in FRAMES.values() if frame.get(name)}
        for kind, name in FRAMES.items():
            if name in said:
                messages.check(MODELS[kind], {"type": kind, name: said[name]}, "hello")
        self._keep(dict(frame.get("meta") or {}) | said)

    def replace(self, frame: Fields) -> None:
        """What a frame of `FRAMES` declares in place of what was."""
        name = FRAMES[frame["type"]]
        rest = {field: value for field, value in self._context.items() if field != name}
        self._keep(rest | ({name: frame[name]} if frame[name] else {}))

    def frames(self) -> list[Fields]:
        """What was declared, as the frames that say so."""
        return [{"type": kind, name: self._context[name]} for kind, name in FRAMES.items() if name in self._context]

    def with_context(self, message: Fields) -> Fields:
        """A message with the connection's context in its own."""
        own = message.get("meta")
        if not self._context or not (own is None or isinstance(own, dict)):
            return message
        return {**message, "meta": {**self._context, **(own or {})}}

    def _keep(self, context: Fields) -> None:
        size = len(json_text(context).encode())
        if size > limits.MAX_METADATA_BYTES:
            raise ProtocolError(
                "payload_too_large",
                f"meta, tools, skills: {size} bytes as JSON, at most {limits.MAX_METADATA_BYTES} go with each message",
                details={"size": size, "limit": limits.MAX_METADATA_BYTES},
            )
        self._context = context
