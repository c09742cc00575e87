"""A person's frames beside their messages, as the intake stores them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from connectors.gateway.protocol import client_frames, messages
from connectors.gateway.protocol.parse import check_text, client_id_of, json_text
from streams.core.events import Frame

MODELS: Final[Mapping[str, type[msgspec.Struct]]] = {
    "resume": client_frames.Resume,
    "abort": client_frames.Abort,
    "edit": client_frames.Edit,
    "regenerate": client_frames.Regenerate,
    "genui_event": client_frames.GenuiEvent,
    "client_tools": client_frames.ClientTools,
    "client_skills": client_frames.ClientSkills,
    "survey": client_frames.Survey,
}
_NOT_PASSED_ON: Final = frozenset({"type", "clientId", "run", "runEpoch", "traceparent"})
"""Which run it is of is for the partition to say; the trace goes with the command."""


def parse_person_frame(frame: dict[str, Any], mint: Callable[[], str]) -> Frame:
    """A frame of one of `MODELS`, checked; `mint` gives a new message id. Raises the error that names field and rule.

    An `edit` has its new words where a turn has them; which message it, or a `regenerate`, names is in `extra`.
    """
    kind = frame["type"]
    messages.check(MODELS[kind], frame, kind)
    made = Frame(id=mint(), type=kind, client_id=client_id_of(frame))
    if kind not in {"edit", "regenerate"}:
        own = {field: value for field, value in frame.items() if field not in _NOT_PASSED_ON}
        return msgspec.structs.replace(made, data=json_text(own))
    made = msgspec.structs.replace(made, extra=json_text({"messageId": frame["messageId"]}))
    if kind == "regenerate":
        return made
    data = frame["data"]
    text = data.get("text")
    check_text(text, "data.text")
    return msgspec.structs.replace(
        made,
        text=text if isinstance(text, str) else None,
        data=None if data.keys() == {"text"} else json_text(data),
    )
