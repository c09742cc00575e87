"""The schemas that are generated from the models of the frames: well formed, as committed, and as strict as the public
ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from connectors.gateway.protocol import wire_schema
from connectors.gateway.protocol.parse import RESERVED
from ops.cli.schema import protocol
from tests.unit.gateway.conftest import SCHEMAS

FOLDER = Path(__file__).parents[3] / "docs" / "reference" / "protocol"
NAMES = tuple(wire_schema.schemas())
SIDES = {"c2s": "person-to-server", "s2c": "server-to-person", "c2s-envelope": "agent-to-server"}


def invalid() -> list[dict[str, Any]]:
    path = SCHEMAS / "examples" / "invalid.json"
    frames: list[dict[str, Any]] = json.loads(path.read_text())["frames"] if path.is_file() else []
    return frames


def test_what_is_committed_is_what_the_models_say(tmp_path: Path) -> None:
    """`turnlog schema protocol --out docs/reference/protocol` writes them anew."""
    protocol(tmp_path)
    written = {path.name: json.loads(path.read_text()) for path in tmp_path.iterdir()}
    assert written == {path.name: json.loads(path.read_text()) for path in FOLDER.iterdir()}


@pytest.mark.parametrize("name", NAMES)
def test_each_is_a_schema_without_loose_ends(name: str) -> None:
    schema = wire_schema.schemas()[name]
    Draft202012Validator.check_schema(schema)
    for ref in refs(schema):
        assert ref.removeprefix("#/$defs/") in schema["$defs"]


def test_the_asyncapi_document_has_no_loose_ends() -> None:
    document = wire_schema.asyncapi()
    mentioned = refs(document)
    assert mentioned
    for ref in mentioned:
        found: Any = document
        for part in ref.removeprefix("#/").split("/"):
            assert part in found, ref
            found = found[part]


def refs(value: Any) -> set[str]:
    match value:
        case dict():
            here = {value["$ref"]} if isinstance(value.get("$ref"), str) else set()
            return here.union(*(refs(item) for item in value.values()))
        case list():
            return set().union(*(refs(item) for item in value))
        case _:
            return set()


@pytest.mark.parametrize("name", sorted(RESERVED))
def test_no_message_has_a_name_of_the_protocols_own(name: str) -> None:
    said = {**wire_schema.schemas()["person-to-server"], "anyOf": [{"$ref": "#/$defs/Said"}]}
    assert not Draft202012Validator(said).is_valid({"type": name, "data": {}})
    assert Draft202012Validator(said).is_valid({"type": "order-summary", "data": {}})


@pytest.mark.skipif(not SCHEMAS.is_dir(), reason="the public schemas are not beside this repository")
@pytest.mark.parametrize("example", invalid(), ids=lambda each: each["reason"])
def test_what_the_public_schemas_refuse_ours_refuse(example: dict[str, Any]) -> None:
    assert not Draft202012Validator(wire_schema.schemas()[SIDES[example["direction"]]]).is_valid(example["frame"])
