"""The embedded stack: ready when it says so, keeps what it was given, and comes back from every kind of end."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from pathlib import Path

import psycopg
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

import ops.embedded
from ops.embedded import EmbeddedStack, StackUnavailable, ports
from ops.embedded import stack as stack_module
from tests.support.processes import nothing_runs_on, open_handles, wait_ended


async def write(stack: EmbeddedStack, topic: str, value: bytes) -> None:
    """Commit one record in a transaction, on a topic that is made for it when it is missing."""
    admin = AIOKafkaAdminClient(bootstrap_servers=stack.kafka)
    await admin.start()
    try:
        if topic not in await admin.list_topics():
            await admin.create_topics([NewTopic(topic, 1, 1)])
    finally:
        await admin.close()
    producer = AIOKafkaProducer(bootstrap_servers=stack.kafka, transactional_id=f"writer-of-{topic}")
    await producer.start()
    try:
        async with producer.transaction():
            await producer.send_and_wait(topic, value)
    finally:
        await producer.stop()


async def read(stack: EmbeddedStack, topic: str, count: int) -> list[bytes]:
    """The first `count` committed records of a topic."""
    consumer = AIOKafkaConsumer(
        topic, bootstrap_servers=stack.kafka, isolation_level="read_committed", auto_offset_reset="earliest"
    )
    await consumer.start()
    try:
        return [(await consumer.getone()).value for _ in range(count)]
    finally:
        await consumer.stop()


def note(stack: EmbeddedStack, text: str) -> list[str]:
    """Add a note to a table; all notes in it so far."""
    with psycopg.connect(stack.postgres) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS notes (n bigserial PRIMARY KEY, note text)")
        connection.execute("INSERT INTO notes (note) VALUES (%s)", [text])
        return [row[0] for row in connection.execute("SELECT note FROM notes ORDER BY n")]


async def test_both_servers_work_when_start_returns(private_stack: EmbeddedStack) -> None:
    await write(private_stack, "ready", b"committed")
    assert await read(private_stack, "ready", 1) == [b"committed"]
    with psycopg.connect(private_stack.postgres) as connection:
        assert connection.info.server_version // 10_000 == 18
        shown = connection.execute("SELECT current_setting('max_connections'), current_database()").fetchone()
    assert shown == ("200", "turnlog")
    assert private_stack.failure() is None


def test_postgres_wants_the_password(private_stack: EmbeddedStack) -> None:
    wrong = private_stack.postgres.replace("turnlog:", "turnlog:x", 1)
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(wrong)


async def test_a_killed_broker_is_reported_and_comes_back_with_its_records(private_stack: EmbeddedStack) -> None:
    await write(private_stack, "killed", b"before")
    before = private_stack.kafka, private_stack.kafka_pid
    private_stack.kill_kafka()
    while_down = private_stack.kafka_pid
    assert while_down is None
    assert "kafka ended with status -9" in str(private_stack.failure())
    private_stack.restart_kafka()
    assert private_stack.failure() is None
    assert private_stack.kafka == before[0]
    assert private_stack.kafka_pid not in {None, before[1]}
    await write(private_stack, "killed", b"after")
    assert await read(private_stack, "killed", 2) == [b"before", b"after"]


def test_a_killed_postgres_comes_back_with_its_rows_though_sessions_were_open(private_stack: EmbeddedStack) -> None:
    before = note(private_stack, "before")
    with psycopg.connect(private_stack.postgres) as session:
        private_stack.kill_postgres()
        private_stack.restart_postgres()
        with pytest.raises(psycopg.OperationalError):
            session.execute("SELECT 1")
    assert note(private_stack, "after") == [*before, "after"]


def test_a_server_that_runs_is_restarted_in_order(private_stack: EmbeddedStack) -> None:
    before = private_stack.postgres_pid
    private_stack.restart_postgres()
    assert private_stack.postgres_pid not in {None, before}
    assert private_stack.failure() is None


def test_a_paused_server_ends_with_the_stack() -> None:
    with ops.embedded.start(None) as stack:
        handles = open_handles(pid for pid in (stack.kafka_pid, stack.postgres_pid) if pid is not None)
        stack.signal_kafka(signal.SIGSTOP)
        data = stack.data
    assert wait_ended(handles, 5)
    assert data is not None
    assert not data.exists()


async def test_a_kept_folder_keeps_records_rows_and_ports(tmp_path: Path) -> None:
    with ops.embedded.start(tmp_path) as first:
        await write(first, "kept", b"1")
        assert note(first, "1") == ["1"]
        addresses = first.kafka, first.postgres
    assert nothing_runs_on(tmp_path)
    with ops.embedded.start(tmp_path) as second:
        assert (second.kafka, second.postgres) == addresses
        await write(second, "kept", b"2")
        assert await read(second, "kept", 2) == [b"1", b"2"]
        assert note(second, "2") == ["1", "2"]


def test_two_stacks_run_side_by_side_but_not_on_one_folder(
    tmp_path: Path, private_stack: EmbeddedStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stack_module, "LOCK_WAIT_S", 0.0)
    assert private_stack.data is not None
    with pytest.raises(StackUnavailable, match=r"another stack runs on .* \(process \d+\)"):
        ops.embedded.start(private_stack.data)
    with ops.embedded.start(tmp_path) as other:
        addresses = {other.kafka, private_stack.kafka, other.postgres, private_stack.postgres}
        assert len(addresses) == 4
        assert note(other, "mine") == ["mine"]


def test_what_was_half_made_is_made_anew(tmp_path: Path) -> None:
    # As a kill in the middle of the first start leaves it: a stack.json, data without the file `prepared`.
    with ops.embedded.start(tmp_path) as first:
        note(first, "lost")
    for server in ("kafka", "postgres"):
        (tmp_path / server / "prepared").unlink()
    (tmp_path / "postgres" / "data" / "PG_VERSION").write_text("half")
    with ops.embedded.start(tmp_path) as second:
        assert note(second, "1") == ["1"]


def test_a_stale_pid_file_with_the_number_of_a_living_process_stops_nothing(tmp_path: Path) -> None:
    with ops.embedded.start(tmp_path) as first:
        note(first, "1")
    # PostgreSQL by itself takes any living process of its own user for a server, and refuses to start.
    user = "nobody" if os.geteuid() == 0 else None
    with subprocess.Popen(["sleep", "60"], user=user) as bystander:
        try:
            pid_file = f"{bystander.pid}\n/nowhere\n0\n5432\n\n127.0.0.1\n"
            (tmp_path / "postgres" / "data" / "postmaster.pid").write_text(pid_file)
            with ops.embedded.start(tmp_path) as second:
                assert note(second, "2") == ["1", "2"]
            assert bystander.poll() is None
        finally:
            bystander.kill()


def test_a_port_that_someone_else_takes_first_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    choose = ports.choose
    with socket.create_server(("127.0.0.1", 0)) as squatter:
        taken = squatter.getsockname()[1]
        answers = [choose(0, 0), taken]
        monkeypatch.setattr(ports, "choose", lambda *asked: answers.pop(0) if answers else choose(*asked))
        with ops.embedded.start(None) as stack:
            assert not answers
            assert f":{taken}/" not in stack.postgres
            assert note(stack, "1") == ["1"]


def test_a_port_that_was_asked_for_and_is_in_use_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as squatter:
        taken = squatter.getsockname()[1]
        with pytest.raises(StackUnavailable, match=f"port {taken} on 127.0.0.1 is in use"):
            ops.embedded.start(None, postgres_port=taken)


def test_a_folder_of_someone_else_is_left_alone(tmp_path: Path) -> None:
    theirs = tmp_path / "postgres" / "data"
    theirs.mkdir(parents=True)
    (theirs / "precious").write_text("theirs")
    with pytest.raises(StackUnavailable, match="choose another data folder"):
        ops.embedded.start(tmp_path)
    assert (theirs / "precious").read_text() == "theirs"


def test_a_server_that_cannot_start_is_reported_with_its_log_and_nothing_is_left(tmp_path: Path) -> None:
    with ops.embedded.start(tmp_path) as stack:
        note(stack, "1")
    (tmp_path / "postgres" / "data" / "global" / "pg_control").unlink()
    with pytest.raises(StackUnavailable, match=r"(?s)postgres ended with status .*pg_control.*What you can do"):
        ops.embedded.start(tmp_path)
    assert nothing_runs_on(tmp_path)
