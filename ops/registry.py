"""This release's schemas and a Confluent schema registry: what it has, what it would take, and giving it what it lacks.

The journal's union, and those of the intake, grow by branches, which old readers do not know: that is
BACKWARD_TRANSITIVE. The records of the other topics have no such union: they are FULL_TRANSITIVE. A subject is given
its level before its first version, and every version there ever was, oldest first, so that any record can be read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

import httpx

import schemas
from schemas import NAMES, Schema
from schemas.definitions import contract, envelope_branches, record_branches, records
from streams.runtime.registry import Registry, RegistryUnavailable
from streams.topics import Topics

NOT_FOUND: Final = httpx.codes.NOT_FOUND
NOT_COMPATIBLE: Final = httpx.codes.CONFLICT


@dataclass(frozen=True, slots=True)
class Subject:
    """A subject of the registry, and what this release has for it."""

    name: str
    """`<topic>-value`."""
    schema: Schema
    level: str
    """The compatibility that the registry is to hold it to."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something about a subject: for `check` and `diff`."""

    subject: str
    what: str
    """missing, same, older, newer, differs, incompatible, level."""
    told: str

    def document(self) -> dict[str, str]:
        """As JSON."""
        return {"subject": self.subject, "what": self.what, "told": self.told}


def subjects(topics: Topics) -> list[Subject]:
    """One a topic."""
    found = []
    for name in NAMES:
        schema = schemas.current(name)
        level = "BACKWARD_TRANSITIVE" if envelope_branches(schema) else "FULL_TRANSITIVE"
        found.append(Subject(f"{topics.of_schema(name)}-value", schema, level))
    return found


class SchemaRegistry(Registry):
    """The registry's interface, as far as versions and compatibility go. Raises `RegistryUnavailable`."""

    def latest(self, subject: str) -> dict[str, Any] | None:
        """The latest version of a subject, its definition parsed; None: it has none."""
        found = self._asked("GET", f"subjects/{quote(subject, safe='')}/versions/latest", None)
        return None if found is None else dict(json.loads(found["schema"]))

    def versions(self, subject: str) -> int:
        """How many versions a subject has."""
        found: Any = self._asked("GET", f"subjects/{quote(subject, safe='')}/versions", None)
        return 0 if found is None else len(found)

    def level(self, subject: str) -> str | None:
        """The compatibility that a subject is held to by itself; None: by the registry's default."""
        found = self._asked("GET", f"config/{quote(subject, safe='')}", None)
        return None if found is None else str(found["compatibilityLevel"])

    def set_level(self, subject: str, level: str) -> None:
        """Hold a subject to a compatibility."""
        self._asked("PUT", f"config/{quote(subject, safe='')}", {"compatibility": level})

    def problems(self, subject: str, definition: str) -> list[str]:
        """Why the registry would not take a definition as the next version; none: it would."""
        path = f"compatibility/subjects/{quote(subject, safe='')}/versions?verbose=true"
        found = self._asked("POST", path, {"schema": definition})
        if found is None or found["is_compatible"]:
            return []
        return [str(message) for message in found.get("messages") or ["it says no more"]]

    def register(self, subject: str, definition: str) -> int:
        """The id of a definition under a subject; it is registered unless it is."""
        return self.id_of(quote(subject, safe=""), definition)


def check(registry: SchemaRegistry, topics: Topics) -> list[Finding]:
    """Whether the registry would take this release's schemas: what is incompatible, or held to another level."""
    found = []
    for subject in subjects(topics):
        definition = json.dumps(subject.schema.definition)
        problems = registry.problems(subject.name, definition)
        found += [Finding(subject.name, "incompatible", problem) for problem in problems]
        level = registry.level(subject.name)
        if registry.latest(subject.name) is not None and level != subject.level:
            held = level or "the registry's default"
            told = f"held to {held}, not to {subject.level}: `turnlog schema push` sets it"
            found.append(Finding(subject.name, "level", told))
    return found


