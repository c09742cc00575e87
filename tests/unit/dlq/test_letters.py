"""Dead letters as they are read, chosen and shown."""

from __future__ import annotations

from typing import Any

import pytest

from ops.cli.dlq import _content
from ops.dlq.letters import REPLAYED_FROM, Letter, Post, Wanted
from streams.core.commands import CommitTurn
from streams.core.events import Turn
from streams.runtime.codec import Codec, DeadLetter
from streams.runtime.records import Settled
from streams.sealing.records import sealed
from streams.sealing.token import new_key
from streams.settings import load_settings

NAMES = {"ns.turns": "turns", "ns.frames": "frames"}
SAID = CommitTurn(
    at=0, timestamp=0, conversation_id="c1", turn=Turn(id="t", sender="ann", channel="web", type="text", text="secret")
)


def letter(offset: int, **fields: object) -> DeadLetter:
    given = {"error": "truncated", "topic": "ns.turns", "value": b"xyz", "at": 1_000 * offset} | fields
    origin = f"{given['topic']}/0/{offset}"
    return DeadLetter(reason="", origin=origin, partition=0, offset=offset, key=b"c1", **given)  # type: ignore[arg-type]


def mark(of: DeadLetter, action: str) -> DeadLetter:
    settled = Settled(action=action, by="eve", why="mended", at=9)
    return letter(of.offset, value=None, settled=settled, error=of.error, topic=of.topic, at=of.at)


def test_a_letter_counts_once_and_its_first_mark_settles_it() -> None:
    post, first, second = Post(), letter(1), letter(2)
    for offset, record in enumerate((first, first, second, mark(first, "replayed"), first, mark(first, "dropped"))):
        post.take(record, offset)
    assert [(one.status, one.at_offset, one.size) for one in post.letters.values()] == [
        ("replayed", 0, 3),
        ("open", 2, 3),
    ]
    assert post.counts() == {"open": 1, "replayed": 1, "dropped": 0}
    assert all(one.letter.value is None for one in post.letters.values()), "a flood of large ones fits into memory"


def test_a_mark_without_its_letter_says_nothing() -> None:
    post = Post()
    post.take(mark(letter(1), "dropped"), 0)
    assert post.letters == {}


@pytest.mark.parametrize(
    ("wanted", "taken"),
    [
        (Wanted(), True),
        (Wanted(origins={"ns.turns/0/5"}), True),
        (Wanted(origins={"ns.turns/0/6"}), False),
        (Wanted(errors={"truncated", "too_large"}), True),
        (Wanted(errors={"too_large"}), False),
        (Wanted(topics={"turns"}), True),
        (Wanted(topics={"frames"}), False),
        (Wanted(since=5_000, until=5_001), True),
        (Wanted(until=5_000), False),
        (Wanted(since=5_001), False),
        (Wanted(status="open"), True),
        (Wanted(status="dropped"), False),
    ],
)
def test_letters_are_chosen(wanted: Wanted, taken: bool) -> None:
    assert wanted.takes(Letter(letter(5), 0, 3), NAMES) is taken


def test_one_that_is_refused_again_says_what_it_was_replayed_from() -> None:
    again = Letter(letter(7, headers=((REPLAYED_FROM, b"ns.turns/0/5"), ("x", None))), 0, 3)
    assert again.replayed_from == "ns.turns/0/5"
    assert Letter(letter(5), 0, 3).replayed_from is None


async def content(one: DeadLetter, *, show_text: bool) -> dict[str, Any]:
    settings = load_settings(kafka="127.0.0.1:1", postgres="postgresql://nowhere/none")
    return await _content(settings, one, Codec(), show_text)


async def test_what_was_said_is_shown_only_when_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    erased: list[str] = []

    async def erased_of(*_: object) -> list[str]:
        return erased

    monkeypatch.setattr("ops.conversations.erased_of", erased_of)  # which asks the journal
    readable = letter(1, value=Codec().encode_command(SAID), topic="turns")
    assert (await content(readable, show_text=False))["fields"]["turn"]["text"] == "(6 characters)"
    assert "secret" not in str(await content(readable, show_text=False))
    assert (await content(readable, show_text=True))["fields"]["turn"]["text"] == "secret"
    erased.append(str(SAID.conversation_id))
    assert "secret" not in str(await content(readable, show_text=True)), "nor where it is erased"
    garbage = letter(2, value=b"secret \xff", topic="turns")
    assert "secret" not in str(await content(garbage, show_text=False))
    assert (await content(garbage, show_text=True))["value"]["value"] == "secret \\xff"


async def test_what_is_sealed_stays_so_without_the_master_key() -> None:
    command = sealed(SAID, new_key(SAID.conversation_id))
    found = await content(letter(1, value=Codec().encode_command(command), topic="turns"), show_text=True)
    assert found["fields"]["turn"]["text"] == "[sealed]"
