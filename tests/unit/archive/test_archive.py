"""The archive holds each record once, whoever writes it and wherever they die; what is missing is said."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from ops.archive.copying import Archiver, Gap
from ops.archive.history import ArchiveHistory, open_archive
from ops.archive.layout import manifest_folder
from ops.archive.segment import Source
from ops.history.joined import JoinedHistory
from ops.history.opening import open_history
from ops.history.place import Folder, Place, place_at
from ops.history.port import HistoryUnavailable, Missing, Range, Recorded
from streams.runtime.framing import SINGLE_OBJECT
from tests.support.histories import DAY_MS, NOON, MemoryHistory, read_all, two_partitions
from tests.support.journals import answered


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here processes die, not machines: a disk need not be waited for."""
    monkeypatch.setattr("os.fsync", lambda _: None)


@pytest.fixture(params=["folder", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """An empty place: a folder, and what fsspec knows."""
    return place_at(str(tmp_path / "archive") if request.param == "folder" else f"memory://{uuid.uuid4().hex}/archive")


@pytest.fixture
def folder(tmp_path: Path) -> Place:
    """An empty folder: what is not about the place needs no other."""
    return place_at(str(tmp_path / "archive"))


def archiver(history: MemoryHistory, place: Place, *, records: int = 5, **how: bool) -> Archiver:
    source = Source(history=history, topic="conversations", framing=SINGLE_OBJECT)
    return Archiver(place, source, segment_records=records, notify=lambda _: None, **how)


async def copied(history: MemoryHistory, place: Place, **how: bool) -> int:
    copier = archiver(history, place, **how)
    await copier.open()
    count = await copier.copy()
    await copier.clean()
    return count


async def holds(history: MemoryHistory, place: Place) -> ArchiveHistory:
    """The archive, once it is seen that it holds each record once, as it was, and no file besides."""
    archive = await open_archive(place)
    for partition in range(history.partitions):
        assert await read_all(archive, partition) == history.records[partition]
        assert await archive.bounds(partition) == await history.bounds(partition)
        assert await archive.missing(partition) == []
    segments = [segment for partition in range(2) for segment in await archive.segments(partition)]
    assert place.names("data") == sorted(segment.file for segment in segments if segment.file)
    return archive


# ---------------------------------------------------------------------------------------------------- what is copied
async def test_it_holds_each_record_byte_for_byte_and_decodes_it_without_kafka(place: Place) -> None:
    history = two_partitions()
    assert await copied(history, place) == sum(map(len, history.records))
    archive = await holds(history, place)
    chunk = await read_all(archive, 1)
    assert archive.decode_all(chunk) == history.decode_all(history.records[1])
    assert archive.identity == history.identity


async def test_a_second_run_copies_what_is_new(place: Place) -> None:
    history = two_partitions()
    await copied(history, place)
    assert await copied(history, place) == 0
    history.append(0, answered().entries)
    assert await copied(history, place) == len(answered().entries)
    await holds(history, place)


@pytest.mark.parametrize("wanted", [(0, 1), (3, 9), (4, 5), (6, 7), (7, 100), (0, 100)])
async def test_any_stretch_can_be_read(folder: Place, wanted: tuple[int, int]) -> None:
    history = two_partitions()
    await copied(history, folder)
    archive = await open_archive(folder)
    start, end = wanted
    assert await read_all(archive, 0, start, end) == [r for r in history.records[0] if start <= r.offset < end]


async def test_a_segment_ends_with_its_day(folder: Place) -> None:
    history = MemoryHistory([answered().entries[:3], []])
    history.append(0, answered().entries[3:7], timestamp=NOON + DAY_MS)
    copier = archiver(history, folder, records=1000)
    await copier.open()
    await copier.copy()
    archive = await holds(history, folder)
    assert [s.day for s in await archive.segments(0)] == ["2025-11-30", "2025-12-01"]
    assert [name.split("/")[1] for name in folder.names("data")] == ["day=2025-11-30", "day=2025-12-01"]


async def test_a_record_that_is_no_entry_is_archived_as_it_is_and_counted(folder: Place) -> None:
    history = two_partitions()
    history.alter(0, 2, value=b"garbage", key=None)
    history.alter(0, 3, value=None, headers=())
    await copied(history, folder)
    archive = await holds(history, folder)
    assert sum(segment.undecodable for segment in await archive.segments(0)) == 2


async def test_its_rows_can_be_filtered_without_turnlog(folder: Place) -> None:
    history = two_partitions()
    await copied(history, folder)
    rows = [row for name in folder.names("data") for row in pq.ParquetFile(_path(folder, name)).read().to_pylist()]
    entries = [entry for partition in range(2) for entry in history.decode_all(history.records[partition])]
    assert sorted((row["lsn"], row["event"]) for row in rows) == sorted(
        (entry.lsn, type(entry.event).__name__) for entry in entries
    )
    assert {row["conversation_id"] for row in rows} == {entry.event.conversation_id for entry in entries}


async def test_times_that_no_calendar_has_are_archived(folder: Place) -> None:
    history = two_partitions()
    history.alter(0, 1, timestamp=-1)
    history.alter(0, 2, timestamp=(1 << 63) - 1)
    await copied(history, folder)
    archive = await holds(history, folder)
    assert [record.timestamp for record in await read_all(archive, 0)][1:3] == [-1, (1 << 63) - 1]


async def test_files_of_others_stay_where_they_are(folder: Place) -> None:
    folder.create("data/_SUCCESS", b"")
    history = two_partitions()
    await copied(history, folder)
    assert await (await open_archive(folder)).missing(0) == []
    assert "data/_SUCCESS" in folder.names("data")


async def test_another_journals_archive_is_refused(folder: Place) -> None:
    await copied(two_partitions(), folder)
    with pytest.raises(HistoryUnavailable, match="another journal"):
        await copied(MemoryHistory([[]]), folder)


async def test_the_time_of_an_offset_is_found(folder: Place) -> None:
    history = two_partitions()
    await copied(history, folder)
    archive = await open_archive(folder)
    for record in history.records[0]:
        assert await archive.offset_at(0, record.timestamp) == record.offset
    assert await archive.offset_at(0, NOON * 2) is None


# -------------------------------------------------------------------------------------------------- dying, and company
class Died(BaseException):
    """The process is gone: nothing is tidied up."""


class Dying:
    """A place at which the writer dies: before its `at`-th step, in the middle of it, or after it."""

    def __init__(self, place: Place, at: int, how: str) -> None:
        self._place = place
        self._left = at
        self._how = how
        self.address = place.address

    def _step(self, do: Callable[[], object], half: Callable[[], object]) -> object:
        self._left -= 1
        if self._left >= 0:
            return do()
        if self._how == "after":
            do()
        elif self._how == "half":
            half()
        raise Died

    def create(self, name: str, content: bytes) -> bool:
        return bool(self._step(lambda: self._place.create(name, content), lambda: self._torn(name, content[:3])))

    def put(self, name: str, file: Path) -> None:
        self._step(lambda: self._place.put(name, file), lambda: self._torn(name, file.read_bytes()[:3]))

    def remove(self, name: str) -> None:
        self._step(lambda: self._place.remove(name), lambda: None)

    def _torn(self, name: str, piece: bytes) -> None:
        """What a folder's writer leaves when it is killed while it writes."""
        assert isinstance(self._place, Folder)
        partial = self._place._partial(Path(self._place.address, name))
        partial.write_bytes(piece)

    def names(self, under: str) -> list[str]:
        return self._place.names(under)

    def read(self, names: Sequence[str]) -> Mapping[str, bytes]:
        return self._place.read(names)

    def size(self, name: str) -> int | None:
        return self._place.size(name)

    def sizes(self, names: Sequence[str]) -> Mapping[str, int]:
        return self._place.sizes(names)

    def fetched(self, name: str) -> AbstractContextManager[Path]:
        return self._place.fetched(name)  # type: ignore[no-any-return]


@pytest.mark.parametrize("how", ["before", "half", "after"])
async def test_it_may_die_at_any_step(tmp_path: Path, how: str) -> None:
    for step in range(100):
        history, folder = two_partitions(), place_at(str(tmp_path / str(step)))
        try:
            await copied(history, Dying(folder, step, how))
        except Died:
            # The next one may be killed too, and more is said meanwhile.
            history.append(1, answered().entries)
            with pytest.raises(Died):
                await copied(history, Dying(folder, 2, how))
            await copied(history, folder)
            await holds(history, folder)
        else:
            assert step > 10, "too few steps to be all of them"
            return
    pytest.fail("it never came to its end")


async def test_several_at_once_archive_each_record_once(place: Place) -> None:
    history = two_partitions(chunk=2)
    copiers = [archiver(history, place, records=records) for records in (2, 3, 5)]
    for copier in copiers:
        await copier.open()
    counts = await asyncio.gather(*(copier.copy() for copier in copiers))
    assert sum(counts) == sum(map(len, history.records))
    await holds(history, place)


async def test_a_commit_that_was_answered_too_late_is_known_as_its_own(folder: Place) -> None:
    class Late(Dying):
        def create(self, name: str, content: bytes) -> bool:
            self._place.create(name, content)
            return self._place.create(name, content)

    history = two_partitions()
    assert await copied(history, Late(folder, 1000, "")) == sum(map(len, history.records))
    await holds(history, folder)


async def test_a_file_of_a_writer_that_may_still_commit_it_stays(folder: Place) -> None:
    history = two_partitions()
    await copied(history, folder)
    archive = await open_archive(folder)
    end = (await archive.bounds(0)).end
    mine = f"data/day=2025-11-30/topic=conversations/p00000-{end:020}-{end + 9:020}-abcd.parquet"
    passed = f"data/day=2025-11-30/topic=conversations/p00000-{0:020}-{end:020}-abcd.parquet"
    for name in (mine, passed):
        folder.create(name, b"x")
    await copied(history, folder)
    assert (folder.size(mine), folder.size(passed)) == (1, None)


# ------------------------------------------------------------------------------------------------------ what is missing
async def test_what_was_deleted_before_it_was_archived_stops_it_and_is_told(folder: Place) -> None:
    history = two_partitions()
    await copied(history, folder)
    history.append(0, answered().entries)
    end = (await (await open_archive(folder)).bounds(0)).end
    history.delete_before(0, end + 4)
    with pytest.raises(Gap, match=f"MISSING: offsets {end} to {end + 3} of partition 0"):
        await copied(history, folder)
    await copied(history, folder, after_gap=True)
    archive = await open_archive(folder)
    assert await archive.missing(0) == [Range(end, end + 4)]
    with pytest.raises(Missing) as told:
        await read_all(archive, 0)
    assert told.value.gone == Range(end, end + 4)
    assert await read_all(archive, 0, end + 4) == [r for r in history.records[0] if r.offset >= end + 4]
    with pytest.raises(Missing):
        await read_all(archive, 0, end + 1, end + 2)


async def test_an_archive_that_began_too_late_misses_the_beginning(folder: Place) -> None:
    history = two_partitions()
    history.delete_before(0, 4)
    await copied(history, folder, after_gap=True)
    archive = await open_archive(folder)
    assert await archive.missing(0) == [Range(0, 4)]
    assert (await archive.bounds(0)).start == 4


@pytest.mark.parametrize("which", [0, 1, -1])
async def test_a_lost_file_or_entry_is_missing(folder: Place, which: int) -> None:
    history = two_partitions()
    copier = archiver(history, folder, records=3)
    await copier.open()
    await copier.copy()
    archive = await open_archive(folder)
    segment = [segment for segment in await archive.segments(0) if segment.file][which]
    folder.remove(segment.file)
    assert await archive.missing(0) == [segment.range]
    before = [r for r in history.records[0] if r.offset < segment.start]
    assert await read_until_missing(archive, 0) == before
    if which != -1:
        folder.remove(folder.names(manifest_folder(0))[which])
        assert await (await open_archive(folder)).missing(0) == [segment.range]


async def test_a_damaged_file_is_said_to_be(folder: Place) -> None:
    history = two_partitions()
    await copied(history, folder)
    path = _path(folder, folder.names("data")[0])
    path.write_bytes(path.read_bytes()[:-40] + b"x" * 40)
    with pytest.raises(HistoryUnavailable, match="damaged"):
        await read_all(await open_archive(folder), 0)


# ---------------------------------------------------------------------------------------------------- archive and Kafka
async def test_archive_and_tail_are_one_history(folder: Place) -> None:
    history = two_partitions()
    await copied(history, folder)
    history.append(0, answered().entries)
    archive = await open_archive(folder)
    archived = await archive.bounds(0)
    for kept in (0, archived.end - 1, archived.end):
        history.delete_before(0, kept)
        joined = JoinedHistory(archive, history)
        assert await joined.missing(0) == []
        assert await joined.bounds(0) == Range(0, history.ends[0])
        for start in range(0, history.ends[0], 3):
            assert await read_all(joined, 0, start) == [r for r in history.records[0] if r.offset >= start]
        record = history.records[0][-2]
        assert await joined.offset_at(0, record.timestamp) == record.offset


async def test_what_neither_has_is_missing(folder: Place) -> None:
    history = two_partitions()
    await copied(history, folder)
    history.append(0, answered().entries)
    end = (await (await open_archive(folder)).bounds(0)).end
    history.delete_before(0, end + 2)
    joined = JoinedHistory(await open_archive(folder), history)
    assert await joined.missing(0) == [Range(end, end + 2)]
    with pytest.raises(Missing) as told:
        await read_all(joined, 0)
    assert told.value.gone == Range(end, end + 2)
    assert await read_all(joined, 0, end + 2) == [r for r in history.records[0] if r.offset >= end + 2]


async def test_what_the_archive_lost_comes_from_kafka_while_it_is_there(folder: Place) -> None:
    history = two_partitions()
    await copied(history, folder)
    archive = await open_archive(folder)
    lost = (await archive.segments(0))[1]
    folder.remove(lost.file)
    joined = JoinedHistory(archive, history)
    assert await joined.missing(0) == []
    assert await read_all(joined, 0) == history.records[0]
    history.delete_before(0, lost.start + 1)
    assert await joined.missing(0) == [Range(lost.start, lost.start + 1)]
    with pytest.raises(Missing) as told:
        await read_all(joined, 0)
    assert told.value.gone == Range(lost.start, lost.start + 1)
    assert await read_all(joined, 0, lost.start + 1) == [r for r in history.records[0] if r.offset > lost.start]


async def test_what_is_archived_and_deleted_while_it_is_read_is_read_once(folder: Place) -> None:
    history = two_partitions(chunk=1)
    await copied(history, folder)
    history.append(0, answered().entries)
    joined = JoinedHistory(await open_archive(folder), history)
    found: list[Recorded] = []
    async for chunk in joined.read(0):
        found += chunk
        if len(found) == len(answered().entries) + 2:
            await copied(history, folder)
            history.delete_before(0, history.ends[0])
    assert found == history.records[0]


async def test_another_journals_tail_is_not_joined(folder: Place) -> None:
    history = two_partitions()
    await copied(history, folder)
    with pytest.raises(HistoryUnavailable, match="another journal"):
        JoinedHistory(await open_archive(folder), MemoryHistory([[]]))


async def read_until_missing(archive: ArchiveHistory, partition: int) -> list[Recorded]:
    found: list[Recorded] = []
    try:
        async for chunk in archive.read(partition):
            found += chunk
    except Missing:
        return found
    raise AssertionError("nothing was missing")


def _path(place: Place, name: str) -> Path:
    return Path(place.address, name)


async def test_an_archive_alone_that_holds_nothing_yet_is_no_history(tmp_path: Path) -> None:
    """No promise is broken in nothing: an audit of it would say so."""
    address = str(tmp_path / "archive")
    with pytest.raises(HistoryUnavailable, match=r"no archive at .*archive \(no archive\.json there\)"):
        async with open_history(None, address, offline=True):
            pass
    await archiver(MemoryHistory([[], []]), place_at(address)).open()
    with pytest.raises(HistoryUnavailable, match=f"{address} is empty: nothing was archived there yet"):
        async with open_history(None, address, offline=True):
            pass
    await copied(two_partitions(), place_at(address))
    async with open_history(None, address, offline=True) as history:
        assert (await history.bounds(0)).end
