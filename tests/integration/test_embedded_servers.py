"""`TURNLOG_KAFKA` and `TURNLOG_POSTGRES` win over the embedded pair, and what cannot be had is explained."""

from __future__ import annotations

import errno
import importlib.metadata
import os
import socket
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

import ops.embedded
from ops.embedded import EmbeddedStack, StackUnavailable, postgres
from ops.embedded import stack as stack_module
from ops.embedded.errors import FolderUnusable


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.delenv("TURNLOG_KAFKA", raising=False)
    monkeypatch.delenv("TURNLOG_POSTGRES", raising=False)
    return monkeypatch


@pytest.fixture
def nobody_listens() -> int:
    """A port of 127.0.0.1 that refuses connections."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_named_servers_are_used_and_nothing_is_started(
    private_stack: EmbeddedStack, environment: pytest.MonkeyPatch
) -> None:
    environment.setenv("TURNLOG_KAFKA", private_stack.kafka)
    environment.setenv("TURNLOG_POSTGRES", private_stack.postgres)
    told: list[str] = []
    with ops.embedded.servers(progress=told.append) as named:
        assert (named.kafka, named.postgres) == (private_stack.kafka, private_stack.postgres)
        assert named.failure() is None
        with pytest.raises(ValueError, match="not started here"):
            named.kill_kafka()
    assert private_stack.failure() is None
    assert f"using Kafka at {private_stack.kafka}, which TURNLOG_KAFKA names" in told
    (postgres_line,) = [line for line in told if line.endswith(", which TURNLOG_POSTGRES names")]
    assert postgres_line.startswith("using PostgreSQL at 127.0.0.1:")
    assert str(conninfo_to_dict(private_stack.postgres)["password"]) not in postgres_line


def test_a_folder_is_one_stacks_at_a_time_also_where_its_servers_are_named(
    private_stack: EmbeddedStack, environment: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    environment.setattr(stack_module, "LOCK_WAIT_S", 0.0)
    environment.setenv("TURNLOG_KAFKA", private_stack.kafka)
    environment.setenv("TURNLOG_POSTGRES", private_stack.postgres)
    told: list[str] = []
    with ops.embedded.servers(tmp_path, progress=told.append) as named:
        assert named.data == tmp_path
        assert f"{tmp_path} gets no server of its own: unset TURNLOG_KAFKA and TURNLOG_POSTGRES for that" in told
        with pytest.raises(FolderUnusable, match=rf"another stack runs on {tmp_path} \(process {os.getpid()}\)"):
            ops.embedded.servers(tmp_path)
    with ops.embedded.servers(tmp_path):
        pass


def test_the_one_that_is_not_named_is_started(private_stack: EmbeddedStack, environment: pytest.MonkeyPatch) -> None:
    environment.setenv("TURNLOG_KAFKA", private_stack.kafka)
    with ops.embedded.servers() as mixed:
        assert mixed.kafka == private_stack.kafka
        assert mixed.kafka_pid is None
        assert mixed.postgres != private_stack.postgres
        with psycopg.connect(mixed.postgres) as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)


def test_a_named_kafka_that_does_not_answer_is_said_so(environment: pytest.MonkeyPatch, nobody_listens: int) -> None:
    environment.setenv("TURNLOG_KAFKA", f"127.0.0.1:{nobody_listens}")
    with pytest.raises(StackUnavailable, match=rf"TURNLOG_KAFKA names .*{nobody_listens}.*unset it"):
        ops.embedded.servers()


def test_a_named_kafka_must_be_host_and_port(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("TURNLOG_KAFKA", "localhost")
    with pytest.raises(StackUnavailable, match="TURNLOG_KAFKA must be HOST:PORT"):
        ops.embedded.servers()


@pytest.mark.parametrize("dsn", ["postgresql://u:hunter2@127.0.0.1:{port}/x", "postgresql://u:hunter2@[broken"])
def test_a_named_postgres_that_does_not_answer_is_said_so_without_its_password(
    environment: pytest.MonkeyPatch, nobody_listens: int, dsn: str
) -> None:
    environment.setenv("TURNLOG_POSTGRES", dsn.format(port=nobody_listens))
    with pytest.raises(StackUnavailable, match="TURNLOG_POSTGRES names") as raised:
        ops.embedded.servers()
    assert "hunter2" not in str(raised.value)


def test_without_a_way_to_maven_central_the_ways_out_are_told(
    environment: pytest.MonkeyPatch, tmp_path: Path, nobody_listens: int
) -> None:
    environment.setenv("XDG_CACHE_HOME", str(tmp_path))
    environment.setenv("HTTPS_PROXY", f"http://127.0.0.1:{nobody_listens}")
    environment.setenv("https_proxy", f"http://127.0.0.1:{nobody_listens}")
    told: list[str] = []
    with pytest.raises(StackUnavailable) as raised:
        ops.embedded.servers(progress=told.append)
    assert "could not be downloaded from Maven Central" in str(raised.value)
    assert "docker compose" in str(raised.value)
    assert "TURNLOG_KAFKA=" in str(raised.value)
    assert any("downloading Apache Kafka" in line for line in told)
    assert not list((tmp_path / "turnlog").glob("kafka-*")), "half a download must not look like a whole one"
    assert not list((tmp_path / "turnlog").glob("partial-*"))


def test_a_missing_wheel_is_named_with_the_ways_out(environment: pytest.MonkeyPatch) -> None:
    environment.setattr(postgres, "WHEEL", "no-such-wheel")
    with pytest.raises(StackUnavailable, match=r"(?s)not installed \(the wheel no-such-wheel\).*pip install"):
        ops.embedded.servers()


def test_a_data_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StackUnavailable, match=rf"file/data cannot be made: {os.strerror(errno.ENOTDIR)}"):
        ops.embedded.servers(tmp_path / "file" / "data")


def test_the_wheel_that_is_installed_has_the_postgres_that_is_promised() -> None:
    assert importlib.metadata.version(postgres.WHEEL)
    assert (Path(str(importlib.metadata.distribution(postgres.WHEEL).locate_file(""))) / postgres.PROGRAMS).is_dir()
