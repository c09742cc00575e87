"""Whether the schemas may be released: every version that ever wrote a record, and the current one, read one another.

    python -m schemas.check             exit 0, or 1 with every rule that is broken
    python -m schemas.check --accept    take the current schemas into the history as the next version, and
                                        rewrite the classes of `turnlog.data` that are made from them

Compatibility is not argued from the definitions but tried: each version's golden records, bytes that were committed
when the version was, are read by every other version, older and newer (FULL_TRANSITIVE). Only the branches of an
envelope's union may be unknown to an older reader, and those are only ever appended.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from typing import Any

from fastavro import schemaless_reader
from fastavro.read import SchemaResolutionError

import schemas
from schemas import NAMES, NAMESPACE, Schema, dataclasses
from schemas.definitions import contract, defaults, envelope_branches, record_branches, records, type_names
from schemas.golden import Golden, encoded, golden_records

Json = Any
# What fastavro raises when one version cannot read another's bytes.
UNREADABLE = (SchemaResolutionError, ValueError, TypeError, KeyError, IndexError, EOFError, OverflowError)
# An enum's symbols cannot grow without breaking old readers, whatever a registry says; a string can.
FORBIDDEN_TYPES = frozenset({"enum", "fixed", "float", "double"})


@dataclass(frozen=True, slots=True)
class Version:
    """One version of one topic's record, with its golden records."""

    number: int
    schema: Schema
    golden: tuple[Golden, ...]

    def __str__(self) -> str:
        return f"{self.schema.name} version {self.number}"


# ------------------------------------------------------------------------------------------------------------ rules
def problems(root: Path = schemas.ROOT) -> list[str]:
    """Every rule that the schemas under `root` break, a sentence each; none: they may be released."""
    current = {name: _parsed(root, name) for name in NAMES}
    found = [problem for name in NAMES for problem in _style(current[name])]
    found += [*_one_definition_a_name(current.values()), *_history_untouched(root)]
    if found:
        return found  # what the rest builds on does not hold
    for name in NAMES:
        versions = read_history(root, name)
        if not versions or contract(versions[-1].schema.definition) != contract(current[name].definition):
            found.append(f"{name}: the current schema is not in the history: run `python -m schemas.check --accept`")
            versions.append(Version(len(versions) + 1, current[name], golden_records(current[name])))
        found += [*_defaults_kept(versions), *_branches_appended(versions), *_all_read_all(versions)]
    return found


def _style(schema: Schema) -> Iterator[str]:
    if schema.definition.get("namespace") != NAMESPACE:
        yield f"{schema.name}: the namespace must be {NAMESPACE}"
    last = schema.definition["fields"][-1]
    for record in records(schema.definition):
        where = f"{schema.name}: {record['name']}"
        if "doc" not in record:
            yield f"{where} has no doc"
        for field in record["fields"]:
            yield from (f"{where}.{field['name']} {problem}" for problem in _field_style(field, field is last))


def _field_style(field: dict[str, Any], last: bool) -> Iterator[str]:
    if "doc" not in field:
        yield "has no doc"
    if "aliases" in field:
        yield "has an alias: fields are never renamed"
    for name in sorted(FORBIDDEN_TYPES & set(type_names(field["type"]))):
        yield f"is of type {name}: use a string or a long, which can grow"
    match field["type"]:
        case ["null", _]:
            pass
        case [*branches] if not last or len(record_branches(branches)) < len(branches):
            yield 'is a union: only ["null", …], and records defined in the envelope\'s last field, may be one'


def _one_definition_a_name(current: Iterable[Schema]) -> Iterator[str]:
    """A record that several topics have is the same in all, byte for byte."""
    seen: dict[str, tuple[str, Json]] = {}
    for schema in current:
        for record in records(schema.definition):
            owner, definition = seen.setdefault(record["name"], (schema.name, record))
            if definition != record:
                yield f"{record['name']} is defined in {owner} and, differently, in {schema.name}"


def _history_untouched(root: Path) -> Iterator[str]:
    """The files of the history are those that its manifest lists, unchanged."""
    folder = root / "history"
    listed = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    present = {file.relative_to(folder).as_posix() for name in NAMES for file in (folder / name).glob("*")}
    for file, listed_digest in listed.items():
        if file not in present:
            yield f"history/{file} was removed: a version that wrote records is kept for ever"
        elif digest(folder / file) != listed_digest:
            yield f"history/{file} was changed: a version that wrote records stays as it was"
    for file in sorted(present - set(listed)):
        yield f"history/{file} is not in the manifest: versions are added by `python -m schemas.check --accept`"


def _defaults_kept(versions: list[Version]) -> Iterator[str]:
    """The same bytes mean the same to all versions: one fingerprint is one version, one field has one default."""
    for older, newer in pairwise(versions):
        if older.schema.fingerprint == newer.schema.fingerprint:
            yield f"{newer} has the fingerprint of version {older.number}, but other defaults"
        before = dict(defaults(older.schema))
        for path, default in defaults(newer.schema):
            if path in before and before[path] != default:
                yield f"{newer}: the default of {path} changed from {before[path]} to {default}"


