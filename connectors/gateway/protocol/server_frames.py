"""Every frame that this server writes, as models; see `client_frames`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, UnsetType, field

from connectors.gateway.protocol.client_frames import (
    ClientId,
    Id,
    MessageType,
    Millis,
    Object,
    Part,
    ReplyTo,
    RunData,
    Sender,
    Seq,
    Tagged,
    Traceparent,
    Watermark,
)
from connectors.gateway.protocol.messages import Actions, Chunk, Interrupt, NonEmpty, Skill, ToolCall

Side = Annotated[Literal["user", "bot"], Meta(description="the person, or anybody else")]
_ONE, _ALL = {"required": ["activityId", "seq"]}, {"required": ["upToSeq"]}
Compat = Annotated[list[str], Meta(extra_json_schema={"contains": {"const": "mekik/1"}})]


class Limits(Part):
    """What a connection may do."""

    max_frame_bytes: int
    max_text_bytes: int
    max_metadata_bytes: int
    max_in_flight: int
    heartbeat_interval_ms: int
    idle_timeout_ms: int
    replay_batch: int
    replay_max: int
    max_conversations: int | UnsetType = UNSET
    max_checkpoint_bytes: int | UnsetType = UNSET
    max_runs: int | UnsetType = UNSET
    grace_ms: int | UnsetType = UNSET


class Pending(Part):
    """A question that waits for its answer."""

    id: Id
    data: Interrupt


class PersonWelcomeData(Part):
    """Of a person's connection."""

    protocol: Literal["converger/1"]
    compat: Compat
    connection_id: Id
    scope: Literal["conversation"]
    conversation_id: Id
    user_id: str
    watermark: Watermark
    pending: list[Pending]
    channel_id: str
    expires_at: Millis
    capabilities: dict[str, bool]
    limits: Limits


class AgentWelcomeData(Part):
    """Of an agent's connection. `group`, `instanceId` and `instanceSecret` are ours."""

    protocol: Literal["converger/1"]
    compat: Compat
    connection_id: Id
    scope: Literal["channel"]
    channel_id: str
    expires_at: Millis
    group: str | None
    capabilities: dict[str, bool]
    limits: Limits
    instance_id: str | UnsetType = UNSET
    instance_secret: str | UnsetType = UNSET


class PersonWelcome(Tagged, tag="welcome"):
    """The answer to a person's hello."""

    data: PersonWelcomeData


class AgentWelcome(Tagged, tag="welcome"):
    """The answer to an agent's hello."""

    data: AgentWelcomeData


class _Numbered(Tagged, kw_only=True):
    seq: Seq
    superseded: bool | UnsetType = UNSET


class Message(Part):
    """A message, as everybody is shown it. Ours: `superseded`: another process did that part again; `editedAt`: when
    what it says was last edited, in a replay."""

    type: MessageType
    id: Id
    seq: Seq
    from_: Side = field(name="from")
    data: Object
    timestamp: Millis
    sender: Sender
    client_id: ClientId | UnsetType = UNSET
    metadata: Object | UnsetType = UNSET
    actions: Actions | UnsetType = UNSET
    reply_to: ReplyTo | UnsetType = UNSET
    superseded: bool | UnsetType = UNSET
    edited_at: Millis | UnsetType = UNSET


class Done(Part):
    """What a run that goes on elsewhere has done. Ours."""

    frames: list[Object]
    interrupts: list[str]
    checkpoint: Any = UNSET


class Called(Part):
    """What makes a turn the call of an agent by a program. Ours. `deadlineMs` 0: none."""

    id: NonEmpty
    deadline_ms: Annotated[int, Meta(ge=0)]
    streamed: bool


class GivenTurn(Part):
    """A turn, as the agent that owns its run gets it. `run`, `runEpoch`, `turnSeq` (in place of `seq`), `resume`,
    `invocation` and `traceparent` are ours."""

    type: MessageType
    id: Id
    from_: Literal["user"] = field(name="from")
    data: Object
    timestamp: Millis
    sender: Sender
    meta: Object
    run: NonEmpty
    run_epoch: Annotated[int, Meta(ge=1)]
    seq: Seq | UnsetType = UNSET
    turn_seq: Seq | UnsetType = UNSET
    client_id: ClientId | UnsetType = UNSET
    metadata: Object | UnsetType = UNSET
    reply_to: ReplyTo | UnsetType = UNSET
    resume: Done | UnsetType = UNSET
    invocation: Called | UnsetType = UNSET
    traceparent: Traceparent | UnsetType = UNSET


class ToolCallShown(_Numbered, kw_only=True, tag="tool_call"):
    """How far a tool's call is."""

    data: ToolCall


class SkillShown(_Numbered, kw_only=True, tag="skill"):
    """A skill was used."""

    data: Skill


class Genui(_Numbered, kw_only=True, tag="genui"):
    """A piece of a stream."""

    stream_id: NonEmpty
    done: bool
    chunk: Chunk


class InterruptShown(_Numbered, kw_only=True, tag="interrupt"):
    """A question to the person."""

    id: Id
    data: Interrupt


class InterruptResolved(_Numbered, kw_only=True, tag="interrupt_resolved"):
    """The question is over."""

    id: Id
    data: Object


