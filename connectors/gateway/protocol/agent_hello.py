"""What an agent says when it connects: its group, what it can do, and what its process has already."""

from __future__ import annotations

from typing import Any

import msgspec

from connectors.gateway.protocol import limits
from connectors.gateway.protocol.errors import ProtocolError
from connectors.gateway.protocol.parse import CLIENT_ID, MAX_ID, capabilities_of, is_user_id

GROUP_MAX = 64
WATERMARKS_MAX = limits.MAX_CONVERSATIONS


CHANGES = frozenset({"superseded", "edited"})


class AgentHello(msgspec.Struct, frozen=True, kw_only=True):
    """An agent's hello, checked."""

    group: str | None
    user: str | None
    """Who it is by its own word."""
    continues: bool
    """Its process goes on with runs that another one began."""
    adopts: bool
    """Its process asks what is stored of runs that it had already: else it could not know where to go on."""
    told: frozenset[str]
    """Of `superseded` and `edited`, what it is to be told of in conversations that it follows."""
    watermarks: dict[str, int]
    """Conversation to the highest seq that its process has."""
    dropped: int
    """How many more it named than are followed."""
    instance: str | None = None
    """What its process calls itself."""
    instance_secret: str | None = None
    """What an earlier welcome gave to that process."""


def parse_agent_hello(frame: dict[str, Any]) -> AgentHello:
    """Raises `bad_request` for a group that cannot be; other fields of a wrong type count as absent."""
    group = frame.get("group")
    if group is not None and (not 0 < len(group) <= GROUP_MAX or "/" in group):
        raise ProtocolError("bad_request", f"group: a name of 1 to {GROUP_MAX} characters without `/`")
    if group is not None and group.startswith("~"):
        raise ProtocolError("bad_request", "group: must not start with `~`")
    instance = frame.get("instanceId")
    if instance is not None and CLIENT_ID.fullmatch(instance) is None:
        raise ProtocolError("bad_request", "instanceId: 1 to 128 characters of A-Z a-z 0-9 . _ : ~ -")
    user = frame.get("userId")
    capabilities = capabilities_of(frame)
    continues = "continue" in capabilities
    watermarks = _watermarks(frame.get("watermarks"))
    dropped = max(0, len(watermarks) - WATERMARKS_MAX)
    return AgentHello(
        group=group,
        user=user if user is not None and is_user_id(user) else None,
        continues=continues,
        adopts=continues or "adopt" in capabilities,
        told=capabilities & CHANGES,
        watermarks=dict(list(watermarks.items())[dropped:]),  # clients name the newest last
        dropped=dropped,
        instance=instance,
        instance_secret=frame.get("instanceSecret"),
    )


def too_many_watermarks(dropped: int) -> ProtocolError:
    """What tells it that it named too many."""
    return ProtocolError(
        "too_many_subscriptions",
        f"watermarks: at most {WATERMARKS_MAX} conversations; the first {dropped} are not followed",
        frame_type="hello",
        details={"limit": WATERMARKS_MAX, "dropped": dropped},
    )


def _watermarks(value: Any) -> dict[str, int]:
    """`hello.watermarks`; entries of a wrong type count as absent, as the specification has it."""
    if not isinstance(value, dict):
        return {}
    return {
        conversation_id: seq
        for conversation_id, seq in value.items()
        if isinstance(seq, int) and not isinstance(seq, bool) and 0 < seq < 2**63 and 0 < len(conversation_id) <= MAX_ID
    }
