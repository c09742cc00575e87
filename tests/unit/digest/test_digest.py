"""Whatever is done to a sealed history, or to its digests, is found and named; an untouched one is not blamed."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import pytest

from ops.archive.copying import Archiver
from ops.archive.history import open_archive
from ops.archive.segment import Source
from ops.digest.against import Evidence, Kind, Tampering, against
from ops.digest.keys import DigestKeyError, SigningKey, Trust, new_key, public_key, signing_key, trusted
from ops.digest.leaves import leaf_of
from ops.digest.sealing import Gap, Sealer
from ops.digest.statements import Digests, Envelope, Statement, seal, statement_folder, statement_name
from ops.history.place import Place, place_at
from ops.history.port import HistoryUnavailable, Range, Recorded
from streams.runtime.framing import SINGLE_OBJECT
from tests.support.histories import MemoryHistory, two_partitions
from tests.support.journals import answered, taken_over

SEGMENT = 4


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.fsync", lambda _: None)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """Where the digests lie."""
    return place_at(str(tmp_path / "digests"))


@pytest.fixture
def key(tmp_path: Path) -> SigningKey:
    """A key to sign with."""
    return new_key(tmp_path / "signing.pem")


async def sealed(history: MemoryHistory, place: Place, key: SigningKey, **how: bool) -> int:
    sealer = Sealer(history, Digests(place, trusted((), key)), key, segment_records=SEGMENT, notify=ignore, **how)
    return await sealer.seal()


def ignore(_: str) -> None:
    """No progress wanted."""


async def compared(history: MemoryHistory, place: Place, *keys: SigningKey) -> list[Evidence]:
    return await against(history, Digests(place, Trust(key.public for key in keys)))


async def found(history: MemoryHistory, place: Place, *keys: SigningKey) -> list[Tampering]:
    return [each for evidence in await compared(history, place, *keys) for each in evidence.found]


def said(tampering: Sequence[Tampering]) -> list[tuple[Kind, int, int | None]]:
    return [(each.kind, each.partition, each.offset) for each in tampering]


# --------------------------------------------------------------------------------------------------- an honest history
async def test_an_untouched_history_is_not_blamed(place: Place, key: SigningKey) -> None:
    history = two_partitions()
    count = sum(map(len, history.records))
    assert await sealed(history, place, key) == count
    evidence = await compared(history, place, key)
    assert all(each.ok for each in evidence)
    assert sum(each.records for each in evidence) == count
    assert [each.sealed for each in evidence] == [Range(0, history.ends[0]), Range(0, history.ends[1])]


async def test_what_comes_later_is_sealed_later(place: Place, key: SigningKey) -> None:
    history = two_partitions()
    await sealed(history, place, key)
    end = history.ends[1]
    history.append(1, answered().entries)
    assert [each.unsealed for each in await compared(history, place, key)] == [0, history.ends[1] - end]
    assert await sealed(history, place, key) == len(answered().entries)
    assert await sealed(history, place, key) == 0
    assert [each.ok for each in await compared(history, place, key)] == [True, True]


async def test_an_archive_is_held_against_the_same_digests(tmp_path: Path, place: Place, key: SigningKey) -> None:
    history = two_partitions()
    await sealed(history, place, key)
    archive = place_at(str(tmp_path / "archive"))
    source = Source(history=history, topic="conversations", framing=SINGLE_OBJECT)
    honest = Archiver(archive, source, segment_records=3, notify=ignore)
    await honest.open()
    await honest.copy()
    evidence = await against(await open_archive(archive), Digests(place, Trust([key.public])))
    assert [(each.ok, each.records) for each in evidence] == [(True, len(mine)) for mine in history.records]


async def test_several_at_once_seal_each_record_once(place: Place, key: SigningKey) -> None:
    history = two_partitions()
    counts = await asyncio.gather(*(sealed(history, place, key) for _ in range(3)))
    assert sum(counts) == sum(map(len, history.records))
    assert [each.ok for each in await compared(history, place, key)] == [True, True]
    assert len(place.names("leaves")) == len(place.names("digests"))


def test_a_leaf_is_what_the_documentation_says_it_is() -> None:
    recorded = Recorded(7, 300, b"k", b"\x01", (("type", b"T"), ("none", None)))  # type: ignore[arg-type]
    # [7, 300, bin "k", bin 01, [["type", bin "T"], ["none", nil]]]
    packed = bytes.fromhex("95 07 cd012c c4016b c40101 92 92 a474797065 c40154 92 a46e6f6e65 c0")
    assert leaf_of(recorded) == hashlib.sha256(b"\0" + packed).digest()


# ----------------------------------------------------------------------------------------------------------- tampering
def places_of(history: MemoryHistory) -> list[int]:
    """First, last, and the borders of segments, of partition 1."""
    last = len(history.records[1]) - 1
    return [0, SEGMENT - 1, SEGMENT, SEGMENT + 1, last - 1, last]


@pytest.mark.parametrize("which", range(6))
@pytest.mark.parametrize(
    "change",
    [
        lambda r: {"value": r.value[:-1] + bytes([r.value[-1] ^ 1])},
        lambda r: {"key": b"another"},
        lambda r: {"key": None} if r.key else {"key": b""},
        lambda r: {"value": None},
        lambda r: {"timestamp": r.timestamp + 1},
        lambda r: {"headers": r.headers[1:]},
        lambda r: {"headers": (*r.headers, ("by", b""))},
    ],
    ids=["value", "key", "no key", "no value", "time", "header gone", "header added"],
)
async def test_an_altered_event_is_found_and_named(
    place: Place, key: SigningKey, which: int, change: Callable[[Recorded], dict[str, object]]
) -> None:
    history = two_partitions()
    await sealed(history, place, key)
    index = places_of(history)[which]
    before = history.alter(1, index, **change(history.records[1][index]))
    entry = history.decode(before)
    (one,) = await found(history, place, key)
    named = (one.kind, one.partition, one.offset, one.lsn, one.conversation)
    assert named == (Kind.ALTERED, 1, before.offset, entry.lsn, entry.event.conversation_id)
    assert f"offset {before.offset}: the event with lsn {entry.lsn}" in one.problem


@pytest.mark.parametrize("which", range(6))
async def test_a_removed_event_is_found_and_named(place: Place, key: SigningKey, which: int) -> None:
    history = two_partitions()
    await sealed(history, place, key)
    before = history.remove(1, places_of(history)[which])
    entry = history.decode(before)
    (one,) = await found(history, place, key)
    named = (one.kind, one.partition, one.offset, one.lsn, one.conversation)
    assert named == (Kind.REMOVED, 1, before.offset, entry.lsn, entry.event.conversation_id)


@pytest.mark.parametrize("which", range(6))
async def test_an_inserted_event_is_found_and_named(place: Place, key: SigningKey, which: int) -> None:
    history = two_partitions(markers=1)  # each second offset has no record: there is room
    await sealed(history, place, key)
    index = places_of(history)[which]
    there = history.records[1]
    new = msgspec.structs.replace(there[index], offset=there[index].offset + 1)
    there.insert(index + 1, new)
    (one,) = await found(history, place, key)
    assert (one.kind, one.partition, one.offset, one.lsn) == (Kind.INSERTED, 1, new.offset, history.decode(new).lsn)


async def test_swapped_events_are_both_found(place: Place, key: SigningKey) -> None:
    history = two_partitions()
    await sealed(history, place, key)
    first, second = history.records[1][SEGMENT - 1], history.records[1][SEGMENT]
    history.alter(1, SEGMENT - 1, value=second.value, key=second.key, headers=second.headers)
    history.alter(1, SEGMENT, value=first.value, key=first.key, headers=first.headers)
    tampering = await found(history, place, key)
    assert said(tampering) == [(Kind.ALTERED, 1, first.offset), (Kind.ALTERED, 1, second.offset)]
    assert f"it says lsn {history.decode(second).lsn} now" in tampering[0].problem


async def test_events_in_another_order_are_found(place: Place, key: SigningKey) -> None:
    history = two_partitions(chunk=100)
    await sealed(history, place, key)
    there = history.records[1]
    there[1], there[2] = there[2], there[1]
    tampering = await found(history, place, key)
    assert (Kind.INSERTED, 1, there[2].offset) in said(tampering)
    assert (Kind.REMOVED, 1, there[2].offset) in said(tampering)


@pytest.mark.parametrize("left", [0, 1, SEGMENT, SEGMENT + 1])
async def test_a_tail_that_was_cut_off_is_found(place: Place, key: SigningKey, left: int) -> None:
    history = two_partitions()
    await sealed(history, place, key)
    first = history.records[1][left]
    del history.records[1][left:]
    history.ends[1] = history.records[1][-1].offset + 1 if left else 0
    tampering = await found(history, place, key)
    assert said(tampering)[0] == (Kind.CUT_OFF, 1, first.offset)
    assert {each.kind for each in tampering} == {Kind.CUT_OFF}


async def test_many_differences_are_all_counted_and_the_first_told(place: Place, key: SigningKey) -> None:
    history = MemoryHistory([answered().entries * 12])
    await sealed(history, place, key)
    for index in range(len(history.records[0])):
        history.alter(0, index, key=b"x")
    (evidence,) = await compared(history, place, key)
    assert (len(evidence.found), evidence.count) == (100, len(history.records[0]))


# ----------------------------------------------------------------------------------------------------- what is missing
async def test_what_cannot_be_read_is_missing_and_the_rest_is_compared(place: Place, key: SigningKey) -> None:
    history = two_partitions()
    await sealed(history, place, key)
    kept = history.records[1][SEGMENT + 1].offset
    history.delete_before(1, kept)
    evidence = (await compared(history, place, key))[1]
    assert (evidence.missing, evidence.found) == ([Range(0, kept)], [])
    assert evidence.records == len(history.records[1]) - SEGMENT - 1
    assert not evidence.ok


async def test_nothing_is_sealed_behind_a_gap_unless_it_is_told_to(place: Place, key: SigningKey) -> None:
    history = two_partitions()
    history.delete_before(0, 4)
    with pytest.raises(Gap, match=r"MISSING: offsets 0 to 3 of partition 0.*--after-gap"):
        await sealed(history, place, key)
    assert place.names("digests") == []
    await sealed(history, place, key, after_gap=True)
    first, second = await compared(history, place, key)
    assert (first.missing, first.found, second.ok) == ([Range(0, 4)], [], True)


# --------------------------------------------------------------------------------------------- the digests themselves
def statements(place: Place, partition: int) -> list[str]:
    return [name for name in place.names(statement_folder(partition)) if name.endswith(".json")]


def rewrite(place: Place, name: str, content: bytes) -> None:
    place.remove(name)
    assert place.create(name, content)


def read(place: Place, name: str) -> tuple[Envelope, Statement]:
    envelope = msgspec.json.decode(place.read([name])[name], type=Envelope)
    return envelope, msgspec.json.decode(envelope.statement, type=Statement)


async def test_a_forged_statement_is_found(place: Place, key: SigningKey) -> None:
    history = two_partitions()
    await sealed(history, place, key)
    name = statements(place, 1)[1]
    envelope, statement = read(place, name)
    text = msgspec.json.encode(msgspec.structs.replace(statement, records=0)).decode()
    rewrite(place, name, msgspec.json.encode(msgspec.structs.replace(envelope, statement=text)))
    tampering = await found(history, place, key)
    assert {each.kind for each in tampering} == {Kind.DIGEST}
    assert f"has a signature that key {key.id} did not make" in tampering[0].problem
    assert tampering[0].offset == statement.start


@pytest.mark.parametrize("signature", ["", "00", "no hex", "00" * 64])
async def test_a_forged_signature_is_found(place: Place, key: SigningKey, signature: str) -> None:
    history = two_partitions()
    await sealed(history, place, key)
    name = statements(place, 1)[0]
    envelope, _ = read(place, name)
    rewrite(place, name, msgspec.json.encode(msgspec.structs.replace(envelope, signature=signature)))
    (one,) = await found(history, place, key)
    assert (one.kind, one.offset) == (Kind.DIGEST, 0)


async def test_an_unknown_key_is_not_believed(tmp_path: Path, place: Place, key: SigningKey) -> None:
    history = two_partitions()
    await sealed(history, place, key)
    other = new_key(tmp_path / "other.pem")
    tampering = await found(history, place, other)
    assert len(tampering) == len(place.names("digests"))
    assert f"key {key.id}, which is not trusted" in tampering[0].problem


async def test_who_alters_history_and_seals_it_anew_with_a_key_of_their_own_is_found(
    tmp_path: Path, place: Place, key: SigningKey
) -> None:
    history = two_partitions()
    await sealed(history, place, key)
    history.alter(1, 0, key=b"x")
    theirs = place_at(str(tmp_path / "theirs"))
    other = new_key(tmp_path / "other.pem")
    await sealed(history, theirs, other)
    for name in [*place.names("digests/p00001"), *place.names("leaves/p00001")]:
        place.remove(name)
    for name, content in theirs.read([*theirs.names("digests/p00001"), *theirs.names("leaves/p00001")]).items():
        place.create(name, content)
    assert {(each.kind, each.partition) for each in await found(history, place, key)} == {(Kind.DIGEST, 1)}


async def test_one_statement_of_a_trusted_key_put_in_the_place_of_another_breaks_the_chain(
    tmp_path: Path, place: Place, key: SigningKey
) -> None:
    history = two_partitions()
    await sealed(history, place, key)
    # The same segment sealed twice by the right key: one of them is not what the next one was chained to.
    name = statements(place, 1)[0]
    _, statement = read(place, name)
    rewrite(place, name, seal(msgspec.structs.replace(statement, sealed_at="2026-01-01T00:00:00Z"), key))
    (one,) = await found(history, place, key)
    assert one.kind is Kind.DIGEST
    assert "does not follow the one before it" in one.problem


@pytest.mark.parametrize("which", [0, 1])
async def test_a_statement_that_was_taken_out_is_found(place: Place, key: SigningKey, which: int) -> None:
    history = two_partitions()
    await sealed(history, place, key)
    place.remove(statements(place, 1)[which])
    (one,) = await found(history, place, key)
    assert one.kind is Kind.DIGEST
    assert "was taken out" in one.problem


async def test_a_cut_chain_has_another_head(place: Place, key: SigningKey) -> None:
    history = two_partitions()
    await sealed(history, place, key)
    head = (await compared(history, place, key))[1].head
    place.remove(statements(place, 1)[-1])
    evidence = (await compared(history, place, key))[1]
    assert evidence.head != head
    assert evidence.unsealed > 0


async def test_altered_leaf_hashes_are_found(place: Place, key: SigningKey) -> None:
    history = two_partitions()
    await sealed(history, place, key)
    name = place.names("leaves/p00001")[0]
    rewrite(place, name, place.read([name])[name][:-1] + b"x")
    (one,) = await found(history, place, key)
    assert "is not the file that was sealed" in one.problem
    place.remove(name)
    (one,) = await found(history, place, key)
    assert "is not there" in one.problem


async def test_a_file_that_is_no_statement_is_found(place: Place, key: SigningKey) -> None:
    history = two_partitions()
    await sealed(history, place, key)
    rewrite(place, statements(place, 1)[0], b"{}")
    assert said(await found(history, place, key)) == [(Kind.DIGEST, 1, None)]


async def test_anothers_digests_say_nothing_of_this_journal(place: Place, key: SigningKey) -> None:
    await sealed(two_partitions(), place, key)

    history = MemoryHistory([answered().entries, taken_over().entries], identity="topic-2")
    assert {each.kind for each in await found(history, place, key)} == {Kind.DIGEST}
    with pytest.raises(HistoryUnavailable, match="another journal"):
        await sealed(history, place, key)


async def test_nothing_is_sealed_behind_what_is_not_believed(tmp_path: Path, place: Place, key: SigningKey) -> None:
    history = two_partitions()
    await sealed(history, place, key)
    history.append(0, answered().entries)
    with pytest.raises(HistoryUnavailable, match="not trusted"):
        await sealed(history, place, new_key(tmp_path / "other.pem"))


# ---------------------------------------------------------------------------------------------------------------- keys
async def test_keys_are_rotated(tmp_path: Path, place: Place, key: SigningKey) -> None:
    history = two_partitions()
    await sealed(history, place, key)
    history.append(0, answered().entries)
    new = new_key(tmp_path / "new.pem")
    trust = trusted([str(tmp_path)])
    assert trust.ids == sorted({key.id, new.id})
    await Sealer(history, Digests(place, trust), new, segment_records=SEGMENT, notify=ignore).seal()
    assert [each.ok for each in await compared(history, place, key, new)] == [True, True]
    # Of the old one alone, what the new one signed is not believed.
    assert {each.kind for each in await found(history, place, key)} == {Kind.DIGEST}


def test_a_key_is_its_owners_alone_and_is_not_written_over(tmp_path: Path) -> None:
    made = new_key(tmp_path / "k.pem")
    assert (tmp_path / "k.pem").stat().st_mode & 0o777 == 0o600
    assert signing_key(str(tmp_path / "k.pem")).id == made.id
    assert trusted([str(tmp_path / "k.pem.pub")]).ids == [made.id]
    assert public_key(tmp_path / "k.pem.pub") == made.public
    with pytest.raises(DigestKeyError, match="is there already"):
        new_key(tmp_path / "k.pem")


def test_a_key_comes_from_the_environment_as_text_or_as_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = new_key(tmp_path / "k.pem")
    for given in (str(tmp_path / "k.pem"), (tmp_path / "k.pem").read_text()):
        monkeypatch.setenv("TURNLOG_DIGEST_KEY", given)
        assert signing_key().id == made.id
    monkeypatch.setenv("TURNLOG_DIGEST_TRUST", str(tmp_path))
    assert trusted().ids == [made.id]


@pytest.mark.parametrize("content", ["", "secret", "-----BEGIN PRIVATE KEY-----\nsecret\n-----END PRIVATE KEY-----\n"])
def test_what_is_no_key_is_refused_without_being_shown(tmp_path: Path, content: str) -> None:
    (tmp_path / "k").write_text(content)
    for use in (lambda: signing_key(str(tmp_path / "k")), lambda: trusted([str(tmp_path / "k")])):
        with pytest.raises(DigestKeyError) as told:
            use()
        assert "secret" not in str(told.value)
        assert str(tmp_path / "k") in str(told.value)


def test_without_any_key_it_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TURNLOG_DIGEST_KEY", raising=False)
    monkeypatch.delenv("TURNLOG_DIGEST_TRUST", raising=False)
    with pytest.raises(DigestKeyError, match="turnlog key digest new"):
        signing_key()
    with pytest.raises(DigestKeyError, match="--trust"):
        trusted()
    with pytest.raises(DigestKeyError, match="holds no"):
        trusted([str(tmp_path)])


async def test_no_digest_holds_a_private_key_or_what_anybody_said(
    place: Place, key: SigningKey, tmp_path: Path
) -> None:
    history = two_partitions()
    await sealed(history, place, key)
    kept = b"".join(place.read([*place.names("digests"), *place.names("leaves")]).values())
    assert b"hello" not in kept
    assert b"PRIVATE" not in kept
    names = {json.loads(place.read([name])[name])["key_id"] for name in place.names("digests")}
    assert names == {key.id}
    assert statement_name(1, 0) in place.names("digests")
