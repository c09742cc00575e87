"""The schemas against the core's structs, and the check that keeps their history readable: each way to break it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fastavro.schema import fingerprint

import schemas
from schemas import check, reference
from schemas.definitions import records
from streams.core import events
from streams.runtime.records import EVENTS, KEYED_CLASSES, MEMBERSHIP_CLASSES, DeadLetter, Reason, Settled

ENVELOPE_FIELDS = {
    "turns": {"conversation_id", "ref", "at", "timestamp"},
    "frames": {"conversation_id", "ref", "at", "timestamp"},
    "membership": {"ref", "at", "timestamp"},
    "journal": {"conversation_id", "seq"},
}
CLASSES: dict[str, dict[str, type[Any]]] = {
    "turns": dict(KEYED_CLASSES["turns"]),
    "frames": dict(KEYED_CLASSES["frames"]),
    "membership": dict(MEMBERSHIP_CLASSES),
    "journal": dict(EVENTS),
}


def definitions(name: str) -> dict[str, dict[str, Any]]:
    return {record["name"]: record for record in records(schemas.current(name).definition)}


# ------------------------------------------------------------------------------------------- schemas and structs
@pytest.mark.parametrize("name", CLASSES)
def test_every_command_and_event_is_a_branch_and_every_branch_is_one(name: str) -> None:
    branches = [branch["name"] for branch in schemas.current(name).definition["fields"][-1]["type"]]
    assert sorted(branches) == sorted(CLASSES[name])


@pytest.mark.parametrize(
    ("name", "record", "cls"),
    [(name, record, cls) for name, classes in CLASSES.items() for record, cls in classes.items()]
    + [
        ("turns", "Turn", events.Turn),
        ("journal", "Turn", events.Turn),
        ("frames", "Frame", events.Frame),
        ("journal", "Frame", events.Frame),
        ("journal", "Assignment", events.Assignment),
        ("dead_letters", "DeadLetter", DeadLetter),
        ("dead_letters", "Settled", Settled),
    ],
)
def test_a_record_and_its_struct_have_the_same_fields_and_defaults(name: str, record: str, cls: type[Any]) -> None:
    in_envelope = ENVELOPE_FIELDS.get(name, set()) if record in CLASSES.get(name, {}) else set()
    struct = {f.name: f for f in msgspec.structs.fields(cls) if f.name not in in_envelope}
    avro = {field["name"]: field for field in definitions(name)[record]["fields"]}
    assert set(avro) == set(struct)
    for field, definition in avro.items():
        if "default" in definition:
            default = struct[field].default
            if default is msgspec.NODEFAULT:
                default = struct[field].default_factory()
            assert definition["default"] == (list(default) if isinstance(default, tuple) else default), field


@pytest.mark.parametrize("name", ["Turn", "Frame"])
def test_intake_and_journal_have_the_same_record(name: str) -> None:
    intake = definitions("turns") if name == "Turn" else definitions("frames")
    assert intake[name] == definitions("journal")[name]


def test_a_header_is_the_marker_and_the_little_endian_crc_64_avro_fingerprint() -> None:
    # The Avro specification's Rabin fingerprint of "int" is 0x7275d51a3f395c8f.
    assert bytes.fromhex(fingerprint('"int"', "CRC-64-AVRO")) == (0x7275D51A3F395C8F).to_bytes(8, "little")
    schema = schemas.current("turns")
    assert schema.header == b"\xc3\x01" + schema.fingerprint
    assert len(schema.header) == schemas.SINGLE_OBJECT_HEADER_BYTES


# ----------------------------------------------------------------------------------------------------- the check
@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A copy of the schemas and their history, to be broken."""
    for folder in ("avro", "history"):
        shutil.copytree(schemas.ROOT / folder, tmp_path / folder)
    return tmp_path


Change = Callable[[dict[str, dict[str, Any]]], None]


