"""What the logs show besides the audit: each check passes on a good story and fails on the one that breaks it."""

from __future__ import annotations

import pytest

from ops.chaos.promises import FENCES_MOST, Change, fences_a_minute, log_problems
from streams.core.commands import Leave
from streams.core.events import (
    BatchCommitted,
    Entry,
    Event,
    GatewayEnded,
    MemberJoined,
    MemberLeft,
    MoveReason,
    Rejected,
    WriterOpened,
)
from streams.runtime.signals import Tick

TTL_MS = 4_000
OPENED = WriterOpened(writer_epoch=1, worker="wk-1")
TICK = Change(5, Tick(worker="wk-1", writer_epoch=1, turns_end=10, frames_end=20))
LEAVE = Change(
    5, Leave(at=0, timestamp=0, gateway="gw-1", n=2, member="m1", reason=MoveReason.MEMBER_LEFT, frames_end=20)
)
JOINED = MemberJoined(member="m1", group="g", channel="c", gateway="gw-1", n=1, since=0)
LEFT = MemberLeft(member="m1", group="g", gateway="gw-1", n=2, reason=MoveReason.MEMBER_LEFT)


def batch(turns: int, frames: int, membership: int) -> BatchCommitted:
    return BatchCommitted(turns=turns, frames=frames, membership=membership)


def problems(*events: Event, changes: tuple[Change, ...] = (), at_step: int = 0) -> list[str]:
    entries = [Entry(lsn, (lsn - 1) * at_step, (lsn - 1) * at_step, 1, event) for lsn, event in enumerate(events, 1)]
    return list(log_problems(0, entries, changes, TTL_MS))


@pytest.mark.parametrize("change", [TICK, LEAVE])
def test_what_waits_is_taken_once_all_before_it_was_read(change: Change) -> None:
    assert problems(OPENED, batch(9, 19, 5), batch(10, 20, 6), changes=(change,)) == []
    assert len(problems(OPENED, batch(9, 19, 6), batch(10, 20, 7), changes=(change,))) == 1


def test_a_leave_waits_for_frames_only() -> None:
    assert problems(OPENED, batch(0, 20, 6), changes=(LEAVE,)) == []


def test_a_tick_of_another_writer_waits_for_nothing() -> None:
    other = Change(5, Tick(worker="wk-0", writer_epoch=1, turns_end=10, frames_end=20))
    assert problems(OPENED, batch(0, 0, 6), changes=(other,)) == []


def test_a_leave_that_was_rejected_is_no_leave() -> None:
    rejected = Rejected(origin="membership/0/5", reason="wrong_schema")
    assert problems(OPENED, rejected, batch(0, 0, 6), changes=(LEAVE,)) == []


def test_a_gateway_has_its_full_time_after_a_claim() -> None:
    gone = GatewayEnded(gateway="gw-1", reason="expired")
    assert problems(OPENED, gone, at_step=TTL_MS + 1) == []
    assert len(problems(OPENED, gone, at_step=TTL_MS)) == 1
    assert problems(OPENED, GatewayEnded(gateway="gw-1", reason="stopped"), at_step=1) == []


def test_nobody_comes_back() -> None:
    assert problems(OPENED, JOINED, LEFT) == []
    assert len(problems(OPENED, JOINED, LEFT, JOINED)) == 1
    assert len(problems(OPENED, GatewayEnded(gateway="gw-1", reason="expired"), JOINED, at_step=TTL_MS + 1)) == 1


def test_writer_epochs_are_counted_by_the_minute() -> None:
    slow = [Entry(lsn, 0, lsn * 60_000, lsn, OPENED) for lsn in range(1, 100)]
    assert fences_a_minute(slow) == 1
    assert problems(*[OPENED] * FENCES_MOST) == []
    assert len(problems(*[OPENED] * (FENCES_MOST + 1))) == 1
