"""Columns of bodies in both sources, against a plain reading of the same bodies."""

from __future__ import annotations

import json
import zlib
from datetime import UTC, date, datetime
from decimal import Decimal
from io import BytesIO
from pathlib import Path
from typing import Any

import fastavro
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import reput.sources
from reput.store.log.sysflag import SysFlag
from tests.readers.stores import SmallStore

SOURCES = ("rocketmq-commitlog", "rocketmq-consumequeue")
SCHEMA = """
[Topic]
order = "long"
count = "integer"
price = "double"
paid = "boolean"
note = "string"
timestamp = "timestamp"

[Other]
note = "string"
more = "string"
"""
TIME = datetime(2026, 1, 31, 12, 30, tzinfo=UTC)
BODIES: list[tuple[Any, bool | None]] = [
    ({"order": 1 << 40, "count": -7, "price": 2.5, "paid": True, "note": "né",
      "timestamp": TIME.isoformat()}, False),
    ({"order": 2, "price": None, "unknown": [1]}, False),
    ({"order": "two"}, True),
    ({"count": 1 << 40}, True),
    ([1, 2], True),
    (b"\xff{", True),
]  # fmt: skip
NAMES = ("count", "note", "order", "paid", "price", "timestamp")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Bodies that fit and such that do not; every second one is compressed."""
    made = SmallStore(tmp_path / "store")
    for number, (body, _) in enumerate(BODIES):
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        is_small = number % 2
        flag = SysFlag.COMPRESSED | 0x300 if is_small else 0
        made.append(body=zlib.compress(data) if is_small else data, sys_flag=int(flag))
    (tmp_path / "columns.toml").write_text(SCHEMA)
    return made.write()


def wanted(body: Any, bad: bool | None) -> dict[str, Any] | None:
    """The columns of a body."""
    if bad or not isinstance(body, dict):
        return None
    values: dict[str, Any] = {name: body.get(name) for name in (*NAMES, "more")}
    return {**values, "timestamp": TIME if body.get("timestamp") else None}


def table(spark: SparkSession, source: str, store: Path, **options: object) -> DataFrame:
    """A table with the columns."""
    given = {"bodySchema": str(store.parent / "columns.toml"), **options}
    reader = spark.read.format(source)
    for key, value in given.items():
        reader = reader.option(key, str(value))
    return reader.load(str(store))


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("settings", [{}, {"spark.sql.timestampType": "TIMESTAMP_NTZ"}], ids=str)
def test_bodies_have_columns(
    spark: SparkSession, store: Path, source: str, settings: dict[str, str]
) -> None:
    """Plain and compressed ones, with the column ``body`` and without."""
    reput.sources.register(spark)
    for key, value in settings.items():
        spark.conf.set(key, value)
    try:
        for options in ({}, {"includeBody": "false"}, {"inflateBodies": "false"}):
            frame = table(spark, source, store, **options)
            assert frame.columns[-2:] == ["json", "badBody"]
            assert ("body" in frame.columns) == ("includeBody" not in options)
            rows = frame.where("topic = 'Topic'").orderBy("physicalOffset").collect()
            assert [row.badBody for row in rows] == [bad for _, bad in BODIES]
            found = [row.json and row.json.asDict() for row in rows]
            for values in filter(None, found):
                time = values["timestamp"]
                values["timestamp"] = time and time.astimezone(UTC)
            assert found == [wanted(*each) for each in BODIES]
        # a condition on a field of a struct is Spark's alone
        assert frame.where("json.order = 2").count() == 1
    finally:
        for key in settings:
            spark.conf.unset(key)


@pytest.mark.parametrize("source", SOURCES)
def test_a_stream_has_them_too(
    spark: SparkSession, store: Path, tmp_path: Path, source: str
) -> None:
    """Before the column of the store."""
    reput.sources.register(spark)
    reader = spark.readStream.format(source).option("startingOffsets", "earliest")
    reader = reader.option("bodySchema", f"file://{tmp_path}/columns.toml")
    frame = reader.option("includeStore", "true").option("includeBody", "false").load(str(store))
    assert frame.columns[-3:] == ["json", "badBody", "store"]
    writer = frame.select("json.order", "store").writeStream.format("parquet")
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    writer.option("path", str(tmp_path / "sink")).trigger(
        availableNow=True
    ).start().awaitTermination()
    rows = spark.read.parquet(str(tmp_path / "sink")).collect()
    assert sorted(row.order for row in rows if row.order) == [2, 1 << 40]
    assert {row.store for row in rows} == {str(store)}


@pytest.mark.parametrize("source", SOURCES)
def test_a_topic_without_a_declaration_has_nulls(
    spark: SparkSession, store: Path, source: str
) -> None:
    """Nobody said that its bodies are JSON."""
    reput.sources.register(spark)
    other = store.parent / "other.json"
    other.write_text('{"Other": {"note": "string"}}')
    frame = table(spark, source, store, bodySchema=other)
    assert frame.where("json is null and badBody is null").count() == len(BODIES)


@pytest.mark.parametrize("source", SOURCES)
def test_a_wrong_declaration_fails_at_load(spark: SparkSession, store: Path, source: str) -> None:
    """With the file and the reason."""
    reput.sources.register(spark)
    wrong = store.parent / "wrong.toml"
    wrong.write_text('[Topic]\norder = "number"\n')
    for path, reason in ((wrong, "must be one of"), (store.parent / "none.toml", "No such file")):
        with pytest.raises(PySparkException, match=f"cannot take columns from {path}.*{reason}"):
            table(spark, source, store, bodySchema=path)


NESTED = {
    "items": [{"sku": "x", "price": 1.25}, None],
    "labels": {"a": ["b", None], "c": None},
    "day": "2026-01-02",
    "inner": {"deep": {"flag": True}},
}
NESTED_SCHEMA = """
[Topic]
items = [{ sku = "string", price = "decimal(10,2)" }]
labels = { "*" = ["string"] }
day = "date"
inner = { deep = { flag = "boolean" } }
"""
AVRO_SCHEMA = {
    "type": "record", "name": "R",
    "fields": [
        {"name": "half", "type": "float"},
        {"name": "hash", "type": {"type": "fixed", "name": "H", "size": 2}},
        {"name": "many", "type": {"type": "map", "values": {"type": "array", "items": "long"}}},
    ],
}  # fmt: skip
DATUM = {"half": 0.5, "hash": b"ab", "many": {"k": [1, 2]}}


def datum() -> bytes:
    """The bytes of DATUM."""
    stream = BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(AVRO_SCHEMA), DATUM)
    return stream.getvalue()


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("mode", ["batch", "stream"])
@pytest.mark.parametrize(
    ("schema", "body", "expected"),
    [
        (
            NESTED_SCHEMA,
            json.dumps(NESTED).encode(),
            {**NESTED, "items": [{"sku": "x", "price": Decimal("1.25")}, None],
             "day": date(2026, 1, 2)},
        ),
        ('[Topic]\navro-schema = "r.avsc"\n', datum(), {**DATUM, "hash": bytearray(b"ab")}),
    ],
    ids=["json", "avro"],
)  # fmt: skip
def test_nested_types_and_avro(
    spark: SparkSession, tmp_path: Path, source: str, mode: str, schema: str, body: bytes,
    expected: dict[str, Any],
) -> None:  # fmt: skip
    """Tasks get the schemas that the driver has read."""
    reput.sources.register(spark)
    made = SmallStore(tmp_path / "store")
    made.append(body=body)
    store = made.write()
    (tmp_path / "r.avsc").write_text(json.dumps(AVRO_SCHEMA))
    (tmp_path / "columns.toml").write_text(schema)
    if mode == "batch":
        (row,) = table(spark, source, store).collect()
    else:
        reader = spark.readStream.format(source).option("startingOffsets", "earliest")
        frame = reader.option("bodySchema", f"{tmp_path}/columns.toml").load(str(store))
        query = frame.writeStream.format("memory").queryName("nested")
        query.trigger(availableNow=True).start().awaitTermination()
        (row,) = spark.table("nested").collect()
    found = row.asDict(recursive=True)
    assert found["badBody"] is False
    assert found["avro" if "avro" in schema else "json"] == expected
