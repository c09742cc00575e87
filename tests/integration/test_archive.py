"""Archive, digests and trimming on real servers, with the commands that an operator types."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pyarrow.parquet as pq
import pytest
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete

from ops.archive.history import open_archive
from ops.archive.trimming import Plan, Safe, trim
from ops.cli.command_line import run
from ops.database import Database
from ops.digest.keys import trusted
from ops.digest.statements import Digests
from ops.history import HistoryUnavailable, Missing, Range, open_history
from ops.history.live import live_history
from ops.history.place import place_at
from ops.provision import connected_admin
from streams.core.events import TurnCommitted
from tests.support.command import Ended
from tests.support.deployment import CODEC, PATIENCE_S, Deployment, Talk, deployment
from tests.support.histories import read_all
from tests.support.program import program
from tests.support.waiting import until

PARTITIONS = 2


@pytest.fixture
async def place(settings: Any) -> AsyncIterator[Deployment]:
    """A deployment in which people have talked; its worker has stopped and stored its checkpoints."""
    async with deployment(settings, PARTITIONS) as made:
        async with made.worker() as (running, _):
            talk = Talk(made)
            await talk.some(5)
            await made.all_taken(await talk.end())
            assert await running.stop() == 0
        yield made


class Operator:
    """Somebody at a shell: an archive, digests, a key."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.archive = str(folder / "archive")
        self.digests = str(folder / "digests")
        self.key = folder / "key.pem"
        self._capsys = capsys

    async def types(self, *arguments: str, code: int = 0) -> Ended:
        """The command in this process, on a thread and a loop of its own: a process takes a second to start."""
        self._capsys.readouterr()
        ended = await asyncio.to_thread(run, list(arguments))
        told = Ended(ended, *self._capsys.readouterr())
        assert told.code == code, told.err
        return told

    async def all_kept(self) -> None:
        await self.types("key", "digest", "new", str(self.key))
        await self.types("archive", "run", self.archive)
        await self.types("digest", "seal", self.digests)


