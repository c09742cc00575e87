"""The `data` of each message type of the protocol, checked before it is stored: what is shown to others is well formed.

A type that is not listed here is a renderer of the application's own; its data need only be an object.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from connectors.gateway.protocol.errors import ProtocolError

Name = Annotated[str, Meta(min_length=1, max_length=256)]
Long = Annotated[str, Meta(max_length=4096)]
Medium = Annotated[str, Meta(max_length=1024)]
MimeType = Annotated[str, Meta(max_length=255)]
NonEmpty = Annotated[str, Meta(min_length=1)]
Count = Annotated[int, Meta(ge=0)]
Pixels = Annotated[int, Meta(ge=1)]
Url = Annotated[str, Meta(min_length=1, max_length=2048, pattern=r"^(https?://|/api/v1/converger/attachments/)")]
Extensions = dict[Annotated[str, Meta(pattern=r"^[a-z][a-z0-9_.-]{0,63}$")], dict[str, Any]]


class Action(Struct):
    """A tappable chip or button."""

    label: Name
    value: Any = UNSET
    url: Url | UnsetType = UNSET


Actions = Annotated[list[Action], Meta(min_length=1, max_length=10)]


class _Data(Struct, kw_only=True):
    extensions: Extensions | UnsetType = UNSET


class Text(_Data):
    """Plain or Markdown text. Its length is checked apart, in bytes."""

    text: str
    urls: Annotated[list[Url], Meta(max_length=10)] | UnsetType = UNSET
    previewVariant: Literal["compact", "expanded"] | UnsetType = UNSET  # noqa: N815 -- the wire's name
    streaming: bool | UnsetType = UNSET
    attachments: Annotated[list[dict[str, Any]], Meta(max_length=10)] | UnsetType = UNSET


class QuickReply(_Data):
    """A prompt with chips."""

    text: Long
    actions: Actions
    keepActions: bool | UnsetType = UNSET  # noqa: N815 -- the wire's name


class Buttons(_Data):
    """Buttons under an optional text."""

    buttons: Actions
    text: Long | UnsetType = UNSET
    persistent: bool | UnsetType = UNSET


class Card(_Data):
    """A title with picture, text and buttons."""

    title: Name
    subtitle: Medium | UnsetType = UNSET
    image: Url | UnsetType = UNSET
    text: Long | UnsetType = UNSET
    buttons: Actions | UnsetType = UNSET


class Carousel(_Data):
    """Up to ten cards."""

    cards: Annotated[list[Card], Meta(min_length=1, max_length=10)]
    text: Long | UnsetType = UNSET


class _Media(_Data):
    src: Url
    caption: Long | UnsetType = UNSET
    mimeType: MimeType | UnsetType = UNSET  # noqa: N815 -- the wire's name
    size: Count | UnsetType = UNSET
    text: Long | UnsetType = UNSET


class Image(_Media):
    """A picture."""

    alt: Medium | UnsetType = UNSET
    width: Pixels | UnsetType = UNSET
    height: Pixels | UnsetType = UNSET


class Video(_Media):
    """A film."""

    poster: Url | UnsetType = UNSET
    durationMs: Count | UnsetType = UNSET  # noqa: N815 -- the wire's name


class Audio(_Media):
    """A sound or a voice note."""

    durationMs: Count | UnsetType = UNSET  # noqa: N815 -- the wire's name
    voice: bool | UnsetType = UNSET


class File(_Data):
    """A document."""

    url: Url
    name: Annotated[str, Meta(min_length=1, max_length=255)]
    size: Count | UnsetType = UNSET
    mimeType: MimeType | UnsetType = UNSET  # noqa: N815 -- the wire's name
    caption: Long | UnsetType = UNSET
    text: Long | UnsetType = UNSET


class Location(_Data):
    """A place; degrees."""

    latitude: Annotated[float, Meta(ge=-90, le=90)]
    longitude: Annotated[float, Meta(ge=-180, le=180)]
    name: Medium | UnsetType = UNSET
    address: Medium | UnsetType = UNSET
    url: Url | UnsetType = UNSET
    text: Long | UnsetType = UNSET


class Phone(Struct):
    """One number of a contact."""

    number: Annotated[str, Meta(min_length=1, max_length=64)]
    label: Annotated[str, Meta(max_length=64)] | UnsetType = UNSET


class Email(Struct):
    """One address of a contact."""

    address: Annotated[str, Meta(min_length=3, max_length=320)]
    label: Annotated[str, Meta(max_length=64)] | UnsetType = UNSET


class Contact(_Data):
    """A person's card."""

    name: Name
    organization: Annotated[str, Meta(max_length=256)] | UnsetType = UNSET
    phones: Annotated[list[Phone], Meta(max_length=10)] | UnsetType = UNSET
    emails: Annotated[list[Email], Meta(max_length=10)] | UnsetType = UNSET
    url: Url | UnsetType = UNSET
    text: Long | UnsetType = UNSET


