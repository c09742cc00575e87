"""Bytes to commands and entries and back: compiled and reference codec agree on everything, good or bad."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from io import BytesIO
from typing import Any

import msgspec
import pytest
from fastavro import schemaless_writer
from hypothesis import example, given
from hypothesis import strategies as st

import schemas
from schemas import Schema
from streams.core.commands import Command, CommitFrame, CommitTurn
from streams.core.events import (
    Assignment,
    Duplicate,
    Entry,
    Frame,
    Refused,
    RefusedReason,
    Turn,
    TurnCommitted,
    Unknown,
)
from streams.runtime.avro_reference import Reference
from streams.runtime.codec import Codec, DeadLetter, Reason, Undecodable, Unencodable
from streams.runtime.framing import SINGLE_OBJECT, SingleObject
from streams.runtime.records import INTAKE_OF, MAX_BYTES
from streams.runtime.signals import Signal
from tests.support.structs import entries, struct

codec = Codec()
reference = Reference(SINGLE_OBJECT)
commands: st.SearchStrategy[Command | Signal] = st.sampled_from(sorted(INTAKE_OF, key=str)).flatmap(struct)

TURN = Turn(id="m-1", sender="ana", channel="web", type="text", key="k-1", text="good morning")
COMMIT = CommitTurn(at=5, timestamp=7, ref="gw-1.1", conversation_id="c-1", turn=TURN)
ENTRY = Entry(
    3, 5, 7, 2, TurnCommitted(conversation_id="c-1", seq=1, turn=TURN, assigned=(Assignment("a", "gw.1", "c-1/1/a"),))
)


class Record(msgspec.Struct):
    value: bytes | None
    key: bytes | None = b"c-1"
    timestamp: int = 7


def decode(codec: Codec, name: str, record: Record, at: int = 5) -> Command | Signal:
    decoders: dict[str, Callable[..., Command | Signal]] = {
        "turns": codec.decode_turns,
        "frames": codec.decode_frames,
        "membership": codec.decode_membership,
    }
    return decoders[name](record, at)


def outcome(run: Callable[..., object], *arguments: object) -> object:
    """What `run` returns, or the reason and sentence that it refuses with."""
    try:
        return run(*arguments)
    except Undecodable as error:
        return error.reason, str(error)


def record_of(command: Command | Signal) -> Record:
    conversation_id: str | None = getattr(command, "conversation_id", None)
    return Record(codec.encode_command(command), None if conversation_id is None else conversation_id.encode())


# --------------------------------------------------------------------------------------------------- round trips
@given(commands)
def test_a_command_comes_back_as_it_was_with_the_times_of_its_record(command: Command | Signal) -> None:
    record = record_of(command)
    record.timestamp = command.timestamp
    expected, at = command, 0
    if isinstance(command, Command):
        at = command.at
        if INTAKE_OF[type(command)] == "membership":
            expected = msgspec.structs.replace(command, ref=None)  # nobody waits for a membership record
    assert decode(codec, INTAKE_OF[type(command)], record, at) == expected


@given(entries)
def test_an_entry_comes_back_as_it_was(entry: Entry) -> None:
    assert codec.decode_entry(codec.encode_entry(entry)) == entry


@given(struct(DeadLetter))
def test_a_dead_letter_comes_back_as_it_was(letter: DeadLetter) -> None:
    letter = msgspec.structs.replace(letter, partition=letter.partition % 1000)
    assert codec.decode_dead_letter(codec.encode_dead_letter(letter)) == letter


@given(commands)
def test_the_compiled_writer_of_commands_writes_what_fastavro_writes(command: Command | Signal) -> None:
    assert codec.encode_command(command) == reference.encode_command(command)


@given(entries)
def test_the_compiled_writer_of_entries_writes_what_fastavro_writes(entry: Entry) -> None:
    assert codec.encode_entry(entry) == reference.encode_entry(entry)


class NoReference(Codec):
    """A codec that has only the compiled way."""

    def __init__(self) -> None:
        super().__init__()
        del self._reference


@given(st.one_of(struct(CommitTurn), struct(CommitFrame)), entries)
def test_everyday_records_take_the_compiled_way_alone(command: CommitTurn | CommitFrame, entry: Entry) -> None:
    compiled = NoReference()
    record = Record(compiled.encode_command(command), command.conversation_id.encode(), command.timestamp)
    assert decode(compiled, INTAKE_OF[type(command)], record, command.at) == command
    assert compiled.decode_entry(compiled.encode_entry(entry)) == entry


@pytest.mark.parametrize("length", [0, 1, 63, 64, 127, 128, 8191, 8192, 65_536])
@pytest.mark.parametrize("letter", ["a", "é", "語", "😀"])
def test_a_text_of_any_length_comes_back(length: int, letter: str) -> None:
    command = msgspec.structs.replace(COMMIT, turn=msgspec.structs.replace(TURN, text=letter * length))
    assert NoReference().decode_turns(record_of(command), 5) == command
    assert codec.encode_command(command) == reference.encode_command(command)


# ------------------------------------------------------------------------------------------------------ bad bytes
@st.composite
def damaged(draw: st.DrawFn, whole: st.SearchStrategy[bytes]) -> bytes:
    """A record cut, with bytes changed, inserted or added: what a faulty producer or disk leaves."""
    value = bytearray(draw(whole))
    for _ in range(draw(st.integers(1, 3))):
        where = draw(st.integers(0, max(len(value) - 1, 0)))
        match draw(st.sampled_from(("cut", "change", "insert", "add"))):
            case "cut":
                del value[where:]
            case "change" if value:
                value[where] = draw(st.integers(0, 255))
            case "insert":
                value[where:where] = draw(st.binary(min_size=1, max_size=12))
            case _:
                value += draw(st.binary(min_size=1, max_size=12))
    return bytes(value)


keyed_values = st.one_of(struct(CommitTurn), struct(CommitFrame)).map(codec.encode_command)


@given(damaged(keyed_values), st.sampled_from(("turns", "frames")), st.binary(max_size=3))
@example(SINGLE_OBJECT.header("turns") + b"\xff" * 300_000, "turns", b"")
@example(SINGLE_OBJECT.header("turns") + b"\x80" * 9 + b"\x02", "turns", b"")
def test_damaged_intake_is_read_or_refused_as_fastavro_does_it(value: bytes, name: str, key: bytes) -> None:
    record = Record(value, key)
    assert outcome(decode, codec, name, record) == outcome(reference.keyed, name, record, 5)


def one_byte_changed(whole: bytes) -> Iterator[bytes]:
    """`whole` with each byte after its header replaced by each other."""
    for where in range(SINGLE_OBJECT.header_bytes, len(whole)):
        for byte in range(256):
            yield whole[:where] + bytes((byte,)) + whole[where + 1 :]


def test_a_turn_with_any_one_byte_changed_is_read_or_refused_as_fastavro_does_it() -> None:
    for record in map(Record, one_byte_changed(codec.encode_command(COMMIT))):
        assert outcome(codec.decode_turns, record, 5) == outcome(reference.keyed, "turns", record, 5), record


def test_an_entry_with_any_one_byte_changed_is_read_or_refused_as_fastavro_does_it() -> None:
    for value in one_byte_changed(codec.encode_entry(ENTRY)):
        assert outcome(codec.decode_entry, value) == outcome(reference.entry, value), value


@pytest.mark.parametrize(
    "varint",
    [
        "00",
        "8000",
        "ff00",
        "ffffffffffffffffff01",
        "feffffffffffffffff01",
        "ffffffffffffffffff03",
        "80808080808080808002",
        "ffffffffffffffffffff01",
        "8080808080808080808000",
    ],
)
def test_a_number_in_an_odd_form_is_read_or_refused_as_fastavro_does_it(varint: str) -> None:
    whole = codec.encode_entry(ENTRY)
    lsn_at = SINGLE_OBJECT.header_bytes + len(b"\x02\x06c-1\x02")
    value = whole[:lsn_at] + bytes.fromhex(varint) + whole[lsn_at + 1 :]
    assert outcome(codec.decode_entry, value) == outcome(reference.entry, value)


@given(damaged(commands.map(codec.encode_command)))
def test_damaged_membership_is_read_or_refused(value: bytes) -> None:
    got = outcome(codec.decode_membership, Record(value, None), 5)
    assert isinstance(got, Command | Signal) or got[0] in Reason  # type: ignore[index]


@given(damaged(entries.map(codec.encode_entry)))
def test_a_damaged_entry_is_read_or_refused_as_fastavro_does_it(value: bytes) -> None:
    assert outcome(codec.decode_entry, value) == outcome(reference.entry, value)


@given(st.binary(max_size=200), st.sampled_from(("turns", "frames", "membership")), st.booleans())
def test_garbage_is_refused_with_a_reason(garbage: bytes, name: str, headed: bool) -> None:
    value = SINGLE_OBJECT.header(name) + garbage if headed else garbage
    got = outcome(decode, codec, name, Record(value))
    assert isinstance(got, Command | Signal) or got[0] in Reason  # type: ignore[index]


@pytest.mark.parametrize("at", range(10, len(codec.encode_command(COMMIT))))
def test_a_turn_cut_anywhere_is_truncated(at: int) -> None:
    with pytest.raises(Undecodable) as refused:
        codec.decode_turns(Record(codec.encode_command(COMMIT)[:at]), 5)
    assert refused.value.reason is Reason.TRUNCATED


@pytest.mark.parametrize(
    ("value", "key", "reason"),
    [
        (None, b"c-1", Reason.NULL_VALUE),
        (b"", b"c-1", Reason.UNKNOWN_SCHEMA),
        (b"{}", b"c-1", Reason.UNKNOWN_SCHEMA),
        (b"\xc3\x01" + b"\0" * 30, b"c-1", Reason.UNKNOWN_SCHEMA),
        (codec.encode_entry(ENTRY), b"c-1", Reason.WRONG_SCHEMA),
        (SINGLE_OBJECT.header("turns") + b"\x02\xff", b"\xff", Reason.WRONG_SCHEMA),
        (codec.encode_command(COMMIT) + b"\0", b"c-1", Reason.TRAILING_BYTES),
        (codec.encode_command(COMMIT), b"c-2", Reason.KEY_MISMATCH),
        (codec.encode_command(COMMIT), None, Reason.KEY_MISMATCH),
        (codec.encode_command(COMMIT) + b"\0" * MAX_BYTES["turns"], b"c-1", Reason.TOO_LARGE),
    ],
)
def test_each_kind_of_bad_record_has_its_reason(value: bytes | None, key: bytes | None, reason: Reason) -> None:
    with pytest.raises(Undecodable) as refused:
        codec.decode_turns(Record(value, key), 5)
    assert refused.value.reason is reason


# -------------------------------------------------------------------------------------------------------- evolution
def evolved(name: str, change: Callable[[dict[str, Any]], None]) -> Schema:
    """The current schema of `name` after `change`, as an older or a later release may have it."""
    definition = json.loads(json.dumps(schemas.current(name).definition))
    change(definition)
    return schemas.parse(name, json.dumps(definition))


class Knowing(SingleObject):
    """A framing that was told of one more schema, as a registry tells."""

    def __init__(self, schema: Schema) -> None:
        super().__init__()
        self._writers = {**self._writers, schema.header: schema}


def written(schema: Schema, fields: dict[str, Any]) -> bytes:
    body = BytesIO()
    body.write(schema.header)
    schemaless_writer(body, schema.parsed, fields, strict_allow_default=True)
    return body.getvalue()


def journal_fields(event: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    return {"conversation_id": "c-1", "seq": 0, "lsn": 3, "at": 5, "timestamp": 7, "writer_epoch": 2, "event": event}


def test_what_an_older_writer_left_out_gets_its_default() -> None:
    def without_count(definition: dict[str, Any]) -> None:
        refused = next(b for b in definition["fields"][-1]["type"] if b["name"] == "Refused")
        refused["fields"] = [f for f in refused["fields"] if f["name"] != "count"]

    older = evolved("journal", without_count)
    value = written(older, journal_fields(("turnlog.v1.Refused", {"reason": "fenced", "detail": ""})))
    event = Codec(Knowing(older)).decode_entry(value).event
    assert event == Refused(conversation_id="c-1", reason=RefusedReason.FENCED, count=1)


def test_what_a_later_writer_added_is_dropped() -> None:
    def with_mood(definition: dict[str, Any]) -> None:
        turn = definition["fields"][-1]["type"][1]["fields"][0]["type"]
        turn["fields"].insert(3, {"name": "mood", "type": "string", "default": ""})

    later = evolved("turns", with_mood)
    turn = {**msgspec.to_builtins(TURN), "mood": "bright"}
    fields = {"conversation_id": "c-1", "ref": "gw-1.1", "command": ("turnlog.v1.CommitTurn", {"turn": turn})}
    assert Codec(Knowing(later)).decode_turns(Record(written(later, fields)), 5) == COMMIT


def test_an_event_of_a_later_release_is_kept_raw() -> None:
    def with_branch(definition: dict[str, Any]) -> None:
        definition["fields"][-1]["type"].append(
            {"type": "record", "name": "MoodChanged", "fields": [{"name": "mood", "type": "string"}]}
        )

    later = evolved("journal", with_branch)
    value = written(later, journal_fields(("turnlog.v1.MoodChanged", {"mood": "bright"})))
    entry = Codec(Knowing(later)).decode_entry(value)
    assert entry == Entry(3, 5, 7, 2, Unknown(conversation_id="c-1", seq=0, name="MoodChanged", raw=value))


def test_an_event_with_a_word_of_a_later_release_is_kept_raw() -> None:
    value = written(schemas.current("journal"), journal_fields(("turnlog.v1.Refused", {"reason": "moody"})))
    assert codec.decode_entry(value).event == Unknown(conversation_id="c-1", name="Refused", raw=value)


def test_a_command_of_a_later_release_is_refused() -> None:
    def with_branch(definition: dict[str, Any]) -> None:
        definition["fields"][-1]["type"].append({"type": "record", "name": "Cheer", "fields": []})

    later = evolved("turns", with_branch)
    value = written(later, {"conversation_id": "c-1", "ref": None, "command": ("turnlog.v1.Cheer", {})})
    with pytest.raises(Undecodable, match="the command Cheer of turns belongs to a later release") as refused:
        Codec(Knowing(later)).decode_turns(Record(value), 5)
    assert refused.value.reason is Reason.UNKNOWN_SCHEMA


# ------------------------------------------------------------------------------------------------------- bad values
def test_a_lone_surrogate_is_named_with_its_field() -> None:
    command = msgspec.structs.replace(COMMIT, turn=msgspec.structs.replace(TURN, text="half \ud83d"))
    with pytest.raises(Unencodable, match=r"turns\.command\.turn\.text: .*lone surrogate \(at character 5\)"):
        codec.encode_command(command)


def test_a_number_beyond_64_bits_is_named_with_its_field() -> None:
    event = Duplicate(conversation_id="c-1", ref=None, of_seq=2**63, id="m", of_timestamp=0, key="k")
    with pytest.raises(Unencodable, match=r"journal\.event\.of_seq: an integer must fit into 64 bits"):
        codec.encode_entry(Entry(1, 2, 3, 4, event))


def test_a_missing_text_is_refused() -> None:
    frame = Frame(id=None, type="text")  # type: ignore[arg-type]
    fields = {"at": 0, "timestamp": 0, "conversation_id": "c", "sender": "s", "channel": "c", "group": "g"}
    with pytest.raises(Unencodable, match="frames"):
        codec.encode_command(CommitFrame(**fields, member="m", gateway="gw", frame=frame))  # type: ignore[arg-type]


def test_an_unknown_event_is_never_written() -> None:
    with pytest.raises(Unencodable, match="MoodChanged belongs to a later release"):
        codec.encode_entry(Entry(1, 2, 3, 4, Unknown(name="MoodChanged", raw=b"")))


def test_nul_is_text_as_any_other() -> None:
    command = msgspec.structs.replace(COMMIT, turn=msgspec.structs.replace(TURN, text="a\0b"))
    assert codec.decode_turns(record_of(command), 5) == command
