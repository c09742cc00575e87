"""Queries: the same answer from a history and from an export of any format; nothing is written, nothing else read."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from ops.cli.command_line import run as command
from ops.export.selection import selection
from ops.export.target import ExportRefused
from ops.history.port import Range
from ops.sql.query import BadQuery, named, run
from ops.sql.relations import BY_NAME, RELATIONS
from ops.sql.sources import ERASED, NoSource, erased_in_export, of_export, of_history
from tests.support.exports import FORMATS, MemoryHistory, export, seeded_history
from tests.support.scrubbing import KEPT, SAID, spoken


def ask_history(query: str, history: MemoryHistory, folder: Path, *, show_text: bool = False) -> list[dict[str, Any]]:
    relations = named(query)
    folder.mkdir(exist_ok=True)
    sources = asyncio.run(of_history(history, relations, folder, print, accept_missing=False))
    return answer(run(query, relations, sources, {}, [folder], show_text=show_text))


def ask_export(query: str, root: Path, *, show_text: bool = False) -> list[dict[str, Any]]:
    relations = named(query)
    sources = of_export(root, relations) | erased_in_export(root)
    return answer(run(query, relations, sources, {}, [root], show_text=show_text))


def answer(table: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = table.to_pylist()
    return found


QUERIES = [
    "select outcome, count(*) as n, sum(takeovers) as t, max(ended_by) as b from runs group by all order by all",
    "select conversation_id, status, version, handed_to from conversations order by all",
    "select conversation_id, count(*) as n from conversation_versions group by all order by all",
    "select run_id, text from runs join turns t using (conversation_id) where seq = turn_seq order by all",
    "select partition, change, count(*) as n, min(since) as s, max(reason) from membership group by all order by 1, 2",
    "select type, origin, sum(done::int) as d, max(data) as x from frames group by all order by all",
    "select change, count(*) as n, count(reason) as r from ownership group by all order by all",
]


@pytest.mark.parametrize("format_", FORMATS)
def test_an_export_of_any_format_gives_the_answers_of_the_history(format_: str, tmp_path: Path) -> None:
    history = seeded_history(length=200)
    asyncio.run(export(history, format_, tmp_path / "export", commit_records=100))
    for query in QUERIES:
        expected = ask_history(query, history, tmp_path / "folded", show_text=True)
        assert expected
        assert ask_export(query, tmp_path / "export", show_text=True) == expected, query


WORDY = {
    "turns": "text, data, metadata",
    "frames": "data, metadata, extra",
    "runs": "detail",
    "conversation_versions": "metadata, reason",
    "journal": "fields",
}


@pytest.mark.parametrize("format_", [None, *FORMATS])
def test_what_was_said_in_an_erased_conversation_is_shown_to_nobody(format_: str | None, tmp_path: Path) -> None:
    """Though nobody had sealed it: `turnlog scrub` was not run."""
    history = spoken()
    if format_ is not None:
        asyncio.run(export(history, format_, tmp_path / "export"))

    def ask(query: str) -> list[dict[str, Any]]:
        if format_ is None:
            return ask_history(query, history, tmp_path / query[-3:], show_text=True)
        return ask_export(query, tmp_path / "export", show_text=True)

    for name, columns in WORDY.items():
        if name == "journal" and format_ is not None:
            continue
        rows = ask(f"select conversation_id, {columns} from {name} order by all")
        said = {row.pop("conversation_id"): SAID in str(row) for row in rows if SAID in str(row)}
        assert set(said) == {KEPT, f"{KEPT} too"}, name
    kept = ask("select conversation_id, detail from runs where reason = 'released' order by all")
    assert all(row["detail"] == "its pod is deleted" for row in kept), "an operator's words are nobody's"
    [why] = ask("select reason from conversations where status = 'erased'")
    assert why == {"reason": "request 7"}


def test_an_export_that_does_not_know_what_was_erased_shows_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asyncio.run(export(spoken(), "parquet", tmp_path, selection(tables=["turns"])))
    asked = ["sql", "--export", str(tmp_path), "select text from turns"]
    assert command(asked) == 0
    capsys.readouterr()
    assert command([*asked, "--show-text"]) == 2
    told = capsys.readouterr()
    assert (told.out, "has no table conversations" in told.err) == ("", True)


@pytest.mark.parametrize("format_", FORMATS)
def test_an_export_of_nothing_has_its_columns(format_: str, tmp_path: Path) -> None:
    history = seeded_history(length=20)
    history.ends = [0, 0]
    asyncio.run(export(history, format_, tmp_path))
    assert ask_export("select * from turns", tmp_path) == []


def test_the_journal_and_its_open_runs_can_be_asked(tmp_path: Path) -> None:
    history = seeded_history()
    [counted] = ask_history("select count(*) as n, count(distinct lsn) as lsns from journal", history, tmp_path / "a")
    assert counted["n"] == sum(len(records) for records in history._records)
    query = "select event, fields->>'$.turn.sender' as sender from journal where event = 'TurnCommitted' limit 1"
    [turn] = ask_history(query, history, tmp_path / "b", show_text=True)
    assert turn == {"event": "TurnCommitted", "sender": "ann"}
    over = "(select run_id from runs)"
    assert ask_history(f"select run_id from open_runs where run_id in {over}", history, tmp_path / "c") == []


def test_what_was_said_is_masked_unless_asked_for(tmp_path: Path) -> None:
    asyncio.run(export(seeded_history(length=200), "parquet", tmp_path))
    query = "select text from turns where text is not null order by lsn limit 3"
    shown = [row["text"] for row in ask_export(query, tmp_path, show_text=True)]
    masked = [row["text"] for row in ask_export(query, tmp_path)]
    assert masked == [f"({len(text)} characters)" for text in shown]


def test_columns_of_every_relation_can_be_named() -> None:
    for relation in RELATIONS:
        columns = ", ".join(column.name for column in relation.columns)
        assert named(f"select {columns} from {relation.name}") == [BY_NAME[relation.name]]
        assert all(column.doc for column in relation.columns if relation.name != "journal")


@pytest.mark.parametrize(
    ("query", "problem"),
    [
        ("select nothing from turns", "nothing"),
        ("select * from nowhere", "nowhere"),
        ("select 1; select 2", "one statement at a time; these are 2"),
        ("copy (select 1) to 'x.csv'", "only reading is possible here"),
        ("create table x as select 1", "only reading is possible here"),
        ("insert into turns select * from turns", "only reading is possible here"),
        ("attach 'x.db'", "only reading is possible here"),
        ("selec", "syntax error"),
    ],
)
def test_a_query_that_is_wrong_or_would_write_is_refused(query: str, problem: str) -> None:
    with pytest.raises(BadQuery, match=problem):
        named(query)


@pytest.mark.parametrize(
    "query", ["select * from read_text('/etc/hostname')", "select * from read_csv('https://example.org/x.csv')"]
)
def test_a_query_reaches_no_other_file_and_no_network(query: str, tmp_path: Path) -> None:
    with pytest.raises(BadQuery, match=r"(?i)permission|disabled"):
        named(query)
    with pytest.raises(BadQuery, match=r"(?i)permission|disabled"):
        run(query, [], {}, {}, [tmp_path], show_text=True)


@pytest.mark.parametrize("format_", FORMATS)
def test_what_an_export_does_not_have_is_named(format_: str, tmp_path: Path) -> None:
    asyncio.run(export(seeded_history(length=20), format_, tmp_path, selection(tables=["runs"])))
    with pytest.raises(NoSource, match="no export has leases"):
        of_export(tmp_path, [BY_NAME["leases"]])
    with pytest.raises((NoSource, ExportRefused), match="has no table turns"):
        of_export(tmp_path, [BY_NAME["turns"]])


@pytest.mark.parametrize("query", ["select 1 as one", "select count(*) from turns"])
def test_a_folder_that_is_no_export_is_refused_whatever_is_asked(
    query: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(["sql", "--export", str(tmp_path / "nowhere"), query]) == 2
    told = capsys.readouterr()
    assert (told.out, f"there is no folder {tmp_path / 'nowhere'}" in told.err) == ("", True)
    assert command(["sql", "--export", str(tmp_path), query]) == 2
    told = capsys.readouterr()
    assert f"{tmp_path} is no export: it has no _turnlog/export.json" in told.err
    assert f"`turnlog export parquet {tmp_path}`" in told.err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--export", "tables", "--archive", "archive"], "--export asks that export alone"),
        (["--export", "tables", "--offline"], "--export asks that export alone"),
        (["--archive", "/nowhere", "--offline"], "names nothing that an archive has"),
    ],
)
def test_a_source_that_would_not_be_read_is_refused(
    options: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(["sql", "select 1 as one", *options]) == 64
    assert said in capsys.readouterr().err


def test_missing_records_are_the_first_line_and_a_stop(tmp_path: Path) -> None:
    history = seeded_history(length=60)
    history.gone = {0: [Range(0, 5)]}
    lines: list[str] = []
    with pytest.raises(NoSource, match="--archive"):
        asyncio.run(of_history(history, [BY_NAME["turns"]], tmp_path, lines.append, accept_missing=False))
    assert lines == ["MISSING: offsets 0 to 4 of partition 0 of the journal are gone"]
    sources = asyncio.run(of_history(history, [BY_NAME["turns"]], tmp_path, lines.append, accept_missing=True))
    assert set(sources) == {"turns", ERASED}


@pytest.mark.parametrize("form", ["table", "json", "jsonl", "csv"])
def test_the_command_answers_in_every_form(form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asyncio.run(export(seeded_history(length=100), "parquet", tmp_path))
    query = "select count(*) as n, 'a,b' as t, [1, 2] as l, max(committed_at) as at_most from turns"
    assert command(["sql", "--export", str(tmp_path), query, "-o", form]) == 0
    out = capsys.readouterr().out
    if form == "json":
        [row] = json.loads(out)
        assert (row["t"], row["l"], row["at_most"][-1]) == ("a,b", [1, 2], "Z")
    if form == "jsonl":
        assert json.loads(out)["l"] == [1, 2]
    if form == "csv":
        assert out.splitlines()[0] == "n,t,l,at_most"
        assert '"a,b","[1, 2]"' in out
    if form == "table":
        assert "at most" in out


def test_the_command_lists_what_may_be_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["sql", "--tables"]) == 0
    out = capsys.readouterr().out
    assert "runs: The processing of a turn by a group" in out
    assert "latency_ms" in out
    assert command(["sql", "select nothing from turns", "--export", "/nowhere"]) == 64
