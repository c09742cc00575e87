"""Which records come once more: all but pieces of a stream that nothing tells from their repeat."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from ops.chaos.again import is_piece
from streams.core.commands import CommitFrame
from streams.core.events import Frame
from streams.runtime.registry import open_codec
from streams.topics import Topics

CODEC = open_codec(None, Topics())
CHUNK = '{"type":"text","content":"a","id":1}'


def record(frame: Frame) -> SimpleNamespace:
    command = CommitFrame(
        at=0,
        timestamp=0,
        conversation_id="c1",
        frame=frame,
        sender="bot",
        channel="agents",
        group="g",
        member="m1",
        gateway="gw-1",
    )
    return SimpleNamespace(
        topic="frames", partition=0, offset=0, timestamp=0, key=b"c1", value=CODEC.encode_command(command), headers=()
    )


@pytest.mark.parametrize(
    ("frame", "piece"),
    [
        (Frame(id="f1", type="genui", stream_id="s1", data=CHUNK), True),
        (Frame(id="f1", type="genui", stream_id="s1", data=CHUNK, client_id="k1"), False),
        (Frame(id="f1", type="text", text="whole"), False),
    ],
)
def test_a_piece_is_of_a_stream_and_has_no_client_id(frame: Frame, *, piece: bool) -> None:
    assert is_piece(CODEC, record(frame)) is piece


def test_what_cannot_be_decoded_is_no_piece() -> None:
    broken = record(Frame(id="f1", type="text", text="whole"))
    broken.value = b"broken"
    assert not is_piece(CODEC, broken)
