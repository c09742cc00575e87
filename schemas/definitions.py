"""Walks over schema definitions: the JSON of an .avsc file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from schemas import Schema

Json = Any


def contract(node: Json) -> Json:
    """The definition without its documentation, which may be improved at any time."""
    if isinstance(node, dict):
        return {key: contract(value) for key, value in node.items() if key != "doc"}
    return [contract(item) for item in node] if isinstance(node, list) else node


def records(node: Json) -> Iterator[dict[str, Any]]:
    """Every record defined in `node`, outermost first."""
    if isinstance(node, list):
        for item in node:
            yield from records(item)
    elif isinstance(node, dict):
        if node.get("type") == "record":
            yield node
        for key in ("fields", "type", "items", "values"):
            if isinstance(node.get(key), dict | list):
                yield from records(node[key])


def type_names(node: Json) -> Iterator[str]:
    """The names of the types that a field of type `node` is made of."""
    if isinstance(node, str):
        yield node
    elif isinstance(node, list):
        for item in node:
            yield from type_names(item)
    else:
        yield from (
            value for key, value in node.items() if key in ("type", "items", "values") and isinstance(value, str)
        )


def defaults(schema: Schema) -> Iterator[tuple[str, str]]:
    """`<record>.<field>` and its default as JSON, for every field that has one."""
    for record in records(schema.definition):
        for field in record["fields"]:
            if "default" in field:
                yield f"{record['name']}.{field['name']}", json.dumps(field["default"])


def record_branches(node: Json) -> list[str]:
    """Names of the records in a union, in order; none where `node` is no union of records."""
    return [branch["name"] for branch in node if isinstance(branch, dict)] if isinstance(node, list) else []


def envelope_branches(schema: Schema) -> list[str]:
    """Names of the records in the union of the envelope's last field; none where it is no envelope."""
    return record_branches(schema.definition["fields"][-1]["type"])
