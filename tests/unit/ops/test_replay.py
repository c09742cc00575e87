"""Time travel: any point of a partition's history, from a kept state or from the beginning, is the state of a fold."""

from __future__ import annotations

import asyncio
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import aiokafka
import httpx
import psycopg
import pytest
import websockets

from ops.bench.history import History as Made
from ops.cli.errors import CommandFailed
from ops.cli.replay import Wanted, look, target_of
from ops.history import Missing
from ops.replay import Standing, Target, Traveller, Unreachable
from ops.replay.travel import cache_of
from streams.core.commands import CommitPersonFrame
from streams.core.content import Frame
from streams.core.events import Entry
from streams.core.fold import evolve
from streams.core.state import Partition
from streams.core.store import dump_conversation, dump_partition
from tests.support.histories import MemoryHistory, one_partition
from tests.support.journals import CONVERSATION, DOCUMENT, ready, taken_over

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture(scope="module")
def made() -> list[Entry]:
    """Talk, with members that go and come, and 20 conversations of which most rest."""
    return [entry for batch in Made(0, 1, 20).batches(3_000) for entry in batch.entries]


def folded(entries: Sequence[Entry], lsn: int) -> Partition:
    state = Partition(0)
    for entry in entries[:lsn]:
        evolve(state, entry)
    return state


def same(standing: Standing, state: Partition) -> bool:
    """Whether both have the same bytes, of the partition and of every conversation."""
    rows = {each.id: dump_conversation(each)[0] for each in standing.conversations()}
    wanted = {id_: dump_conversation(each)[0] for id_, each in state.conversations.items()}
    return dump_partition(standing.state) == dump_partition(state) and rows == wanted


async def gone_to(history: MemoryHistory, target: Target, every: int = 200) -> Standing:
    traveller = Traveller(history, 0, every=every)
    try:
        return await traveller.to(target)
    finally:
        traveller.close()


async def test_every_point_is_the_state_of_a_fold_whether_states_are_kept_or_not(made: list[Entry]) -> None:
    history = one_partition(made)
    for lsn in (len(made), 1, 900, 901, 2_500, 2_499, 300):
        for cached in (False, True):
            traveller = Traveller(history, 0, cached=cached, every=200)
            standing = await traveller.to(Target(lsn=lsn))
            assert standing.state.lsn == lsn
            assert same(standing, folded(made, lsn))
            traveller.close()


async def test_a_later_look_begins_at_a_kept_state(made: list[Entry]) -> None:
    history = one_partition(made)
    await gone_to(history, Target())
    assert history.read_from == [0]
    await gone_to(history, Target(lsn=2_500))
    begun = history.read_from[-1]
    behind = next(record for record in history.records[0] if history.decode(record).lsn == 2_500).offset - begun
    assert begun > 0
    assert behind < 3 * 200 + 300  # a point is kept at the end of the batch in which it is due


def holding(folder: Path, words: bytes) -> list[str]:
    """Names of the files that hold these."""
    return [path.name for path in folder.rglob("*") if path.is_file() and words in path.read_bytes()]


async def test_nothing_that_was_said_is_kept_and_what_earlier_releases_kept_of_it_is_removed(own_cache: Path) -> None:
    journal = ready()
    journal.say("a zebra?")
    journal.frame(journal.owner, "interrupt", frame=Frame(id="ask", type="interrupt", data='{"text":"zebra?"}'))
    resume = Frame(id="r", type="resume", data='{"answers":{"ask":{"text":"zebra!"}}}')
    stamps: dict[str, Any] = {"at": journal.at, "timestamp": journal.at, "conversation_id": CONVERSATION}
    journal.take(CommitPersonFrame(**stamps, frame=resume, sender="ana", channel="web"))
    journal.batch(3, 1)
    [run] = journal.state.conversations[CONVERSATION].runs.values()
    assert run.progress is not None
    assert "zebra!" in str(run.progress.answers), "a checkpoint has it, for the member that goes on"
    history = one_partition(journal.entries)
    folder = cache_of(history)
    old = [folder / f"p00000-f6.db{more}" for more in ("", "-wal")]
    for each in (*old, folder / "p00001-f6.db"):
        each.write_bytes(b"zebra!")
    standing = await gone_to(history, Target(), every=1)
    [same_run] = standing.state.conversations[CONVERSATION].runs.values()
    assert same_run.progress is not None
    assert list(same_run.progress.answers) == ["ask"]
    assert holding(own_cache, b"zebra") == ["p00001-f6.db"], "of another partition, removed when that is looked at"
    assert (await gone_to(history, Target(), every=1)).state.lsn == journal.state.lsn


async def test_states_of_another_journal_are_not_used(made: list[Entry]) -> None:
    await gone_to(one_partition(made), Target())
    other = one_partition(made[:1_000], identity="topic-2")
    assert (await gone_to(other, Target())).state.lsn == 1_000
    assert other.read_from == [0]


