"""Every target holds each row once: after increments, after a death at any step, beside another export."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog

from ops.cli.export import Format, _Work
from ops.export.files import WRITERS, FilesTarget, PlaceStates
from ops.export.iceberg import IcebergTarget
from ops.export.run import Export, PartMissing, fold_version
from ops.export.selection import Selection, selection
from ops.export.target import ExportRefused, NoStates
from ops.history.place import Folder, place_at
from ops.history.port import Range
from tests.support.exports import (
    FORMATS,
    MemoryHistory,
    export,
    identities,
    read_back,
    seeded_history,
    target_of,
    whole,
)
from turnlog.data.tables import BY_NAME, TABLES


class Died(BaseException):
    """What no handler of the code under test catches: the process is gone."""


@pytest.mark.parametrize("format_", FORMATS)
async def test_the_tables_are_those_of_the_journal_in_any_increments(format_: str, tmp_path: Path) -> None:
    history = seeded_history()
    ends = list(history.ends)
    history.ends = [end // 3 for end in ends]
    await export(history, format_, tmp_path, commit_records=60)
    whole(history, format_, tmp_path)
    history.ends = [ends[0], ends[1] // 2]
    await export(history, format_, tmp_path)
    history.ends = ends
    outcome = await export(history, format_, tmp_path)
    assert sum(outcome.rows.values()) > 0
    whole(history, format_, tmp_path)
    again = await export(history, format_, tmp_path)
    assert (again.records, again.commits, sum(again.rows.values())) == (0, 0, 0)
    whole(history, format_, tmp_path)


@pytest.mark.parametrize("format_", FORMATS)
async def test_how_far_all_tables_are_committed_is_known_as_a_run_goes_on(
    format_: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    history, upto, seen = seeded_history(length=100), dict[int, int](), list[dict[int, int]]()
    ends = list(history.ends)
    history.ends = [end // 3 for end in ends]
    await export(history, format_, tmp_path, upto=upto)
    assert upto == dict(enumerate(history.ends))
    history.ends = ends
    read = history.read

    def reading(*span: int) -> Any:
        seen.append(dict(upto))
        return read(*span)

    monkeypatch.setattr(history, "read", reading)
    await export(history, format_, tmp_path, upto=upto, commit_records=10)
    assert seen[0] == {number: end // 3 for number, end in enumerate(ends)}
    assert ends[0] // 3 < seen[-1][0] <= ends[0]
    assert seen[-1][1] < ends[1]
    assert upto == dict(enumerate(ends))


class AnsweredLate(Folder):
    """A store whose client repeats a put that it got no answer to: the second one finds what the first one made."""

    def create(self, name: str, content: bytes) -> bool:
        super().create(name, content)
        return super().create(name, content)


async def test_a_commit_whose_answer_was_lost_is_its_own(tmp_path: Path) -> None:
    history = seeded_history(length=60)
    target = FilesTarget(AnsweredLate(tmp_path), "parquet", WRITERS["parquet"])
    outcome = await Export(history, target, NoStates(), Selection(), print, commit_records=40).run()
    assert outcome.commits > 1
    whole(history, "parquet", tmp_path)


async def test_the_same_command_goes_on_later_also_with_how_long_ago(tmp_path: Path) -> None:
    history = seeded_history(length=60)
    noon = datetime(2026, 11, 30, 12, tzinfo=UTC)

    def work(**said: Any) -> _Work:
        return _Work(Format.JSONL, str(tmp_path), None, selection(now=noon, **said), accept_missing=False)

    await work(since="-15m")._once(history)
    noon += timedelta(hours=1)
    again = await work(since="-15m")._once(history)
    assert (again.records, again.commits) == (0, 0)
    for other in ({"since": "-15m", "until": "-5m"}, {"since": "2026-11-30T12:45"}, {"until": "-15m"}):
        with pytest.raises(ExportRefused, match="another selection"):
            await work(**other)._once(history)


@pytest.mark.parametrize("format_", ["parquet", "jsonl"])
async def test_dying_at_any_step_neither_loses_a_row_nor_writes_one_twice(format_: str, tmp_path: Path) -> None:
    """Every step of a whole export is died at once, each time going on in the same target."""
    history = seeded_history(length=60)
    steps = 0

    def count(_: str) -> None:
        nonlocal steps
        steps += 1

    await export(history, format_, tmp_path / "counted", commit_records=40, reached=count)
    assert steps > 20
    deaths = 0
    while deaths < steps * 2:
        deaths += 1
        left = deaths % 17 + 1  # each life gets a little further than some before, and dies elsewhere

        def die(_: str) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                raise Died

        try:
            await export(history, format_, tmp_path / "died", commit_records=40, reached=die)
        except Died:
            continue
        break
    else:
        await export(history, format_, tmp_path / "died", commit_records=40)
    assert deaths > 10
    whole(history, format_, tmp_path / "died")
    await export(history, format_, tmp_path / "died")  # whoever opens it next removes what was staged in vain
    staged = [path for path in (tmp_path / "died" / "_turnlog" / "staged").rglob("*") if path.is_file()]
    assert staged == []


@pytest.mark.parametrize("format_", FORMATS)
async def test_a_target_that_was_left_between_two_tables_is_brought_up_to_date(format_: str, tmp_path: Path) -> None:
    """Delta and Iceberg tables are committed one by one: whoever dies in between leaves some ahead of the others."""
    history = seeded_history()
    target_type = type(target_of(format_, tmp_path / "probe"))
    commit, calls = target_type.commit, 0

    def dying(self: object, *arguments: object) -> None:
        nonlocal calls
        calls += 1
        if calls % 5 == 0:
            raise Died
        commit(self, *arguments)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(target_type, "commit", dying)
        for _ in range(3):
            with pytest.raises(Died):
                await export(history, format_, tmp_path / "t", commit_records=100)
    await export(history, format_, tmp_path / "t", commit_records=100)
    whole(history, format_, tmp_path / "t")


@pytest.mark.parametrize("format_", FORMATS)
async def test_of_two_exports_at_once_one_is_told_and_nothing_is_there_twice(format_: str, tmp_path: Path) -> None:
    history = seeded_history()
    await export(seeded_history(length=0), format_, tmp_path)
    target_type = type(target_of(format_, tmp_path))
    positions, entered = target_type.positions, 0

    def other_first(self: object, table: object) -> object:
        """Between the reading of the last table's positions and the first commit, another export does it all."""
        nonlocal entered
        found = positions(self, table)  # type: ignore[arg-type]
        entered += 1
        if entered == len(TABLES):
            other = Thread(target=lambda: asyncio.run(export(seeded_history(), format_, tmp_path)))
            other.start()
            other.join()
        return dict(found)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(target_type, "positions", other_first)
        with pytest.raises(ExportRefused, match="nothing was written twice"):
            await export(history, format_, tmp_path)
    whole(history, format_, tmp_path)


