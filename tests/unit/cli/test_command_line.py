"""The command line as a whole: exit codes, what it imports, and its page in the docs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from importlib.metadata import version
from typing import Any

import pytest

from ops.cli import reference
from ops.cli.common import Output, show_rows
from tests.support.command import turnlog

pytestmark = pytest.mark.unit

# What takes longest to import, and what `turnlog --help` has no need of.
HEAVY = ("aiokafka", "faust", "fastavro", "jgo", "psycopg", "pydantic", "starlette", "structlog", "uvloop", "yaml")
NOWHERE = {
    "TURNLOG_KAFKA": "127.0.0.1:1",
    "TURNLOG_POSTGRES": "postgresql://nobody:hunter2@127.0.0.1:1/none",
    "TURNLOG_START_WAIT_MS": "0",
}


def test_help_imports_nothing_that_runs_servers() -> None:
    loaded = subprocess.run(
        [sys.executable, "-c", "import sys, ops.cli.command_line; print('\\n'.join(sys.modules))"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    assert not set(HEAVY) & {name.partition(".")[0] for name in loaded}


def test_the_page_in_the_docs_is_the_command_line_as_it_is() -> None:
    assert reference.PAGE.read_text("utf-8") == reference.page(), "run: python -m ops.cli.reference"


def test_help_names_every_noun_and_the_exit_codes() -> None:
    ended = turnlog("--help")
    assert ended.code == 0
    for word in ("up", "demo", "worker", "gateway", "send", "channel", "conversation", "audit", "bench", "Exit codes"):
        assert word in ended.out


def test_the_version_is_that_of_the_package() -> None:
    ended = turnlog("--version")
    assert (ended.code, ended.out) == (0, f"turnlog {version('turnlog')}\n")


def test_a_question_that_nobody_can_answer_is_a_no_with_the_way_out() -> None:
    ended = turnlog("key", "rotate", environment=NOWHERE)
    assert ended.code == 1
    assert "--yes" in ended.err


def test_a_gateway_that_is_not_there_is_named_with_the_option_that_names_another() -> None:
    nowhere = {"TURNLOG_GATEWAY": "http://127.0.0.1:1", "TURNLOG_CHANNEL_SECRET": "s"}
    ended = turnlog("send", "new", "hello", environment=nowhere)
    assert ended.code == 2
    assert "http://127.0.0.1:1" in ended.err
    assert "--gateway" in ended.err


@pytest.mark.parametrize("text", ["", " \n\u3000"])
def test_nothing_is_said_where_the_text_is_blank(text: str) -> None:
    # The gateway that is not there is not asked: no conversation is opened for it.
    ended = turnlog("send", "new", text, environment={"TURNLOG_CHANNEL_SECRET": "s"})
    assert (ended.code, ended.out) == (64, "")
    assert "TEXT is blank" in ended.err


def test_moments_are_dates_for_people_and_numbers_for_scripts(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"name": "reporting", "created_at": 1_796_038_119_266}]
    show_rows(rows, ("name", "created_at"), Output.TABLE, empty="")
    assert "2026-11-30 11:28:39.266" in capsys.readouterr().out
    show_rows(rows, ("name", "created_at"), Output.JSONL, empty="")
    assert json.loads(capsys.readouterr().out)["created_at"] == 1_796_038_119_266


@pytest.mark.parametrize(("width", "as_fields"), [(60, False), (36, True)])
def test_in_a_terminal_too_narrow_for_a_table_rows_are_lists_of_fields_with_no_id_broken(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, width: int, as_fields: bool
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    row: dict[str, Any] = {"id": "gw-fd5433b06ac0.2", "gateway": "gw-fd5433b06ac0", "head_seq": 7}
    show_rows([row], tuple(row), Output.TABLE, empty="")
    told = capsys.readouterr().out
    assert row["id"] in told
    assert ("head seq   7" in told) is as_fields


@pytest.mark.parametrize(
    "arguments",
    [
        ("nonsense",),
        ("up", "--port", "70000"),
        ("up", "--workers", "many"),
        ("conversation", "show"),
        ("conversation", "list", "--status", "active"),
        ("audit", "verify", "-o", "xml"),
        ("send", "new", "hello"),
    ],
)
def test_a_wrong_command_line_exits_with_64_and_says_what_is_wrong(arguments: tuple[str, ...]) -> None:
    ended = turnlog(*arguments)
    assert (ended.code, ended.out) == (64, "")
    assert ended.err
    assert "Traceback" not in ended.err


@pytest.mark.parametrize(
    "arguments",
    [
        ("worker",),
        ("gateway", "--port", "0"),
        ("projector",),
        ("lease", "list"),
        ("member", "list"),
        ("conversation", "list"),
        ("conversation", "timeline", "some-id"),
        ("audit", "verify"),
        ("channel", "list"),
    ],
)
def test_a_missing_setting_is_named_with_the_way_out(arguments: tuple[str, ...]) -> None:
    ended = turnlog(*arguments)
    assert (ended.code, ended.out) == (2, "")
    assert "TURNLOG_KAFKA is not set" in ended.err
    assert "turnlog up" in ended.err
    assert "Traceback" not in ended.err


@pytest.mark.parametrize("command", [("up", "--port", "0"), ("demo",)], ids=lambda command: command[0])
@pytest.mark.parametrize(
    ("named", "other"), [("TURNLOG_KAFKA", "TURNLOG_POSTGRES"), ("TURNLOG_POSTGRES", "TURNLOG_KAFKA")]
)
def test_a_server_that_stays_is_not_paired_with_one_that_goes(command: tuple[str, ...], named: str, other: str) -> None:
    ended = turnlog(*command, environment={named: NOWHERE[named]})
    assert ended.code == 2
    assert f"set {other} too" in ended.err
    assert "turnlog up --data" in ended.err


@pytest.mark.parametrize(
    "arguments",
    [
        ("worker",),
        ("gateway", "--port", "0"),
        ("projector",),
        ("lease", "list"),
        ("audit", "verify"),
        ("topic", "ensure"),
    ],
)
def test_a_server_that_is_not_there_is_named_without_its_password(arguments: tuple[str, ...]) -> None:
    ended = turnlog(*arguments, environment=NOWHERE)
    assert (ended.code, ended.out) == (2, "")
    assert "127.0.0.1" in ended.err
    assert "hunter2" not in ended.err
    assert "Traceback" not in ended.err


def test_doctor_fails_on_servers_that_are_not_there_and_says_what_to_do() -> None:
    ended = turnlog("doctor", "-o", "json", environment=NOWHERE)
    checks = {check["check"]: check for check in json.loads(ended.out)}
    assert ended.code == 1
    assert (checks["kafka"]["result"], checks["postgres"]["result"]) == ("failed", "failed")
    assert "TURNLOG_KAFKA" in checks["kafka"]["way_out"]
    needing = ("topics", "tables", "workers", "retention", "partitions", "transactions", "read model", "clocks")
    assert {checks[name]["result"] for name in needing} == {"skipped"}
    assert "hunter2" not in ended.out


@pytest.mark.skipif(sys.platform == "win32", reason="there are no POSIX signals")
def test_a_canary_in_the_background_of_a_shell_ends_with_sigint() -> None:
    """A shell lets what it runs with `&` ignore SIGINT."""
    command = [sys.executable, "-m", "ops.cli", "canary", "--every", "60"]
    ignoring = (
        f"import os, signal; signal.signal(signal.SIGINT, signal.SIG_IGN); os.execvp({command[0]!r}, {command!r})"
    )
    with subprocess.Popen(
        [sys.executable, "-c", ignoring], stderr=subprocess.PIPE, text=True, env={**os.environ, **NOWHERE}
    ) as process:
        assert process.stderr is not None
        assert "could not be checked" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130


def test_doctor_without_servers_looks_at_this_machine_and_is_content() -> None:
    ended = turnlog("doctor", "-o", "json")
    checks = {check["check"]: check["result"] for check in json.loads(ended.out)}
    assert ended.code == 0
    assert checks == {"python": "ok", "packages": "ok", "java": "ok", "settings": "skipped"}