def edit(root: Path, name: str, change: Change) -> None:
    """Change the current schema of `name`; `change` gets its records by name."""
    file = root / "avro" / f"{name}.avsc"
    definition = json.loads(file.read_text(encoding="utf-8"))
    change({record["name"]: record for record in records(definition)})
    file.write_text(json.dumps(definition), encoding="utf-8")


def add_field(record: str, field: dict[str, Any]) -> Change:
    return lambda defined: defined[record]["fields"].append({"doc": "New.", **field})


def branches(defined: dict[str, dict[str, Any]]) -> list[Any]:
    union: list[Any] = defined["TurnIntake"]["fields"][-1]["type"]
    return union


NEW_BRANCH = {"type": "record", "name": "Cheer", "doc": "New.", "fields": []}


def test_the_committed_schemas_may_be_released() -> None:
    assert check.problems() == []


def test_the_command_says_what_it_checked(capsys: pytest.CaptureFixture[str]) -> None:
    assert check.main([]) == 0
    assert "all read all" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("names", "change"),
    [
        (["turns"], add_field("CloseConversation", {"name": "mood", "type": "string", "default": "plain"})),
        (["turns", "journal"], add_field("Turn", {"name": "mood", "type": ["null", "string"], "default": None})),
        (["turns"], lambda defined: branches(defined).append(NEW_BRANCH)),
    ],
    ids=["field with a default", "field of a nested record", "branch at the end"],
)
def test_a_compatible_change_passes_once_it_is_in_the_history(root: Path, names: list[str], change: Change) -> None:
    for name in names:
        edit(root, name, change)
    before = check.problems(root)
    assert before
    assert all("is not in the history" in problem for problem in before)
    next_ones = [f"{name} version {len(check.read_history(root, name)) + 1}" for name in names]
    assert check.accept(root) == next_ones
    assert check.problems(root) == []
    assert check.accept(root) == []


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (add_field("CloseConversation", {"name": "mood", "type": "string"}), "cannot read golden record"),
        (lambda defined: defined["CloseConversation"]["fields"].pop(0), "cannot read golden record"),
        (lambda defined: defined["CloseConversation"]["fields"][0].update(type="long"), "cannot read golden record"),
        (lambda defined: defined["CloseConversation"]["fields"][0].update(name="who"), "cannot read golden record"),
        (lambda defined: branches(defined).insert(0, NEW_BRANCH), "branches may only be appended"),
        (lambda defined: branches(defined).reverse(), "branches may only be appended"),
        (lambda defined: branches(defined).pop(), "branches may only be appended"),
    ],
    ids=[
        "field without a default",
        "field removed",
        "type changed",
        "field renamed",
        "branch put first",
        "branches reordered",
        "branch removed",
    ],
)
def test_an_incompatible_change_is_named(root: Path, change: Change, problem: str) -> None:
    edit(root, "turns", change)
    found = check.problems(root)
    assert any(problem in line for line in found), found


def test_a_default_cannot_change_under_one_fingerprint(root: Path) -> None:
    edit(root, "frames", lambda defined: defined["CommitFrame"]["fields"][-1].update(default=7))
    found = check.problems(root)
    assert "frames version 4 has the fingerprint of version 3, but other defaults" in found


