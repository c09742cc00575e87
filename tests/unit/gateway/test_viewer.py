"""The seam: history and live entries merged, whatever the order in which they come."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from connectors.gateway.protocol import viewer as module
from connectors.gateway.protocol.limits import REPLAY_MAX
from connectors.gateway.protocol.viewer import Item, Phase, Viewer


def item(seq: int) -> Item:
    return Item(seq, lambda: str(seq).encode())


@given(
    head=st.integers(0, 60),
    watermark=st.integers(0, 60),
    live=st.integers(0, 40),
    batch=st.integers(1, 20),
    schedule=st.lists(st.booleans(), max_size=200),
    buffer=st.integers(1, 12),
)
def test_each_seq_is_written_once_in_order_and_none_is_missing(
    head: int, watermark: int, live: int, batch: int, schedule: list[bool], buffer: int
) -> None:
    watermark = min(watermark, head)
    module_buffer, module.BUFFER_MAX = module.BUFFER_MAX, buffer
    try:
        viewer, written, committed = Viewer(watermark, head), list[bytes](), head
        wanted = viewer.wants_load()
        for goes_live in [*schedule, *([True] * live), *([False] * 200)]:
            if goes_live and committed < head + live:
                committed += 1
                written += viewer.offer(item(committed))
            elif wanted is not None:
                page = [item(seq) for seq in range(wanted + 1, min(wanted + batch, committed) + 1)]
                written += viewer.loaded(page, committed)
                wanted = None
            wanted = viewer.wants_load() if wanted is None else wanted
        assert [int(frame) for frame in written] == list(range(watermark + 1, committed + 1))
        assert viewer.phase is Phase.LIVE
    finally:
        module.BUFFER_MAX = module_buffer


def test_a_missing_live_entry_is_read_from_history() -> None:
    viewer = Viewer(0, 0)
    viewer.wants_load()
    viewer.loaded([], 0)
    assert viewer.offer(item(1)) == [b"1"]
    assert viewer.offer(item(3)) == []
    assert viewer.wants_load() == 1
    assert viewer.loaded([item(2)], 3) == [b"2", b"3"]
    assert viewer.phase is Phase.LIVE


def test_a_history_that_brings_nothing_stalls_instead_of_spinning() -> None:
    viewer = Viewer(0, 5)
    viewer.wants_load()
    assert viewer.loaded([], 5) == []
    assert viewer.incomplete
    assert viewer.wants_load() is None


def test_the_replay_limit_is_told_and_sync_goes_on() -> None:
    viewer = Viewer(0, REPLAY_MAX + 10)
    viewer.wants_load()
    viewer.loaded([item(seq) for seq in range(1, REPLAY_MAX + 1)], REPLAY_MAX + 10)
    assert viewer.truncated
    assert viewer.offer(item(REPLAY_MAX + 11)) == []
    viewer.sync(REPLAY_MAX)
    assert viewer.wants_load() == REPLAY_MAX
