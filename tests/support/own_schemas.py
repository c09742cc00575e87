"""The schemas that are generated from our models of frames, as validators: each frame against the model of its type."""

from __future__ import annotations

from functools import cache
from typing import Any

from jsonschema import Draft202012Validator

from connectors.gateway.protocol import wire_schema
from connectors.gateway.protocol.parse import RESERVED

Frame = dict[str, Any]


class OwnSchemas:
    """What each side of each kind of socket says. A side is a name of `wire_schema.schemas()`."""

    def __init__(self) -> None:
        self._schemas = wire_schema.schemas()

    def errors(self, side: str, frame: Frame) -> list[str]:
        """What is wrong with a frame; [] for a good one."""
        enveloped = "type" not in frame and "frame" in frame
        inner = frame["frame"] if enveloped else frame
        models, kind = self.models(side, enveloped=enveloped), str(inner.get("type"))
        names = models.get(kind) or ([] if kind in RESERVED else models.get("message", []))
        if not names:
            return [f"no model of {side} is of type {kind}"]
        found = [[error.message for error in self._validator(side, name).iter_errors(inner)] for name in names]
        return min(found, key=len)

    @cache  # noqa: B019 -- one object for all tests
    def models(self, side: str, *, enveloped: bool) -> dict[str, list[str]]:
        """Wire type to the names of its models; messages of any type are `message`."""
        choices = self._schemas[side]["anyOf"]
        if enveloped:
            choices = choices[-1]["properties"]["frame"]["anyOf"]
        models: dict[str, list[str]] = {}
        for choice in choices:
            name = choice.get("$ref", "").removeprefix("#/$defs/")
            if name:
                tag = self._schemas[side]["$defs"][name]["properties"]["type"].get("enum", ["message"])[0]
                models.setdefault(tag, []).append(name)
        return models

    @cache  # noqa: B019 -- as above
    def _validator(self, side: str, name: str) -> Draft202012Validator:
        return Draft202012Validator({"$ref": f"#/$defs/{name}", "$defs": self._schemas[side]["$defs"]})

    def check_from_server(self, frame: Frame) -> None:
        """Raise `AssertionError` for a frame that is none of the server's."""
        to_agent = "frame" in frame or frame.get("data", {}).get("scope") == "channel"
        errors = self.errors("server-to-agent" if to_agent else "server-to-person", frame)
        assert not errors, f"{frame}: {errors}"
