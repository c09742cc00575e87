"""Processes that archive and seal are killed, twenty times; then all is there, once."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

from ops.archive.history import open_archive
from ops.digest.against import against
from ops.digest.keys import trusted
from ops.digest.statements import Digests
from ops.history.place import place_at
from tests.support.histories import read_all
from tests.support.killed import history_of

KILLS = 20


async def test_twenty_kills_lose_nothing_and_double_nothing(tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    ended = subprocess.run(  # noqa: ASYNC221 -- nothing else runs here
        [sys.executable, "-m", "tests.support.killed", str(tmp_path), str(seed), str(KILLS)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, f"seed {seed}: {ended.stderr}"
    assert int(ended.stdout) >= KILLS // 2, "too few of them died at their work"
    history = history_of(40)
    place = place_at(str(tmp_path / "archive"))
    archive = await open_archive(place)
    for partition in range(history.partitions):
        assert await read_all(archive, partition) == history.records[partition], f"seed {seed}"
        assert await archive.missing(partition) == []
    segments = [segment for partition in range(2) for segment in await archive.segments(partition)]
    assert place.names("data") == sorted(segment.file for segment in segments if segment.file), f"seed {seed}"
    digests = Digests(place_at(str(tmp_path / "digests")), trusted([str(tmp_path / "key.pem.pub")]))
    evidence = await against(archive, digests)
    assert [(each.ok, each.records) for each in evidence] == [(True, len(mine)) for mine in history.records]
