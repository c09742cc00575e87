"""The contract page and the examples for engines that cannot run here are those of the schemas and tables."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import schemas
from schemas.definitions import records
from streams.core.events import Entry, WriterOpened
from streams.runtime.codec import Codec
from turnlog.data.reference import with_columns
from turnlog.data.tables import BY_NAME

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "reference" / "data-contract.md"
EXAMPLES = ROOT / "docs" / "examples"
RECORDS = {record["name"]: record for record in records(schemas.current("journal").definition)}
SQL_TYPES = {"VARCHAR": "string", "BIGINT": "long", "BOOLEAN": "boolean"}


def test_the_contract_has_the_columns_that_there_are() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert with_columns(text) == text, "run `python -m turnlog.data.reference docs/reference/data-contract.md`"
    assert set(re.findall(r"<!-- columns of (\w+) -->", text)) == {"all", *BY_NAME}


def inner(type_: Any) -> Any:
    """A field's type without null; a record by its definition."""
    type_ = type_[1] if isinstance(type_, list) and type_[0] == "null" else type_
    return RECORDS[type_] if isinstance(type_, str) and type_ in RECORDS else type_


def test_ksqldb_names_only_what_the_journal_has() -> None:
    text = re.sub(r"--.*", "", (EXAMPLES / "ksqldb.sql").read_text())
    columns = text[text.index("(") + 1 : text.index(") WITH")]
    envelope = {field["name"].upper(): field for field in schemas.current("journal").definition["fields"]}
    plain = dict(re.findall(r"`?([A-Z_]+)`? (BIGINT|VARCHAR),", columns.partition("EVENT")[0]))
    assert set(plain) == set(envelope) - {"EVENT"}
    for name, type_ in plain.items():
        assert inner(envelope[name]["type"]) == SQL_TYPES[type_]
    structs = re.findall(r"(TurnCommitted|RunEnded) STRUCT<((?:[^<>]|<[^<>]*>)*)>", columns)
    assert len(structs) == 2
    for name, body in structs:
        check_struct(RECORDS[name], body)


def check_struct(record: dict[str, Any], body: str) -> None:
    fields = {field["name"]: inner(field["type"]) for field in record["fields"]}
    for name, nested in re.findall(r"(\w+) STRUCT<([^<>]*)>", body):
        check_struct(fields[name], nested)
    for name, type_ in re.findall(r"`?(\w+)`? (VARCHAR|BIGINT|BOOLEAN)", re.sub(r"\w+ STRUCT<[^<>]*>", "", body)):
        assert fields[name] == SQL_TYPES[type_], name


def test_flink_names_only_columns_that_the_table_has() -> None:
    text = re.sub(r"--.*", "", (EXAMPLES / "flink.sql").read_text())
    columns = dict(re.findall(r"`?(\w+)`? (INT|BIGINT|STRING|TIMESTAMP_LTZ\(6\))[,\n]", text))
    types = {"INT": pa.int32(), "BIGINT": pa.int64(), "STRING": pa.string()}
    schema = BY_NAME["runs"].schema
    assert len(columns) == 12
    for name, type_ in columns.items():
        expected = types.get(type_, pa.timestamp("us", tz="UTC"))
        assert schema.field(name).type == expected, name


def test_connect_reads_committed_records_and_skips_none() -> None:
    config = json.loads((EXAMPLES / "connect_s3_sink.json").read_text())["config"]
    assert config["consumer.override.isolation.level"] == "read_committed"
    assert config["errors.tolerance"] == "none"
    assert config["topics"] == "conversations"


def test_spark_cuts_the_header_off_and_finds_the_event() -> None:
    module: dict[str, Any] = {"__name__": "spark_journal"}
    exec(compile((EXAMPLES / "spark_journal.py").read_text(), "spark_journal.py", "exec"), module)
    value = Codec().encode_entry(Entry(1, 1, 1, 1, WriterOpened(writer_epoch=1, worker="w")))
    start, length = re.fullmatch(r"substring\(v, (\d+), length\(v\) - (\d+)\)", module["body_of"]("v")).groups()  # type: ignore[union-attr]
    body = value[int(start) - 1 :][: len(value) - int(length)]
    assert body == value[schemas.SINGLE_OBJECT_HEADER_BYTES :]
    union = schemas.current("journal").definition["fields"][-1]["type"]
    member = module["member_of"](schemas.current("journal").definition, "TurnCommitted")
    assert union[int(member.removeprefix("member"))]["name"] == "TurnCommitted"


@pytest.mark.parametrize("name", ["confluent_reader.py", "faust_journal.py", "spark_journal.py", "read_journal.py"])
def test_every_reader_of_kafka_reads_committed(name: str) -> None:
    text = (EXAMPLES / name).read_text()
    assert "read_committed" in text or "turnlog.data.faust" in text
