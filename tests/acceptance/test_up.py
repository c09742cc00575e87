"""`turnlog up`: its ready line, its end, and what is left of it after a crash."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from ops.embedded import EmbeddedStack
from streams.settings import Settings
from tests.support.command import turnlog
from tests.support.processes import eventually, nothing_runs_on, open_handles, wait_ended
from tests.support.up import Up, turnlog_up

GONE_WITHIN_S = 30.0
AT_ONCE_S = 5.0


def pids(up: Up) -> list[int]:
    kinds = ("workers", "gateways", "projectors")
    return [up.process.pid, *(each["pid"] for kind in kinds for each in up.document[kind])]


def new_conversation(up: Up, text: str) -> str:
    sent = turnlog("send", "new", text, "-o", "json", environment=client_of(up))
    assert sent.code == 0, sent.err
    return str(sent.document["conversation"])


def client_of(up: Up) -> dict[str, str]:
    return {"TURNLOG_GATEWAY": up.gateways[0], "TURNLOG_CHANNEL_SECRET": up.secret("web")}


def secrets_in(dsn: str) -> int:
    with psycopg.connect(dsn) as connection:
        return len(connection.execute("SELECT FROM channel_secrets").fetchall())


def head_seq(up: Up, conversation: str) -> int:
    shown = turnlog("conversation", "show", conversation, "-o", "json", environment=up.environment)
    assert shown.code == 0, shown.err
    return int(shown.document["head_seq"])


@pytest.fixture
def data(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "data"
    yield folder
    assert eventually(lambda: nothing_runs_on(folder), GONE_WITHIN_S)


def test_the_ready_line_names_everything_and_sigterm_leaves_nothing(data: Path) -> None:
    with turnlog_up(data, "--workers", "2", "--partitions", "4") as up:
        ready = up.document
        assert [(each["id"], each["kind"]) for each in ready["channels"]] == [("web", "web"), ("agents", "websocket")]
        assert all(each["secret"] for each in ready["channels"])
        assert (len(ready["workers"]), len(ready["gateways"]), len(ready["projectors"])) == (2, 1, 1)
        assert ready["postgres"].startswith("postgresql://")
        assert len(set(pids(up))) == 5
        with urllib.request.urlopen(f"{ready['gateway']}/readyz", timeout=5) as answer:
            assert answer.status == 200
        assert (data / "secrets.json").stat().st_mode & 0o777 == 0o600
        leases = turnlog("lease", "list", "-o", "json", environment=up.environment).document
        assert {lease["worker"] for lease in leases} == {worker["id"] for worker in ready["workers"]}
        assert [lease["partition"] for lease in leases] == [0, 1, 2, 3]
        handles = open_handles(pids(up))
    assert wait_ended(handles, GONE_WITHIN_S)


def test_a_second_start_on_the_same_folder_goes_on_also_after_a_kill(data: Path) -> None:
    with turnlog_up(data, "--partitions", "4") as up:
        conversation = new_conversation(up, "first")
        secret = up.secret("web")
    with turnlog_up(data) as up:
        assert up.secret("web") == secret
        assert head_seq(up, conversation) == 1
        said = turnlog("send", conversation, "second", environment=client_of(up))
        assert said.code == 0, said.err
        assert head_seq(up, conversation) == 2
        handles = open_handles(pids(up))
        up.process.send_signal(signal.SIGKILL)
        assert wait_ended(handles, GONE_WITHIN_S)
        up.expect(-signal.SIGKILL)
    assert eventually(lambda: nothing_runs_on(data), GONE_WITHIN_S)
    with turnlog_up(data) as up:
        assert head_seq(up, conversation) == 2
        verdict = turnlog("audit", "verify", "-o", "json", environment=up.environment)
        assert (verdict.code, verdict.document["turns"], verdict.document["open"]) == (0, 2, 2)


def test_a_process_that_dies_is_reported_and_started_again(data: Path) -> None:
    with turnlog_up(data, "--partitions", "2") as up:
        worker = up.document["workers"][0]
        os.kill(worker["pid"], signal.SIGKILL)

        def held_by_another() -> bool:
            leases = turnlog("lease", "list", "-o", "json", environment=up.environment).document
            return all(lease["live"] and lease["worker"] != worker["id"] for lease in leases)

        assert eventually(held_by_another, GONE_WITHIN_S)
        assert "worker-1" in up.told()
        assert "SIGKILL" in up.told()


def test_a_port_or_a_folder_in_use_is_a_clear_error(up: Up) -> None:
    taken = up.gateways[0].rsplit(":", 1)[1]
    ended = turnlog("up", "--port", taken, environment=up.environment)
    assert (ended.code, ended.out) == (2, "")
    assert f"127.0.0.1:{taken}" in ended.err
    assert "--port" in ended.err
    ended = turnlog("up", "--port", "0", "--data", str(up.data))
    assert (ended.code, ended.out) == (2, "")
    assert str(up.data) in ended.err
    assert "Traceback" not in ended.err


def test_on_a_database_that_stays_no_secrets_gather_also_after_a_kill(
    stack: EmbeddedStack, settings: Settings, tmp_path: Path
) -> None:
    scratch = tmp_path / "tmp"
    scratch.mkdir()
    environment = {
        "TURNLOG_KAFKA": settings.kafka,
        "TURNLOG_POSTGRES": settings.postgres,
        "TURNLOG_NAMESPACE": settings.namespace,
        "TMPDIR": str(scratch),
    }
    with turnlog_up(tmp_path / "killed", "--partitions", "1", kept=False, environment=environment) as up:
        handles = open_handles(pids(up))
        up.process.send_signal(signal.SIGKILL)
        assert wait_ended(handles, GONE_WITHIN_S)
        up.expect(-signal.SIGKILL)
    (left,) = scratch.glob("turnlog-up-*")
    assert secrets_in(settings.postgres) == 2
    os.utime(left / "lock", (0, 0))
    with turnlog_up(tmp_path / "next", kept=False, environment=environment):
        assert secrets_in(settings.postgres) == 2
        assert not left.exists()
    assert secrets_in(settings.postgres) == 0
    assert not list(scratch.iterdir())


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM], ids=lambda how: how.name)
def test_a_first_download_that_does_not_come_on_ends_at_once(tmp_path: Path, how: signal.Signals) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        proxy = f"http://127.0.0.1:{silent.getsockname()[1]}"
        environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "HTTPS_PROXY": proxy, "https_proxy": proxy}
        with subprocess.Popen(
            [sys.executable, "-m", "ops.cli", "up", "--port", "0"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        ) as process:
            try:
                silent.settimeout(GONE_WITHIN_S)
                asked, _ = silent.accept()  # from here on the download waits for an answer that never comes
                with asked:
                    assert len(list((tmp_path / "turnlog").glob("partial-*"))) == 1
                    process.send_signal(how)
                    out, err = process.communicate(timeout=AT_ONCE_S)
            finally:
                process.kill()
    assert (process.returncode, out) == (0, "")
    assert "downloading Apache Kafka" in err
    assert "Traceback" not in err
    assert [each.name for each in (tmp_path / "turnlog").iterdir()] == ["kafka.lock"]


def test_doctor_finds_everything_in_order_on_a_running_stack(up: Up) -> None:
    ended = turnlog("doctor", "-o", "json", environment=up.environment)
    checks = {check["check"]: check["result"] for check in json.loads(ended.out)}
    assert set(checks.values()) == {"ok"}, ended.out
    assert {"kafka", "topics", "postgres", "tables", "workers", "partitions", "read model"} <= set(checks)
    assert ended.code == 0
