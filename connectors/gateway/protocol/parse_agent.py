"""From an agent's frame to what the intake stores of it, or to the error that names field and rule."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from connectors.gateway.protocol import limits, messages
from connectors.gateway.protocol.errors import ProtocolError
from connectors.gateway.protocol.parse import (
    MAX_ID,
    check_text,
    client_id_field,
    frame_type_of,
    json_text,
    object_field,
    parse_message,
    watermark_of,
)
from streams.core.events import Frame

# `<conversation>/<turn's seq>/<channel>/<group>`.
RUN_ID_MAX = 3 * MAX_ID
ERROR_CODE = re.compile(r"[a-z][a-z0-9_]{0,63}")
RUN_STATUSES = frozenset({"started", "finished", "interrupted", "error", "aborted"})
NATIVE = frozenset({"genui", "tool_call", "skill", "interrupt", "interrupt_resolved"})
"""What a bot says beside messages: stored and shown as it was sent, but for `seq`."""
# Fields of theirs that are stored as what they are, or that are not theirs to say.
_KNOWN = frozenset(
    {"type", "seq", "id", "data", "streamId", "done", "chunk", "clientId", "run", "runEpoch", "traceparent"}
    | {"superseded", "answers"}
)


def parse_agent_frame(frame: dict[str, Any], mint: Callable[[], str], texts: Mapping[str, str] | None = None) -> Frame:
    """An agent's frame as the intake stores it; `mint` gives a new message id, `texts` has the frame's fields as they
    came (see `verbatim`). Raises as `parse_message` does."""
    kind = frame_type_of(frame)
    if kind in _ABOUT_THE_RUN:
        return _about_the_run(kind, frame, mint)
    if kind in NATIVE:
        return _native(kind, frame, mint, texts or {})
    match kind:
        case "event":
            return Frame(id=mint(), type=kind, data=_checked(frame, kind), client_id=client_id_field(frame))
        case "error":
            return Frame(id=mint(), type=kind, data=_agent_error(frame))
        case _:
            return _agent_message(kind, frame, mint)


def run_named(frame: dict[str, Any]) -> tuple[str | None, int | None]:
    """The run that a frame names, and its epoch. Raises for what can name none: read as no name, a zombie's frame would
    pass for one that belongs to no run."""
    run_id, run_epoch = frame.get("run"), frame.get("runEpoch")
    if run_id is not None and not (isinstance(run_id, str) and 0 < len(run_id) <= RUN_ID_MAX):
        raise ProtocolError("invalid_message", f"run: the run's id, a string of 1 to {RUN_ID_MAX} characters")
    whole = isinstance(run_epoch, int) and not isinstance(run_epoch, bool)
    if run_epoch is not None and not (whole and 0 < run_epoch < 2**31):
        raise ProtocolError("invalid_message", "runEpoch: must be an integer, 1 or above")
    return run_id, run_epoch


_ABOUT_THE_RUN = frozenset({"read", "run", "checkpoint"})


def _about_the_run(kind: str, frame: dict[str, Any], mint: Callable[[], str]) -> Frame:
    """A frame that says how far its sender is, and nothing to the person."""
    if kind == "read":
        return Frame(id=mint(), type=kind, watermark=watermark_of(frame))
    if kind == "checkpoint":
        return Frame(id=mint(), type=kind, data=_checkpoint(frame), client_id=client_id_field(frame))
    status = object_field(frame, "data").get("status")
    if not isinstance(status, str) or status not in RUN_STATUSES:
        raise ProtocolError("invalid_message", f"data.status: one of {', '.join(sorted(RUN_STATUSES))}")
    return Frame(id=mint(), type=kind, status=status)


def _native(kind: str, frame: dict[str, Any], mint: Callable[[], str], texts: Mapping[str, str]) -> Frame:
    extra = {name: msgspec.Raw(texts[name].encode()) for name in frame if name not in _KNOWN and name in texts}
    more = json_text(extra) if extra else None
    if kind == "genui":
        return msgspec.structs.replace(_genui(frame, mint, texts), extra=more)
    named = mint()
    if kind.startswith("interrupt"):
        named = frame.get("id", "")
        if not isinstance(named, str) or not 0 < len(named) <= MAX_ID:
            raise ProtocolError("invalid_message", f"id: the interrupt's id, 1 to {MAX_ID} characters")
    checked = _checked(frame, kind)
    data = texts.get("data", checked)
    return Frame(id=named, type=kind, data=data, client_id=client_id_field(frame), extra=more)


def _checked(frame: dict[str, Any], kind: str) -> str:
    data = object_field(frame, "data", required=True)
    messages.check_data(kind, data)
    return json_text(data)


def _genui(frame: dict[str, Any], mint: Callable[[], str], texts: Mapping[str, str]) -> Frame:
    stream, done, chunk = frame.get("streamId"), frame.get("done"), frame.get("chunk")
    if not isinstance(stream, str) or not 0 < len(stream) <= MAX_ID:
        raise ProtocolError("invalid_message", f"streamId: a string of 1 to {MAX_ID} characters")
    if not isinstance(done, bool):
        raise ProtocolError("invalid_message", "done: must be true or false")
    messages.check(messages.Chunk, chunk, "chunk")
    check_text(chunk.get("content") if isinstance(chunk, dict) else None, "chunk.content")
    return Frame(
        id=mint(),
        type="genui",
        stream_id=stream,
        done=done,
        data=texts.get("chunk") or json_text(chunk),
        client_id=client_id_field(frame),
    )


def _checkpoint(frame: dict[str, Any]) -> str:
    if "data" not in frame:
        raise ProtocolError("invalid_message", "data: what is to be kept, any JSON value")
    text = json_text(frame["data"])
    size = len(text.encode())
    if size > limits.MAX_CHECKPOINT_BYTES:
        raise ProtocolError(
            "payload_too_large",
            f"data: {size} bytes as JSON, at most {limits.MAX_CHECKPOINT_BYTES} are taken of a checkpoint",
            details={"field": "data", "size": size, "limit": limits.MAX_CHECKPOINT_BYTES},
        )
    return text


def _agent_error(frame: dict[str, Any]) -> str:
    data = dict(object_field(frame, "data", required=True))
    code = data.get("code")
    if not isinstance(code, str) or not ERROR_CODE.fullmatch(code):
        data["code"] = "agent_error"
    if not isinstance(data.get("message"), str):
        data["message"] = "the agent reported an error"
    # Fields of the protocol's own meaning are only passed on when they are what they claim to be.
    for field, kind in (("retryable", bool), ("retryAfterMs", int), ("details", dict)):
        if field in data and not isinstance(data[field], kind):
            del data[field]
    for field in ("number", "clientId", "frameType"):
        data.pop(field, None)
    return json_text(data)


def _agent_message(kind: str, frame: dict[str, Any], mint: Callable[[], str]) -> Frame:
    message = parse_message(frame)
    extra: dict[str, Any] = {}
    actions = frame.get("actions")
    if actions:
        messages.check(messages.Actions, actions, "actions")
        extra["actions"] = actions
    if message.reply_to is not None:
        extra["replyTo"] = {"id": message.reply_to}
    return Frame(
        id=mint(),
        type=kind,
        client_id=message.client_id,
        text=message.text,
        data=message.data,
        metadata=message.metadata,
        extra=json_text(extra) if extra else None,
    )