def test_a_default_cannot_change_with_another_change(root: Path) -> None:
    edit(root, "frames", add_field("CommitFrame", {"name": "mood", "type": "string", "default": "plain"}))
    check.accept(root)
    edit(root, "frames", lambda defined: defined["CommitFrame"]["fields"][-1].update(default="bright"))
    edit(root, "frames", add_field("CommitFrame", {"name": "tone", "type": "string", "default": ""}))
    found = check.problems(root)
    changed = len(check.read_history(root, "frames")) + 1
    assert f'frames version {changed}: the default of CommitFrame.mood changed from "plain" to "bright"' in found


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda defined: defined["TurnIntake"]["fields"][0].pop("doc"), "turns: TurnIntake.conversation_id has no doc"),
        (lambda defined: defined["OpenConversation"].pop("doc"), "turns: OpenConversation has no doc"),
        (lambda defined: defined["TurnIntake"].update(namespace="other"), "turns: the namespace must be turnlog.v1"),
        (lambda defined: defined["TurnIntake"]["fields"].reverse(), "TurnIntake.command is a union: only"),
        (
            add_field("OpenConversation", {"name": "mood", "type": {"type": "enum", "name": "M", "symbols": ["A"]}}),
            "OpenConversation.mood is of type enum",
        ),
        (
            add_field("OpenConversation", {"name": "mood", "type": ["string", "null"], "default": ""}),
            "OpenConversation.mood is a union: only",
        ),
        (lambda defined: branches(defined).append("string"), "TurnIntake.command is a union: only"),
        (
            lambda defined: defined["OpenConversation"]["fields"][0].update(aliases=["place"]),
            "OpenConversation.channel has an alias",
        ),
        (
            add_field("Turn", {"name": "mood", "type": "string", "default": ""}),
            "Turn is defined in turns and, differently, in journal",
        ),
    ],
)
def test_a_schema_that_breaks_the_house_rules_is_named(root: Path, change: Change, problem: str) -> None:
    edit(root, "turns", change)
    found = check.problems(root)
    assert any(problem in line for line in found), found


def test_a_version_of_the_history_cannot_be_changed(root: Path) -> None:
    file = root / "history" / "turns" / "001.avsc"
    file.write_text(file.read_text(encoding="utf-8").replace("wire", "WIRE"), encoding="utf-8")
    assert any("history/turns/001.avsc was changed" in line for line in check.problems(root))


def test_a_golden_record_cannot_be_changed(root: Path) -> None:
    file = root / "history" / "journal" / "001.golden.jsonl"
    file.write_text("".join(file.read_text(encoding="utf-8").splitlines(keepends=True)[1:]), encoding="utf-8")
    assert any("history/journal/001.golden.jsonl was changed" in line for line in check.problems(root))


def test_a_version_of_the_history_cannot_be_removed(root: Path) -> None:
    (root / "history" / "live" / "001.avsc").unlink()
    assert any("history/live/001.avsc was removed" in line for line in check.problems(root))


def test_a_version_cannot_be_put_into_the_history_by_hand(root: Path) -> None:
    shutil.copy(root / "history" / "live" / "001.avsc", root / "history" / "live" / "003.avsc")
    assert any("history/live/003.avsc is not in the manifest" in line for line in check.problems(root))


def test_a_golden_record_that_its_schema_does_not_write_is_named(root: Path) -> None:
    file = root / "history" / "live" / "001.golden.jsonl"
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
    changed = lines[1].replace('"body": "00', '"body": "0261')
    assert changed != lines[1]
    file.write_text("".join([lines[0], changed, *lines[2:]]), encoding="utf-8")
    manifest = root / "history" / "manifest.json"
    listed = json.loads(manifest.read_text(encoding="utf-8"))
    listed["live/001.golden.jsonl"] = check.digest(file)
    manifest.write_text(json.dumps(listed), encoding="utf-8")
    found = check.problems(root)
    assert "live version 1: golden record 2 is not what its schema writes" in found


# ------------------------------------------------------------------------------------------------- the reference
PAGE = Path(__file__).parents[2] / "docs/reference/topics-and-schemas.md"


def test_the_reference_has_the_fields_that_the_schemas_have() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == reference.with_tables(page), "run: python -m schemas.reference docs/reference/topics-and-schemas.md"


@pytest.mark.parametrize("name", schemas.NAMES)
def test_the_reference_names_every_record_and_field(name: str) -> None:
    page = PAGE.read_text(encoding="utf-8")
    for record, definition in definitions(name).items():
        assert f"#### {record}\n" in page
        for field in definition["fields"]:
            assert f"| `{field['name']}` |" in page


@pytest.mark.parametrize("reason", Reason)
def test_the_reference_explains_every_reason_of_a_dead_letter(reason: Reason) -> None:
    assert f"| `{reason}` |" in PAGE.read_text(encoding="utf-8")
