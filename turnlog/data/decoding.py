"""Journal records to entries: framing, writer's schema, dataclasses.

A record begins with what names the schema that wrote it: the fingerprint of Avro's single-object encoding, or, where
the deployment has a Confluent registry, an id of it. It is decoded with that very schema. A field that an older writer
did not have gets its default; a field, or an event, that a newer one added is dropped, or kept raw as `Unknown`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import fields as fields_of
from functools import partial
from io import BytesIO
from typing import Any, Final, Protocol
from urllib.parse import unquote

import httpx
from fastavro import schemaless_reader

import schemas
from schemas import Schema, SchemaError
from schemas.definitions import records
from turnlog.data.events import EVENTS, RECORDS, Entry, Event, Unknown

CONFLUENT_MAGIC: Final = b"\0"
CONFLUENT_HEADER_BYTES: Final = 1 + 4
REGISTRY_TIMEOUT_S: Final = 10.0
JOURNAL: Final = "turnlog.v1.JournalEntry"
_CLASSES: Final[Mapping[str, type[Event]]] = {kind.__name__: kind for kind in EVENTS}
_RECORDS: Final[Mapping[str, type]] = {kind.__name__: kind for kind in RECORDS}
# What fastavro raises for bytes that are not of the schema.
_MALFORMED: Final = (IndexError, ValueError, OverflowError, MemoryError, EOFError)

Convert = Callable[[Any], Any]
Build = Callable[[dict[str, Any]], Any]


class CannotDecode(ValueError):
    """A journal record that is no entry in a known schema; the message says why."""


class Schemas(Protocol):
    """Where the schemas that wrote the records are found."""

    def writer(self, value: bytes) -> tuple[Schema, int]:
        """The schema that `value` was written with, and where its body begins. Raises `CannotDecode`."""


class SingleObject:
    """The schemas that this release of Turnlog ships, found by fingerprint."""

    def writer(self, value: bytes) -> tuple[Schema, int]:
        """See `Schemas`."""
        schema = schemas.known("journal").get(value[: schemas.SINGLE_OBJECT_HEADER_BYTES])
        if schema is not None:
            return schema, schemas.SINGLE_OBJECT_HEADER_BYTES
        if value.startswith(CONFLUENT_MAGIC):
            raise CannotDecode("the record is in the Confluent wire format: name the schema registry")
        raise CannotDecode(
            f"the record begins with {value[: schemas.SINGLE_OBJECT_HEADER_BYTES].hex()}, which is the fingerprint of "
            "no journal schema that this release knows: upgrade the reader before the writers"
        )


class Registry:
    """The schemas of a Confluent registry. `url` may hold credentials; no message shows them."""

    def __init__(self, url: str) -> None:
        parsed = httpx.URL(url)
        self._auth = (unquote(parsed.username), unquote(parsed.password)) if parsed.username else None
        self.address = str(parsed.copy_with(userinfo=b"")).rstrip("/")
        self._known: dict[bytes, Schema] = {}

    def writer(self, value: bytes) -> tuple[Schema, int]:
        """See `Schemas`. A schema that was not met before is asked for there and then."""
        head = value[:CONFLUENT_HEADER_BYTES]
        known = self._known.get(head)
        if known is None:
            if not head.startswith(CONFLUENT_MAGIC) or len(head) < CONFLUENT_HEADER_BYTES:
                raise CannotDecode("the record is not in the Confluent wire format: the deployment has no registry")
            known = self._known[head] = self._asked(int.from_bytes(head[1:], "big"))
        return known, CONFLUENT_HEADER_BYTES

    def _asked(self, schema_id: int) -> Schema:
        try:
            response = httpx.get(f"{self.address}/schemas/ids/{schema_id}", auth=self._auth, timeout=REGISTRY_TIMEOUT_S)
            response.raise_for_status()
            return schemas.parse("journal", str(response.json()["schema"]))
        except (httpx.HTTPError, SchemaError, json.JSONDecodeError, KeyError) as error:
            problem = f"{type(error).__name__}: {error}"
            raise CannotDecode(f"the schema registry {self.address} gives no schema {schema_id}: {problem}") from None


class Decoder:
    """Journal record values to `Entry`."""

    def __init__(self, source: Schemas | None = None) -> None:
        self._source = SingleObject() if source is None else source
        self._builders: dict[bytes, Mapping[str, Build]] = {}

    def entry(self, value: bytes | None) -> Entry:
        """The entry in a record's value. Raises `CannotDecode`."""
        if value is None:
            raise CannotDecode("a journal record has no null value")
        schema, start = self._source.writer(value)
        build = self._builders.get(schema.fingerprint)
        if build is None:
            build = self._builders[schema.fingerprint] = _builders(schema)
        body = BytesIO(value)
        body.seek(start)
        try:
            read: Any = schemaless_reader(
                body, schema.parsed, None, return_record_name=True, return_record_name_override=True
            )
        except _MALFORMED as error:
            raise CannotDecode(f"the record is not of its schema: {type(error).__name__}: {error}") from error
        if body.tell() != len(value):
            raise CannotDecode(f"the record has {len(value) - body.tell()} bytes behind its end")
        name, fields = read["event"]
        made = build[name](fields | {"conversation_id": read["conversation_id"], "seq": read["seq"]})
        return Entry(read["lsn"], read["at"], read["timestamp"], read["writer_epoch"], made)