@pytest.mark.parametrize("format_", FORMATS)
async def test_a_target_keeps_to_its_journal_and_selection(format_: str, tmp_path: Path) -> None:
    await export(seeded_history(length=20), format_, tmp_path)
    with pytest.raises(ExportRefused, match="of another journal"):
        await export(seeded_history(length=20, identity="topic-2"), format_, tmp_path)
    with pytest.raises(ExportRefused, match="begun with another selection"):
        await export(seeded_history(length=20), format_, tmp_path, Selection(channels=frozenset({"web"})))
    with pytest.raises(ExportRefused, match="2 partitions, not 3"):
        await export(seeded_history(partitions=3, length=20), format_, tmp_path)


@pytest.mark.parametrize("format_", FORMATS)
async def test_a_target_that_another_export_makes_meanwhile_keeps_to_that_ones_selection(
    format_: str, tmp_path: Path
) -> None:
    target_type = type(target_of(format_, tmp_path))
    contents, entered = target_type.contents, 0

    def nothing_yet(self: object) -> object:
        """After the first look another export makes the target."""
        nonlocal entered
        entered += 1
        found = contents(self)  # type: ignore[arg-type]
        if entered == 1:
            other = Thread(target=lambda: asyncio.run(export(seeded_history(length=0), format_, tmp_path)))
            other.start()
            other.join()
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(target_type, "contents", nothing_yet)
        with pytest.raises(ExportRefused, match="begun with another selection"):
            await export(seeded_history(length=20), format_, tmp_path, Selection(channels=frozenset({"web"})))
    await export(seeded_history(), format_, tmp_path)
    whole(seeded_history(), format_, tmp_path)


