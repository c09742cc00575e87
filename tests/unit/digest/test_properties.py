"""Whatever is altered, removed and inserted, anywhere and at once: exactly that is found, by segments of any size."""

from __future__ import annotations

import asyncio
import tempfile
from itertools import pairwise
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from ops.digest.against import Evidence, Kind, against
from ops.digest.keys import Trust, new_key
from ops.digest.sealing import Sealer
from ops.digest.statements import Digests
from ops.history.place import place_at
from ops.history.port import Range, Recorded, merged
from tests.support.histories import MemoryHistory


class Made(MemoryHistory):
    """One partition of these records, which are no entries."""

    def __init__(self, records: list[Recorded], end: int, chunk: int) -> None:
        super().__init__([[]], chunk=chunk)
        self.records, self.ends = [records], [end]


def record(offset: int, text: bytes = b"said") -> Recorded:
    return Recorded(offset, offset * 7, b"key", text, ())


@settings(max_examples=60)
@given(
    end=st.integers(1, 40),
    segment=st.integers(1, 12),
    chunk=st.integers(1, 9),
    fates=st.lists(
        st.sampled_from(["gap", "same", "same", "altered", "removed", "inserted"]), min_size=40, max_size=40
    ),
)
def test_exactly_what_was_done_is_found(end: int, segment: int, chunk: int, fates: list[str]) -> None:
    fate = dict(enumerate(fates[:end]))
    before = [record(offset) for offset in fate if fate[offset] in {"same", "altered", "removed"}]
    after = [
        record(offset, b"said" if what == "same" else what.encode())
        for offset, what in fate.items()
        if what in {"same", "altered", "inserted"}
    ]
    (evidence,) = asyncio.run(sealed_and_compared(Made(before, end, chunk), Made(after, end, chunk), segment))
    found = {(each.kind, each.offset) for each in evidence.found}
    kinds = {"altered": Kind.ALTERED, "removed": Kind.REMOVED, "inserted": Kind.INSERTED}
    assert found == {(kinds[what], offset) for offset, what in fate.items() if what in kinds}
    assert (evidence.count, evidence.records) == (len(found), fates[:end].count("same"))


async def sealed_and_compared(before: MemoryHistory, after: MemoryHistory, segment: int) -> list[Evidence]:
    with tempfile.TemporaryDirectory() as folder:
        key = new_key(Path(folder, "key.pem"))
        digests = Digests(place_at(f"memory://{folder}"), Trust([key.public]))
        await Sealer(before, digests, key, segment_records=segment, notify=lambda _: None).seal()
        return await against(after, digests)


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30))))
def test_merged_ranges_have_the_same_offsets_and_do_not_touch(pairs: list[tuple[int, int]]) -> None:
    ranges = [Range(*pair) for pair in pairs]
    found = merged(ranges)
    assert {n for each in found for n in range(each.start, each.end)} == {
        n for each in ranges for n in range(each.start, each.end)
    }
    assert all(left.end < right.start for left, right in pairwise(found))
