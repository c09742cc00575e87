"""What a channel's middleware makes of what its people are shown: live, in replays, by REST and in event streams alike.

It works on journal entries, before they are rendered, so that no way of showing one can be left out. What is filtered
keeps its `seq`, as a notice that says only that something is there: viewers take nothing but `watermark + 1`. The
journal, agents and the tenant API have everything as it was said.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, Final, TypeVar

import msgspec
import structlog
from pydantic import TypeAdapter, ValidationError

from connectors.gateway.pieces import StreamMask, is_text_chunk
from connectors.gateway.protocol.render import Fields
from streams.core.events import Entry, Frame, FrameCommitted, PersonFrameCommitted, Turn, TurnCommitted, TurnEdited
from streams.fence.middleware import Mask, Step, Steps, Transform, compiled

log = structlog.get_logger(__name__)

HIDDEN: Final = "hidden"
"""Name of the event in whose place something is not shown."""
# To look for all matches is quadratic in the worst case though each is linear: 500 times 128 KiB take 0.1 s. What has
# more is masked as a whole.
MATCHES_MAX: Final = 500
DEPTH_MAX: Final = 100
"""What is nested deeper than this is masked as a whole."""
KEPT: Final = frozenset(
    {"type", "id", "seq", "from", "timestamp", "clientId", "streamId", "done", "replyTo", "sender", "superseded"}
)
"""Fields by which clients tell one frame from another: no mask touches them."""
_steps: Final = TypeAdapter(Steps)


_Said = TypeVar("_Said", Turn, Frame)


class _Channel(msgspec.Struct):
    id: str
    middleware: list[Any] = []


class _Document(msgspec.Struct):
    channels: tuple[_Channel, ...] = ()


def middleware_of(document: str) -> Mapping[str, Middleware]:
    """By channel, of the channels that have any. Steps that cannot be read hide what agents say: a newer release may
    have meant them to."""
    found: dict[str, Middleware] = {}
    for channel in msgspec.json.decode(document, type=_Document).channels if document else ():
        if not channel.middleware:
            continue
        try:
            found[channel.id] = Middleware(_steps.validate_python(channel.middleware))
        except ValidationError as error:
            wrong = [f"{each['loc']}: {each['msg']}" for each in error.errors()]
            log.error("middleware cannot be read: what agents say is hidden", channel=channel.id, wrong=wrong)  # noqa: TRY400
            found[channel.id] = Middleware((), hides_all=True)
    return found


class Middleware:
    """One channel's, ready to be applied."""

    def __init__(self, steps: Sequence[Step], *, hides_all: bool = False) -> None:
        self._hides_all = hides_all
        self._filtered = frozenset(name for step in steps if step.filter is not None for name in step.filter.types)
        self._changes = [_Change(each) for step in steps if (each := step.mask or step.transform) is not None]
        self.stream_masks = tuple(
            StreamMask(compiled(step.mask.pattern), step.mask.with_)
            for step in steps
            if step.mask is not None and (step.mask.types is None or "genui" in step.mask.types)
        )
        """Those that are for the text of streams, which is masked as one; see `pieces`."""

    def hides(self, kind: str) -> bool:
        """Whether agents' frames of this type are not shown."""
        return self._hides_all or kind in self._filtered

    def entry(self, entry: Entry, *, streams_are_masked: bool = False) -> Entry:
        """As people are shown it. What people said is never hidden: their own connections wait for it.
        `streams_are_masked`: the text of a stream's chunk was masked already, with what stands around it."""
        event = entry.event
        if isinstance(event, FrameCommitted) and event.seq and self.hides(event.frame.type):
            return msgspec.structs.replace(entry, event=hidden(event))
        if isinstance(event, TurnCommitted):
            turn = self._said(event.turn)
            shown = event if turn is event.turn else msgspec.structs.replace(event, turn=turn)
            return entry if shown is event else msgspec.structs.replace(entry, event=shown)
        if isinstance(event, TurnEdited):
            words = Frame(id=event.turn_id, type="text", text=event.text, data=event.data)
            if (shown_words := self._said(words)) is not words:
                changed = msgspec.structs.replace(event, text=shown_words.text, data=shown_words.data)
                return msgspec.structs.replace(entry, event=changed)
        if isinstance(event, FrameCommitted | PersonFrameCommitted):
            masks = not (streams_are_masked and is_text_chunk(event.frame))
            frame = self._more(self._said(event.frame, masks=masks))
            if frame is not event.frame:
                return msgspec.structs.replace(entry, event=msgspec.structs.replace(event, frame=frame))
        return entry

    def relayed(self, frame: bytes) -> bytes | None:
        """What others show of themselves, which has no `seq`; None: it is not shown."""
        fields = msgspec.json.decode(frame)
        kind = fields.get("type", "")
        if self.hides(kind):
            return None
        changed = self._changed(fields, kind)
        return frame if changed is fields else msgspec.json.encode(changed)

    def questions(self, pending: Sequence[Fields]) -> list[Fields]:
        """Open questions, as they are told again."""
        if self.hides("interrupt"):
            return []
        decoded = [{**asked, "data": msgspec.json.decode(msgspec.json.encode(asked["data"]))} for asked in pending]
        return [self._changed(asked, "interrupt") for asked in decoded]

    def _changed(self, fields: Fields, kind: str, *, masks_only: bool = False, masks: bool = True) -> Fields:
        """The same object when no step changes anything."""
        for change in self._changes:
            if change.concerns(kind) and (masks if change.masks else not masks_only):
                fields = change.apply(fields)
        return fields

    def _said(self, said: _Said, *, masks: bool = True) -> _Said:
        """With its texts changed. What is no JSON that can be looked into is left out."""
        if not any(change.concerns(said.type) for change in self._changes):
            return said
        chunk = "chunk" if said.type == "genui" else "data"
        own: Fields = {chunk: _json(said.data) if said.data is not None else {"text": said.text or ""}}
        if said.metadata is not None:
            own["metadata"] = _object(said.metadata)
        if said.data is not None and said.text is not None:
            own["text"] = said.text
        changed = self._changed(own, said.type, masks=masks)
        return said if changed is own else _written(said, changed, chunk)

    def _more(self, frame: Frame) -> Frame:
        """With its further fields masked."""
        if frame.extra is None or not any(change.masks and change.concerns(frame.type) for change in self._changes):
            return frame
        more = _object(frame.extra)
        masked = self._changed(more, frame.type, masks_only=True)
        return frame if masked is more and more else msgspec.structs.replace(frame, extra=_text(masked))


