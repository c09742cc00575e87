"""What a channel of people does with what it shows: steps that mask, filter and transform, as the document has them.

Checked here, where the document is written; the gateway applies them (`connectors/gateway/middleware.py`).
"""

from __future__ import annotations

from typing import Annotated, Any, Self

import re2
from pydantic import BaseModel, ConfigDict, Field, JsonValue, field_validator, model_serializer, model_validator

STEPS_MAX = 16
PATTERN_MAX = 500
WITH_MAX = 100
TYPES_MAX = 32
PATHS_MAX = 32
VALUE_MAX = 4_096
# What a compiled pattern may occupy; beyond it is refused. 1 MiB.
PATTERN_BYTES = 1024 * 1024
PATH = r"^(data|metadata|chunk)(\.[^.]{1,64}){0,8}$"
# What the protocol itself needs on every connection: a viewer without it would stand still, or show what is over.
NEVER_FILTERED = frozenset(
    {
        "ack",
        "conversationUpdate",
        "error",
        "heartbeat",
        "replayTruncated",
        "superseded",
        "tokenRefreshed",
        "welcome",
    }
)

FrameType = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.:-]{0,63}$")]
FrameTypes = Annotated[tuple[FrameType, ...], Field(min_length=1, max_length=TYPES_MAX)]
Path = Annotated[str, Field(pattern=PATH)]


def compiled(pattern: str) -> Any:
    """A regular expression of RE2's syntax, whose time is linear in the text, whatever it says. Raises `ValueError`."""
    options = re2.Options()
    options.log_errors = False
    options.max_mem = PATTERN_BYTES
    try:
        expression = re2.compile(pattern, options)
    except re2.error as error:
        reason = error.args[0] if error.args else ""
        said = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
        raise ValueError(f"no regular expression of RE2's syntax: {said}") from None
    if expression.search("") is not None:
        raise ValueError("must not match the empty text: it would match everywhere")
    return expression


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True, populate_by_name=True)


class Mask(_Strict):
    """What `pattern` matches in any text of a frame is shown as `with`."""

    pattern: str = Field(min_length=1, max_length=PATTERN_MAX)
    with_: str = Field("***", alias="with", max_length=WITH_MAX)
    types: FrameTypes | None = None

    @field_validator("pattern")
    @classmethod
    def _is_bounded(cls, pattern: str) -> str:
        compiled(pattern)
        return pattern


class Filter(_Strict):
    """Frames of these types, of agents, are not shown."""

    types: FrameTypes

    @field_validator("types")
    @classmethod
    def _are_not_needed(cls, types: tuple[str, ...]) -> tuple[str, ...]:
        needed = sorted(NEVER_FILTERED & set(types))
        if needed:
            raise ValueError(f"{', '.join(needed)}: the protocol needs it, it cannot be filtered")
        return types


class Transform(_Strict):
    """Fields of a frame that are set to a value, or dropped. Paths are names joined by dots."""

    types: FrameTypes | None = None
    set: dict[Path, JsonValue] = Field(default={}, max_length=PATHS_MAX)
    drop: tuple[Path, ...] = Field(default=(), max_length=PATHS_MAX)

    @model_validator(mode="after")
    def _does_something(self) -> Self:
        if not self.set and not self.drop:
            raise ValueError("needs `set` or `drop`")
        if len(self.model_dump_json()) > VALUE_MAX:
            raise ValueError(f"at most {VALUE_MAX} bytes as JSON")
        return self


class Step(_Strict):
    """One of the three."""

    mask: Mask | None = None
    filter: Filter | None = None
    transform: Transform | None = None

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        if len(self.model_fields_set & {"mask", "filter", "transform"}) != 1 or not (
            self.mask or self.filter or self.transform
        ):
            raise ValueError("each step is one of mask, filter, transform")
        return self

    @model_serializer(mode="plain")
    def _plain(self) -> dict[str, Any]:
        [(name, step)] = [(name, step) for name, step in self if step is not None]
        return {name: step.model_dump(mode="json", by_alias=True, exclude_none=True)}


Steps = Annotated[tuple[Step, ...], Field(max_length=STEPS_MAX)]
