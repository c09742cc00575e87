"""An audit that processes share, on a real journal: the same verdict, also after an interruption or a kill;
and time travel through that journal."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import psutil
import pytest

from ops.audit.asked import Asked, Scope
from ops.audit.kept import audits
from ops.audit.shared import Interrupted, Team, begin, resume
from ops.audit.source import CouldNotVerify
from ops.audit.verify import verify_cluster
from ops.bench.past import fill
from ops.cli.audit import Compared
from ops.cli.replay import Wanted, look
from ops.digest.against import Evidence, Kind, Tampering
from ops.history import Range, open_history
from ops.provision import connected_admin
from ops.replay import Target
from streams.fence.migrate import migrate
from streams.settings import Settings
from streams.topics import Topics, ensure
from tests.support.command import turnlog_async
from tests.support.waiting import until

PARTITIONS = 2
EVENTS = 4_000


def quiet(_: str) -> None:
    """No progress wanted."""


@pytest.fixture
async def filled(settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """A deployment with a history, and a cache of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    await asyncio.to_thread(migrate, settings.postgres)
    async with connected_admin(settings.kafka) as admin:
        await ensure(admin, Topics(settings.namespace), partitions=PARTITIONS)
    await fill(settings, EVENTS, PARTITIONS, quiet)
    return settings


async def identity_of(settings: Settings) -> str:
    async with open_history(settings) as history:
        return history.identity


async def test_processes_that_share_an_audit_say_what_one_says_also_after_an_interruption(filled: Settings) -> None:
    alone = await verify_cluster(filled, Scope(), quiet)
    assert alone.ok, alone.findings.shown
    team = Team(PARTITIONS, quiet)
    shared = await begin(Asked(filled, Scope()), await identity_of(filled), range(PARTITIONS), team)
    assert shared.document() == alone.document()
    assert team.usage.rss_bytes < 512 * 2**20
    assert list(audits().iterdir()) == []

    said: asyncio.Queue[str] = asyncio.Queue()
    task = asyncio.create_task(
        begin(Asked(filled, Scope()), await identity_of(filled), range(PARTITIONS), Team(1, said.put_nowait))
    )
    while "--resume" not in await said.get():
        pass
    await asyncio.sleep(0)  # its processes are asked for
    task.cancel()
    with pytest.raises(Interrupted) as interrupted:
        await task
    name = str(interrupted.value).rpartition(" ")[2]
    again = await resume(filled, name, Team(1, quiet))
    assert again.document() == alone.document()
    assert list(audits().iterdir()) == []


def workers() -> list[psutil.Process]:
    """This process's children that audit."""
    return [child for child in psutil.Process(os.getpid()).children() if "ops.audit.worker" in child.cmdline()]


async def test_what_the_digests_said_is_said_again_by_the_audit_that_goes_on(filled: Settings, tmp_path: Path) -> None:
    tampering = Tampering(kind=Kind.ALTERED, partition=0, problem="partition 0, offset 7: is not what was sealed")
    evidence = [Evidence(0, [tampering], 1, [Range(3, 5)], 40, Range(0, 50), 2, "head"), Evidence(1)]
    beside = {"digests": Compared(1_796_000_000_000, evidence).document()}
    said: asyncio.Queue[str] = asyncio.Queue()
    task = asyncio.create_task(
        begin(Asked(filled, Scope()), await identity_of(filled), range(PARTITIONS), Team(1, said.put_nowait), beside)
    )
    while "--resume" not in (told := await said.get()):
        pass
    await asyncio.sleep(0)  # its processes are asked for
    task.cancel()
    with pytest.raises(Interrupted):
        await task
    environment = {
        **{f"TURNLOG_{name.upper()}": getattr(filled, name) for name in ("kafka", "postgres", "namespace")},
        "XDG_CACHE_HOME": str(tmp_path),
    }
    name = told.rpartition(" ")[2]
    ended = await turnlog_async("audit", "verify", "--resume", name, "-o", "json", environment=environment)
    assert (ended.code, ended.document["violations"], ended.document["ok"]) == (1, [], False), ended.err
    assert ended.document["digests"] == [each.document() for each in evidence]
    assert ended.document["digests_compared_at"] == 1_796_000_000_000
    assert [Evidence.of(each) for each in ended.document["digests"]] == evidence


async def test_a_process_that_is_killed_is_told_and_the_audit_goes_on_from_what_is_kept(filled: Settings) -> None:
    task = asyncio.create_task(
        begin(Asked(filled, Scope()), await identity_of(filled), range(PARTITIONS), Team(1, quiet))
    )

    async def started() -> bool:
        return bool(workers())

    await until(started)
    workers()[0].send_signal(signal.SIGKILL)
    with pytest.raises(CouldNotVerify, match="ended before it was through"):
        await task
    [kept] = audits().iterdir()
    assert (await resume(filled, kept.name, Team(2, quiet))).ok


async def test_time_travel_on_a_real_journal_ends_at_the_stored_checkpoint(filled: Settings) -> None:
    async with open_history(filled) as history:
        documents = [each async for each in look(history, Wanted(targets=[Target()], limit=3))]
        assert [document["partition"] for document in documents] == list(range(PARTITIONS))
        lsn = documents[0]["as_of"]["lsn"]
        middle = [each async for each in look(history, Wanted(targets=[Target(lsn=lsn // 2)], partition=0))]
        assert middle[0]["as_of"]["lsn"] == lsn // 2
        before = documents[0]["as_of"]["timestamp"] - 1
        [earlier] = [each async for each in look(history, Wanted(targets=[Target(time_ms=before)], partition=0))]
        assert 0 < earlier["as_of"]["lsn"] < lsn
