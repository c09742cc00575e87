"""The public schemas and example sessions, where they are: what our parser takes, and what it must refuse."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connectors.gateway.protocol.errors import ProtocolError
from connectors.gateway.protocol.parse import RESERVED, decode_object, parse_message
from connectors.gateway.protocol.parse_person import MODELS
from connectors.gateway.protocol.render import encode, turn_frame
from streams.core.events import Turn, TurnCommitted
from tests.unit.gateway.conftest import SCHEMAS, server_frames

needs_schemas = pytest.mark.skipif(not SCHEMAS.is_dir(), reason="the public schemas are not beside this repository")
OWN = {"hello", "ping", "auth", "sync", "read", "typing"}


def examples(name: str) -> list[dict[str, Any]]:
    path = SCHEMAS / "examples" / name
    frames: list[dict[str, Any]] = json.loads(path.read_text())["frames"] if path.is_file() else []
    return frames


SESSIONS = ("session-channel-agent.json", "session-mekik-bot.json", "session-resume.json")
FROM_CLIENTS = [each["frame"] for name in SESSIONS for each in examples(name) if each["direction"] == "c2s"]
INVALID = [each["frame"] for each in examples("invalid.json") if each["direction"] == "c2s"]


@needs_schemas
def test_all_schemas_are_loaded_and_tell_good_from_bad() -> None:
    schemas = server_frames()
    assert schemas is not None
    assert schemas.count == 53
    for name in SESSIONS:
        for each in examples(name):
            assert schemas.errors(each["direction"], each["frame"]) == [], each
    for each in examples("invalid.json"):
        assert schemas.errors(each["direction"], each["frame"]), each


@needs_schemas
@pytest.mark.parametrize("frame", [f for f in FROM_CLIENTS if f["type"] not in OWN | MODELS.keys()])
def test_example_messages_are_taken_and_shown_as_the_schemas_want(frame: dict[str, Any]) -> None:
    message = parse_message(decode_object(json.dumps(frame)))
    turn = Turn(
        id="m1",
        sender="ann",
        channel="web",
        type=message.type,
        client_id=message.client_id,
        text=message.text,
        data=message.data,
        metadata=message.metadata,
        reply_to=message.reply_to,
    )
    schemas = server_frames()
    assert schemas is not None
    shown = turn_frame(TurnCommitted(conversation_id="c", seq=1, turn=turn), 1)
    assert schemas.errors("s2c", json.loads(encode(shown))) == []


@needs_schemas
@pytest.mark.parametrize("frame", INVALID)
def test_invalid_examples_are_refused(frame: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError):
        parse_message(decode_object(json.dumps(frame)))


@pytest.mark.parametrize(
    ("timestamp", "kept"), [(0, 0), (1_750_000_000_000, 1_750_000_000_000), (2**63, None), (-1, None), (True, None)]
)
def test_a_clients_timestamp_is_accepted_whatever_it_is(timestamp: Any, kept: int | None) -> None:
    frame = {"type": "text", "clientId": "c", "data": {"text": "a"}, "timestamp": timestamp}
    assert parse_message(frame).client_at == kept


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
frames = st.fixed_dictionaries(
    {"type": st.sampled_from(["text", "image", "buttons", "card", "location", "anything"]) | st.text()},
    optional={
        "data": st.fixed_dictionaries({"text": st.text()}) | json_values,
        "clientId": st.text() | json_values,
        "metadata": json_values,
        "meta": json_values,
        "replyTo": json_values,
        "id": st.text(),
    },
)


@given(frame=frames)
def test_any_frame_is_either_refused_or_shown_as_the_schemas_want(frame: dict[str, Any]) -> None:
    try:
        message = parse_message(decode_object(json.dumps(frame)))
    except ProtocolError:
        return
    assert message.type not in RESERVED - {"text"}
    schemas = server_frames()
    if schemas is None:
        return
    turn = Turn(
        id="m1",
        sender="ann",
        channel="web",
        type=message.type,
        client_id=message.client_id,
        text=message.text,
        data=message.data,
        metadata=message.metadata,
        reply_to=message.reply_to,
    )
    shown = turn_frame(TurnCommitted(conversation_id="c", seq=1, turn=turn), 1)
    assert schemas.errors("s2c", json.loads(encode(shown))) == []


@given(raw=st.text() | st.binary().map(lambda b: b.decode("latin-1")))
def test_any_text_is_either_a_json_object_or_refused(raw: str) -> None:
    with contextlib.suppress(ProtocolError):
        assert isinstance(decode_object(raw), dict)