class ToolCall(Struct):
    """A tool trace."""

    id: NonEmpty
    name: NonEmpty
    status: Literal["running", "completed", "error"]
    description: str | UnsetType = UNSET
    params: dict[str, Any] | UnsetType = UNSET
    error: str | UnsetType = UNSET
    startedAt: float | UnsetType = UNSET  # noqa: N815 -- the wire's name
    endedAt: float | UnsetType = UNSET  # noqa: N815 -- the wire's name


class Skill(Struct):
    """A skill use."""

    id: NonEmpty
    name: NonEmpty
    status: Literal["loaded", "error"]
    source: Literal["server", "client"] | UnsetType = UNSET
    error: str | UnsetType = UNSET


class Component(Struct):
    """What renders an interrupt."""

    component: NonEmpty
    props: dict[str, Any] | UnsetType = UNSET


class ClientTool(Struct):
    """The client tool that an interrupt calls."""

    name: str


class Interrupt(Struct):
    """An open question."""

    payload: Any
    ui: Component | UnsetType = UNSET
    actions: list[Action] | UnsetType = UNSET
    event: str | UnsetType = UNSET
    tool: ClientTool | UnsetType = UNSET


class ChunkUi(Struct, tag_field="type", tag="ui"):
    """A generated component."""

    component: NonEmpty
    props: dict[str, Any] | UnsetType = UNSET
    id: str | int | UnsetType = UNSET


class ChunkText(Struct, tag_field="type", tag="text"):
    """A piece of streamed text."""

    content: str
    id: str | int | UnsetType = UNSET


class ChunkEvent(Struct, tag_field="type", tag="event"):
    """An event of a stream, such as its end."""

    name: NonEmpty
    id: str | int | UnsetType = UNSET


Chunk = ChunkUi | ChunkText | ChunkEvent

DATA_TYPES: dict[str, type[Struct]] = {
    "text": Text,
    "quick-reply": QuickReply,
    "buttons": Buttons,
    "card": Card,
    "carousel": Carousel,
    "image": Image,
    "video": Video,
    "audio": Audio,
    "file": File,
    "location": Location,
    "contact": Contact,
    "tool_call": ToolCall,
    "skill": Skill,
    "interrupt": Interrupt,
}


def check_data(frame_type: str, data: dict[str, Any], field: str = "data") -> None:
    """Raise `invalid_message` naming field and rule unless `data` fits its message type."""
    shape = DATA_TYPES.get(frame_type)
    if shape is not None:
        check(shape, data, field)


def check(shape: Any, value: Any, field: str) -> None:
    """Raise `invalid_message` naming field and rule unless `value` fits `shape`."""
    try:
        msgspec.convert(value, shape, strict=True)
    except msgspec.ValidationError as error:
        rule, _, path = str(error).partition(" - at `$")
        raise ProtocolError("invalid_message", f"{field}{path.rstrip('`')}: {rule}") from None
