"""The sessions without IO: time, heartbeats, idle and expired connections, order of fetched turns."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import count
from typing import Any

import pytest

from connectors.gateway.protocol import limits
from connectors.gateway.protocol.actions import Action, Close, FetchTurn, Load, OpenMember, SubmitFrame, Write
from connectors.gateway.protocol.agent import IN_FLIGHT_MAX, AgentSession
from connectors.gateway.protocol.delivery import REMEMBERED_MAX
from connectors.gateway.protocol.errors import ProtocolError
from connectors.gateway.protocol.resume import Resume
from connectors.gateway.protocol.session import TRANSITIONS, Claims, Scope, State
from connectors.gateway.protocol.user import UserSession
from streams.core.events import Assignment, Entry, MoveReason, RunMoved, RunStatus, Turn, TurnCommitted

NOW = 1_750_000_000_000
LSN = 1_000
FAR = NOW + 3_600_000


def claims(scope: Scope) -> Claims:
    return Claims(channel="c", scope=scope, user="ann", conversation_id=None, named=True, expires_at=FAR)


def user(expires_at: int = FAR) -> UserSession:
    numbers = count(1)
    given = Claims(channel="c", scope=Scope.CONVERSATION, user="ann", named=True, expires_at=expires_at)
    session = UserSession(
        token="t", scope_of=lambda _: given, connection_id="conn-1", mint=lambda: f"r{next(numbers)}", now=NOW
    )
    session.receive('{"type":"hello"}', NOW)
    actions = session.opened("conv", 0, [], NOW)
    assert any(isinstance(action, Load) for action in actions)
    session.loaded(0, [], 0, NOW)
    return session


def agent(
    watermarks: dict[str, int] | None = None, *, joined: bool = True, capabilities: tuple[str, ...] = ()
) -> AgentSession:
    numbers = count(1)
    session = AgentSession(
        partition_of=lambda _: 0,
        new_id=lambda: "id",
        token="t",
        scope_of=lambda _: claims(Scope.CHANNEL),
        connection_id="gw-1.1",
        mint=lambda: f"r{next(numbers)}",
        now=NOW,
    )
    said = {"type": "hello", "watermarks": watermarks or {}, "capabilities": capabilities}
    (hello,) = session.receive(json.dumps(said), NOW)
    assert isinstance(hello, OpenMember)
    session.opened(NOW)
    if joined:
        session.joined(0, NOW)
    return session


def turn(seq: int, conversation: str = "conv") -> Entry:
    event = TurnCommitted(
        conversation_id=conversation,
        seq=seq,
        turn=Turn(id=f"t{seq}", sender="ann", channel="web", type="text", text=f"m{seq}"),
        assigned=(Assignment("g", "gw-1.1", f"{conversation}/{seq}/g"),),
    )
    return Entry(seq, 1, NOW, 1, event)


def written(actions: Sequence[Action]) -> list[dict[str, Any]]:
    frames = [json.loads(action.frame) for action in actions if isinstance(action, Write)]
    return [frame.get("frame", frame) for frame in frames]


def seqs(actions: Sequence[Action]) -> list[int | None]:
    return [frame.get("seq") for frame in written(actions)]


def closes(actions: Sequence[Action]) -> list[int]:
    return [action.code for action in actions if isinstance(action, Close)]


def test_silence_outwards_is_broken_by_a_heartbeat_with_the_head() -> None:
    session = user()
    assert session.tick(NOW + limits.HEARTBEAT_MS - 1) == []
    session.receive('{"type":"read","watermark":1}', NOW + limits.HEARTBEAT_MS - 1)
    (beat,) = written(session.tick(NOW + limits.HEARTBEAT_MS))
    assert beat == {"type": "heartbeat", "timestamp": NOW + limits.HEARTBEAT_MS, "headSeq": 0}


def test_a_ping_is_answered_with_its_nonce() -> None:
    (beat,) = written(user().receive('{"type":"ping","nonce":"p-1"}', NOW + 5))
    assert beat == {"type": "heartbeat", "timestamp": NOW + 5, "nonce": "p-1", "headSeq": 0}


def test_an_idle_connection_is_closed_with_4408() -> None:
    session = user()
    assert closes(session.tick(NOW + limits.IDLE_MS - 1)) == []
    session.receive('{"type":"ping"}', NOW + limits.IDLE_MS - 1)
    assert closes(session.tick(NOW + limits.IDLE_MS)) == []
    assert closes(session.tick(NOW + 2 * limits.IDLE_MS)) == [4408]
    assert session.tick(NOW + 3 * limits.IDLE_MS) == []


def test_an_expired_token_is_told_and_closed_with_4401() -> None:
    actions = user(expires_at=NOW + 10_000).tick(NOW + 10_000)
    assert [frame["data"]["code"] for frame in written(actions)] == ["token_expired"]
    assert closes(actions) == [4401]


def test_a_connection_that_says_no_hello_is_closed() -> None:
    session = UserSession(
        token="t", scope_of=lambda _: claims(Scope.CONVERSATION), connection_id="c", mint=lambda: "r", now=NOW
    )
    assert session.tick(NOW + limits.HELLO_MS - 1) == []
    assert closes(session.tick(NOW + limits.HELLO_MS)) == [4400]


def test_nothing_is_written_after_the_close() -> None:
    session = user()
    assert closes(session.end(1012, "x")) == [1012]
    assert session.receive('{"type":"ping"}', NOW) == []
    assert session.entries([turn(1)], NOW) == []
    assert session.end(1000) == []


def test_a_session_never_leaves_closed() -> None:
    assert TRANSITIONS[State.CLOSED] == frozenset()


def test_a_refusal_before_the_welcome_that_passes_sends_the_client_away_for_a_while() -> None:
    def verify(_: str) -> Claims:
        raise ProtocolError("unavailable", "starting", retry_after_ms=700)

    session = UserSession(token="t", scope_of=verify, connection_id="c", mint=lambda: "r", now=NOW)
    actions = session.receive('{"type":"hello"}', NOW)
    (close,) = [action for action in actions if isinstance(action, Close)]
    assert (close.code, json.loads(close.reason)) == (1012, {"reason": "unavailable", "retryAfterMs": 700})


@pytest.mark.parametrize("watermark", ["7", 7])
def test_a_watermark_may_be_a_number_in_text(watermark: Any) -> None:
    session = UserSession(
        token="t", scope_of=lambda _: claims(Scope.CONVERSATION), connection_id="c", mint=lambda: "r", now=NOW
    )
    session.receive(json.dumps({"type": "hello", "watermark": watermark}), NOW)
    assert [a.after for a in session.opened("conv", 9, [], NOW) if isinstance(a, Load)] == [7]


def test_turns_are_given_ascending_with_their_seq() -> None:
    session = agent()
    given = [action for seq in (1, 3, 4) for action in session.run_given(f"conv/{seq}/g", 1, turn(seq), NOW)]
    assert seqs(given) == [1, 3, 4]


def moved(
    session: AgentSession, seq: int, epoch: int, conversation: str = "conv", **more: Any
) -> tuple[FetchTurn, list[Action]]:
    """A run comes to this member: what the session wants fetched, and what else it does."""
    event = RunMoved(
        conversation_id=conversation,
        run_id=f"{conversation}/{seq}/g",
        turn_seq=seq,
        group="g",
        from_member="gone",
        to_member=session.member,
        run_epoch=epoch,
        reason=MoveReason.MEMBER_LEFT,
        **more,
    )
    *others, fetch = session.run_taken_over(event, LSN, NOW)
    assert isinstance(fetch, FetchTurn)
    return fetch, others


def test_a_turn_not_above_what_the_process_has_is_given_without_seq() -> None:
    session = agent({"conv": 5})
    fetch, _ = moved(session, 3, 2)
    (frame,) = written(session.fetched(fetch, turn(3), None, NOW))
    assert (frame.get("seq"), frame["turnSeq"], frame["runEpoch"]) == (None, 3, 2)


def test_a_turn_that_is_being_fetched_is_not_overtaken() -> None:
    session = agent()
    first, _ = moved(session, 1, 2)
    assert first == FetchTurn("conv", 1, "conv/1/g", 2, LSN)
    assert session.run_given("conv/2/g", 1, turn(2), NOW) == []
    third, _ = moved(session, 3, 2)
    assert seqs(session.run_given("other/1/g", 1, turn(1, "other"), NOW)) == [1]
    assert session.fetched(third, turn(3), None, NOW) == []
    assert seqs(session.fetched(first, turn(1), None, NOW)) == [1, 2, 3]


def test_a_run_that_went_and_came_back_while_its_turn_was_fetched_is_given_once() -> None:
    session = agent()
    first, _ = moved(session, 1, 2)
    session.run_lost("conv/1/g", NOW)
    assert not session.holds("conv/1/g", 2)
    second, _ = moved(session, 1, 4)
    given = written(session.fetched(first, turn(1), None, NOW)) + written(session.fetched(second, turn(1), None, NOW))
    assert [(frame["seq"], frame["runEpoch"]) for frame in given] == [(1, 4)]


def test_what_is_fetched_for_an_epoch_that_is_over_is_not_given_at_the_next_one() -> None:
    session = agent()
    moved(session, 1, 2)
    session.run_given("conv/2/g", 1, turn(2), NOW)
    early, _ = moved(session, 3, 2, continued=True)
    late, _ = moved(session, 3, 3, continued=True)
    assert session.fetched(early, turn(3), Resume([b'{"seq":4}'], None, ()), NOW) == []
    session.fetched(late, turn(3), Resume([b'{"seq":4}', b'{"seq":5}'], '{"step":1}', ("ask",)), NOW)
    given = written(session.run_ended("conv/1/g", RunStatus.ANSWERED, NOW))
    assert [frame["seq"] for frame in given] == [2, 3]
    assert given[1]["resume"] == {
        "frames": [{"seq": 4}, {"seq": 5}],
        "interrupts": ["ask"],
        "checkpoint": {"step": 1},
    }


def test_a_run_that_ended_while_its_turn_was_fetched_is_not_given_and_holds_up_nobody() -> None:
    session = agent()
    fetch, _ = moved(session, 1, 2)
    session.run_given("conv/2/g", 1, turn(2), NOW)
    assert seqs(session.run_ended("conv/1/g", RunStatus.ANSWERED, NOW)) == [2]
    assert session.fetched(fetch, turn(1), None, NOW) == []


def test_a_lost_run_is_aborted_unless_another_runs_there() -> None:
    session = agent()
    session.run_given("conv/1/g", 1, turn(1), NOW)
    session.run_given("conv/2/g", 1, turn(2), NOW)
    assert written(session.run_lost("conv/1/g", NOW)) == []
    assert written(session.run_lost("conv/2/g", NOW)) == [{"type": "abort"}]
    assert session.runs_open == 0


def test_a_process_that_knows_runs_by_name_is_told_which_one_is_over_though_it_holds_another() -> None:
    session = agent(capabilities=("adopt",))
    for number in (1, 2, 3):
        session.run_given(f"conv/{number}/g", 1, turn(number), NOW)
    ended = written(session.run_ended("conv/1/g", RunStatus.CANCELLED, NOW))
    assert ended == [{"type": "abort", "run": "conv/1/g", "runEpoch": 1}]
    (lost,) = written(session.run_lost("conv/2/g", NOW))
    assert (lost["type"], lost["data"]["code"], lost["run"], lost["runEpoch"]) == ("error", "fenced", "conv/2/g", 1)
    assert written(session.run_ended("conv/3/g", RunStatus.ANSWERED, NOW)) == []


def test_what_was_forgotten_is_given_without_seq_when_it_comes_late() -> None:
    session = agent()
    for number in range(REMEMBERED_MAX + 1):
        session.run_given(f"c{number}/9/g", 1, turn(9, f"c{number}"), NOW)
        session.run_ended(f"c{number}/9/g", RunStatus.ANSWERED, NOW)
    fetch, _ = moved(session, 3, 2, "c0")
    (frame,) = written(session.fetched(fetch, turn(3, "c0"), None, NOW))
    assert "seq" not in frame
    assert seqs(session.run_given("c0/11/g", 1, turn(11, "c0"), NOW)) == [11]


def chunk(number: int) -> str:
    part = {"type": "text", "content": f"w{number} ", "id": 1}
    return json.dumps(
        {"conversationId": "conv", "frame": {"type": "genui", "streamId": "s", "done": False, "chunk": part}}
    )


def test_an_agent_above_its_rate_is_read_more_slowly_and_loses_no_piece_of_a_stream() -> None:
    session = agent()
    sent, burst = int(limits.AGENT_BURST + limits.AGENT_RATE), int(limits.AGENT_BURST)
    taken = [action for number in range(sent) for action in session.receive(chunk(number), NOW)]
    assert sum(isinstance(action, SubmitFrame) for action in taken) == sent
    assert len(taken) == sent
    assert session.pace_ms == round((sent - burst + 1) / limits.AGENT_RATE * 1000)
    session.receive(chunk(sent), NOW + session.pace_ms + 1)
    assert session.pace_ms <= 1


def test_a_piece_of_a_stream_that_finds_no_room_before_the_join_is_taken_ends_the_connection() -> None:
    """Its sender cannot be told which one it was: were what follows taken, the stream would have a hole."""
    session = agent(joined=False)
    assert [action for number in range(IN_FLIGHT_MAX) for action in session.receive(chunk(number), NOW)] == []
    actions = session.receive(chunk(IN_FLIGHT_MAX), NOW)
    assert closes(actions) == [1012]
    assert session.receive(chunk(IN_FLIGHT_MAX + 1), NOW) == []
    assert session.joined(0, NOW) == []


def test_what_is_held_for_a_partition_without_a_writer_is_bounded_by_its_size_too() -> None:
    session = agent(joined=False)
    data = "x" * (limits.MAX_CHECKPOINT_BYTES - 2)

    def checkpoint(number: int) -> str:
        frame = {"type": "checkpoint", "clientId": f"c{number}", "data": data, "run": "conv/1/g"}
        return json.dumps({"conversationId": "conv", "frame": frame})

    fitting = limits.HELD_BYTES // limits.MAX_CHECKPOINT_BYTES
    assert [action for number in range(fitting) for action in session.receive(checkpoint(number), NOW)] == []
    (refused,) = written(session.receive(checkpoint(fitting), NOW))
    assert (refused["data"]["code"], refused["data"]["clientId"]) == ("unavailable", f"c{fitting}")
    submitted = [action for action in session.joined(0, NOW) if isinstance(action, SubmitFrame)]
    assert len(submitted) == fitting
    assert session.receive(checkpoint(fitting), NOW) != []


@pytest.mark.parametrize(("size", "taken"), [(10, 100), (limits.HARD_CAP_BYTES // 2, 2)])
def test_what_comes_before_the_welcome_is_bounded_in_number_and_size(size: int, taken: int) -> None:
    session = UserSession(
        token="t", scope_of=lambda _: claims(Scope.CONVERSATION), connection_id="conn-1", mint=lambda: "r", now=NOW
    )
    session.receive('{"type":"hello"}', NOW)
    for _ in range(taken):
        assert session.receive("x" * size, NOW) == []
    error, close = session.receive("x" * size, NOW)
    assert written([error])[0]["data"]["code"] == "no_session"
    assert isinstance(close, Close)
