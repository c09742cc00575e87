"""Every frame that this server takes, as models; `server_frames` has those that it writes.

The JSON Schemas and the AsyncAPI document are generated from both (`wire_schema`). Receivers ignore what they do not
know, so no model forbids further fields. What the public specification does not have is called "ours".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from connectors.gateway.protocol.messages import Actions, Chunk, Interrupt, NonEmpty, Skill, ToolCall

ClientId = Annotated[str, Meta(pattern=r"^[A-Za-z0-9._:~-]{1,128}$", description="of the sender's choice; unique")]
Id = Annotated[str, Meta(min_length=1, max_length=256)]
MessageType = Annotated[str, Meta(pattern=r"^[a-z][a-z0-9_-]{0,63}$", description="no reserved name but `text`")]
Millis = Annotated[int, Meta(ge=0, description="milliseconds since the Unix epoch")]
Seq = Annotated[int, Meta(ge=1, description="place in the conversation: 1, 2, 3 … without a gap")]
Traceparent = Annotated[
    str,
    Meta(
        pattern="^00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$", description="W3C trace context: the trace that it is of"
    ),
]
Watermark = Annotated[int, Meta(ge=0, description="the highest seq that was seen; 0: none")]
GivenTrace = Annotated[
    Any, Meta(description="W3C trace context, the trace that it is of: passed on to nobody; what is none is ignored")
]
WatermarkText = Annotated[
    str,
    Meta(
        pattern=r"^([0-9]{1,19}|[A-Za-z][A-Za-z0-9_-]{3,127})$", description="of clients from before v1; or base64url"
    ),
]
Object = dict[str, Any]


class Tagged(Struct, kw_only=True, rename="camel", tag_field="type"):
    """A frame whose type says what else it has."""


class Part(Struct, kw_only=True, rename="camel"):
    """A part of frames, or a frame of many types."""


class Sender(Part):
    """Who sent something."""

    id: Id
    role: Literal["user", "bot", "agent", "system"] | UnsetType = UNSET
    name: Annotated[str, Meta(max_length=256)] | UnsetType = UNSET


class ReplyTo(Part):
    """The message that one answers."""

    id: Id | UnsetType = UNSET
    seq: Seq | UnsetType = UNSET


# ------------------------------------------------------------------------------------------- from any client, bare
class Hello(Tagged, tag="hello"):
    """The first frame. A field of a wrong type counts as absent; those that are texts may be in the query instead.
    `group`, `capabilities`, `instanceId` and `instanceSecret` are ours."""

    protocol: str | UnsetType = UNSET
    token: NonEmpty | UnsetType = UNSET
    user_id: str | UnsetType = UNSET
    conversation_id: Id | UnsetType = UNSET
    watermark: Watermark | WatermarkText | UnsetType = UNSET
    watermarks: dict[str, Watermark] | UnsetType = UNSET
    group: str | UnsetType = UNSET
    capabilities: list[str] | UnsetType = UNSET
    instance_id: str | UnsetType = UNSET
    instance_secret: str | UnsetType = UNSET
    meta: Object | UnsetType = UNSET
    tools: list[Object] | UnsetType = UNSET
    skills: list[Object] | UnsetType = UNSET
    components_hash: str | UnsetType = UNSET
    skills_hash: str | UnsetType = UNSET


_HELLO: Final = {each.encode_name: each.type for each in msgspec.structs.fields(Hello)}
# Their entries are looked at one by one, by whoever takes them.
_BY_ENTRY: Final = frozenset({"watermarks", "capabilities"})


def greeting(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a hello that are of their types; the others count as absent, and null is none."""
    return {name: fields[name] for name in _HELLO if fields.get(name) is not None and _fits(name, fields[name])}


def _fits(name: str, value: Any) -> bool:
    if name in _BY_ENTRY:
        return True
    try:
        msgspec.convert(value, _HELLO[name], strict=True)
    except msgspec.ValidationError:
        return False
    return True


class Ping(Tagged, tag="ping"):
    """Answered by a heartbeat with the same nonce."""

    nonce: Annotated[str, Meta(max_length=64)] | UnsetType = UNSET


class Auth(Tagged, tag="auth"):
    """A fresh token for the same session."""

    token: NonEmpty


class Drain(Tagged, tag="drain"):
    """An agent wants nothing new. Ours."""


# ------------------------------------------------------------------------------------ from a client, of a conversation
class Said(Part):
    """A message: `text` or another type of the protocol, or a renderer's own type."""

    type: MessageType
    data: Object
    client_id: ClientId | UnsetType = UNSET
    id: str | UnsetType = UNSET
    meta: Object | UnsetType = UNSET
    metadata: Object | UnsetType = UNSET
    reply_to: ReplyTo | UnsetType = UNSET
    timestamp: float | UnsetType = UNSET
    actions: Actions | UnsetType = UNSET
    traceparent: GivenTrace = UNSET


class PersonFrame(Tagged):
    """What every frame of a person may name that the conversation keeps. Ours."""

    traceparent: GivenTrace = UNSET


class Typing(Tagged, tag="typing"):
    """The sender types, or no longer."""

    is_typing: bool