async def test_of_two_exports_that_make_a_target_at_once_one_is_told(tmp_path: Path) -> None:
    await export(seeded_history(length=0), "parquet", tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FilesTarget, "contents", lambda _: None)
        patch.setattr(FilesTarget, "_open", lambda _: None)  # it looked before the other one had committed
        with pytest.raises(ExportRefused, match="nothing was written twice"):
            await export(seeded_history(), "parquet", tmp_path)


async def test_another_format_is_refused(tmp_path: Path) -> None:
    await export(seeded_history(length=20), "csv", tmp_path)
    with pytest.raises(ExportRefused, match="csv files, not jsonl"):
        await export(seeded_history(length=20), "jsonl", tmp_path)


@pytest.mark.parametrize(
    "chosen",
    [
        selection(tables=["turns", "runs"]),
        selection(since="o:40", until="120"),
        selection(events=["TurnCommitted", "RunEnded"]),
        selection(conversations=[str(row["conversation_id"]) for row in seeded_history().rows()["runs"][:2]]),
        selection(channels=["agents"], tables=["membership"]),
        selection(since="2023-11-14T22:30:00Z", until="2023-11-14T22:31:00Z"),
    ],
    ids=lambda chosen: str(chosen.document()),
)
async def test_a_selection_leaves_out_rows_and_changes_none(chosen: Selection, tmp_path: Path) -> None:
    history = seeded_history()
    await export(history, "parquet", tmp_path, chosen, commit_records=70)
    whole(history, "parquet", tmp_path, chosen)
    everything, some = history.rows(), history.rows(chosen)
    assert 0 < sum(len(rows) for rows in some.values()) < sum(len(rows) for rows in everything.values())
    for name, rows in some.items():
        assert [row for row in everything[name] if row in rows] == rows
    assert {name for name in BY_NAME if (tmp_path / name).exists()} == set(some)


class DecidedLate(MemoryHistory):
    """No worker was there for an hour: every record bears a time so long after its event's."""

    async def offset_at(self, partition: int, timestamp_ms: int) -> int | None:
        return await super().offset_at(partition, timestamp_ms - 60 * 60 * 1000)


async def test_what_was_asked_for_before_a_time_and_decided_long_after_it_is_exported(tmp_path: Path) -> None:
    chosen = selection(until="2023-11-14T22:31:00Z")
    history = DecidedLate([[entry for _, entry in records] for records in seeded_history()._records])
    assert any(history.rows(chosen).values())
    await export(history, "parquet", tmp_path, chosen)
    whole(history, "parquet", tmp_path, chosen)


async def test_what_is_missing_is_the_first_line_and_a_stop(tmp_path: Path) -> None:
    history = seeded_history()
    history.gone = {1: [Range(0, 30)]}
    lines: list[str] = []
    with pytest.raises(PartMissing, match="--archive"):
        await export(history, "parquet", tmp_path, say=lines.append)
    assert lines == ["MISSING: offsets 0 to 29 of partition 1 of the journal are gone"]
    assert not (tmp_path / "turns").exists()
    outcome = await export(history, "parquet", tmp_path, accept_missing=True)
    assert outcome.missing == {1: [Range(0, 30)]}
    assert outcome.rows["turns"] > 0


