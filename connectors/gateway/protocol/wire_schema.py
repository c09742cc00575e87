"""JSON Schemas (2020-12) and an AsyncAPI document of the socket, generated from the models of its frames."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any, Final

import msgspec

from connectors.gateway.protocol import client_frames as taken
from connectors.gateway.protocol import messages, parse
from connectors.gateway.protocol import server_frames as written

Schema = dict[str, Any]

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
ASYNCAPI: Final = "3.0.0"

PERSON_SAYS: Final = (
    *(taken.Hello, taken.Ping, taken.Auth, taken.Said, taken.Typing, taken.Read, taken.Sync, taken.Resume, taken.Abort),
    *(taken.GenuiEvent, taken.ClientTools, taken.ClientSkills, taken.Survey, taken.Regenerate, taken.Edit),
)
AGENT_SAYS: Final = (taken.Hello, taken.Ping, taken.Auth, taken.Drain)
AGENT_SAYS_IN: Final = (
    *(taken.Said, taken.Typing, taken.Read, taken.Sync, taken.AgentGenui, taken.AgentToolCall, taken.AgentSkill),
    *(taken.AgentInterrupt, taken.AgentInterruptResolved, taken.AgentEvent, taken.AgentRun, taken.AgentError),
    *(taken.Checkpoint, taken.Refuse, taken.GenuiComponents, taken.Skills),
)
_TO_ALL: Final = (written.HeartbeatShown, written.TokenRefreshed, written.ErrorShown)
_NUMBERED: Final = (
    *(written.Message, written.ToolCallShown, written.SkillShown, written.Genui, written.InterruptShown),
    *(written.InterruptResolved, written.EventShown, written.ConversationUpdate),
)
PERSON_GETS: Final = (
    *(written.PersonWelcome, *_TO_ALL, *_NUMBERED, written.Ack, written.RunShown, written.TypingShown),
    *(written.Presence, written.DeliveryStatus, written.ReplayTruncated, written.Superseded, written.Edited),
    *(taken.GenuiComponents, taken.Skills),
)
AGENT_GETS: Final = (written.AgentWelcome, *_TO_ALL)
AGENT_GETS_IN: Final = (
    *(written.GivenTurn, *_NUMBERED, written.Ack, written.AckUnnumbered, written.ErrorShown),
    *(
        written.TypingShown,
        written.Presence,
        written.DeliveryStatus,
        written.Superseded,
        written.Edited,
        written.AbortShown,
        written.Adopted,
        written.ResumePart,
    ),
    *(taken.Resume, taken.GenuiEvent, taken.ClientTools, taken.ClientSkills, taken.Survey),
)
# What a message of each type has as `data`; any other type is a renderer's own.
_MESSAGE_DATA: Final = {
    name: shape for name, shape in messages.DATA_TYPES.items() if name not in parse.RESERVED - {"text"}
}
_MESSAGES: Final = ("Said", "Message", "GivenTurn")


def schemas() -> dict[str, Schema]:
    """Name to schema: what each side of each kind of socket says, everything that one refers to in its `$defs`."""
    return {
        "person-to-server": _entry("What a person's client sends", PERSON_SAYS),
        "server-to-person": _entry("What a person's client is sent", PERSON_GETS),
        "agent-to-server": _entry("What an agent sends", AGENT_SAYS, AGENT_SAYS_IN),
        "server-to-agent": _entry("What an agent is sent", AGENT_GETS, AGENT_GETS_IN),
    }


def asyncapi() -> Schema:
    """The socket's AsyncAPI document: both kinds of connection, what each side sends."""
    kinds = {
        "people": ("A person's connection (a token of scope conversation)", PERSON_SAYS, PERSON_GETS, (), ()),
        "agents": (
            "An agent's connection (a token of scope channel); frames of a conversation travel in envelopes",
            *(AGENT_SAYS, AGENT_GETS, AGENT_SAYS_IN, AGENT_GETS_IN),
        ),
    }
    every = {shape for _, *groups in kinds.values() for group in groups for shape in group}
    components = _definitions(sorted(every, key=lambda shape: shape.__name__), "#/components/schemas/{name}")
    channels: Schema = {}
    operations: Schema = {}
    named: Schema = {}
    for kind, (meaning, says, gets, says_in, gets_in) in kinds.items():
        groups = {"receive": (says, says_in), "send": (gets, gets_in)}
        refs: Schema = {}
        for action, (bare, enveloped) in groups.items():
            made = _messages(kind, action, bare, enveloped)
            named |= made
            here = {name: {"$ref": f"#/components/messages/{name}"} for name in made}
            refs |= here
            operations[f"{kind}-{action}"] = {
                "action": action,
                "channel": {"$ref": f"#/channels/{kind}"},
                "messages": [{"$ref": f"#/channels/{kind}/messages/{name}"} for name in here],
            }
        channels[kind] = {
            "address": "/socket/converger/v1",
            "description": meaning,
            "messages": refs,
            "bindings": {"ws": {"method": "GET"}},
        }
    return {
        "asyncapi": ASYNCAPI,
        "info": {
            "title": "Turnlog gateway, the socket",
            "version": version("turnlog"),
            "description": "Converger Protocol v1, subprotocol converger.v1. `receive` is what the gateway takes.",
        },
        "defaultContentType": "application/json",
        "channels": channels,
        "operations": operations,
        "components": {"messages": named, "schemas": components},
    }