def _branches_appended(versions: list[Version]) -> Iterator[str]:
    for older, newer in pairwise(versions):
        before, after = envelope_branches(older.schema), envelope_branches(newer.schema)
        if after[: len(before)] != before:
            yield f"{newer}: branches may only be appended to those of version {older.number}: {', '.join(before)}"


def _all_read_all(versions: list[Version]) -> Iterator[str]:
    for writer in versions:
        for index, golden in enumerate(writer.golden, 1):
            if encoded(writer.schema, golden.value) != golden.body:
                yield f"{writer}: golden record {index} is not what its schema writes"
            for reader in versions:
                problem = _read_by(reader, writer, golden)
                if problem:
                    yield f"{reader} cannot read golden record {index} of version {writer.number}: {problem}"


def _read_by(reader: Version, writer: Version, golden: Golden) -> str | None:
    if golden.branch is not None and golden.branch not in envelope_branches(reader.schema):
        return None  # kept raw by readers that do not know it
    try:
        got: Any = schemaless_reader(
            BytesIO(golden.body), writer.schema.parsed, reader.schema.parsed, return_record_name=True
        )
    except UNREADABLE as error:
        return f"{type(error).__name__}: {error}"
    unnamed = schemas.plain_of if golden.branch is None else schemas.envelope_of
    return _difference(golden.value, unnamed(got))


def _difference(wrote: Json, read: Json, path: str = "") -> str | None:
    """The first field of `read` that is not what was written; fields that only one of the two has may differ."""
    match wrote, read:
        case dict(), dict():
            shared = (_difference(wrote[key], read[key], f"{path}.{key}") for key in wrote.keys() & read.keys())
            return next((found for found in shared if found), None)
        case ((list() | tuple()), (list() | tuple())) if len(wrote) == len(read):
            items = (_difference(a, b, f"{path}[{i}]") for i, (a, b) in enumerate(zip(wrote, read, strict=True)))
            return next((found for found in items if found), None)
        case _ if wrote == read:
            return None
    return f"{path.lstrip('.')} was written as {wrote!r} and is read as {read!r}"


# ---------------------------------------------------------------------------------------------------------- history
def read_history(root: Path, name: str) -> list[Version]:
    """Every version of `name` in the history under `root`, oldest first."""
    folder = root / "history" / name
    versions = []
    for number, file in enumerate(sorted(folder.glob("*.avsc")), 1):
        schema = schemas.parse(name, file.read_text(encoding="utf-8"))
        lines = file.with_suffix(".golden.jsonl").read_text(encoding="utf-8").splitlines()
        golden = tuple(Golden.of_line(line) for line in lines)
        versions.append(Version(number, schema, golden))
    return versions


def accept(root: Path = schemas.ROOT) -> list[str]:
    """Take each current schema that the history does not end with into it; return the versions added."""
    folder = root / "history"
    manifest = folder / "manifest.json"
    listed = json.loads(manifest.read_text(encoding="utf-8")) if manifest.exists() else {}
    added = []
    for name in NAMES:
        current = _parsed(root, name)
        versions = read_history(root, name)
        if versions and contract(versions[-1].schema.definition) == contract(current.definition):
            continue
        version = Version(len(versions) + 1, current, golden_records(current))
        (folder / name).mkdir(parents=True, exist_ok=True)
        file = folder / name / f"{version.number:03}.avsc"
        file.write_text((root / "avro" / f"{name}.avsc").read_text(encoding="utf-8"), encoding="utf-8")
        golden = file.with_suffix(".golden.jsonl")
        golden.write_text("".join(record.line() for record in version.golden), encoding="utf-8")
        listed |= {made.relative_to(folder).as_posix(): digest(made) for made in (file, golden)}
        added.append(str(version))
    manifest.write_text(json.dumps(listed, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return added


# ---------------------------------------------------------------------------------------------------------- helpers
def _parsed(root: Path, name: str) -> Schema:
    return schemas.parse(name, (root / "avro" / f"{name}.avsc").read_text(encoding="utf-8"))


def digest(file: Path) -> str:
    """What the manifest has of `file`: its SHA-256, hexadecimal."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


def main(arguments: Sequence[str] = ()) -> int:
    """The command line, without the program's name; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m schemas.check", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--accept", action="store_true", help="take the current schemas into the history first")
    given = parser.parse_args(arguments)
    if given.accept:
        for version in accept():
            sys.stdout.write(f"added {version}\n")
        dataclasses.main([str(dataclasses.TARGET)])
    found = problems()
    for problem in found:
        sys.stderr.write(f"{problem}\n")
    if not found:
        versions = [version for name in NAMES for version in read_history(schemas.ROOT, name)]
        golden = sum(len(version.golden) for version in versions)
        sys.stdout.write(f"{len(NAMES)} schemas, {len(versions)} versions, {golden} golden records: all read all\n")
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