async def test_a_time_means_all_that_was_committed_by_then(made: list[Entry]) -> None:
    history = one_partition(made)
    moment = made[1_500].timestamp
    standing = await gone_to(history, Target(time_ms=moment))
    assert standing.state.lsn == sum(entry.timestamp <= moment for entry in made)
    assert (await gone_to(history, Target(time_ms=made[-1].timestamp + 1))).state.lsn == len(made)
    assert (await gone_to(history, Target(time_ms=made[0].timestamp - 1))).state.lsn == 0


async def test_an_offset_means_its_record_and_all_before_it(made: list[Entry]) -> None:
    history = one_partition(made)
    record = history.records[0][777]
    standing = await gone_to(history, Target(offset=record.offset))
    assert (standing.position, standing.state.lsn) == (record.offset + 1, 778)


@pytest.mark.parametrize("target", [Target(offset=10**6), Target(lsn=10**6)])
async def test_a_point_behind_the_end_is_refused(made: list[Entry], target: Target) -> None:
    with pytest.raises(Unreachable, match="the journal ends at"):
        await gone_to(one_partition(made), target)


async def test_a_missing_beginning_is_said(made: list[Entry]) -> None:
    history = one_partition(made)
    history.delete_before(0, 500)
    with pytest.raises(Missing, match="0 to 499"):
        await gone_to(history, Target())


def rigged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every edge of the program fails on use: sockets, processes, clients of all servers."""

    def fail(*_: Any, **__: Any) -> Any:
        raise AssertionError("something was sent outward")

    for owner, name in (
        (socket.socket, "connect"),
        (socket.socket, "connect_ex"),
        (socket.socket, "sendto"),
        (socket, "create_connection"),
        (asyncio.BaseEventLoop, "create_connection"),
        (asyncio.BaseEventLoop, "create_datagram_endpoint"),
        (subprocess.Popen, "__init__"),
        (aiokafka.AIOKafkaProducer, "__init__"),
        (aiokafka.AIOKafkaConsumer, "__init__"),
        (psycopg.AsyncConnection, "connect"),
        (psycopg.Connection, "connect"),
        (httpx.AsyncClient, "send"),
        (httpx.Client, "send"),
        (websockets, "connect"),
    ):
        monkeypatch.setattr(owner, name, fail)


async def test_a_replay_sends_nothing_outward(made: list[Entry], monkeypatch: pytest.MonkeyPatch) -> None:
    history = one_partition(made)
    rigged(monkeypatch)
    with pytest.raises(AssertionError, match="outward"):
        socket.create_connection(("127.0.0.1", 9))  # the rig works
    [document] = [each async for each in look(history, Wanted(targets=[Target()]))]
    assert document["as_of"]["lsn"] == len(made)
    points = [Target(lsn=400), Target(lsn=2_000)]
    [changed] = [each async for each in look(history, Wanted(targets=points))]
    assert changed["to"]["lsn"] == 2_000


async def test_who_owned_what_open_runs_and_members_are_shown() -> None:
    journal = ready()
    journal.say("hello")
    [document] = [each async for each in look(one_partition(journal.entries), Wanted(targets=[Target()]))]
    assert [row["member"] for row in document["members"]] == ["gw-1.1", "gw-1.2"]
    [run] = document["open_runs"]
    [conversation] = document["conversations"]
    assert (run["conversation"], run["turn_seq"], run["member"]) == (CONVERSATION, 1, journal.owner)
    assert conversation["owners"] == conversation["next"] == {"agents/bots": journal.owner}
    assert DOCUMENT not in str(document)


async def test_a_difference_names_what_came_went_and_changed() -> None:
    journal = taken_over()
    wanted = Wanted(targets=[Target(lsn=6), Target()], conversation=CONVERSATION)
    [document] = [each async for each in look(one_partition(journal.entries), wanted)]
    gone = [row for row in document["members"] if row["change"] == "gone"]
    assert gone
    [conversation] = document["conversations"]
    assert conversation["change"] == "changed"
    assert conversation["what"]["head_seq"][0] < conversation["what"]["head_seq"][1]


async def test_a_conversation_that_was_not_there_is_said() -> None:
    history = one_partition(ready().entries)
    with pytest.raises(CommandFailed, match="there was no conversation nobody"):
        [each async for each in look(history, Wanted(targets=[Target()], conversation="nobody"))]


async def test_points_in_the_wrong_order_are_refused() -> None:
    history = one_partition(ready().entries)
    with pytest.raises(CommandFailed, match="lies before the first"):
        [each async for each in look(history, Wanted(targets=[Target(lsn=4), Target(lsn=2)]))]


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("123", Target(offset=123)),
        ("o:123", Target(offset=123)),
        ("lsn:7", Target(lsn=7)),
        ("now", Target()),
        ("2026-11-30T14:05:00", Target(time_ms=1_796_047_500_000)),
    ],
)
def test_points_are_written_in_these_ways(text: str, target: Target) -> None:
    assert target_of(text, "--at") == target


def test_what_is_no_point_is_refused_with_what_there_is_to_write() -> None:
    with pytest.raises(CommandFailed, match="--at: 'yesterday' is no time"):
        target_of("yesterday", "--at")