class _Change:
    """A mask or a transform."""

    def __init__(self, step: Mask | Transform) -> None:
        self._step = step
        self._types = frozenset(step.types) if step.types is not None else None
        self._pattern = compiled(step.pattern) if isinstance(step, Mask) else None

    @property
    def masks(self) -> bool:
        """Whether it is a mask."""
        return self._pattern is not None

    def concerns(self, kind: str) -> bool:
        """Whether it is for frames of this type."""
        return self._types is None or kind in self._types

    def apply(self, fields: Fields) -> Fields:
        """The same object when nothing of it changes."""
        if isinstance(self._step, Mask):
            texts = _Masked(self._pattern, self._step.with_)
            shown = {name: value if name in KEPT else texts.of(value) for name, value in fields.items()}
            return shown if texts.matches else fields
        changed = fields
        for path, value in self._step.set.items():
            changed = _set(changed, path.split("."), value)
        for path in self._step.drop:
            changed = _dropped(changed, path.split("."))
        return changed


class _Masked:
    """One frame's texts, masked. `matches`: how many there were."""

    def __init__(self, pattern: Any, with_: str) -> None:
        self._pattern = pattern
        self._with = with_
        self.matches = 0

    def of(self, value: Any, depth: int = 0) -> Any:
        """A JSON value with its texts masked, names of fields excepted."""
        if isinstance(value, str):
            return self._text(value)
        if depth >= DEPTH_MAX and isinstance(value, dict | list):
            self.matches += 1
            return self._with
        if isinstance(value, dict):
            return {name: self.of(each, depth + 1) for name, each in value.items()}
        if isinstance(value, list):
            return [self.of(each, depth + 1) for each in value]
        return value

    def _text(self, text: str) -> str:
        room = MATCHES_MAX - self.matches
        found = [match.span() for match in islice(self._pattern.finditer(text), room + 1)] if room >= 0 else [(0, 0)]
        self.matches += len(found)
        if len(found) > room:
            return self._with
        parts, after = [], 0
        for start, end in found:
            parts += [text[after:start], self._with]
            after = end
        return "".join([*parts, text[after:]])


def hidden(event: FrameCommitted) -> FrameCommitted:
    """In its place: that something is here."""
    notice = Frame(id=f"{event.conversation_id}/{event.seq}", type="event", data=f'{{"name":"{HIDDEN}"}}')
    return msgspec.structs.replace(event, frame=notice, sender="system")


def _written(said: _Said, fields: Fields, chunk: str) -> _Said:
    data = fields.get(chunk, {})
    text = data.get("text") if isinstance(data, dict) else None
    shown: dict[str, Any] = {"metadata": _text(fields["metadata"]) if "metadata" in fields else None}
    if isinstance(text, str) and len(data) == 1 and said.data is None:
        shown |= {"text": text, "data": None}
    else:
        spare = fields.get("text") if said.data is not None else None
        shown |= {"text": text if isinstance(text, str) else spare, "data": _text(data)}
    return msgspec.structs.replace(said, **shown)


def _set(value: Any, path: Sequence[str], wanted: Any) -> Any:
    """With the field at this path; what stands in its way is not overwritten."""
    if not isinstance(value, dict):
        return value
    name, *rest = path
    if not rest:
        return value if value.get(name) == wanted and name in value else {**value, name: wanted}
    inner = _set(value.get(name, {}), rest, wanted)
    return value if name in value and inner is value[name] else {**value, name: inner}


def _dropped(value: Any, path: Sequence[str]) -> Any:
    """Without the field at this path; of a list, without it in each element."""
    if isinstance(value, list):
        shown = [_dropped(each, path) for each in value]
        return value if all(a is b for a, b in zip(shown, value, strict=True)) else shown
    name, *rest = path
    if not isinstance(value, dict) or name not in value:
        return value
    if not rest:
        return {key: each for key, each in value.items() if key != name}
    inner = _dropped(value[name], rest)
    return value if inner is value[name] else {**value, name: inner}


def _json(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return {}


def _object(text: str) -> Fields:
    value = _json(text)
    return value if isinstance(value, dict) else {}


def _text(value: Any) -> str:
    return msgspec.json.encode(value).decode()
