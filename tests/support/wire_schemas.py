"""The public JSON Schemas of the wire frames, as one registry."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator
from referencing import Registry, Resource

BASE = "https://converger.aimtune.dev/schemas/protocol/v1/"
# Frames of ours to agents: what only an agent gets has no schema in the public copy.
AGENT_ONLY = frozenset({"abort", "adopted", "resume_part"})
# Frames of people that agents are given as they came.
PASSED_ON = frozenset({"resume", "genui_event", "client_tools", "client_skills", "survey"})
# And to clients, and agents that follow, that asked for it in their hello.
ASKED_FOR = frozenset({"superseded", "edited"})


class WireSchemas:
    """Validators for what a server sends and what a client sends."""

    def __init__(self, folder: Path) -> None:
        documents = [json.loads(path.read_text()) for path in sorted(folder.rglob("*.schema.json"))]
        registry: Registry[Any] = Registry().with_resources(
            [(document["$id"], Resource.from_contents(document)) for document in documents]
        )
        self.count = len(documents)
        self._validators = {
            name: Draft202012Validator({"$ref": f"{BASE}{path}"}, registry=registry)
            for name, path in {
                "s2c": "server-frame.schema.json",
                "s2c-envelope": "frames/channel/server-envelope.schema.json",
                "c2s": "client-frame.schema.json",
                "c2s-envelope": "frames/channel/client-envelope.schema.json",
            }.items()
        }

    def errors(self, direction: str, frame: dict[str, Any]) -> list[str]:
        """What is wrong with a frame; [] for a good one."""
        return [error.message for error in self._validators[direction].iter_errors(frame)]

    def check_from_server(self, frame: dict[str, Any]) -> None:
        """Raise `AssertionError` for a frame that a server must not send."""
        enveloped = "frame" in frame and "type" not in frame
        if (enveloped and not _has_schema(frame["frame"])) or frame.get("type") in ASKED_FOR:
            return
        if enveloped and frame["frame"]["type"] in PASSED_ON:
            errors = self.errors("c2s", frame["frame"])
        else:
            errors = self.errors("s2c-envelope" if enveloped else "s2c", frame)
        assert not errors, f"{frame}: {errors}"


def _has_schema(inner: dict[str, Any]) -> bool:
    """A turn that is given without `seq`, on purpose, the ack of what has none, and abort are outside the public
    schemas."""
    unnumbered = inner["type"] == "ack" and "seq" not in inner
    return inner["type"] not in AGENT_ONLY | ASKED_FOR and "turnSeq" not in inner and not unnumbered