class Read(Tagged, tag="read"):
    """The sender has read everything up to the watermark."""

    watermark: Seq


class Sync(Tagged, tag="sync"):
    """Asks for everything after the watermark."""

    watermark: Watermark | WatermarkText


class Resume(PersonFrame, kw_only=True, tag="resume"):
    """Answers open interrupts, by their ids."""

    answers: Annotated[dict[str, Any], Meta(min_length=1)]
    client_id: ClientId | UnsetType = UNSET


class Abort(PersonFrame, kw_only=True, tag="abort"):
    """Ends the conversation's open runs."""


class GenuiEvent(PersonFrame, kw_only=True, tag="genui_event"):
    """Something happened in a generated component."""

    stream_id: NonEmpty
    event_type: NonEmpty
    scope: Literal["component", "graph"] | UnsetType = UNSET
    component: str | UnsetType = UNSET
    payload: Any = UNSET


class DeclaredTool(Part):
    """A tool that the client runs."""

    name: NonEmpty
    description: str | UnsetType = UNSET
    parameters: Object | UnsetType = UNSET
    tags: list[str] | UnsetType = UNSET
    mode: Literal["call", "notify"] | UnsetType = UNSET


class ClientTools(PersonFrame, kw_only=True, tag="client_tools"):
    """Replaces the connection's client tools."""

    tools: list[DeclaredTool]


class DeclaredSkill(Part):
    """A skill that the client brings."""

    name: str
    description: str
    instructions: str
    tags: list[str] | UnsetType = UNSET


class ClientSkills(PersonFrame, kw_only=True, tag="client_skills"):
    """Replaces the connection's client skills."""

    skills: list[DeclaredSkill]


class Survey(PersonFrame, kw_only=True, tag="survey"):
    """What the person thinks of the conversation."""

    rating: float | UnsetType = UNSET
    comment: str | UnsetType = UNSET


class Regenerate(PersonFrame, kw_only=True, tag="regenerate"):
    """The latest turn is to be answered anew."""

    message_id: NonEmpty


class Edit(PersonFrame, kw_only=True, tag="edit"):
    """Replaces the sender's latest message, which is answered anew."""

    message_id: NonEmpty
    data: Object


# ---------------------------------------------------------------------------------------- from an agent, in envelopes
class AgentFrame(Tagged):
    """What every frame of an agent may name: the run that it belongs to, its epoch, and the trace. Ours."""

    run: Annotated[str, Meta(min_length=1)] | UnsetType = UNSET
    run_epoch: Annotated[int, Meta(ge=1)] | UnsetType = UNSET
    traceparent: GivenTrace = UNSET


class AgentGenui(AgentFrame, kw_only=True, tag="genui"):
    """A piece of a stream."""

    stream_id: Id
    done: bool
    chunk: Chunk
    client_id: ClientId | UnsetType = UNSET


class AgentToolCall(AgentFrame, kw_only=True, tag="tool_call"):
    """How far a tool's call is."""

    data: ToolCall
    client_id: ClientId | UnsetType = UNSET


class AgentSkill(AgentFrame, kw_only=True, tag="skill"):
    """A skill was used."""

    data: Skill
    client_id: ClientId | UnsetType = UNSET


class AgentInterrupt(AgentFrame, kw_only=True, tag="interrupt"):
    """A question to the person."""

    id: Id
    data: Interrupt
    client_id: ClientId | UnsetType = UNSET


class AgentInterruptResolved(AgentFrame, kw_only=True, tag="interrupt_resolved"):
    """The question is over."""

    id: Id
    data: Object
    client_id: ClientId | UnsetType = UNSET


class AgentEvent(AgentFrame, kw_only=True, tag="event"):
    """Something that happened."""

    data: Object
    client_id: ClientId | UnsetType = UNSET


class RunData(Part):
    """How far a run is. `superseded` is ours: seqs that viewers may hide."""

    status: Literal["started", "finished", "interrupted", "error", "aborted"]
    superseded: list[Seq] | UnsetType = UNSET


class AgentRun(AgentFrame, kw_only=True, tag="run"):
    """The run's state."""

    data: RunData


class AgentError(AgentFrame, kw_only=True, tag="error"):
    """What went wrong."""

    data: Object


class Checkpoint(AgentFrame, kw_only=True, tag="checkpoint"):
    """Kept with the run, for whoever goes on with it. Ours."""

    data: Any
    client_id: ClientId | UnsetType = UNSET


class Refuse(AgentFrame, kw_only=True, tag="refuse"):
    """The run that it names is not taken: another agent of the group gets it. Ours."""

    reason: NonEmpty | UnsetType = UNSET


class GenuiComponents(Tagged, tag="genui_components"):
    """The bot's components, passed on as they are."""

    hash: NonEmpty
    unchanged: bool | UnsetType = UNSET
    components: list[Object] | UnsetType = UNSET


class Skills(Tagged, tag="skills"):
    """The bot's skills, passed on as they are."""

    hash: NonEmpty
    unchanged: bool | UnsetType = UNSET
    skills: list[Object] | UnsetType = UNSET
