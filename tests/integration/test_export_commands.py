"""`turnlog export` and `turnlog sql` on real servers, as a data engineer types them."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

import httpx
import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition

from ops.embedded import EmbeddedStack
from streams.core.commands import NoteAction
from streams.fence.migrate import migrate
from streams.runtime.codec import Codec
from streams.settings import Settings
from streams.topics import Topics
from tests.support.command import turnlog_async
from tests.support.exports import MemoryHistory, export, seeded_history, write_history, write_seeded
from tests.support.scrubbing import GONE, KEPT, SAID, spoken

LENGTH = 100


@pytest.fixture
async def environment(stack: EmbeddedStack, settings: Settings) -> dict[str, str]:
    """A deployment's journal: what `seeded_history` has, at the same offsets but for the markers' ones."""
    await write_seeded(stack.kafka, settings.namespace, LENGTH, timed=True)
    return {
        "TURNLOG_KAFKA": stack.kafka,
        "TURNLOG_NAMESPACE": settings.namespace,
        "TURNLOG_POSTGRES": settings.postgres,
    }


async def test_a_journal_is_exported_asked_and_gone_on_with(environment: dict[str, str], tmp_path: Path) -> None:
    target = str(tmp_path / "tables")
    ended = await turnlog_async("export", "parquet", target, "-o", "json", environment=environment)
    assert ended.code == 0, ended.err
    assert ended.document["records"] == sum(map(len, seeded_history(length=LENGTH)._records))
    again = await turnlog_async("export", "parquet", target, "-o", "json", environment=environment)
    assert (again.document["records"], again.document["commits"]) == (0, 0)
    counted = "select count(*) as n, count(distinct conversation_id) as c from turns"
    [live] = (await turnlog_async("sql", counted, "-o", "json", environment=environment)).document
    [exported] = (await turnlog_async("sql", counted, "--export", target, "-o", "json")).document
    assert live == exported == {"n": ended.document["rows"]["turns"], "c": live["c"]}
    refused = await turnlog_async("export", "parquet", target, "--channel", "x", environment=environment)
    assert (refused.code, "begun with another selection" in refused.err) == (2, True)


async def test_live_state_is_asked_beside_the_journal(environment: dict[str, str]) -> None:
    migrate(environment["TURNLOG_POSTGRES"])
    asked = (
        "select count(*) as n, (select count(*) from leases) as l, (select count(*) from workers) as w from open_runs"
    )
    ended = await turnlog_async("sql", asked, "-o", "jsonl", environment=environment)
    assert ended.code == 0, ended.err
    assert (ended.document["l"], ended.document["w"]) == (0, 0)


async def notes(environment: dict[str, str]) -> list[tuple[str, str, str]]:
    """What is written down of operators in the intake of partition 0, for workers to take."""
    place = TopicPartition(Topics(environment["TURNLOG_NAMESPACE"]).membership, 0)
    reader = AIOKafkaConsumer(bootstrap_servers=environment["TURNLOG_KAFKA"], auto_offset_reset="earliest")
    await reader.start()
    found = []
    try:
        reader.assign([place])
        end = (await reader.end_offsets([place]))[place]
        while await reader.position(place) < end:
            for record in (await reader.getmany(place, timeout_ms=1000)).get(place, ()):
                note = Codec().decode_membership(record, 0)
                assert isinstance(note, NoteAction)
                found.append((note.action, note.subject, note.reason))
    finally:
        await reader.stop()
    return found


async def test_who_is_shown_what_was_said_in_files_is_noted_where_there_is_a_deployment_to_note_it(
    environment: dict[str, str], tmp_path: Path
) -> None:
    await export(seeded_history(length=LENGTH), "jsonl", tmp_path)
    asked = ("sql", "select text from turns where text is not null limit 1", "--export", str(tmp_path), "-o", "json")
    masked = await turnlog_async(*asked, environment=environment)
    assert masked.document[0]["text"].endswith(" characters)")
    assert await notes(environment) == [], "nobody was shown anything"
    shown = await turnlog_async(*asked, "--show-text", "--why", "case 7", environment=environment)
    assert shown.code == 0, shown.err
    assert not shown.document[0]["text"].endswith(" characters)")
    assert await notes(environment) == [("text_shown", f"sql of the export {tmp_path}", "case 7")]
    assert "NOT noted" not in shown.err
    alone = await turnlog_async(*asked, "--show-text")
    assert (alone.document, "NOT noted in any journal" in alone.err) == (shown.document, True)
    away = await turnlog_async(*asked, "--show-text", environment={"TURNLOG_KAFKA": "127.0.0.1:1"})
    assert (away.code, away.out) == (2, ""), "what cannot be noted is not shown"


async def test_what_was_said_in_an_erased_conversation_is_shown_to_nobody(
    stack: EmbeddedStack, settings: Settings
) -> None:
    """Though nobody had sealed it, so that no key could be destroyed."""
    [first, _] = spoken()._records
    history = MemoryHistory([[entry for _, entry in first]])
    await write_history(stack.kafka, settings.namespace, history, timed=True)
    migrate(settings.postgres)
    environment = {
        "TURNLOG_KAFKA": stack.kafka,
        "TURNLOG_NAMESPACE": settings.namespace,
        "TURNLOG_POSTGRES": settings.postgres,
    }
    for conversation, is_shown in ((KEPT, True), (GONE, False)):
        asked = ("conversation", "timeline", conversation, "--show-text", "-o", "jsonl")
        told = await turnlog_async(*asked, environment=environment)
        assert told.code == 0, told.err
        assert (SAID in told.out, "[erased]" in told.out) == (is_shown, not is_shown)
        assert ("is erased: what was said in it is not shown" in told.err) is not is_shown


async def test_a_following_export_tells_how_far_it_is_and_when_interrupted_how_to_go_on(
    environment: dict[str, str], tmp_path: Path
) -> None:
    words = ("export", "jsonl", str(tmp_path / "t"), "--follow", "--every", "1h", "--metrics-port", "0")
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "ops.cli", *words),
        stderr=asyncio.subprocess.PIPE,
        env={**environment, "PATH": "/usr/bin"},
    )
    assert process.stderr is not None
    serving = (await asyncio.wait_for(process.stderr.readline(), 60)).decode()
    first = (await asyncio.wait_for(process.stderr.readline(), 60)).decode()
    assert "up to date" in first
    async with httpx.AsyncClient() as client:
        page = (await client.get(serving.removeprefix("metrics at ").strip())).text
    assert f'turnlog_copy_every_seconds{{of="export",to="{tmp_path}/t"}} 3600.0' in page
    process.send_signal(signal.SIGINT)
    rest = (await asyncio.wait_for(process.stderr.read(), 60)).decode()
    assert await process.wait() == 130
    assert f"turnlog {' '.join(words)}" in rest


@pytest.mark.parametrize("arguments", [("--table", "cats"), ("--from", "yesterday"), ("--event", "Nothing")])
async def test_a_selection_that_means_nothing_is_named(arguments: tuple[str, str], tmp_path: Path) -> None:
    ended = await turnlog_async(
        "export", "csv", str(tmp_path), *arguments, environment={"TURNLOG_KAFKA": "127.0.0.1:1"}
    )
    assert ended.code == 64
    assert arguments[0] in ended.err
