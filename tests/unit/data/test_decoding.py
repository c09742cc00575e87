"""Records of every version of the journal's schema become dataclasses; what is wrong is said."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from fastavro import schemaless_writer

import schemas
from schemas.check import read_history
from schemas.dataclasses import TARGET, module
from streams.core import events
from streams.core.events import BatchCommitted, Entry, Turn, TurnCommitted, WriterOpened
from streams.runtime.codec import Codec
from tests.support.registry import FakeRegistry, running
from turnlog.data import CannotDecode, Decoder, Registry, Unknown
from turnlog.data import events as ours
from turnlog.data.journal import _Wanted

CODEC = Codec()
TURN = TurnCommitted(
    conversation_id="c", seq=3, turn=Turn(id="m", sender="ana", channel="web", type="text", text="good morning")
)


def test_the_dataclasses_are_those_of_the_schema() -> None:
    assert TARGET.read_text(encoding="utf-8") == module(schemas.current("journal")), (
        "run `python -m schemas.dataclasses turnlog/data/events.py` after a change of the journal's schema"
    )


@pytest.mark.parametrize("version", read_history(schemas.ROOT, "journal"), ids=str)
def test_what_any_version_wrote_is_read(version: Any) -> None:
    decoder = Decoder()
    for golden in version.golden:
        entry = decoder.entry(version.schema.header + golden.body)
        assert type(entry.event).__name__ == golden.branch
        assert entry.lsn == golden.value["lsn"]
        theirs = CODEC.decode_entry(version.schema.header + golden.body)
        assert repr(entry.event.conversation_id) == repr(theirs.event.conversation_id)
        if isinstance(theirs.event, events.Unknown):  # a word that no enum of ours has
            continue
        for name in type(entry.event).__dataclass_fields__:
            assert plain(getattr(entry.event, name)) == plain(getattr(theirs.event, name)), name


def plain(value: Any) -> Any:
    """Two libraries' records, compared field by field."""
    names = getattr(value, "__struct_fields__", None) or getattr(value, "__dataclass_fields__", None)
    if names is not None:
        return {name: plain(getattr(value, name)) for name in names}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def test_nested_records_are_dataclasses_too() -> None:
    event = Decoder().entry(CODEC.encode_entry(Entry(7, 5, 9, 2, TURN))).event
    assert isinstance(event, ours.TurnCommitted)
    assert (event.turn.text, event.assigned, event.seq) == ("good morning", (), 3)


def newer() -> dict[str, Any]:
    """The journal's schema as a later release might have it: a field and a branch more."""
    definition = json.loads(json.dumps(schemas.current("journal").definition))
    union = definition["fields"][-1]["type"]
    writer = next(branch for branch in union if branch["name"] == "WriterOpened")
    writer["fields"].append({"name": "host", "type": "string", "default": "", "doc": "."})
    union.append({"type": "record", "name": "Weather", "doc": ".", "fields": [
        {"name": "sun", "type": "boolean", "doc": "."}]})  # fmt: skip
    return dict(definition)


def written(definition: dict[str, Any], event: tuple[str, dict[str, Any]]) -> bytes:
    schema = schemas.parse("journal", json.dumps(definition))
    body = io.BytesIO()
    record = {"conversation_id": "c", "seq": 0, "lsn": 1, "at": 2, "timestamp": 3, "writer_epoch": 4, "event": event}
    schemaless_writer(body, schema.parsed, record)
    return body.getvalue()


def test_a_registrys_newer_schema_is_understood_as_far_as_it_is_known() -> None:
    registry = FakeRegistry()
    head = b"\0" + registry.put(json.dumps(newer())).to_bytes(4, "big")
    with running(registry):
        decoder = Decoder(Registry(registry.url))
        opened = ("turnlog.v1.WriterOpened", {"writer_epoch": 4, "worker": "w", "host": "h"})
        assert decoder.entry(head + written(newer(), opened)).event == ours.WriterOpened(
            conversation_id="c", writer_epoch=4, worker="w"
        )
        entry = decoder.entry(head + written(newer(), ("turnlog.v1.Weather", {"sun": True})))
        assert entry.event == Unknown(conversation_id="c", name="Weather", fields={"sun": True})
    assert registry.calls == ["GET /schemas/ids/1"]


def test_an_event_of_a_later_release_is_chosen_by_its_name() -> None:
    entry = ours.Entry(1, 0, 0, 1, Unknown(conversation_id="c", name="Weather", fields={}))
    wanted = [_Wanted(None, frozenset(names), 0, None, None) for names in ({"Weather"}, {"TurnCommitted"})]
    assert [each.takes(entry) for each in wanted] == [True, False]


def test_a_registry_that_does_not_know_is_named_without_its_password() -> None:
    registry = FakeRegistry(password="me:secret")
    with running(registry):
        decoder = Decoder(Registry(registry.url.replace("//", "//me:secret@")))
        with pytest.raises(CannotDecode, match="gives no schema 9") as caught:
            decoder.entry(b"\0\0\0\0\x09abc")
    assert "secret" not in str(caught.value)


GOOD = CODEC.encode_entry(Entry(1, 1, 1, 1, BatchCommitted(turns=1, frames=2, membership=3)))


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (None, "no null value"),
        (b"\0\0\0\0\1abc", "name the schema registry"),
        (b"\xc3\x0112345678", "upgrade the reader"),
        (GOOD + b"x", "1 bytes behind its end"),
        (GOOD[:-1], "not of its schema"),
    ],
)
def test_what_is_no_entry_is_said(value: bytes | None, problem: str) -> None:
    with pytest.raises(CannotDecode, match=problem):
        Decoder().entry(value)


def test_an_opened_writer_is_no_event_of_a_conversation() -> None:
    entry = Decoder().entry(CODEC.encode_entry(Entry(1, 1, 1, 1, WriterOpened(writer_epoch=1, worker="w"))))
    assert entry.event.conversation_id is None
