"""Rows of both sources under settings of a session that change types or the meaning of values."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from reput.readers.export import RowSelection
from reput.sources.schemas import check_schema, rows_schema
from reput.store.errors import UsageError
from tests.readers.stores import SmallStore
from tests.readers.test_export import exported

FIRST_MS = 1_700_000_000_000
MESSAGES = 100
LATER = datetime(2023, 11, 14, 23, 3, 20, tzinfo=UTC)
"""50 minutes after the first message."""
SETTINGS: tuple[dict[str, str], ...] = (
    {},
    {"timestampType": "TIMESTAMP_NTZ"},
    {"timestampType": "TIMESTAMP_NTZ", "session.timeZone": "Asia/Shanghai"},
    {"timestampType": "TIMESTAMP_NTZ", "session.timeZone": "America/New_York",
     "python.filterPushdown.enabled": "true"},
    {"session.timeZone": "Asia/Shanghai", "datetime.java8API.enabled": "true"},
    {"ansi.enabled": "false", "caseSensitive": "true"},
    {"ansi.enabled": "true", "ansi.enforceReservedKeywords": "true"},
    {"execution.arrow.maxRecordsPerBatch": "7", "execution.arrow.useLargeVarTypes": "true",
     "execution.arrow.compression.codec": "zstd"},
    {"execution.arrow.pyspark.enabled": "true", "execution.arrow.pyspark.selfDestruct.enabled":
     "true"},
    {"charAsVarchar": "true", "legacy.charVarcharAsString": "true"},
    {"legacy.timeParserPolicy": "LEGACY", "legacy.typeCoercion.datetimeToString.enabled": "true"},
    {"parquet.inferTimestampNTZ.enabled": "false", "parquet.outputTimestampType": "INT96"},
)  # fmt: skip


def small_store(root: Path) -> Path:
    """A message a minute in one queue."""
    store = SmallStore(root)
    for number in range(MESSAGES):
        at = FIRST_MS + number * 60_000
        store.append(store_timestamp=at, born_timestamp=at - 1, body=b"%d" % number)
    return store.write()


@pytest.fixture(scope="module")
def frames(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A store and the Parquet files of its export."""
    directory = tmp_path_factory.mktemp("settings")
    store = small_store(directory / "store")
    exported(store, directory / "parquet", RowSelection())
    return [store, directory / "parquet"]


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda each: ",".join(each) or "none")
def test_instants_are_instants_in_every_session(
    spark: SparkSession, frames: list[Path], settings: dict[str, str]
) -> None:
    """Times are TIMESTAMP_LTZ in both sources, in streams too, and in exported files; a filter by
    instant finds what was stored then or later, and every time is the one that was stored."""
    store, parquet = frames
    for name, value in settings.items():
        spark.conf.set(f"spark.sql.{name}", value)
    try:
        tables = {
            "log": spark.read.format("rocketmq-commitlog").load(str(store)),
            "queues": spark.read.format("rocketmq-consumequeue").load(str(store)),
            "parquet": spark.read.parquet(str(parquet)),
        }
        stream = spark.readStream.format("rocketmq-consumequeue").load(str(store))
        types = [dict(table.dtypes)["storeTimestamp"] for table in (*tables.values(), stream)]
        assert types == ["timestamp"] * 4
        found = _with_names(tables).where(f.col("storeTimestamp") >= f.lit(LATER)).collect()
    finally:
        for name in settings:
            spark.conf.unset(f"spark.sql.{name}")
    for name in tables:
        rows = sorted((row for row in found if row.name == name), key=lambda row: row.stored)
        times = [FIRST_MS + number * 60_000 for number in range(50, MESSAGES)]
        assert [row.stored for row in rows] == times
        assert [row.born for row in rows] == [time - 1 for time in times]
        assert [row.storeTimestamp.timestamp() * 1000 for row in rows] == times
        assert [row.body for row in rows] == [str(number) for number in range(50, MESSAGES)]
        assert {(row.topic, row.queueId, row.tags) for row in rows} == {("Topic", 0, None)}


def _with_names(tables: dict[str, DataFrame]) -> DataFrame:
    whole = None
    for name, table in tables.items():
        part = table.select(
            f.lit(name).alias("name"), "topic", "queueId", "tags", "storeTimestamp",
            f.unix_millis("storeTimestamp").alias("stored"),
            f.unix_millis("bornTimestamp").alias("born"), f.decode("body", "utf-8").alias("body"),
        )  # fmt: skip
        whole = part if whole is None else whole.union(part)
    assert whole is not None
    return whole


@pytest.mark.usefixtures("spark")
def test_a_schema_of_other_types_is_refused() -> None:
    """It is, too, where it names the same columns: TIMESTAMP_NTZ makes wall times of instants."""
    fixed = rows_schema(True, True)
    check_schema("a source", StructType.fromDDL(fixed), fixed)
    for text, other in (("timestamp_ltz", "timestamp_ntz"), ("bigint", "int"), ("topic", "Topic")):
        with pytest.raises(UsageError, match="schema of a source is fixed"):
            check_schema("a source", StructType.fromDDL(fixed.replace(text, other)), fixed)
