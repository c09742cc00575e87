"""The Confluent wire format, against a registry that answers over real HTTP."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import msgspec
import pytest

import schemas
from streams.core.commands import CommitTurn
from streams.core.events import Turn
from streams.runtime.codec import Codec, Reason, Undecodable
from streams.runtime.registry import RegistryUnavailable, open_codec
from streams.topics import Topics
from tests.support.registry import FakeRegistry, running

TOPICS = Topics("staging")
TURN = Turn(id="m-1", sender="ana", channel="web", type="text", text="good morning")
COMMIT = CommitTurn(at=5, timestamp=7, conversation_id="c-1", turn=TURN)


class Record(msgspec.Struct):
    value: bytes | None
    key: bytes | None = b"c-1"
    timestamp: int = 7


@pytest.fixture
def fake() -> Iterator[FakeRegistry]:
    with running(FakeRegistry()) as registry:
        yield registry


def test_every_topic_of_records_is_registered_once_under_its_own_subject(fake: FakeRegistry) -> None:
    open_codec(fake.url, TOPICS)
    open_codec(fake.url, TOPICS)
    without = {TOPICS.deployment, TOPICS.keys}
    assert set(fake.subjects) == {f"{topic}-value" for topic in TOPICS.all if topic not in without}
    assert all(len(ids) == 1 for ids in fake.subjects.values())


def test_a_record_starts_with_zero_and_its_schemas_id_and_comes_back(fake: FakeRegistry) -> None:
    codec = open_codec(fake.url, TOPICS)
    value = codec.encode_command(COMMIT)
    [schema_id] = fake.subjects["staging.turns-value"]
    assert value[:5] == b"\0" + schema_id.to_bytes(4, "big")
    assert value[5:] == Codec().encode_command(COMMIT)[schemas.SINGLE_OBJECT_HEADER_BYTES :]
    assert codec.decode_turns(Record(value), 5) == COMMIT


def with_mood() -> str:
    definition = json.loads(json.dumps(schemas.current("turns").definition))
    turn = definition["fields"][-1]["type"][1]["fields"][0]["type"]
    turn["fields"].append({"name": "mood", "type": ["null", "string"], "default": None})
    return json.dumps(definition)


def test_a_schema_of_a_later_writer_is_asked_for_once(fake: FakeRegistry) -> None:
    codec = open_codec(fake.url, TOPICS)
    later = fake.put(with_mood())
    value = b"\0" + later.to_bytes(4, "big") + codec.encode_command(COMMIT)[5:] + b"\0"
    for _ in range(3):
        assert codec.decode_turns(Record(value), 5) == COMMIT
    assert fake.calls.count(f"GET /schemas/ids/{later}") == 1


def test_an_id_that_the_registry_does_not_have_is_asked_for_once_and_refused(fake: FakeRegistry) -> None:
    codec = open_codec(fake.url, TOPICS)
    value = b"\0" + (999).to_bytes(4, "big") + b"garbage"
    for _ in range(3):
        with pytest.raises(Undecodable) as refused:
            codec.decode_turns(Record(value), 5)
        assert refused.value.reason is Reason.UNKNOWN_SCHEMA
    assert fake.calls.count("GET /schemas/ids/999") == 1


@pytest.mark.parametrize(
    ("definition", "reason"),
    [
        ('{"type": "record", "name": "other.Order", "fields": []}', Reason.WRONG_SCHEMA),
        ('"string"', Reason.UNKNOWN_SCHEMA),
        ("syntax = proto3;", Reason.UNKNOWN_SCHEMA),
    ],
)
def test_a_record_of_others_in_the_same_registry_is_refused(
    fake: FakeRegistry, definition: str, reason: Reason
) -> None:
    codec = open_codec(fake.url, TOPICS)
    value = b"\0" + fake.put(definition).to_bytes(4, "big")
    with pytest.raises(Undecodable) as refused:
        codec.decode_turns(Record(value), 5)
    assert refused.value.reason is reason


def test_a_record_in_single_object_encoding_is_refused_where_a_registry_is_set(fake: FakeRegistry) -> None:
    codec = open_codec(fake.url, TOPICS)
    value = Codec().encode_command(COMMIT)
    with pytest.raises(Undecodable) as refused:
        codec.decode_turns(Record(value), 5)
    assert refused.value.reason is Reason.UNKNOWN_SCHEMA


def test_a_registry_that_fails_blames_no_record(fake: FakeRegistry) -> None:
    codec = open_codec(fake.url, TOPICS)
    value = b"\0" + fake.put(with_mood()).to_bytes(4, "big") + codec.encode_command(COMMIT)[5:] + b"\0"
    fake.broken = True
    with pytest.raises(RegistryUnavailable, match="refuses schemas/ids/7 with 500: Error in the backend data store"):
        codec.decode_turns(Record(value), 5)
    fake.broken = False
    assert codec.decode_turns(Record(value), 5) == COMMIT


def test_a_registry_that_is_not_there_is_named() -> None:
    with pytest.raises(RegistryUnavailable, match=r"http://127\.0\.0\.1:9 does not answer"):
        open_codec("http://127.0.0.1:9", TOPICS)


def test_an_address_that_is_no_registry_is_named(fake: FakeRegistry) -> None:
    with pytest.raises(RegistryUnavailable, match="has no subjects: is the address right"):
        open_codec(f"{fake.url}/elsewhere/", TOPICS)


def test_without_a_registry_records_are_in_single_object_encoding() -> None:
    assert open_codec(None, TOPICS).encode_command(COMMIT) == Codec().encode_command(COMMIT)


def test_credentials_in_the_address_are_used_and_never_shown(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with running(FakeRegistry(password="ana:p@ss/word")) as fake:
        address = fake.url.removeprefix("http://")
        codec = open_codec(f"http://ana:p%40ss%2Fword@{address}", TOPICS)
        assert codec.decode_turns(Record(codec.encode_command(COMMIT)), 5) == COMMIT
        with pytest.raises(RegistryUnavailable, match="401: Unauthorized") as refused:
            open_codec(f"http://ana:wr0ng@{address}", TOPICS)
    for shown in (caplog.text, str(refused.value)):
        assert address in shown
        assert "p@ss" not in shown
        assert "p%40ss" not in shown
        assert "wr0ng" not in shown
