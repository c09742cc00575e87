"""Masks across the pieces of a stream: whatever the cut, whenever a reader begins, nothing of a match is shown."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from connectors.gateway.pieces import HELD_CHARS, HELD_MAX, Pieces, StreamMask
from streams.core.events import Entry, Frame, FrameCommitted
from streams.fence.middleware import compiled

CARD = StreamMask(compiled(r"\b\d{4}[ -]?\d{4}[ -]?\d{4}[ -]?\d{4}\b"), "****")
DONE = {"type": "event", "name": "stream_done", "id": 9}


def text(content: str, id_: int = 1) -> dict[str, Any]:
    return {"type": "text", "content": content, "id": id_}


def entries(chunks: Sequence[dict[str, Any]], *, ends: bool = True) -> list[Entry]:
    """A stream's entries; the last chunk ends it."""
    made = []
    for number, chunk in enumerate(chunks, 1):
        done = ends and number == len(chunks)
        frame = Frame(id=f"f{number}", type="genui", stream_id="s", done=done, data=json.dumps(chunk))
        event = FrameCommitted(frame, "bot", "agents", "agents", "m", conversation_id="c", seq=number)
        made.append(Entry(number, 0, 0, 1, event))
    return made


def shown(pieces: Pieces, said: Sequence[Entry], mask: StreamMask = CARD) -> list[dict[str, Any]]:
    found = []
    for entry in said:
        event = pieces.show(entry, (mask,)).event
        assert isinstance(event, FrameCommitted)
        found.append(json.loads(event.frame.data or ""))
    return found


def said_in(chunks: Sequence[dict[str, Any]]) -> str:
    return "".join(chunk.get("content", "") + chunk.get("text", "") for chunk in chunks)


def test_a_match_across_chunks_is_not_shown() -> None:
    chunks = shown(Pieces(), entries([text("pay with 4111 11"), text("11 1111 1111 "), text("now"), DONE]))
    assert said_in(chunks) == "pay with **** now"
    assert [chunk["type"] for chunk in chunks] == ["text"] * 4, "the end has the rest of the text"


@given(cuts=st.lists(st.integers(0, 400), max_size=12), begin=st.integers(0, 12))
def test_however_it_is_cut_it_is_masked_as_a_whole_and_a_replay_shows_the_same(cuts: list[int], begin: int) -> None:
    whole = "a1234 5678 " * 9 + "4111-1111-1111-1111, and 4111111111111111. " + "x" * 200 + " 4111 1111 1111 1111"
    edges = sorted({0, len(whole), *(cut for cut in cuts if cut < len(whole))})
    said = entries([*(text(whole[a:b]) for a, b in pairwise(edges)), DONE])
    live = shown(Pieces(), said)
    assert said_in(live) == CARD.pattern.sub("****", whole)
    replayed = Pieces()
    shown(replayed, said[:begin])  # what it looks back at
    assert shown(replayed, said[begin:]) == live[begin:]


def test_what_is_far_enough_behind_is_shown_at_once() -> None:
    first, second = shown(Pieces(), entries([text("y" * HELD_CHARS), text("z" * 10)], ends=False))
    assert (first["content"], second["content"]) == ("", "y" * 10)


def test_a_component_comes_behind_the_text_before_it_and_nothing_is_lost() -> None:
    card = {"type": "ui", "component": "order", "id": 2}
    chunks = shown(
        Pieces(), entries([text("before "), card, text("between ", 3), dict(card, id=4), text("end", 5), DONE])
    )
    assert [chunk.get("content") or chunk["component"] for chunk in chunks[1:]] == [
        "before ", "order", "between ", "order", "end",
    ]  # fmt: skip
    alone = shown(Pieces(), entries([card]))
    assert alone == [card]
    [_, last] = shown(Pieces(), entries([text("tail"), card]))
    assert last == {**card, "text": "tail"}


def test_a_match_without_an_end_is_masked_as_far_as_it_goes() -> None:
    digits = StreamMask(compiled(r"\d+"), "#")
    chunks = shown(Pieces(), entries([text("1" * 1000) for _ in range(2 * HELD_MAX // 1000)] + [DONE]), digits)
    assert set(said_in(chunks)) == {"#"}
