"""Schemas and a registry: what is pushed, what would be refused, what differs."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

import schemas
from ops.cli.command_line import run as command
from ops.registry import SchemaRegistry, check, diff, push, subjects
from streams.topics import Topics
from tests.support.registry import FakeRegistry, running

TOPICS = Topics("acme")


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    with running(FakeRegistry()) as started:
        yield started


def test_an_empty_registry_is_given_every_version_oldest_first_and_the_levels(registry: FakeRegistry) -> None:
    client = SchemaRegistry(registry.url)
    planned = push(client, TOPICS, dry_run=True)
    assert registry.subjects == {}
    done = push(client, TOPICS, dry_run=False)
    assert len(done) == len(planned)
    assert set(registry.subjects) == {subject.name for subject in subjects(TOPICS)}
    held = [json.loads(registry.schemas[i]) for i in registry.subjects["acme.conversations-value"]]
    assert len(held) == len(schemas.history("journal"))
    assert held[-1] == schemas.current("journal").definition
    assert registry.levels["acme.conversations-value"] == "BACKWARD_TRANSITIVE"
    assert registry.levels["acme.dead-letters-value"] == "FULL_TRANSITIVE"
    assert push(client, TOPICS, dry_run=False) == push(client, TOPICS, dry_run=True) == []
    assert check(client, TOPICS) == diff(client, TOPICS) == []


def test_a_registry_that_is_behind_is_told_apart_and_brought_up(registry: FakeRegistry) -> None:
    first = json.dumps(schemas.history("journal")[0].definition)
    registry.subjects["acme.conversations-value"] = [registry.put(first)]
    client = SchemaRegistry(registry.url)
    found = [finding for finding in diff(client, TOPICS) if finding.subject == "acme.conversations-value"]
    assert {finding.what for finding in found} == {"newer"}
    assert "record TurnEdited: only here" in {finding.told for finding in found}
    assert [finding.what for finding in check(client, TOPICS)] == ["level"]
    push(client, TOPICS, dry_run=False)
    assert len(registry.subjects["acme.conversations-value"]) == 2
    assert diff(client, TOPICS) == []


def test_what_the_registry_would_refuse_stops_everything(registry: FakeRegistry) -> None:
    theirs = json.loads(json.dumps(schemas.current("journal").definition))
    theirs["fields"] = [field for field in theirs["fields"] if field["name"] != "lsn"]
    registry.subjects["acme.conversations-value"] = [registry.put(json.dumps(theirs))]
    client = SchemaRegistry(registry.url)
    found = push(client, TOPICS, dry_run=False)
    assert [(finding.what, finding.told) for finding in found] == [
        ("incompatible", "READER_FIELD_MISSING_DEFAULT_VALUE: JournalEntry.lsn")
    ]
    assert set(registry.subjects) == {"acme.conversations-value"}


def test_a_field_of_another_type_differs(registry: FakeRegistry) -> None:
    theirs = json.loads(json.dumps(schemas.current("live").definition).replace('"long"', '"int"', 1))
    registry.subjects["acme.live-value"] = [registry.put(json.dumps(theirs))]
    found = [finding for finding in diff(SchemaRegistry(registry.url), TOPICS) if finding.subject == "acme.live-value"]
    assert [finding.what for finding in found] == ["differs"]


def test_the_commands_are_a_gate(registry: FakeRegistry, capsys: pytest.CaptureFixture[str]) -> None:
    named = ["--registry", registry.url, "--namespace", "acme"]
    assert command(["schema", "diff", *named]) == 1
    assert command(["schema", "push", *named, "--dry-run"]) == 0
    assert registry.subjects == {}
    assert command(["schema", "push", *named, "--yes"]) == 0
    assert command(["schema", "diff", *named]) == 0
    assert command(["schema", "check", *named]) == 0
    registry.broken = True
    assert command(["schema", "check", *named]) == 2
    assert "refuses" in capsys.readouterr().err
    assert command(["schema", "push"]) == 64