def diff(registry: SchemaRegistry, topics: Topics) -> list[Finding]:
    """What differs between the registry's latest version of each subject and this release's, a line a difference."""
    found = []
    for subject in subjects(topics):
        latest = registry.latest(subject.name)
        if latest is None:
            found.append(Finding(subject.name, "missing", "the registry has no version"))
            continue
        found += [Finding(subject.name, what, told) for what, told in differences(latest, subject.schema.definition)]
    return found


def differences(theirs: dict[str, Any], ours: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """What `ours` has that `theirs` has not (newer), the other way round (older), or otherwise (differs)."""
    if contract(theirs) == contract(ours):
        return
    before = {record["name"]: record for record in records(theirs)}
    after = {record["name"]: record for record in records(ours)}
    yield from (("newer", f"record {name}: only here") for name in after if name not in before)
    yield from (("older", f"record {name}: only in the registry") for name in before if name not in after)
    for name, record in after.items():
        if name in before:
            yield from _fields(name, before[name], record)


def _fields(name: str, theirs: dict[str, Any], ours: dict[str, Any]) -> Iterator[tuple[str, str]]:
    before = {field["name"]: field for field in theirs["fields"]}
    after = {field["name"]: field for field in ours["fields"]}
    yield from (("newer", f"{name}.{field}: only here") for field in after if field not in before)
    yield from (("older", f"{name}.{field}: only in the registry") for field in before if field not in after)
    for field, here in after.items():
        if field in before and _own(before[field]) != _own(here):
            yield "differs", f"{name}.{field}: {_own(before[field])} in the registry, {_own(here)} here"


def _own(field: dict[str, Any]) -> str:
    """A field's type and default, nested records by name alone: their fields are compared by themselves."""
    return json.dumps(_shallow(contract(field)), sort_keys=True)


def _shallow(node: Any) -> Any:
    if isinstance(node, dict):
        if node.get("type") == "record":
            return node["name"]
        return {key: _shallow(value) for key, value in node.items()}
    if isinstance(node, list):
        # Which records an envelope's union holds is told record by record.
        return "an envelope's records" if len(record_branches(node)) > 1 else [_shallow(item) for item in node]
    return node


def push(registry: SchemaRegistry, topics: Topics, *, dry_run: bool) -> list[Finding]:
    """Give the registry every version that it lacks, oldest first, and each subject its compatibility.

    Nothing is pushed unless the registry takes all that is newest. What was done, or would be.
    """
    refused = [finding for finding in check(registry, topics) if finding.what == "incompatible"]
    if refused:
        return refused
    done = []
    for subject in subjects(topics):
        if registry.level(subject.name) != subject.level:
            done.append(Finding(subject.name, "level", subject.level))
            if not dry_run:
                registry.set_level(subject.name, subject.level)
        done += list(_push(registry, subject, dry_run=dry_run))
    return done


def _push(registry: SchemaRegistry, subject: Subject, *, dry_run: bool) -> Iterator[Finding]:
    history: Sequence[Schema] = (*schemas.history(subject.schema.name),)
    begun = registry.versions(subject.name) > 0
    # A registry compares with what it has: older versions go in only while it has none, the current one at any time.
    for number, version in enumerate(history, 1):
        newest = version.fingerprint == subject.schema.fingerprint
        if begun and not newest:
            continue
        definition = json.dumps((subject.schema if newest else version).definition)
        if dry_run:
            known = begun and contract(registry.latest(subject.name)) == contract(subject.schema.definition)
            if not known:
                yield Finding(subject.name, "version", f"version {number} would be registered")
            continue
        before = registry.versions(subject.name)
        schema_id = registry.register(subject.name, definition)
        if registry.versions(subject.name) > before:
            yield Finding(subject.name, "version", f"version {number} is registered, id {schema_id}")


__all__ = ["Finding", "RegistryUnavailable", "SchemaRegistry", "check", "diff", "push", "subjects"]
