"""The parts of the embedded stack that need no server: plans, phases, ports, jars and the data folder."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import stat
import threading
import zipfile
from pathlib import Path

import pytest

from ops.embedded import StackUnavailable, folder, kafka, maven, ports, postgres, start
from ops.embedded.errors import FolderUnusable, GivenUp
from ops.embedded.folder import DataFolder, Remembered
from ops.embedded.supervisor import NEXT_PHASES, Phase, Plan, Server, ServerPlan


def a_server_plan(home: Path) -> ServerPlan:
    return postgres.plan(home, home.parent / "postgres.log", port=20_001, throwaway=True)


def test_a_plan_survives_its_way_to_the_supervisor(tmp_path: Path) -> None:
    (tmp_path / "postgres" / "data").mkdir(parents=True)
    plan = Plan([a_server_plan(tmp_path / "postgres" / "data")], str(tmp_path), 60.0, 15.0)
    assert "\n" not in plan.to_json()
    assert Plan.from_json(plan.to_json()) == plan


def test_postgres_never_syncs_what_is_thrown_away_and_always_what_is_kept(tmp_path: Path) -> None:
    home = tmp_path / "postgres" / "data"
    home.mkdir(parents=True)
    log = tmp_path / "log"
    assert "--fsync=off" in postgres.plan(home, log, port=1, throwaway=True).command
    assert "--fsync=off" not in postgres.plan(home, log, port=1, throwaway=False).command


def test_the_password_is_made_once_and_is_private(tmp_path: Path) -> None:
    home = tmp_path / "postgres" / "data"
    home.mkdir(parents=True)
    a_server_plan(home)
    first = postgres.dsn(home, 20_001)
    a_server_plan(home)
    assert postgres.dsn(home, 20_001) == first
    assert stat.S_IMODE(postgres.password_file(home).stat().st_mode) == 0o600


@pytest.mark.parametrize(("phase", "wrong"), [(p, q) for p in Phase for q in Phase if q not in NEXT_PHASES[p]])
def test_a_server_takes_no_step_that_the_table_does_not_have(tmp_path: Path, phase: Phase, wrong: Phase) -> None:
    (tmp_path / "postgres" / "data").mkdir(parents=True)
    server = Server(a_server_plan(tmp_path / "postgres" / "data"), phase)
    with pytest.raises(ValueError, match=f"{phase.value} cannot be followed by {wrong.value}"):
        server.enter(wrong)
    assert server.phase is phase


def test_a_path_with_spaces_and_backslashes_reaches_the_broker_as_it_is(tmp_path: Path) -> None:
    home = tmp_path / "a b\\c" / "kafka" / "data"
    home.mkdir(parents=True)
    kafka.plan(home, tmp_path / "log", cluster_id="x", port=20_001, controller_port=20_002, jars=tmp_path)
    assert f"log.dirs={tmp_path}/a b\\\\c/kafka/data\n" in (home.parent / "broker.properties").read_text()


def test_cluster_ids_are_fresh_and_never_look_like_an_option() -> None:
    made = {kafka.new_cluster_id() for _ in range(1000)}
    assert len(made) == 1000
    assert all(len(cluster_id) == 22 and cluster_id[0] != "-" for cluster_id in made)


def a_jar(path: Path) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("A.class", b"x" * 1000)
    return path


def test_whole_jars_are_copied(tmp_path: Path) -> None:
    jars = [a_jar(tmp_path / "a.jar"), a_jar(tmp_path / "b.jar")]
    copied = maven.copy_whole(jars, tmp_path / "copied")
    assert [(copied / jar.name).read_bytes() for jar in jars] == [jar.read_bytes() for jar in jars]


@pytest.mark.parametrize("damage", ["cut short", "a byte changed"])
def test_a_damaged_jar_is_refused_by_name(tmp_path: Path, damage: str) -> None:
    jar = a_jar(tmp_path / "a.jar")
    content = bytearray(jar.read_bytes())
    if damage == "cut short":
        del content[len(content) // 2 :]
    else:
        content[content.index(b"xxx")] ^= 0xFF
    jar.write_bytes(content)
    with pytest.raises(StackUnavailable, match=r"a\.jar arrived damaged"):
        maven.copy_whole([jar], tmp_path / "copied")


def test_a_free_port_is_outside_the_range_of_outgoing_connections() -> None:
    chosen = [ports.choose(0, 0) for _ in range(20)]
    assert all(20_000 <= port < 32_000 for port in chosen)


def test_the_last_port_is_taken_again_unless_it_is_in_use() -> None:
    last = ports.choose(0, 0)
    assert ports.choose(0, last) == last
    assert ports.choose(0, last, frozenset({last})) != last
    with socket.create_server(("127.0.0.1", last)):
        assert ports.choose(0, last) != last


def opened(data: Path | None) -> DataFolder:
    return DataFolder.open(data, lock_wait_s=0.0, progress=lambda line: None)


def test_a_folder_remembers_its_ports_and_its_cluster(tmp_path: Path) -> None:
    first = opened(tmp_path)
    first.remember(Remembered(cluster_id=first.remembered.cluster_id, kafka_port=20_001))
    first.release()
    second = opened(tmp_path)
    second.release()
    assert second.remembered == first.remembered


def test_a_folder_is_one_stacks_at_a_time(tmp_path: Path) -> None:
    first = opened(tmp_path)
    with pytest.raises(StackUnavailable, match=rf"another stack runs on {tmp_path} \(process {os.getpid()}\)"):
        opened(tmp_path)
    first.release()
    opened(tmp_path).release()


def test_whoever_waits_for_a_folder_says_so_once(tmp_path: Path) -> None:
    first = opened(tmp_path)
    lines: list[str] = []
    with pytest.raises(FolderUnusable, match="another stack runs on"):
        DataFolder.open(tmp_path, lock_wait_s=0.2, progress=lines.append)
    first.release()
    assert len(lines) == 1
    assert lines[0].startswith(f"another stack runs on {tmp_path}: waiting")


def test_whoever_gives_up_waits_for_a_folder_no_longer(tmp_path: Path) -> None:
    first = opened(tmp_path)
    given_up = threading.Event()
    with pytest.raises(GivenUp):
        # The wait is told of once it has begun: only then is it given up.
        DataFolder.open(tmp_path, lock_wait_s=600.0, progress=lambda line: given_up.set(), given_up=given_up)
    first.release()
    opened(tmp_path).release()


def test_whoever_gives_up_waits_for_somebody_elses_download_no_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "turnlog").mkdir()
    given_up = threading.Event()
    with (tmp_path / "turnlog" / "kafka.lock").open("wb") as theirs:
        fcntl.flock(theirs, fcntl.LOCK_EX)
        with pytest.raises(GivenUp):
            kafka.jar_folder(lambda line: given_up.set(), given_up)


def test_a_folder_that_cannot_be_written_to_is_said_with_the_file_that_could_not(tmp_path: Path) -> None:
    (tmp_path / "lock").mkdir()  # nobody can open this for writing, root neither
    with pytest.raises(FolderUnusable, match=rf"{tmp_path} cannot be used: {tmp_path}/lock: Is a directory; choose"):
        opened(tmp_path)


def test_an_unusable_folder_is_not_answered_with_where_to_find_servers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        kafka, "jar_folder", lambda progress, given_up: tmp_path
    )  # no download for a start that must fail
    with pytest.raises(FolderUnusable) as caught:
        start(tmp_path / "a,b")
    assert "What you can do" not in str(caught.value)


@pytest.mark.parametrize("name", ["a,b", "a\nb"])
def test_a_path_that_kafka_would_take_for_two_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(StackUnavailable, match="no comma and no line break"):
        opened(tmp_path / name)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "damaged"),
        (json.dumps({"cluster_id": 7}), "damaged"),
        (json.dumps({"cluster_id": "x", "layout": 2}), "needs layout 1"),
        (json.dumps({"cluster_id": "x", "postgres_major": 16}), "needs layout 1 with PostgreSQL 18"),
    ],
)
def test_a_folder_that_this_version_cannot_use_is_refused_and_let_go(tmp_path: Path, content: str, said: str) -> None:
    (tmp_path / "stack.json").write_text(content)
    with pytest.raises(StackUnavailable, match=said):
        opened(tmp_path)
    (tmp_path / "stack.json").unlink()
    opened(tmp_path).release()


def test_abandoned_temporary_folders_are_swept_and_used_ones_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    used, abandoned = opened(None), opened(None)
    abandoned.release()
    for one in (used, abandoned):
        os.utime(one.path / "lock", (0, 0))
    fresh = opened(None)
    fresh.release()
    assert used.path.exists()
    assert not abandoned.path.exists()
    assert fresh.path.name.startswith(folder.TEMPORARY_PREFIX)
    used.release()


def test_programs_count_as_open_only_if_everyone_may_go_all_the_way(tmp_path: Path) -> None:
    assert postgres.open_to_all(Path("/bin/sh"))
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    program = closed / "postgres"
    program.touch()
    program.chmod(0o755)
    assert not postgres.open_to_all(program)
