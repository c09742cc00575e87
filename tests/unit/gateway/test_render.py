"""What the journal holds is shown as well-formed frames and activities, whoever wrote it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from connectors.gateway.activities import activity
from connectors.gateway.ports import Stored
from connectors.gateway.protocol.render import encode, given_turn, numbered, turn_of
from streams.core.events import Entry, Invocation, Turn, TurnCommitted


def entry(**fields: Any) -> Entry:
    turn = Turn(id="t", sender="ann", channel="web", **{"type": "text", "text": "x", **fields})
    return Entry(lsn=1, at=0, timestamp=0, writer_epoch=1, event=TurnCommitted(conversation_id="c", seq=1, turn=turn))


@pytest.mark.parametrize(
    ("attachments", "shown"),
    [
        ([{"contentType": "image/png"}], [{"contentType": "image/png"}]),
        ("two", []),
        ([1, None], []),
        ({"a": 1}, []),
        (None, []),
    ],
)
def test_an_activitys_attachments_are_objects_whatever_a_renderers_data_calls_so(attachments: Any, shown: Any) -> None:
    data = msgspec.json.encode({"attachments": attachments}).decode()
    found = activity(Stored(entry(type="poll", data=data)))
    assert found is not None
    assert found["attachments"] == shown
    assert msgspec.json.decode(encode(found))["channelData"]["data"] == {"attachments": attachments}


def test_an_agent_is_told_that_a_turn_is_a_call_and_a_viewer_is_not() -> None:
    call = Invocation(id="i-1", group="agents/g", deadline_ms=60_000, streamed=True, input_hash="h")
    called = entry(invocation=call, data='{"text":"add","input":{"a":1}}')
    given = given_turn(turn_of(called), 0, run_id="c/1/agents/g", run_epoch=1, with_seq=True)
    assert given["invocation"] == {"id": "i-1", "deadlineMs": 60_000, "streamed": True}
    assert msgspec.json.decode(encode(given))["data"] == {"text": "add", "input": {"a": 1}}
    shown = numbered(called)
    assert shown is not None
    assert "invocation" not in shown


@pytest.mark.parametrize("stored", ['"text"', "[1]", "{not json", "[" * 5_000])
@pytest.mark.parametrize("field", ["data", "metadata", "meta"])
def test_what_another_writer_stored_and_is_no_json_object_ends_nobody(field: str, stored: str) -> None:
    """The public clients' readers end without a word on a frame that is not JSON."""
    foreign = entry(**{field: stored})
    frame = numbered(foreign)
    given = given_turn(turn_of(foreign), 0, run_id="c/1/g", run_epoch=1, with_seq=True)
    for shown in (frame, given, activity(Stored(foreign))):
        assert isinstance(msgspec.json.decode(encode(shown or {})), dict)
