"""Server-sent events, whatever the bytes are split into."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from turnlog.sse import EventParser, ServerEvent

STREAM = (
    b"\xef\xbb\xbf: a comment\n\n"
    b'event: text\r\nid: 1\r\ndata: {"a":\r\ndata: 1}\r\n\r\n'
    b"data:no space\r\rdata\n\n" + "data: a\u2028b\x0bc\n\n".encode() + b"id: 7\n\nretry: 10\ndata: last\n\n"
    b"data: cut off"
)
EVENTS = [
    ServerEvent("text", '{"a":\n1}', "1"),
    ServerEvent("message", "no space"),
    ServerEvent("message", ""),
    ServerEvent("message", "a\u2028b\x0bc"),
    ServerEvent("message", "last"),
]


@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_any_split_gives_the_same_events(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(STREAM)]
    parser = EventParser()
    events = [event for a, b in itertools.pairwise(edges) for event in parser.feed(STREAM[a:b])]
    assert events == EVENTS


def test_an_event_comes_out_with_its_last_byte() -> None:
    parser = EventParser()
    assert list(parser.feed(b"data: x\n")) == []
    assert list(parser.feed(b"\n")) == [ServerEvent("message", "x")]
