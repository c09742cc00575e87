"""An archive and digests on S3, as moto speaks it: what holds in a folder holds there."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import s3fs
from moto.server import ThreadedMotoServer

from ops.archive.checking import check
from ops.archive.copying import Archiver
from ops.archive.history import open_archive
from ops.archive.segment import Source
from ops.digest.against import against
from ops.digest.keys import Trust, new_key
from ops.digest.sealing import Sealer
from ops.digest.statements import Digests
from ops.history.place import Place, place_at
from streams.runtime.framing import SINGLE_OBJECT
from tests.support.histories import MemoryHistory, read_all, two_partitions

BUCKET = "turnlog-test"


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of an empty bucket."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    for name, value in {
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
    }.items():
        monkeypatch.setenv(name, value)
    s3fs.S3FileSystem.clear_instance_cache()
    s3fs.S3FileSystem().mkdir(BUCKET)
    yield f"s3://{BUCKET}/deep/archive"
    s3fs.S3FileSystem.clear_instance_cache()
    server.stop()


def ignore(_: str) -> None:
    """No progress wanted."""


def archiver(history: MemoryHistory, place: Place, records: int) -> Archiver:
    source = Source(history=history, topic="conversations", framing=SINGLE_OBJECT)
    return Archiver(place, source, segment_records=records, notify=ignore)


async def test_an_archive_on_s3_holds_each_record_once(s3: str, tmp_path: Path) -> None:
    history, place = two_partitions(), place_at(s3)
    assert place.address == s3
    copiers = [archiver(history, place_at(s3), records) for records in (4, 6)]
    for copier in copiers:
        await copier.open()
    counts = await asyncio.gather(*(copier.copy() for copier in copiers))
    assert sum(counts) == sum(map(len, history.records))
    archive = await open_archive(place)
    for partition in range(history.partitions):
        assert await read_all(archive, partition) == history.records[partition]
        assert await archive.missing(partition) == []
        assert (await check(place, archive, partition, ignore)).ok
    key = new_key(tmp_path / "key.pem")
    digests = Digests(place_at(f"{s3}-digests"), Trust([key.public]))
    await Sealer(archive, digests, key, segment_records=5, notify=ignore).seal()
    assert [each.ok for each in await against(archive, digests)] == [True, True]
    segment = (await archive.segments(1))[0]
    place.remove(segment.file)
    assert await archive.missing(1) == [segment.range]
    await copiers[0].clean()