async def test_a_state_that_was_kept_is_gone_on_from(tmp_path: Path) -> None:
    history = seeded_history()
    ends = list(history.ends)
    history.ends = [end // 2 for end in ends]
    await export(history, "parquet", tmp_path)
    reads: list[int] = []
    read = history.read

    def spied(partition: int, start: int = 0, end: int | None = None):  # type: ignore[no-untyped-def]
        reads.append(start)
        return read(partition, start, end)

    history.ends, history.read = ends, spied  # type: ignore[method-assign]
    await export(history, "parquet", tmp_path)
    assert reads == [end // 2 for end in ends]
    whole(history, "parquet", tmp_path)


async def test_an_object_store_holds_an_export_as_a_folder_does(tmp_path: Path) -> None:
    root = f"memory://exports/{tmp_path.name}"
    history = seeded_history(length=120)
    ends = list(history.ends)
    history.ends = [end // 2 for end in ends]
    await export_to(history, root)
    history.ends = ends
    await export_to(history, root)
    place = place_at(root)
    for name in place.names("turns") + place.names("runs"):
        with place.fetched(name) as file:
            local = tmp_path / name
            local.parent.mkdir(exist_ok=True)
            local.write_bytes(file.read_bytes())
    chosen = selection(tables=["turns", "runs"])
    whole(history, "parquet", tmp_path, chosen)
    expected = [(row["partition"], row["lsn"], row["event"]) for row in history.rows()["turns"]]
    assert identities(read_back("parquet", tmp_path, "turns")) == expected


async def export_to(history: MemoryHistory, root: str) -> None:
    place = place_at(root)
    target = FilesTarget(place, "parquet", WRITERS["parquet"])
    states = PlaceStates(place, fold_version())
    chosen = selection(tables=["turns", "runs"])
    await Export(history, target, states, chosen, lambda _: None, commit_records=50).run()


async def test_words_that_somebody_deletes_stay_deleted_and_the_export_goes_on(tmp_path: Path) -> None:
    history = seeded_history()
    ends = list(history.ends)
    history.ends = [end // 2 for end in ends]
    await export(history, "delta", tmp_path)
    words = {"text": "NULL", "data": "NULL", "metadata": "NULL"}
    DeltaTable(tmp_path / "turns").update(updates=words, predicate="conversation_id IS NOT NULL")
    before = DeltaTable(tmp_path / "turns").to_pyarrow_table()
    DeltaTable(tmp_path / "turns").vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    history.ends = ends
    await export(history, "delta", tmp_path)
    found = read_back("delta", tmp_path, "turns")
    assert identities(found) == [(r["partition"], r["lsn"], r["event"]) for r in history.rows()["turns"]]
    assert before.num_rows > 0
    assert sum(row["text"] is not None for row in found) <= len(found) - before.num_rows


async def test_tables_in_a_catalog_of_the_users_own(tmp_path: Path) -> None:
    catalog = load_catalog("own", type="sql", uri=f"sqlite:///{tmp_path}/own.db", warehouse=f"file://{tmp_path}/lake")
    catalog.create_namespace("support")
    history = seeded_history(length=120)
    target = IcebergTarget(catalog, "support", "catalog own")
    await Export(history, target, NoStates(), Selection(), lambda _: None, commit_records=50).run()
    found = catalog.load_table("support.turns").scan().to_arrow()
    assert found.num_rows == len(history.rows()["turns"])
    again = await Export(history, target, NoStates(), Selection(), lambda _: None).run()
    assert again.commits == 0
    # A snapshot of somebody else's hides no position; one that expired with them is said.
    catalog.load_table("support.turns").append(found.slice(0, 0))
    assert target.positions(BY_NAME["turns"]) == dict(enumerate(history.ends))
    catalog.create_table("support.cats", found.schema)
    catalog.drop_table("support.runs")
    catalog.create_table("support.runs", found.schema)
    with pytest.raises(ExportRefused, match=r"support\.runs in catalog own is no table of an export"):
        target.contents()
