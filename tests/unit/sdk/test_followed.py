"""What a process follows is bounded: what does not fit is let go, and asked for again once its handler is through."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
import pytest_asyncio

from tests.support.waiting import until
from turnlog import Viewed, followed, seen
from turnlog.connection import Limits, Peer
from turnlog.followed import Followed, Heard

pytestmark = pytest.mark.unit


class Link:
    """A connection that notes what is sent."""

    generation = 1
    connection: str | None = "m-1"
    abilities: frozenset[str] = frozenset()
    limits = Limits()

    def __init__(self) -> None:
        self.sent: list[Mapping[str, Any]] = []
        self.paced = asyncio.Event()
        self.paced.set()

    async def run(self, peer: Peer) -> None:
        raise AssertionError("nobody runs it here")

    async def close(self) -> None:
        raise AssertionError("nobody closes it here")

    async def wait_up(self, timeout: float | None) -> bool:
        return True

    async def pace(self) -> None:
        await self.paced.wait()

    async def send(self, frame: Mapping[str, object]) -> bool:
        self.sent.append(frame)
        return True


class Handler:
    """Hears as fast as it is let."""

    def __init__(self) -> None:
        self.may = asyncio.Event()
        self.heard: list[tuple[str, int | str]] = []

    async def __call__(self, conversation: str, viewed: Viewed) -> None:
        await self.may.wait()
        self.heard.append((conversation, viewed.type if viewed.seq is None else viewed.seq))


class Told:
    """A process that follows, and the gateway's side of it."""

    def __init__(self) -> None:
        self.link, self.handler = Link(), Handler()
        self.followed = Followed(self.link, self.handler, ack_timeout=5)

    def show(self, *seqs: int, conversation: str = "c", text: str = "") -> None:
        for seq in seqs:
            assert self.followed.takes(conversation, message(seq, text))

    def heard(self, conversation: str = "c") -> list[int | str]:
        return [each for where, each in self.handler.heard if where == conversation]

    def synced(self, conversation: str = "c") -> list[int]:
        """The watermarks behind which it asked."""
        frames = [sent["frame"] for sent in self.link.sent if sent["conversationId"] == conversation]
        return [frame["watermark"] for frame in frames if frame["type"] == "sync"]


def message(seq: int, text: str = "") -> dict[str, Any]:
    return {"type": "text", "id": f"m{seq}", "seq": seq, "from": "user", "data": {"text": text or f"said {seq}"}}


def edited(seq: int) -> dict[str, Any]:
    return {"type": "edited", "data": {"messageId": f"m{seq}", "seq": seq, "data": {"text": "anew"}}}


@pytest_asyncio.fixture
async def told(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Told]:
    """It follows `c` and `d`, and its handler waits to be let. Of either, three frames may wait."""
    monkeypatch.setattr(followed, "WAITING_MAX", 3)
    made = Told()
    for conversation in ("c", "d"):
        made.followed.follow(conversation, 0)
    await until(lambda: len(made.link.sent) == 2)
    yield made
    made.handler.may.set()
    await made.followed.close(1)


async def busy(told: Told, *, conversation: str = "c") -> None:
    """Its handler is at the first frame, and three more wait."""
    told.show(1, conversation=conversation)
    await asyncio.sleep(0)
    told.show(2, 3, 4, conversation=conversation)


async def test_what_does_not_fit_is_asked_for_again_and_heard_once_and_in_order(
    told: Told, caplog: pytest.LogCaptureFixture
) -> None:
    await busy(told)
    told.show(5, 6, 7)
    assert told.synced() == [0], "its handler is at work"
    told.handler.may.set()
    await until(lambda: told.synced() == [0, 4])
    told.show(8)  # it was on its way before the gateway was asked
    told.show(5, 6, 7)
    await until(lambda: told.heard()[-1] == 7)
    told.show(8, 9)
    await until(lambda: told.heard()[-1] == 9)
    assert told.heard() == [*range(1, 10)]
    assert told.synced() == [0, 4]
    assert [record.levelname for record in caplog.records] == ["WARNING"], "once, not for each frame"


async def test_a_replay_that_does_not_fit_either_goes_on_where_it_was_let_go(told: Told) -> None:
    await busy(told)
    told.show(*range(5, 30))
    told.handler.may.set()
    answered = 1
    while told.heard()[-1:] != [29]:
        if len(told.synced()) > answered:
            answered += 1
            told.show(*range(told.synced()[-1] + 1, 30))
        await asyncio.sleep(0)
    assert told.heard() == [*range(1, 30)]
    assert told.synced() == sorted(set(told.synced())), "each part is asked for once"