@pytest.fixture
async def operator(
    place: Deployment, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Operator:
    """Everything is archived and sealed."""
    made = Operator(tmp_path, capsys)
    for name, value in place.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TURNLOG_DIGEST_KEY", str(made.key))
    monkeypatch.setenv("TURNLOG_DIGEST_TRUST", f"{made.key}.pub")
    await made.all_kept()
    return made


async def test_the_archive_is_what_kafka_has_and_what_is_needed_stays(place: Deployment, operator: Operator) -> None:
    async with open_history(place.settings) as live, open_history(None, operator.archive, offline=True) as archive:
        journal = await place.journal()
        for partition in range(PARTITIONS):
            records = await read_all(live, partition)
            assert records == await read_all(archive, partition)
            assert archive.decode_all(records) == journal[partition]
            assert await archive.bounds(partition) == await live.bounds(partition)
            assert await archive.offset_at(partition, records[3].timestamp) == await live.offset_at(
                partition, records[3].timestamp
            )
    shown = (await operator.types("archive", "show", operator.archive, "-o", "json")).document
    assert [(row["behind"], row["missing"]) for row in shown] == [(0, [])] * PARTITIONS
    files = [row["file"] for row in (await operator.types("archive", "list", operator.archive, "-o", "json")).document]
    rows = sum(pq.ParquetFile(Path(operator.archive, file)).metadata.num_rows for file in files)
    assert rows == sum(map(len, journal.values()))
    checked = (await operator.types("archive", "verify", operator.archive, "-o", "json")).document
    assert [(row["verified"], row["problems"]) for row in checked] == [(row["end"], []) for row in shown]
    audited = (await operator.types("audit", "verify", "--against", operator.digests, "-o", "json")).document
    assert (audited["ok"], [row["records"] for row in audited["digests"]]) == (True, [*map(len, journal.values())])
    ended = await operator.types("audit", "verify", "--against", f"{operator.digests}-mistyped", code=2)
    assert "nothing is sealed at" in ended.err
    # What is still needed is not deleted from Kafka.
    trim = ("archive", "trim", operator.archive, "--digests", operator.digests, "--keep", "0s", "-o", "json")
    held = (await operator.types(*trim, "--yes")).document
    assert [(row["until"], row["offsets"]) for row in held] == [(0, 0)] * PARTITIONS
    assert all(row["limits"]["projector"] == row["limits"]["tail"] == 0 for row in held)  # no read model, little at all
    assert all(0 < row["limits"]["checkpoint"] <= row["limits"]["archive"] for row in held)
    assert [row["limits"]["digest"] for row in held] == [row["end"] for row in held]
    await operator.types("archive", "trim", operator.archive, "--keep", "0s", code=64)


async def test_what_was_altered_behind_everybodys_back_shows(place: Deployment, operator: Operator) -> None:
    ended = await operator.types("digest", "verify", operator.digests, "-o", "json")
    assert all(row["ok"] and row["unsealed"] == 0 for row in ended.document)
    # A turn's text is changed in the archive: a new file, and a manifest that fits it.
    manifest = first(operator.archive, "manifest/p00000/*.json")
    segment = json.loads(manifest.read_text())
    path = Path(operator.archive, segment["file"])
    table = pq.ParquetFile(path).read()
    rows = table.to_pylist()
    victim = next(row for row in rows if row["event"] == "TurnCommitted")
    entry = CODEC.decode_entry(victim["value"])
    assert isinstance(entry.event, TurnCommitted)
    turn = msgspec.structs.replace(entry.event.turn, text="what was never said")
    event = msgspec.structs.replace(entry.event, turn=turn)
    victim["value"] = CODEC.encode_entry(msgspec.structs.replace(entry, event=event))
    pq.write_table(table.from_pylist(rows, schema=table.schema), path)
    manifest.write_text(json.dumps({**segment, "bytes": len(read_bytes(path))}))
    offline = ("--archive", operator.archive, "--offline")
    ended = await operator.types("digest", "verify", operator.digests, *offline, "-o", "json", code=1)
    (violation,) = ended.document[0]["violations"]
    named = (violation["kind"], violation["offset"], violation["lsn"], violation["conversation"])
    assert named == ("altered", victim["offset"], entry.lsn, entry.event.conversation_id)
    assert "VIOLATION" in ended.err
    # The audit itself has nothing against what was put in: it breaks no rule.
    ended = await operator.types("audit", "verify", "--against", operator.digests, *offline, "-o", "json", code=1)
    assert (ended.document["violations"], ended.document["digests"][0]["violations"]) == ([], [violation])
    await operator.types("archive", "verify", operator.archive, code=1)
    await operator.types("digest", "verify", operator.digests)  # Kafka's own are as they were
    # Nothing is deleted of a partition whose archive or digests differ.
    name = first(operator.digests, "leaves/p00001/*")
    name.write_bytes(name.read_bytes() + b"x")
    with psycopg.connect(place.settings.postgres, autocommit=True) as connection:
        connection.execute("INSERT INTO projector_positions SELECT partition, lsn, journal_offset FROM checkpoints")
    plans = await planned(place, operator)
    assert [len(plan.deletes) for plan in plans] == [0, 0]
    assert "the archive has something else there" in plans[0].problems[0]
    assert "is not the file that was sealed" in plans[1].problems[0]


async def test_kafka_may_lose_what_is_safe_and_everything_goes_on(place: Deployment, operator: Operator) -> None:
    with psycopg.connect(place.settings.postgres, autocommit=True) as connection:
        connection.execute(
            "INSERT INTO projector_positions SELECT partition, lsn, journal_offset FROM checkpoints ORDER BY partition"
        )
        connection.execute("UPDATE topics SET topic_id = 'other ' || topic_id")
        with pytest.raises(HistoryUnavailable, match="not to this one"):
            await planned(place, operator)
        connection.execute("UPDATE topics SET topic_id = replace(topic_id, 'other ', '')")
    before = await place.journal()
    plans = await planned(place, operator)
    assert [plan.held_by for plan in plans] == ["checkpoint"] * PARTITIONS
    assert [plan.problems for plan in plans] == [[]] * PARTITIONS
    async with connected_admin(place.settings.kafka) as admin:
        await trim(admin, place.topics.conversations, plans)
    async with open_history(place.settings) as live:
        assert [await live.missing(p) for p in range(PARTITIONS)] == [[plan.deletes] for plan in plans]
        with pytest.raises(Missing):
            await read_all(live, 0)
    name = next(entry.event.conversation_id for entry in before[0] if entry.event.conversation_id)
    told = await operator.types("conversation", "timeline", name, code=2)  # all of it is gone from Kafka
    assert told.err.startswith(f"MISSING: offsets {plans[0].deletes} of partition 0")
    async with place.worker() as (running, _):
        await place.open("after")
        await place.turn("after", "still here")
        await until(lambda: has_turns(place, "after"))
        assert await running.stop() == 0
    await followed(place, operator)
    await operator.types("digest", "seal", operator.digests, "--archive", operator.archive)
    await operator.types("digest", "verify", operator.digests, "--archive", operator.archive, "--offline")
    async with open_history(place.settings, operator.archive) as joined:
        for partition in range(PARTITIONS):
            assert await joined.missing(partition) == []
            entries = joined.decode_all(await read_all(joined, partition))
            assert entries[: len(before[partition])] == before[partition]
            assert [entry.lsn for entry in entries] == list(range(1, len(entries) + 1))


def read_bytes(path: Path) -> bytes:
    return path.read_bytes()


def first(folder: str, pattern: str) -> Path:
    return min(Path(folder).glob(pattern))


async def planned(place: Deployment, operator: Operator) -> list[Plan]:
    """As `archive trim` does it, down to the last record that is not needed."""
    database = Database(place.settings.postgres)
    digests = Digests(place_at(operator.digests), trusted([f"{operator.key}.pub"]))
    try:
        async with live_history(place.settings) as live:
            archive = await open_archive(place_at(operator.archive))
            safe = Safe(live=live, archive=archive, digests=digests, database=database, notify=lambda _: None)
            return await safe.plans(int(time.time() * 1000) + 60_000, 0)
    finally:
        await database.close()


async def followed(place: Deployment, operator: Operator) -> None:
    """An archiver that goes on until it is asked to stop, and has archived all by then."""
    command = (sys.executable, "-m", "ops.cli", "archive", "run", operator.archive, "--follow", "--every", "1s")

    async def caught_up() -> bool:
        archive = await open_archive(place_at(operator.archive))
        async with live_history(place.settings) as live:
            return all([(await archive.bounds(p)).end == (await live.bounds(p)).end for p in range(PARTITIONS)])

    async with program(*command, environment={**place.environment, "TURNLOG_METRICS_PORT": "0"}) as running:
        await until(caught_up, limit_s=PATIENCE_S)
        assert await running.stop() == 0


async def has_turns(place: Deployment, conversation: str) -> bool:
    return bool((await place.turns()).get(conversation))


async def test_a_gap_is_loud(place: Deployment, operator: Operator, tmp_path: Path) -> None:
    name = place.topics.conversations
    async with AIOKafkaProducer(bootstrap_servers=place.settings.kafka) as producer:
        for _ in range(3):
            await producer.send_and_wait(name, b"not archived", partition=0)
    async with open_history(place.settings) as live:
        end = (await live.bounds(0)).end
    admin = AIOKafkaAdminClient(bootstrap_servers=place.settings.kafka)
    await admin.start()
    try:
        await admin.delete_records({TopicPartition(name, 0): RecordsToDelete(before_offset=end - 1)})
    finally:
        await admin.close()
    ended = await operator.types("archive", "run", operator.archive, code=2)
    assert f"MISSING: offsets {end - 3} to {end - 2} of partition 0" in ended.err
    ended = await operator.types("archive", "show", operator.archive, code=1)
    assert ended.err.startswith("MISSING: offsets")
    await operator.types("archive", "run", operator.archive, "--after-gap")
    async with open_history(place.settings, operator.archive) as joined:
        assert await joined.missing(0) == [Range(end - 3, end - 1)]
    ended = await operator.types("digest", "seal", operator.digests, "--archive", operator.archive, code=2)
    assert "MISSING: offsets" in ended.err
