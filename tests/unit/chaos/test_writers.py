"""Diaries of workers against what leases and checkpoints promise: a good story passes, one that breaks it does not."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from ops.chaos.diary import Deed, Diary
from ops.chaos.notes import Notebook, notes
from ops.chaos.schedule import TTL_S
from ops.chaos.writers import MARGIN_S, Loss, Losses, Note, writer_problems
from streams.fence.port import Checkpoint, Lease, Positions, Token

CLAIM_AT = 100.0
NEVER = Losses()


def claimed(worker: str, epoch: int, at: float, by: str = "time") -> Note:
    return {"note": Deed.CLAIMED, "at": at, "partition": 0, "epoch": epoch, "by": by, "worker": worker}


def may_write(worker: str, epoch: int, at: float) -> Note:
    return {"note": Deed.MAY_WRITE, "at": at, "partition": 0, "epoch": epoch, "worker": worker}


def handed_back(at: float, partition: int = 0, epoch: int = 1) -> Note:
    return {"note": Deed.HANDED_BACK, "at": at, "partition": partition, "epoch": epoch}


def took(epoch: int, at: float) -> Note:
    return {"note": Deed.TOOK, "at": at, "partition": 0, "epoch": epoch}


def saved(epoch: int, at: float) -> Note:
    return {"note": Deed.SAVED, "at": at, "partition": 0, "epoch": epoch}


def problems(a: list[Note], b: list[Note], losses: Losses = NEVER) -> list[str]:
    return list(writer_problems({"a": a, "b": b}, losses))


def test_writes_that_ended_a_margin_before_the_next_claim_are_as_promised() -> None:
    assert problems([may_write("a", 1, CLAIM_AT - MARGIN_S)], [claimed("b", 2, CLAIM_AT)]) == []


@pytest.mark.parametrize("at", [CLAIM_AT - MARGIN_S / 4, CLAIM_AT + 1.0])
def test_a_write_in_the_margin_or_after_the_claim_is_not(at: float) -> None:
    (problem,) = problems([may_write("a", 1, at)], [claimed("b", 2, CLAIM_AT)])
    assert "a might write under epoch 1" in problem


def test_who_is_taken_for_dead_may_not_have_heard_of_it() -> None:
    assert problems([may_write("a", 1, CLAIM_AT + 0.5)], [claimed("b", 2, CLAIM_AT, "dead")]) == []


def test_nor_has_it_when_the_one_who_took_over_claims_once_more() -> None:
    taken = [claimed("b", 2, CLAIM_AT, "dead"), claimed("b", 2, CLAIM_AT + 0.2), claimed("b", 3, CLAIM_AT + 0.3)]
    assert problems([may_write("a", 1, CLAIM_AT + 0.1)], taken) == []


def test_the_same_worker_may_go_on_under_its_next_epoch_at_once() -> None:
    assert problems([may_write("a", 1, CLAIM_AT - 0.1), claimed("a", 2, CLAIM_AT)], []) == []


@pytest.mark.parametrize(("partition", "epoch"), [(0, 1), (-1, 0)])
def test_what_was_handed_back_may_be_claimed_at_once_but_not_written_afterwards(partition: int, epoch: int) -> None:
    back = [may_write("a", 1, CLAIM_AT - 0.1), handed_back(CLAIM_AT - 0.05, partition, epoch)]
    assert problems(back, [claimed("b", 2, CLAIM_AT)]) == []
    assert problems([*back, may_write("a", 1, CLAIM_AT + 0.1)], [claimed("b", 2, CLAIM_AT)]) != []


def test_a_postgresql_that_lost_history_makes_no_claim_wrong() -> None:
    lost = Losses([Loss(CLAIM_AT - 1, CLAIM_AT - 0.5)])
    assert problems([may_write("a", 1, CLAIM_AT - 0.1)], [claimed("b", 2, CLAIM_AT)], lost) == []
    later = CLAIM_AT + 2 * TTL_S
    assert problems([may_write("a", 3, later - 0.1)], [claimed("b", 4, later)], lost) != []


def test_a_snapshot_of_an_older_writer_is_stored_before_the_claim_or_not_at_all() -> None:
    assert problems([saved(1, 9.0)], [took(2, 10.0), saved(2, 11.0)]) == []
    (problem,) = problems([saved(1, 10.5)], [took(2, 10.0), saved(2, 11.0)])
    assert "stored a snapshot of epoch 1 after b" in problem


def test_a_claim_that_postgresql_lost_keeps_no_snapshot_out() -> None:
    assert problems([saved(1, 10.5)], [took(2, 10.0)], Losses([Loss(9.5, 10.2)])) == []


async def test_a_diary_has_what_was_done_and_nothing_of_what_failed(tmp_path: Path) -> None:
    lease = Lease(3, Token(7, "wk-1"))

    def gives(result: Any) -> Callable[..., Coroutine[Any, Any, Any]]:
        async def method(*_: Any, **__: Any) -> Any:
            if isinstance(result, Exception):
                raise result
            return result

        return method

    class Holder:
        worker = "wk-1"

    notebook = Notebook(tmp_path / "diary")
    diary = Diary(notebook)
    checkpoint = Checkpoint(lease.token, 5, 6, Positions(), b"")
    await diary.claiming(gives(lease))(Holder, None, 3, None)
    await diary.claiming(gives(None))(Holder, None, 4, None)
    await diary.claiming(gives(lease))(Holder, None, 3, object())
    await diary.taking(gives(None))(None, 3, lease.token)
    await diary.saving(gives(None))(None, 3, checkpoint, [], [], 0, stored_lsn=0)
    with pytest.raises(LookupError):
        await diary.saving(gives(LookupError()))(None, 3, checkpoint, [], [], 0)
    assert diary.allowing(lambda *_: True)(None, lease)
    assert not diary.allowing(lambda *_: False)(None, lease)
    await diary.handing_back(gives(None))(None, lease)
    await diary.closing(gives(None))(None)
    notebook.close()
    written = [(note["note"], note["partition"], note["epoch"], note.get("by")) for note in notes(tmp_path / "diary")]
    assert written == [
        (Deed.CLAIMED, 3, 7, "time"),
        (Deed.CLAIMED, 3, 7, "dead"),
        (Deed.TOOK, 3, 7, None),
        (Deed.SAVED, 3, 7, None),
        (Deed.MAY_WRITE, 3, 7, None),
        (Deed.HANDED_BACK, 3, 7, None),
        (Deed.HANDED_BACK, -1, 0, None),
    ]
