"""What was said in erased conversations is taken out of an export once, and nothing else is changed."""

from __future__ import annotations

import asyncio
import json
import uuid
from pathlib import Path
from typing import Any

import pytest

from ops.cli.command_line import run as command
from ops.cli.export import Format, _Work
from ops.cli.scrub import _opened
from ops.export.files import WRITERS, FilesTarget
from ops.export.forms import FORMS
from ops.export.iceberg import IcebergTarget, in_folder
from ops.export.run import Export
from ops.export.scrub import scrub
from ops.export.selection import Selection, selection
from ops.export.target import ExportRefused, NoStates
from ops.export.words import without_words
from ops.history.place import place_at
from tests.support.exports import FORMATS, expected_in, export, found_in, read_back, seeded_history
from tests.support.scrubbing import GONE, KEPT, SAID, TABLES, expected, holding, scrubbed, speaking, spoken


class Died(BaseException):
    """What no handler of the code under test catches: the process is gone."""


BEFORE = {"turns": 2, "frames": 1, "runs": 1, "conversations": 2}


@pytest.mark.parametrize("format_", FORMATS)
async def test_it_is_gone_from_the_rows_of_the_erased_one_and_from_no_other(format_: str, tmp_path: Path) -> None:
    history = spoken()
    ends = list(history.ends)
    history.ends = [end - 2 for end in ends]
    await export(history, format_, tmp_path, commit_records=5)
    assert scrubbed(tmp_path).conversations == 0, "the export does not know yet"
    history.ends = ends
    await export(history, format_, tmp_path)
    assert speaking(format_, tmp_path) == {GONE, KEPT, f"{KEPT} too"}
    looked = scrubbed(tmp_path, dry_run=True)
    assert (looked.conversations, looked.before, looked.after) == (1, BEFORE, {})
    assert GONE in speaking(format_, tmp_path), "a look changes nothing"
    done = scrubbed(tmp_path)
    assert (done.before, done.after) == (BEFORE, dict.fromkeys(BEFORE, 0))
    assert speaking(format_, tmp_path) == {KEPT, f"{KEPT} too"}
    for name, rows in expected(history).items():
        assert found_in(format_, read_back(format_, tmp_path, name)) == expected_in(format_, rows), name
    again = scrubbed(tmp_path)
    assert (set(again.before.values()), again.removed) == ({0}, 0)


@pytest.mark.parametrize("format_", FORMATS)
async def test_no_byte_of_it_is_left_when_all_are_erased_and_the_export_goes_on(format_: str, tmp_path: Path) -> None:
    history = spoken()
    await export(history, format_, tmp_path, commit_records=5)
    assert set(TABLES) <= holding(tmp_path)
    scrubbed(tmp_path, KEPT, f"{KEPT} too")
    assert holding(tmp_path) == set()
    again = await export(history, format_, tmp_path)
    assert (again.records, again.commits) == (0, 0), "its positions are those that it had"
    assert holding(tmp_path) == set()


