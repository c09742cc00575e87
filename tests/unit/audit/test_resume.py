"""An audit that was interrupted goes on from what it kept, and says the same as one that was not."""

from __future__ import annotations

import pickle
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ops.audit.intake import Batch, Taken
from ops.audit.kept import CannotResume, Kept
from ops.audit.partition import PartitionAudit, Paused
from ops.audit.remembered import Remembered
from ops.audit.replay import Replay, absent_checkpoint
from ops.audit.source import PartitionSource
from ops.audit.violations import Findings, Tally
from ops.bench.history import History, MadeBatch
from streams.core.events import Entry, FrameCommitted
from streams.core.state import Conversation
from streams.core.store import load_conversation
from streams.fence.port import Positions

pytestmark = pytest.mark.unit

CHUNK = 250


class Source(PartitionSource):
    """A made history: its journal from a position on, and its intake."""

    def __init__(self, entries: list[Entry], batches: list[MadeBatch]) -> None:
        self._entries = entries
        self._refs = {
            "turns": [command.ref for batch in batches for command in batch.turns],
            "frames": [command.ref for batch in batches for command in batch.frames],
        }
        self.start, self.end = 0, len(entries)

    async def begin(self, position: int, covered: Positions) -> None:
        self.start = position

    async def entries(self) -> AsyncIterator[tuple[int, list[Entry]]]:
        for at in range(self.start, self.end, CHUNK):
            yield min(self.end, at + CHUNK), self._entries[at : at + CHUNK]

    async def taken(
        self, before: Positions, after: Positions, batch: Batch | None = None
    ) -> tuple[Taken, Taken] | None:
        turns = self._refs["turns"][before.turns : after.turns]
        frames = self._refs["frames"][before.frames : after.frames]
        return Taken("turns", tuple(turns), ()), Taken("frames", tuple(frames), ())

    async def ticks(self, *_: Any) -> None:
        return None


@pytest.fixture(scope="module")
def made() -> list[MadeBatch]:
    return list(History(0, 1, 30).batches(4_000))


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@pytest.fixture
def little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nearly all that is remembered goes to disk."""
    monkeypatch.setattr(Remembered.__init__, "__defaults__", (8,))
    monkeypatch.setattr(Replay.__init__, "__defaults__", (3,))


def entries_of(made: list[MadeBatch], *, broken: bool) -> list[Entry]:
    """`broken`: a frame in the middle bears the key of the one before it."""
    entries = [entry for batch in made for entry in batch.entries]
    if broken:
        keyed = [at for at, e in enumerate(entries) if isinstance(e.event, FrameCommitted) and e.event.key]
        first, second = keyed[len(keyed) // 2 : len(keyed) // 2 + 2]
        event: Any = entries[second].event
        other: Any = entries[first].event
        forged = msgspec.structs.replace(event, conversation_id=event.conversation_id, key=other.key)
        forged = msgspec.structs.replace(forged, member=other.member, n=other.n)
        entries[second] = msgspec.structs.replace(entries[second], event=forged)
    return entries


async def audited(entries: list[Entry], made: list[MadeBatch], kept: Kept | None) -> tuple[Tally, Findings, int]:
    """`kept`: it stops after each chunk, and another audit goes on from what was kept."""
    rounds = 0
    while True:
        rounds += 1
        source = Source(entries, made)
        audit: PartitionAudit | None = None if kept is None else kept.load(0)
        if audit is None:
            audit = PartitionAudit(0, source, absent_checkpoint(0), Findings(), None)
        else:
            audit.attach(source, absent_checkpoint(0))
        await source.begin(audit.position, audit.covered)
        try:
            return await audit.run(lambda _: kept is not None), audit.findings, rounds
        except Paused:
            assert kept is not None
            kept.save(0, audit)
        finally:
            audit.close()


@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize("broken", [False, True])
async def test_one_that_stops_after_every_chunk_says_the_same_as_one_that_does_not(
    made: list[MadeBatch], broken: bool
) -> None:
    entries = entries_of(made, broken=broken)
    whole = await audited(entries, made, None)
    parts = await audited(entries, made, Kept.begun({"identity": "topic-1"}))
    assert parts[2] == -(-len(entries) // CHUNK)
    assert whole[:2] == parts[:2]
    assert bool(whole[1].count) == broken
    assert whole[0].events == len(entries)


async def test_each_conversation_is_taken_apart_once_also_where_all_is_read_in_one_part(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A row that does not survive loading is found, whatever the conversation is called."""
    loaded: list[str] = []

    def noting(name: str, row: bytes) -> Conversation:
        loaded.append(name)
        return load_conversation(name, row)

    monkeypatch.setattr("ops.audit.replay.load_conversation", noting)
    made = list(History(0, 1, 3).batches(100))
    entries = entries_of(made, broken=False)
    monkeypatch.setitem(globals(), "CHUNK", len(entries))
    await audited(entries, made, None)
    names = {each.event.conversation_id for each in entries if each.event.conversation_id}
    assert sorted(loaded) == sorted(names)


async def test_what_another_release_kept_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Kept.begun({"identity": "topic-1"})
    monkeypatch.setattr("ops.audit.kept.version", lambda _: "0.0.1")
    with pytest.raises(CannotResume, match="begun by release"):
        Kept.named(kept.name).plan()


def test_what_others_may_write_is_not_taken() -> None:
    kept = Kept.begun({"identity": "topic-1"})
    kept.folder.chmod(0o777)
    with pytest.raises(CannotResume, match="written by others"):
        Kept.named(kept.name)


def test_what_is_kept_makes_nothing_but_what_audits_keep() -> None:
    kept = Kept.begun({"identity": "topic-1"})
    kept.save(0, Findings())
    assert kept.load(0) == Findings()
    (kept.folder / "00000" / "state").write_bytes(pickle.dumps(Path("/")))
    with pytest.raises(CannotResume, match="which no audit keeps"):
        kept.load(0)
    called = b"\x80\x04\x8c\x0eops.audit.kept\x8c\x09os.system\x93\x8c\x04true\x85R."  # kept.os.system("true")
    (kept.folder / "00000" / "state").write_bytes(called)
    with pytest.raises(CannotResume, match="which no audit keeps"):
        kept.load(0)


def test_an_audit_that_is_not_there_is_said() -> None:
    with pytest.raises(CannotResume, match="there is no interrupted audit"):
        Kept.named("nothing")