async def test_long_frames_are_let_go_by_their_length(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(followed, "WAITING_BYTES", 1_000)
    told.show(1)
    await asyncio.sleep(0)
    told.show(2, 3, 4, text="x" * 600)
    told.handler.may.set()
    await until(lambda: told.synced() == [0, 2])
    told.show(3, 4)
    await until(lambda: told.heard() == [1, 2, 3, 4])


async def test_one_conversation_whose_handler_is_slow_lets_no_other_starve(
    told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Together they may hold so much; who has nothing that waits may always have its next frame taken."""
    monkeypatch.setattr(followed, "WAITING_BYTES_IN_ALL", 250)
    await busy(told)
    told.show(1, 2, conversation="d")
    told.handler.may.set()
    await until(lambda: told.synced("d") == [0, 1] and told.heard() == [1, 2, 3, 4])
    told.show(2, 3, conversation="d")
    await until(lambda: told.heard("d") == [1, 2, 3])
    assert told.synced() == [0]


async def test_what_was_let_go_counts_for_nothing_any_more_when_it_is_unfollowed(
    told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(followed, "WAITING_BYTES_IN_ALL", 300)
    await busy(told)
    told.show(5)
    told.followed.unfollow("c")
    told.show(1, conversation="d")
    await asyncio.sleep(0)
    told.show(2, 3, conversation="d")
    told.handler.may.set()
    await until(lambda: told.heard("d") == [1, 2, 3])
    assert (told.synced(), told.synced("d")) == ([0], [0])


async def test_an_edit_that_does_not_fit_is_asked_for_and_what_is_shown_once_is_not(told: Told) -> None:
    await busy(told)
    told.followed.takes("c", {"type": "typing", "isTyping": True})
    told.handler.may.set()
    await until(lambda: told.heard() == [1, 2, 3, 4])
    assert told.synced() == [0]
    told.handler.may.clear()
    told.show(5)
    await asyncio.sleep(0)
    told.show(6, 7, 8)
    told.followed.takes("c", edited(5))
    told.handler.may.set()
    await until(lambda: told.synced() == [0, 8])
    told.followed.takes("c", edited(5))
    told.show(9)
    await until(lambda: told.heard()[-2:] == ["edited", 9])


async def test_of_what_is_to_come_again_no_edit_is_heard_before_it(told: Told) -> None:
    await busy(told)
    told.show(5)
    told.handler.may.set()
    await until(lambda: told.synced() == [0, 4])
    told.followed.takes("c", edited(5))  # a moment before the replay, which has the new words
    told.followed.takes("c", edited(4))
    told.show(5)
    await until(lambda: told.heard()[-1] == 5)
    assert told.heard() == [1, 2, 3, 4, "edited", 5]


async def test_a_new_connection_begins_behind_what_was_taken(told: Told) -> None:
    await busy(told)
    told.show(5, 6)
    await told.followed.welcomed()
    await until(lambda: told.synced() == [0, 4])
    told.handler.may.set()
    await until(lambda: told.heard() == [1, 2, 3, 4])
    told.show(6)  # of this connection, which leaves out what a member of it said itself: 5
    await until(lambda: told.heard() == [1, 2, 3, 4, 6])
    assert told.synced() == [0, 4], "asked once, by the new connection"


async def test_what_is_said_meanwhile_is_not_heard(told: Told) -> None:
    await busy(told)
    saying = asyncio.create_task(told.followed.say("c", {"type": "text", "clientId": "k", "data": {"text": "mine"}}))
    await until(lambda: told.link.sent[-1]["frame"].get("clientId") == "k")
    told.show(5)
    told.followed.acked("c", {"type": "ack", "clientId": "k", "id": "m6", "seq": 6})
    assert (await saying).seq == 6
    told.handler.may.set()
    await until(lambda: told.synced() == [0, 4])
    told.show(5, 7)
    await until(lambda: told.heard()[-1] == 7)
    assert told.heard() == [1, 2, 3, 4, 5, 7]


async def test_a_handler_that_fails_is_called_with_the_next_one(caplog: pytest.LogCaptureFixture) -> None:
    heard: list[int | None] = []

    async def failing(conversation: str, viewed: Viewed) -> None:
        heard.append(viewed.seq)
        assert isinstance(viewed.seen, seen.Said)
        raise RuntimeError("no")

    await _called_twice(failing, heard, caplog)


async def test_a_handler_that_awaits_what_was_cancelled_is_called_with_the_next_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    heard: list[int | None] = []

    async def awaiting(conversation: str, viewed: Viewed) -> None:
        heard.append(viewed.seq)
        work = asyncio.ensure_future(asyncio.sleep(3600))
        work.cancel()
        await work

    await _called_twice(awaiting, heard, caplog)


async def _called_twice(handler: Heard, heard: list[int | None], caplog: pytest.LogCaptureFixture) -> None:
    """Two frames come; both calls fail, and are told of."""
    link = Link()
    process = Followed(link, handler, ack_timeout=5)
    process.follow("c", 0)
    await until(lambda: len(link.sent) == 1)
    for seq in (1, 2):
        assert process.takes("c", message(seq))
    await until(lambda: heard == [1, 2], limit_s=5)
    await process.close(1)
    assert [record.levelname for record in caplog.records] == ["ERROR", "ERROR"]


async def test_a_new_connection_is_read_while_what_is_followed_is_asked_for(told: Told) -> None:
    """Its gateway may say how fast it takes frames: turns do not wait for that."""
    told.link.paced.clear()
    async with asyncio.timeout(5):
        await told.followed.welcomed()
    told.link.generation += 1  # lost again before it was asked for all
    async with asyncio.timeout(5):
        await told.followed.welcomed()
    told.link.paced.set()
    await until(lambda: len(told.link.sent) >= 4)
    await told.followed.close(1)
    assert [told.synced(conversation) for conversation in ("c", "d")] == [[0, 0], [0, 0]]


async def test_what_is_shown_before_a_connection_is_asked_counts_for_nothing(told: Told) -> None:
    told.handler.may.set()
    told.show(1, 2)
    told.link.paced.clear()
    told.link.generation = 2
    await told.followed.welcomed()
    told.show(5)  # the gateway shows it already, for something was said there
    told.link.paced.set()
    await until(lambda: len(told.synced()) == 2)
    assert told.synced() == [0, 2]
    told.show(*range(3, 6))
    await until(lambda: told.heard()[-1:] == [5])
    assert told.heard() == [*range(1, 6)]