@pytest.mark.parametrize("format_", FORMATS)
async def test_more_is_exported_behind_what_was_scrubbed_each_row_once(format_: str, tmp_path: Path) -> None:
    history = spoken(rounds=2)
    ends = list(history.ends)
    history.ends = [ends[0] - 2, ends[1] // 2]
    await export(history, format_, tmp_path)
    scrubbed(tmp_path, GONE)
    history.ends = ends
    await export(history, format_, tmp_path)
    scrubbed(tmp_path)
    for name, rows in expected(history).items():
        assert found_in(format_, read_back(format_, tmp_path, name)) == expected_in(format_, rows), name


@pytest.mark.parametrize("format_", ["parquet", "jsonl", "csv"])
async def test_dying_at_any_step_it_is_done_by_the_next_one(format_: str, tmp_path: Path) -> None:
    history = spoken()
    await export(history, format_, tmp_path, commit_records=5)
    lives = 0
    while True:
        lives += 1

        def die(_: str) -> None:
            raise Died

        target = FilesTarget(place_at(str(tmp_path)), format_, WRITERS[format_], die)
        target.contents = lambda: FilesTarget(place_at(str(tmp_path)), format_, WRITERS[format_]).contents()  # type: ignore[method-assign]
        try:
            scrub(target, NoStates(), (), print)
        except Died:
            continue
        break
    assert lives > len(TABLES), "each got one file further"
    assert speaking(format_, tmp_path) == {KEPT, f"{KEPT} too"}


async def test_dying_before_the_past_is_removed_it_is_removed_by_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await export(spoken(), "iceberg", tmp_path)

    def die(_: object) -> int:
        raise Died

    with monkeypatch.context() as patched:
        patched.setattr(IcebergTarget, "forget", die)
        with pytest.raises(Died):
            scrubbed(tmp_path, KEPT, f"{KEPT} too")
    assert set(TABLES) <= holding(tmp_path)
    left = scrubbed(tmp_path, KEPT, f"{KEPT} too")
    assert (set(left.before.values()), left.removed > 0) == ({0}, True)
    assert holding(tmp_path) == set()


async def test_a_version_that_somebody_named_is_not_taken_from_them_without_a_word(tmp_path: Path) -> None:
    await export(spoken(), "iceberg", tmp_path)
    target = in_folder(tmp_path)
    table = target._opened("turns")
    table.manage_snapshots().create_tag(table.current_snapshot().snapshot_id, "march").commit()
    with pytest.raises(ExportRefused, match="march names a version"):
        scrubbed(tmp_path)
    assert "turns" in holding(tmp_path)
    target._opened("turns").manage_snapshots().remove_tag("march").commit()
    assert scrubbed(tmp_path, KEPT, f"{KEPT} too").after == dict.fromkeys(BEFORE, 0)
    assert holding(tmp_path) == set()


async def test_tables_in_an_object_store_are_scrubbed_too() -> None:
    place = place_at(f"memory://{uuid.uuid4().hex}/tables")
    target = FilesTarget(place, "parquet", WRITERS["parquet"])
    await Export(spoken(), target, NoStates(), Selection(), print).run()
    opened, states = _opened(place.address, None)
    assert scrub(opened, states, (), print).before == BEFORE
    words = {name: sum(without_words(name, rows, [GONE])[1] for rows in opened.found(name)) for name in TABLES}
    assert words == dict.fromkeys(TABLES, 0)


async def test_what_a_killed_export_left_staged_is_scrubbed_too(tmp_path: Path) -> None:
    history = spoken()
    steps = 0

    def die(step: str) -> None:
        nonlocal steps
        steps += step == "staged turns"
        if steps == 2:
            raise Died

    with pytest.raises(Died):
        await export(history, "jsonl", tmp_path, commit_records=10, reached=die)
    assert list((tmp_path / "_turnlog" / "staged").rglob("turns.jsonl"))
    scrubbed(tmp_path, GONE, KEPT, f"{KEPT} too")
    assert holding(tmp_path) == set()


@pytest.mark.parametrize("format_", ["parquet", "jsonl", "csv"])
async def test_a_file_is_written_again_as_it_was_read(format_: str, tmp_path: Path) -> None:
    await export(seeded_history(), format_, tmp_path / "tables", commit_records=60)
    files = [path for path in (tmp_path / "tables").rglob(f"*.{format_}") if path.stat().st_size]
    assert files
    for path in files:
        rows = FORMS[format_].read(path.parent.name, path)
        FORMS[format_].put(rows, tmp_path / "again")
        if format_ == "parquet":
            assert FORMS[format_].read(path.parent.name, tmp_path / "again") == rows
        else:
            assert (tmp_path / "again").read_bytes() == path.read_bytes()


async def test_an_export_that_does_not_say_which_were_erased_is_not_called_clean(tmp_path: Path) -> None:
    await export(spoken(), "jsonl", tmp_path, selection(tables=["turns"]))
    with pytest.raises(ExportRefused, match="no table `conversations`"):
        scrubbed(tmp_path)
    assert scrubbed(tmp_path, GONE).before == {"turns": 2}
    assert speaking_in_turns(tmp_path) == {KEPT, f"{KEPT} too"}


def speaking_in_turns(root: Path) -> set[Any]:
    return {row["conversation_id"] for row in read_back("jsonl", root, "turns") if SAID in json.dumps(row)}


def test_the_command_says_what_there_was_and_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asyncio.run(export(spoken(), "csv", tmp_path / "tables"))
    told = ["scrub", str(tmp_path / "tables"), "-o", "json"]
    assert command([*told, "--dry-run"]) == 0
    looked = json.loads(capsys.readouterr().out)
    assert looked == [{"table": name, "before": n, "after": None} for name, n in BEFORE.items()]
    assert command([*told, "--yes"]) == 0
    assert {row["after"] for row in json.loads(capsys.readouterr().out)} == {0}
    assert command(["scrub", str(tmp_path / "nowhere"), "--yes"]) == 2
    assert "has no export" in capsys.readouterr().err


async def test_an_export_says_that_conversations_are_erased_and_what_takes_their_words_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    history = spoken()
    ends = list(history.ends)
    work = _Work(Format.JSONL, str(tmp_path), None, Selection(), accept_missing=False)
    for end, erased in (([0, 0], 0), (ends, 1), (ends, 0)):
        history.ends = end
        outcome = await work._once(history)
        work.warn(outcome)
        assert outcome.erased == work.document(outcome)["erased"] == erased
        assert (f"turnlog scrub {tmp_path}" in capsys.readouterr().err) == bool(erased), (
            "once, and where there are some"
        )
