"""The hub: who waits for an agent's frame is answered by the journal, or told that the journal is past it."""

from __future__ import annotations

from typing import Any

import pytest

from connectors.gateway.hub import Hub
from connectors.gateway.membership import Membership
from connectors.gateway.metrics import GatewayMetrics
from connectors.gateway.ports import Written
from connectors.gateway.recent import Recent
from streams.core.events import BatchCommitted, Entry, Event, Refused, RefusedReason, RunEnded, RunOpened, RunStatus

PARTITION = 0


class Waits:
    """One that waits for the frame `ref`, and what it was told."""

    def __init__(self, hub: Hub, ref: str = "ref") -> None:
        self.told: list[str] = []
        hub.wait_for_frame(ref, lambda entry: self.told.append(type(entry.event).__name__), self._passed)

    def _passed(self) -> None:
        self.told.append("passed")


@pytest.fixture
def hub() -> Hub:
    intake: Any = None  # never written to here
    membership = Membership(intake, heartbeat_ms=1_000, on_ended=lambda: None)
    return Hub(Recent(2), membership, GatewayMetrics())


def batch(*events: Event, frames: int) -> list[Entry]:
    all_events = [*events, BatchCommitted(turns=0, frames=frames, membership=0)]
    return [Entry(lsn, 1, 1, 1, event) for lsn, event in enumerate(all_events, 1)]


def refused(ref: str) -> Refused:
    return Refused(conversation_id="c", reason=RefusedReason.FENCED, ref=ref, member="m")


def test_a_frame_below_the_journals_position_that_has_no_answer_is_passed(hub: Hub) -> None:
    waits = Waits(hub)
    hub.placed("ref", Written(PARTITION, 7))
    hub.apply(PARTITION, batch(frames=7))
    assert waits.told == []
    hub.apply(PARTITION, batch(frames=8))
    assert waits.told == ["passed"]
    hub.apply(PARTITION, batch(frames=9))
    assert waits.told == ["passed"]


def test_the_answer_in_the_batch_that_covers_it_is_the_answer(hub: Hub) -> None:
    waits = Waits(hub)
    hub.placed("ref", Written(PARTITION, 7))
    hub.apply(PARTITION, batch(refused("ref"), frames=8))
    assert waits.told == ["Refused"]


def test_the_journal_may_be_seen_before_the_brokers_word_of_the_place(hub: Hub) -> None:
    waits = Waits(hub)
    hub.apply(PARTITION, batch(frames=8))
    assert waits.told == []
    hub.placed("ref", Written(PARTITION, 7))
    assert waits.told == ["passed"]


def test_another_partitions_position_says_nothing(hub: Hub) -> None:
    waits = Waits(hub)
    hub.placed("ref", Written(PARTITION, 7))
    hub.apply(PARTITION + 1, batch(frames=8))
    assert waits.told == []


def test_nothing_is_kept_of_what_was_answered_passed_or_forgotten(hub: Hub) -> None:
    for ref in ("answered", "passed", "forgotten"):
        Waits(hub, ref)
        hub.placed(ref, Written(PARTITION, 3))
    hub.forget("forgotten")
    hub.apply(PARTITION, batch(refused("answered"), frames=4))
    hub.placed("passed", Written(PARTITION, 3))
    assert hub._waiting == {}
    assert hub._frames == {PARTITION: {}}


class Silent:
    """An agent's connection that nobody looks at."""

    def tell(self, work: Any) -> None:
        """See `hub.AgentPort`."""


def opened(run_id: str, member: str) -> RunOpened:
    return RunOpened(conversation_id="c", run_id=run_id, run_epoch=1, turn_seq=1, group="g", channel="a", member=member)


def test_who_leaves_takes_its_own_runs_along_and_no_others(hub: Hub) -> None:
    silent: Any = Silent()
    for member in ("m-1", "m-2"):
        hub.connect(member, silent)
    hub.apply(PARTITION, batch(opened("r-1", "m-1"), opened("r-2", "m-1"), opened("r-3", "m-2"), frames=0))
    assert hub._runs_of == {"m-1": {"r-1", "r-2"}, "m-2": {"r-3"}}
    hub.disconnect("m-1")
    assert (hub._runs, hub._runs_of) == ({"r-3": "m-2"}, {"m-2": {"r-3"}})
    over = RunEnded(
        conversation_id="c",
        run_id="r-3",
        turn_seq=1,
        group="g",
        member="m-2",
        run_epoch=1,
        status=RunStatus.ANSWERED,
        reason="finished",
    )
    hub.apply(PARTITION, batch(over, frames=0))
    assert (hub._runs, hub._runs_of) == ({}, {})
