"""The first frame: fields of wrong types, fields in the address, who one is, and how many conversations one follows."""

from __future__ import annotations

import base64
import json
from itertools import count
from typing import Any

import pytest

from connectors.gateway.protocol import limits
from connectors.gateway.protocol.actions import Action, Close, FetchTurn, Load, OpenConversation, OpenMember, Write
from connectors.gateway.protocol.agent import AgentSession
from connectors.gateway.protocol.session import Claims, Scope
from connectors.gateway.protocol.user import UserSession
from streams.core.events import Entry, MoveReason, RunMoved, Turn, TurnCommitted
from tests.support.gateway_world import Served, World, bearer

NOW = 1_750_000_000_000


def person(hello: dict[str, Any], *, named: bool = True, query: dict[str, str] | None = None) -> UserSession:
    claims = Claims(channel="c", scope=Scope.CONVERSATION, user="ann", named=named, expires_at=NOW + 1_000)
    session = UserSession(
        token="t", scope_of=lambda _: claims, connection_id="c", mint=lambda: "r", now=NOW, query=query
    )
    session.hello_actions = session.receive(json.dumps({"type": "hello", **hello}), NOW)  # type: ignore[attr-defined]
    return session


def agent(hello: dict[str, Any]) -> tuple[AgentSession, list[Action]]:
    numbers = count(1)
    claims = Claims(channel="c", scope=Scope.CHANNEL, user="bot", expires_at=NOW + 1_000)
    session = AgentSession(
        partition_of=lambda _: 0,
        new_id=lambda: "id",
        token="t",
        scope_of=lambda _: claims,
        connection_id="gw-1.1",
        mint=lambda: f"r{next(numbers)}",
        now=NOW,
    )
    return session, session.receive(json.dumps({"type": "hello", **hello}), NOW)


def written(actions: list[Action]) -> list[dict[str, Any]]:
    return [json.loads(action.frame) for action in actions if isinstance(action, Write)]


@pytest.mark.parametrize("wrong", [None, 5, True, [], {}])
@pytest.mark.parametrize(
    "field", ["protocol", "token", "userId", "conversationId", "watermark", "meta", "tools", "componentsHash", "group"]
)
def test_a_persons_field_of_a_wrong_type_counts_as_absent(field: str, wrong: Any) -> None:
    if field == "watermark" and wrong == 5:
        wrong = -5
    session = person({field: wrong})
    assert session.hello_actions == [OpenConversation(None)]  # type: ignore[attr-defined]
    opened = session.opened("conv", 9, [], NOW)
    assert [action.after for action in opened if isinstance(action, Load)] == [0]


@pytest.mark.parametrize("wrong", [None, 5, True, [], {}])
@pytest.mark.parametrize("field", ["protocol", "token", "userId", "group", "watermarks", "capabilities"])
def test_an_agents_field_of_a_wrong_type_counts_as_absent(field: str, wrong: Any) -> None:
    _, actions = agent({field: wrong})
    assert actions == [OpenMember(None, {}, continues=False)]


@pytest.mark.parametrize("group", ["", "a/b", "~a", "x" * 65])
def test_a_group_that_can_be_none_is_refused(group: str) -> None:
    """Read as absent, the agent would share the turns of another group."""
    _, actions = agent({"group": group})
    assert [f["data"]["code"] for f in written(actions)] == ["bad_request"]


@pytest.mark.parametrize("protocol", ["converger/2", "mekik/1", ""])
def test_another_protocol_is_refused_for_good(protocol: str) -> None:
    actions = person({"protocol": protocol}).hello_actions  # type: ignore[attr-defined]
    assert [(f["data"]["code"], f["data"]["number"]) for f in written(actions)] == [("unsupported_protocol", 1002)]
    assert [action.code for action in actions if isinstance(action, Close)] == [4400]