class EventShown(_Numbered, kw_only=True, tag="event"):
    """Something that happened."""

    id: Id
    from_: Side = field(name="from")
    data: Object
    timestamp: Millis
    sender: Sender | UnsetType = UNSET
    client_id: ClientId | UnsetType = UNSET
    metadata: Object | UnsetType = UNSET


class ConversationUpdate(_Numbered, kw_only=True, tag="conversationUpdate"):
    """The conversation was closed, reopened, or handed over."""

    id: Id
    from_: Side = field(name="from")
    data: Object
    timestamp: Millis
    sender: Sender


# ----------------------------------------------------------------------------------------------------- without a seq
class _Acked(Tagged):
    client_id: ClientId
    id: Id
    timestamp: Millis


class Ack(_Acked, kw_only=True, tag="ack"):
    """What was sent under `clientId` is stored. `duplicate`: it was before."""

    seq: Seq
    duplicate: bool | UnsetType = UNSET


class AckUnnumbered(_Acked, kw_only=True, tag="ack"):
    """A frame that has no place in the conversation, such as a checkpoint, was taken. Ours."""

    duplicate: bool | UnsetType = UNSET


class RunShown(Tagged, tag="run"):
    """A run's state."""

    data: RunData


class TypingShown(Tagged, tag="typing"):
    """Somebody types, or no longer. With `seq`: something numbered that this release cannot show."""

    is_typing: bool
    from_: Side | UnsetType = field(name="from", default=UNSET)
    sender: Sender | UnsetType = UNSET
    seq: Seq | UnsetType = UNSET


class PresenceData(Part):
    """Who, and whether somebody of that name is connected."""

    participant: Sender
    status: Literal["online", "away", "offline"]
    connections: Annotated[int, Meta(ge=0)] | UnsetType = UNSET
    last_seen_at: Millis | UnsetType = UNSET


class Presence(Tagged, tag="presence"):
    """A participant came or went."""

    data: PresenceData


class DeliveryData(Part):
    """How far messages came: one (`activityId`, `seq`), or all up to `upToSeq`."""

    status: Literal["queued", "sent", "delivered", "read", "failed"]
    timestamp: Millis
    up_to_seq: Seq | UnsetType = UNSET
    activity_id: Id | UnsetType = UNSET
    seq: Seq | UnsetType = UNSET
    channel_id: str | UnsetType = UNSET
    by: Sender | UnsetType = UNSET


class DeliveryStatus(Tagged, tag="deliveryStatus"):
    """Messages were delivered, or read."""

    data: Annotated[DeliveryData, Meta(extra_json_schema={"anyOf": [_ONE, _ALL]})]


class HeartbeatShown(Tagged, tag="heartbeat"):
    """Nothing else was written for a while, or the answer to a ping."""

    timestamp: Millis
    nonce: Annotated[str, Meta(max_length=64)] | UnsetType = UNSET
    head_seq: Watermark | UnsetType = UNSET


class Expiry(Part):
    """When a session ends."""

    expires_at: Millis


class TokenRefreshed(Tagged, tag="tokenRefreshed"):
    """The fresh token is taken."""

    data: Expiry


class Truncated(Part):
    """How far a replay came."""

    watermark: Watermark
    head_seq: Watermark


class ReplayTruncated(Tagged, tag="replayTruncated"):
    """The replay's limit is reached: ask for the rest with `sync`."""

    data: Truncated


class ErrorData(Part):
    """What was refused, and whether trying again can help."""

    code: Annotated[str, Meta(pattern=r"^[a-z][a-z0-9_]{0,63}$")]
    message: str
    number: Annotated[int, Meta(ge=1000, le=9999)] | UnsetType = UNSET
    retryable: bool | UnsetType = UNSET
    retry_after_ms: Annotated[int, Meta(ge=0)] | UnsetType = UNSET
    client_id: ClientId | UnsetType = UNSET
    frame_type: str | UnsetType = UNSET
    details: Object | UnsetType = UNSET


class ErrorShown(Tagged, tag="error"):
    """A refusal, or an agent's error."""

    data: ErrorData


class SupersededData(Part):
    """Which seqs may be hidden."""

    seqs: list[Seq]
    run: str | UnsetType = UNSET
    run_epoch: Annotated[int, Meta(ge=1)] | UnsetType = UNSET


class Superseded(Tagged, tag="superseded"):
    """Another process does these parts again. Ours; to clients that asked for it."""

    data: SupersededData


class EditedData(Part):
    """Which message, and what it says now."""

    message_id: Id
    seq: Seq
    data: Object


class Edited(Tagged, tag="edited"):
    """A person changed their message. Ours; to clients that asked for it."""

    data: EditedData


class AbortShown(Tagged, tag="abort"):
    """Stop working on the conversation's run. To agents. `run`, `runEpoch` and `reason` are ours: the run stays its
    agent's until that says that it has stopped."""

    run: NonEmpty | UnsetType = UNSET
    run_epoch: Annotated[int, Meta(ge=1)] | UnsetType = UNSET
    reason: str | UnsetType = UNSET


class Adopted(Tagged, tag="adopted"):
    """What is stored of a run that the process has still. Ours."""

    run: NonEmpty
    run_epoch: Annotated[int, Meta(ge=1)]
    resume: Done


class ResumePart(Tagged, tag="resume_part"):
    """Comes ahead of a turn whose `resume` is long. Ours."""

    run: NonEmpty
    run_epoch: Annotated[int, Meta(ge=1)]
    frames: list[Object]
