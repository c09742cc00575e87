"""Golden records: what a version of a schema wrote, committed with it, for every other version to read."""

from __future__ import annotations

import json
from dataclasses import dataclass
from io import BytesIO
from typing import Any

from fastavro import schemaless_writer

from schemas import NAMESPACE, Schema
from schemas.definitions import envelope_branches, records

Json = Any


@dataclass(frozen=True, slots=True)
class Golden:
    """One record as a version wrote it."""

    value: Json
    body: bytes

    def line(self) -> str:
        """The record as a line of a `.golden.jsonl` file."""
        return json.dumps({"value": _plain(self.value), "body": self.body.hex()}, ensure_ascii=False) + "\n"

    @classmethod
    def of_line(cls, line: str) -> Golden:
        """The record that `line` made a line of."""
        fields = json.loads(line)
        return cls(_tagged(fields["value"]), bytes.fromhex(fields["body"]))

    @property
    def branch(self) -> str | None:
        """Name of the branch that the envelope holds; None: the record is no envelope."""
        last = list(self.value.values())[-1]
        return last[0].removeprefix(f"{NAMESPACE}.") if isinstance(last, tuple) else None


def encoded(schema: Schema, value: Json) -> bytes:
    """The bytes of `value` in `schema`, without a header."""
    body = BytesIO()
    schemaless_writer(body, schema.parsed, value)
    return body.getvalue()


def golden_records(schema: Schema) -> tuple[Golden, ...]:
    """For each branch of the envelope, one record with everything in it and one with nothing that can be left out."""
    branches: list[str | None] = [*envelope_branches(schema)] or [None]
    values = [_Example(schema, branch, full).record(schema.definition) for branch in branches for full in (True, False)]
    return tuple(Golden(value, encoded(schema, value)) for value in values)


@dataclass(frozen=True, slots=True)
class _Example:
    """Makes up a value of `schema` with `branch` in its envelope, and everything, or as little as can be, in it."""

    schema: Schema
    branch: str | None
    full: bool

    def record(self, record: Json) -> Json:
        return {field["name"]: self.value(field["type"], field["name"]) for field in record["fields"]}

    def value(self, node: Json, hint: str) -> Json:
        defined = {record["name"]: record for record in records(self.schema.definition)}
        match defined.get(node, node) if isinstance(node, str) else node:
            case str() as primitive:
                return self.primitive(primitive, hint)
            case ["null", inner]:
                return self.value(inner, hint) if self.full else None
            case [*branches]:
                chosen = next(branch for branch in branches if branch["name"] == self.branch)
                return f"{NAMESPACE}.{self.branch}", self.record(chosen)
            case {"type": "array", "items": items}:
                return [self.value(items, hint)] * 2 if self.full else []
            case {"type": "map", "values": values}:
                return {hint: self.value(values, hint)} if self.full else {}
            case {"type": "record"} as record:
                return self.record(record)
        raise TypeError(f"{self.schema.name}: no example for {hint}")

    def primitive(self, name: str, hint: str) -> Json:
        full = {
            "string": f"{hint} é語",
            "long": 1_700_000_000 + len(hint),
            "int": len(hint),
            "boolean": True,
            "bytes": hint.encode(),
        }
        bare = {"string": "", "long": 0, "int": 0, "boolean": False, "bytes": b""}
        return (full if self.full else bare)[name]


def _plain(value: Json) -> Json:
    """`value` as JSON has it: a union's branch as `{"branch", "fields"}`, bytes as `{"hex"}`."""
    match value:
        case dict():
            return {key: _plain(item) for key, item in value.items()}
        case list():
            return [_plain(item) for item in value]
        case (str() as branch, fields):
            return {"branch": branch, "fields": _plain(fields)}
        case bytes():
            return {"hex": value.hex()}
    return value


def _tagged(value: Json) -> Json:
    """What `_plain` made JSON of."""
    match value:
        case {"branch": branch, "fields": fields}:
            return branch, _tagged(fields)
        case {"hex": text}:
            return bytes.fromhex(text)
        case dict():
            return {key: _tagged(item) for key, item in value.items()}
        case list():
            return [_tagged(item) for item in value]
    return value