def event_name(event: Event) -> str:
    """Its name in the journal, also of one that this release has no class for."""
    return event.name if isinstance(event, Unknown) else type(event).__name__


def _builders(schema: Schema) -> dict[str, Build]:
    """Full name of each event of a writer's schema -> what makes one of its fields."""
    if schema.full_name != JOURNAL:
        raise CannotDecode(f"the record is a {schema.full_name}, none of the journal")
    union = schema.definition["fields"][-1]["type"]
    named = {record["name"]: record for record in records(schema.definition)}
    prefix = f"{schemas.NAMESPACE}."
    return {f"{prefix}{branch['name']}": _event(branch, named) for branch in union}


def _event(record: dict[str, Any], named: Mapping[str, Any]) -> Build:
    kind = _CLASSES.get(record["name"])
    if kind is None:
        name = record["name"]
        return lambda fields: Unknown(
            name=name, conversation_id=fields.pop("conversation_id"), seq=fields.pop("seq"), fields=fields
        )
    return _record(kind, record, named)


def _record(kind: type, record: dict[str, Any], named: Mapping[str, Any]) -> Build:
    have = {field.name for field in fields_of(kind)}
    converts = [
        (field["name"], convert)
        for field in record["fields"]
        if field["name"] in have and (convert := _convert(field["type"], named)) is not None
    ]
    dropped = [field["name"] for field in record["fields"] if field["name"] not in have]

    def build(fields: dict[str, Any]) -> Any:
        for name, convert in converts:
            fields[name] = convert(fields[name])
        for name in dropped:
            del fields[name]
        return kind(**fields)

    return build


def _convert(node: Any, named: Mapping[str, Any]) -> Convert | None:
    """What makes a field's value of what fastavro read; None: it is right as it is."""
    match node:
        case ["null", inner]:
            convert = _convert(inner, named)
            return None if convert is None else partial(_if_there, convert)
        case {"type": "array", "items": items}:
            convert = _convert(items, named)
            return tuple if convert is None else partial(_each, convert)
        case {"type": "record", "name": name}:
            return _record(_RECORDS[name], node, named) if name in _RECORDS else None
        case str() if node in named:
            return _convert(named[node], named)
    return None


def _if_there(convert: Convert, value: Any) -> Any:
    return None if value is None else convert(value)


def _each(convert: Convert, values: list[Any]) -> tuple[Any, ...]:
    return tuple(convert(value) for value in values)
