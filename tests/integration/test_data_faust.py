"""The journal as a faust topic, in a process of its own: the documented example, on a real broker."""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

import faust
import pytest
from aiokafka.admin import AIOKafkaAdminClient

from streams.core.events import Entry, Turn, TurnCommitted
from streams.settings import Settings
from streams.topics import Topics, ensure
from tests.support.projector import journal_writer
from turnlog.data.faust import JournalApp, UncommittedReads, journal_topic

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "faust_journal.py"
PATIENCE_S = 90


def turns(first: int, last: int, text: str = "hello") -> list[Entry]:
    return [
        Entry(
            n, n, 1_700_000_000_000 + n, 1,
            TurnCommitted(conversation_id="c", seq=n, turn=Turn(id=f"m{n}", sender="ana", channel="web", type="text",
                                                               text=text)),
        )
        for n in range(first, last + 1)
    ]  # fmt: skip


async def test_an_aborted_record_reaches_no_agent(settings: Settings, tmp_path: Path) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=settings.kafka)
    await admin.start()
    try:
        await ensure(admin, Topics(settings.namespace), partitions=1)
    finally:
        await admin.close()
    with ExitStack() as stack:
        log = stack.enter_context((tmp_path / "log").open("wb"))
        lines = await said_by_the_example(settings, log, tmp_path)
    assert [(line["seq"], line["lsn"], line["text"]) for line in lines] == [(n, n, "hello") for n in range(1, 6)]


async def said_by_the_example(settings: Settings, log: IO[bytes], folder: Path) -> list[dict[str, Any]]:
    """What it prints of a journal with an aborted transaction in its middle."""
    async with journal_writer(settings) as journal:
        await journal.commit(turns(1, 2))
        await journal.abort(turns(3, 4, "never said"))
        await journal.commit(turns(3, 5))
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *(str(EXAMPLE), "--datadir", str(folder / "faust"), "worker"),
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
            env={
                "TURNLOG_KAFKA": settings.kafka,
                "TURNLOG_NAMESPACE": settings.namespace,
                "PYTHONPATH": str(EXAMPLE.parents[2]),
            },
        )
        try:
            assert process.stdout is not None
            lines: list[dict[str, Any]] = []
            while len(lines) < 5:
                line = await asyncio.wait_for(process.stdout.readline(), PATIENCE_S)
                assert line, (folder / "log").read_text()
                if line.startswith(b"{"):
                    lines.append(json.loads(line))
        finally:
            process.kill()
            await process.communicate()
    return lines


def test_an_app_that_reads_what_is_not_committed_gets_no_journal() -> None:
    with pytest.raises(UncommittedReads, match="make the app a JournalApp"):
        journal_topic(faust.App("plain", broker="kafka://127.0.0.1:1"))
    assert isinstance(JournalApp("right", broker="kafka://127.0.0.1:1"), faust.App)
