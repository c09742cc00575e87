"""Turns out of Turnlog's journal, in Spark, from the schema file alone.

    spark-submit --packages org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0,org.apache.spark:spark-avro_2.13:4.0.0 \\
        spark_journal.py localhost:9092 schemas/avro/journal.avsc ./turns

A record begins with ten bytes: Avro's marker, and its schema's fingerprint. This job reads the records that were
written with one version of the schema, and fails on any other: run it for each version under `schemas/history/journal`.
Spark makes a struct of a union of records, whose fields are `member0`, `member1`, … in the schema's order.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

HEADER_BYTES = 10


def member_of(definition: dict[str, Any], event: str) -> str:
    """What Spark calls the event's place in the union."""
    names = [branch["name"] for branch in definition["fields"][-1]["type"]]
    return f"member{names.index(event)}"


def body_of(value: str) -> str:
    """A SQL expression: the record behind its header (SQL counts from 1)."""
    return f"substring({value}, {HEADER_BYTES + 1}, length({value}) - {HEADER_BYTES})"


def main(kafka: str, schema_file: str, target: str) -> None:
    """Every turn that is committed now, as Parquet."""
    from pyspark.sql import SparkSession  # noqa: PLC0415 -- its cluster brings it
    from pyspark.sql.avro.functions import from_avro  # noqa: PLC0415
    from pyspark.sql.functions import expr  # noqa: PLC0415

    schema = Path(schema_file).read_text(encoding="utf-8")
    spark = SparkSession.builder.appName("turnlog").getOrCreate()
    records = (
        spark.read.format("kafka")
        .option("kafka.bootstrap.servers", kafka)
        .option("kafka.isolation.level", "read_committed")
        .option("subscribe", "conversations")
        .option("startingOffsets", "earliest")
        .option("failOnDataLoss", "true")
        .load()
    )
    entries = records.select(from_avro(expr(body_of("value")), schema, {"mode": "FAILFAST"}).alias("entry"))
    turn = f"entry.event.{member_of(json.loads(schema), 'TurnCommitted')}"
    turns = entries.where(f"{turn} IS NOT NULL").selectExpr(
        "entry.conversation_id", "entry.seq", "entry.lsn", f"{turn}.turn.sender", f"{turn}.turn.text"
    )
    turns.write.mode("overwrite").parquet(target)


if __name__ == "__main__":
    main(*sys.argv[1:])