def _messages(kind: str, action: str, bare: Sequence[type], enveloped: Sequence[type]) -> Schema:
    made: Schema = {}
    for inside, shapes in ((False, bare), (True, enveloped)):
        for shape in shapes:
            payload: Schema = {"$ref": f"#/components/schemas/{shape.__name__}"}
            name = f"{kind}-{action}-{shape.__name__}{'-enveloped' if inside else ''}"
            made[name] = {
                "name": _wire_type(shape),
                "summary": _summary(shape),
                "payload": _envelope(payload) if inside else payload,
            }
    return made


def _entry(title: str, bare: Sequence[type], enveloped: Sequence[type] = ()) -> Schema:
    ref = "#/$defs/{name}"
    choices = [{"$ref": ref.format(name=shape.__name__)} for shape in bare]
    if enveloped:
        choices.append(_envelope({"anyOf": [{"$ref": ref.format(name=shape.__name__)} for shape in enveloped]}))
    return {
        "$schema": DIALECT,
        "title": title,
        "anyOf": choices,
        "$defs": _definitions([*bare, *enveloped], ref),
    }


def _envelope(frame: Schema) -> Schema:
    return {
        "type": "object",
        "required": ["conversationId", "frame"],
        "not": {"required": ["type"]},
        "properties": {"conversationId": {"type": "string", "minLength": 1, "maxLength": 256}, "frame": frame},
    }


def _definitions(shapes: Sequence[type], ref: str) -> Mapping[str, Schema]:
    several = [*dict.fromkeys(shapes)]
    _, found = msgspec.json.schema_components([*several, *_MESSAGE_DATA.values()], ref_template=ref)
    definitions: dict[str, Schema] = dict(sorted(found.items()))
    for name in _MESSAGES:
        if name in definitions:
            definitions[name] = _of_messages(definitions[name], ref)
    return definitions


def _of_messages(definition: Schema, ref: str) -> Schema:
    """A message's type is no word of the protocol's own, and its data is what its type says."""
    of_type = [
        {
            "if": {"properties": {"type": {"const": name}}},
            "then": {"properties": {"data": {"$ref": ref.format(name=shape.__name__)}}},
        }
        for name, shape in _MESSAGE_DATA.items()
    ]
    not_reserved = {"properties": {"type": {"not": {"enum": sorted(parse.RESERVED)}}}}
    return {**definition, "allOf": [not_reserved, *of_type]}


def _wire_type(shape: type) -> str:
    tag = getattr(shape, "__struct_config__").tag  # noqa: B009 -- mypy knows no attribute of a type made of models
    return str(tag) if tag is not None else "message"


def _summary(shape: type) -> str:
    return " ".join((shape.__doc__ or "").split())