def test_what_the_address_says_counts_where_the_frame_says_nothing() -> None:
    query = {"userId": "guest-7", "conversationId": "c-1", "watermark": "4", "protocol": "converger/1"}
    session = person({}, named=False, query=query)
    assert session.hello_actions == [OpenConversation("c-1")]  # type: ignore[attr-defined]
    assert session.user == "guest-7"
    assert person({"conversationId": "c-2"}, query=query).hello_actions == [  # type: ignore[attr-defined]
        OpenConversation("c-2")
    ]


@pytest.mark.parametrize(("named", "user"), [(True, "ann"), (False, "guest-7")])
def test_the_users_name_in_the_token_wins_and_a_guest_says_who_it_is(*, named: bool, user: str) -> None:
    assert person({"userId": "guest-7"}, named=named).user == user


@pytest.mark.parametrize(
    ("watermark", "after"),
    [(7, 7), ("7", 7), ("007", 7), (base64.urlsafe_b64encode(b"seq:7").decode().rstrip("="), 7), ("nonsense", 0)],
)
def test_a_watermark_may_be_what_clients_before_v1_have(watermark: Any, after: int) -> None:
    opened = person({"watermark": watermark}).opened("conv", 9, [], NOW)
    assert [action.after for action in opened if isinstance(action, Load)] == [after]


def test_a_hello_with_more_conversations_than_are_followed_is_told_and_goes_on() -> None:
    """It may be longer than a frame, too: a client that has followed thousands of conversations has to come back."""
    many = {f"{number:036}": 3 for number in range(limits.MAX_CONVERSATIONS + 2)}
    assert len(json.dumps(many)) > limits.MAX_FRAME_BYTES
    session, (hello,) = agent({"watermarks": many})
    assert isinstance(hello, OpenMember)
    assert list(hello.watermarks) == list(many)[2:]
    welcome, error = written(session.opened(NOW))
    assert welcome["data"]["limits"]["maxConversations"] == limits.MAX_CONVERSATIONS
    assert (error["data"]["code"], error["data"]["details"]) == (
        "too_many_subscriptions",
        {"limit": limits.MAX_CONVERSATIONS, "dropped": 2},
    )


def test_a_turn_of_a_conversation_that_was_not_taken_is_given_without_seq() -> None:
    """Its process may have it: with the seq it would drop the turn in silence."""
    session, _ = agent({"watermarks": {f"c{number}": 3 for number in range(limits.MAX_CONVERSATIONS + 1)}})
    session.opened(NOW)
    session.joined(0, NOW)
    move = RunMoved(
        conversation_id="c0",
        run_id="r",
        group="g",
        turn_seq=3,
        from_member="gw-0.1",
        to_member="gw-1.1",
        run_epoch=2,
        reason=MoveReason.MEMBER_LEFT,
    )
    fetch = FetchTurn("c0", 3, "r", 2, 9)
    assert fetch in session.run_taken_over(move, 9, NOW)
    turn = TurnCommitted(
        conversation_id="c0", seq=3, turn=Turn(id="t", sender="ann", channel="web", type="text", text="hi")
    )
    (given,) = written(session.fetched(fetch, Entry(1, 1, NOW, 1, turn), None, NOW))
    assert ("seq" in given["frame"], given["frame"]["turnSeq"]) == (False, 3)


async def test_a_guest_speaks_by_the_name_of_its_hello_and_sees_only_its_own(world: World, served: Served) -> None:
    token = await served.token()
    async with served.socket(token, {"userId": "zoe", "watermark": 0}) as guest:
        welcome = await guest.until("welcome")
        assert welcome["data"]["userId"] == "zoe"
        await guest.send({"type": "text", "data": {"text": "hi"}})
        assert (await guest.until("text"))["sender"]["id"] == "zoe"
    other, _ = await served.conversation("zoe")
    answer = await served.http.get(f"/api/v1/converger/conversations/{other}", headers=bearer(token))
    assert answer.json()["error"]["code"] == "conversation_not_found"
    async with served.socket(token, {"userId": "zoe", "conversationId": other}) as guest:
        code, _, frames = await guest.ended()
        assert (code, frames[-1]["data"]["code"]) == (4400, "conversation_not_found")
