"""A person's own send is answered by its ack, whether its entry comes first live or in the history that is read."""

from __future__ import annotations

import json
from itertools import count
from typing import Any

import pytest

from connectors.gateway.protocol.actions import Action, SubmitTurn, Write
from connectors.gateway.protocol.render import Told
from connectors.gateway.protocol.session import Claims, Scope
from connectors.gateway.protocol.user import UserSession
from streams.core.events import Entry, Turn, TurnCommitted

NOW = 1_750_000_000_000


@pytest.fixture
def session() -> UserSession:
    """Welcomed, its history still being read."""
    refs = count(1)
    claims = Claims(channel="web", scope=Scope.CONVERSATION, user="ann", named=True, expires_at=NOW + 3_600_000)
    session = UserSession(
        token="t", scope_of=lambda _: claims, connection_id="conn", mint=lambda: f"r{next(refs)}", now=NOW
    )
    session.receive('{"type":"hello"}', NOW)
    session.opened("conv", 0, [], NOW)
    return session


def said(session: UserSession, seq: int) -> Entry:
    """The session sends; what the journal then holds."""
    frame = {"type": "text", "clientId": f"c-{seq}", "data": {"text": "hi"}}
    (submit,) = [each for each in session.receive(json.dumps(frame), NOW) if isinstance(each, SubmitTurn)]
    turn = Turn(id=f"m-{seq}", sender="ann", channel="web", type="text", text="hi", client_id=f"c-{seq}")
    return Entry(seq, 0, NOW, 1, TurnCommitted(conversation_id="conv", seq=seq, turn=turn, ref=submit.ref))


def written(actions: list[Action]) -> list[dict[str, Any]]:
    return [json.loads(action.frame) for action in actions if isinstance(action, Write)]


def acks(actions: list[Action]) -> list[tuple[str, int]]:
    return [(frame["clientId"], frame["seq"]) for frame in written(actions) if frame["type"] == "ack"]


def test_it_comes_live_while_the_history_that_holds_it_is_read(session: UserSession) -> None:
    entry = said(session, 1)
    assert written(session.entries([entry], NOW)) == []
    assert acks(session.loaded(0, [Told(entry)], 1, NOW)) == [("c-1", 1)]


def test_it_is_in_the_history_and_comes_live_after(session: UserSession) -> None:
    entry = said(session, 1)
    assert acks(session.loaded(0, [Told(entry)], 1, NOW)) == [("c-1", 1)]
    assert written(session.entries([entry], NOW)) == []


def test_it_comes_while_nothing_is_written_and_the_client_asks_again(session: UserSession) -> None:
    session.load_failed(0, 100, NOW)
    entry = said(session, 1)
    assert written(session.entries([entry], NOW)) == []
    session.receive('{"type":"sync","watermark":0}', NOW)
    assert acks(session.loaded(0, [Told(entry)], 1, NOW)) == [("c-1", 1)]


def test_what_was_acked_is_a_frame_like_any_other_when_it_is_replayed_later(session: UserSession) -> None:
    entries = [said(session, seq) for seq in (1, 2)]
    session.loaded(0, [], 0, NOW)
    assert acks(session.entries(entries[:1], NOW)) == [("c-1", 1)]
    assert acks(session.entries(entries[1:], NOW)) == [("c-2", 2)]
    session.receive('{"type":"sync","watermark":0}', NOW)
    assert [frame["type"] for frame in written(session.loaded(0, [Told(entries[0])], 2, NOW))] == ["text"]
