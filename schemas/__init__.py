"""The Avro schemas of Turnlog's topics: a contract with data teams, one topic's record a file under `avro/`.

Each file is self-contained. Fields may be added (with a default) and union branches appended; every version that ever
wrote a record stays under `history/`, and `python -m schemas.check` proves that they can all read one another.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import fastavro
from fastavro.schema import SchemaParseException, fingerprint, to_parsing_canonical_form

NAMES = ("turns", "frames", "membership", "journal", "live", "dead_letters")
NAMESPACE = "turnlog.v1"
ROOT = Path(__file__).parent
CURRENT = ROOT / "avro"
HISTORY = ROOT / "history"

# Avro's single-object encoding: this marker, the schema's CRC-64-AVRO fingerprint in little-endian order, the record.
# https://avro.apache.org/docs/1.12.0/specification/#single-object-encoding
SINGLE_OBJECT_MARKER = b"\xc3\x01"
SINGLE_OBJECT_HEADER_BYTES = 2 + 8


@dataclass(frozen=True, slots=True)
class Schema:
    """One version of one topic's record."""

    name: str
    """One of `NAMES`."""
    definition: dict[str, Any]
    """The .avsc file as JSON, documentation included."""
    parsed: Any
    """What fastavro's readers and writers take."""
    fingerprint: bytes
    """CRC-64-AVRO of the canonical form, 8 bytes as they lie in the single-object header (little-endian)."""

    @property
    def full_name(self) -> str:
        """The record's name with its namespace."""
        return str(self.parsed["name"])

    @property
    def header(self) -> bytes:
        """What every record in single-object encoding starts with, 10 bytes."""
        return SINGLE_OBJECT_MARKER + self.fingerprint


class SchemaError(ValueError):
    """Text that is no Avro schema of a record."""


def parse(name: str, text: str) -> Schema:
    """The schema in `text`, an .avsc file of the topic `name`. Raises `SchemaError` when it is none of a record."""
    try:
        definition = json.loads(text)
        if not isinstance(definition, dict) or definition.get("type") != "record":
            raise SchemaError("the schema is not one of a record")
        parsed = fastavro.parse_schema(json.loads(text))
        digest = fingerprint(to_parsing_canonical_form(definition), "CRC-64-AVRO")
    except (SchemaParseException, ValueError, TypeError, KeyError) as error:
        raise SchemaError(f"{name}: no Avro schema of a record: {error}") from error
    return Schema(name, definition, parsed, bytes.fromhex(digest))


def envelope_of(read: dict[str, Any]) -> dict[str, Any]:
    """What fastavro read with `return_record_name`, the names left out but for the branch of the envelope's union: it
    names the records of every union, also of those that hold nothing but null and one record."""
    # The last one: only defaults of fields that the writer did not know are put behind it.
    last = next((name for name in reversed(read) if isinstance(read[name], tuple)), None)
    if last is None:
        return plain_of(read)
    value = read[last]
    return {
        **{name: _nameless(item) for name, item in read.items() if name != last},
        last: (value[0], _nameless(value[1])),
    }


def plain_of(read: dict[str, Any]) -> dict[str, Any]:
    """As `envelope_of`, of a record that is no envelope: the names of all unions' records left out."""
    return {name: _nameless(item) for name, item in read.items()}


def _nameless(value: Any) -> Any:
    match value:
        case dict():
            return {name: _nameless(item) for name, item in value.items()}
        case list():
            return [_nameless(item) for item in value]
        case (str(), dict() as fields):
            return _nameless(fields)
    return value


@cache
def current(name: str) -> Schema:
    """The version of `name` that this release writes; `name` is one of `NAMES`."""
    return parse(name, (CURRENT / f"{name}.avsc").read_text(encoding="utf-8"))


@cache
def history(name: str) -> tuple[Schema, ...]:
    """Every version of `name` that ever wrote a record, oldest first."""
    files = sorted((HISTORY / name).glob("*.avsc"))
    return tuple(parse(name, file.read_text(encoding="utf-8")) for file in files)


@cache
def known(name: str) -> Mapping[bytes, Schema]:
    """Single-object header to writer's schema, for every version of `name` that this release can read."""
    return MappingProxyType({schema.header: schema for schema in (*history(name), current(name))})
