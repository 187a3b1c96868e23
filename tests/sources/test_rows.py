"""The public rows of the source, against the plain decoder and against RocketMQ's own facts."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from chispa import assert_df_equality
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.datasource import DataSource
from pyspark.sql.pandas.types import from_arrow_schema

from reput.sources.commitlog import CommitLogBatchReader, CommitLogDataSource
from reput.sources.commitlogoptions import CommitLogOptions
from reput.store.config import read_store_settings
from reput.store.errors import UsageError
from reput.store.log import java
from reput.store.log.commitlog import CommitLog
from reput.store.log.cursor import records
from reput.store.log.logtail import LogTail
from reput.store.log.record import Record
from reput.store.log.sysflag import SysFlag
from reput.store.rows.rowschema import ROWS_SCHEMA
from tests.support.golden import GOLDEN_NAMES
from tests.support.plain_rows import CODECS, TRANSACTION_TYPES, plain_row

EVERYTHING: dict[str, object] = {"includeInternal": True, "inflateBodies": False}
"""Options that make each record a row, as it is."""


def read(
    spark: SparkSession,
    store: Path,
    source: type[DataSource] = CommitLogDataSource,
    **options: object,
) -> DataFrame:
    """A batch read of every record of a store, as stored unless ``options`` say otherwise."""
    reader = spark.read.format(source.name()).option("path", str(store))
    for key, value in {**EVERYTHING, **options}.items():
        reader = reader.option(key, str(value))
    return reader.load()


def reference(store: Path) -> list[Record]:
    """Every record of a store, decoded the plain way."""
    settings = read_store_settings(store)
    log = CommitLog(settings.commit_log_directories)
    end = LogTail(log).settled()
    return [found for found in records(log, log.min_offset, end) if isinstance(found, Record)]


def expected_row(record: Record) -> tuple[Any, ...]:
    """A record as a row, in the order of the public schema."""
    row = plain_row(record)
    return tuple(
        {**row, "properties": dict(row["properties"]), "body": bytearray(row["body"])}.values()
    )


@pytest.mark.extended
@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_rows_equal_the_reference_decoder(
    spark: SparkSession, golden: Callable[[str], Path], name: str
) -> None:
    """Every column of every record, over several partitions."""
    store = golden(name)
    frame = read(spark, store, minPartitions=3)
    rows = [expected_row(record) for record in reference(store)]
    assert_df_equality(
        frame.orderBy("physicalOffset").drop("properties"),
        spark.createDataFrame(rows, frame.schema, verifySchema=False).drop("properties"),
    )
    found = frame.orderBy("physicalOffset").select("properties").collect()
    assert [row.properties for row in found] == [row[18] for row in rows]


def test_counts_by_topic_and_type_equal_the_reference(
    spark: SparkSession, golden: Callable[[str], Path]
) -> None:
    """An analyst's first questions, on the store with every record type."""
    store = golden("mixed")
    found = read(spark, store).groupBy("topic", "transactionType").count().collect()
    wanted = Counter(
        (java.decode(record.topic), TRANSACTION_TYPES[record.transaction_type])
        for record in reference(store)
    )
    assert {(row.topic, row.transactionType): row["count"] for row in found} == dict(wanted)
    assert len({kind for _, kind in wanted}) == 4


def test_bodies_stay_as_stored_unless_inflated(
    spark: SparkSession, golden: Callable[[str], Path]
) -> None:
    """zlib, lz4 and zstd bodies; inflated ones equal what other libraries make of them."""
    store = golden("mixed")
    stored = {
        record.physical_offset: record
        for record in reference(store)
        if record.sys_flag & SysFlag.COMPRESSED
    }
    compressed = read(spark, store).where("bodyCompression is not null")
    plain = read(spark, store, inflateBodies=True).where(f.col("sysFlag").bitwiseAND(1) == 1)
    kinds: set[str] = set()
    for row in compressed.select("physicalOffset", "body", "bodyCompression").collect():
        assert bytes(row.body) == stored[row.physicalOffset].body
        kinds.add(row.bodyCompression)
    assert kinds == {"zlib", "lz4", "zstd"}
    for row in plain.select("physicalOffset", "body", "bodyCompression").collect():
        record = stored[row.physicalOffset]
        assert row.bodyCompression is None
        codec = CODECS[record.sys_flag & SysFlag.COMPRESSION_MASK]
        if codec == "zlib":
            assert bytes(row.body) == zlib.decompress(record.body)
        else:
            plain_body = pa.CompressedInputStream(pa.BufferReader(record.body), codec).read()
            assert bytes(row.body) == plain_body


def test_body_above_the_cap_stays_as_stored(
    spark: SparkSession, golden: Callable[[str], Path]
) -> None:
    """No message can make a reader inflate without bound."""
    frame = read(spark, golden("mixed"), inflateBodies=True, maxInflatedBytes=64)
    flagged = frame.where("bodyCompression is not null").count()
    assert flagged == frame.where(f.col("sysFlag").bitwiseAND(1) == 1).count() > 0


def test_columns_can_be_left_out(spark: SparkSession, golden: Callable[[str], Path]) -> None:
    """includeBody and includeProperties."""
    frame = read(spark, golden("plain"), includeBody=False, includeProperties=False)
    assert {"body", "properties"}.isdisjoint(frame.columns)
    assert frame.count() == 3170


def test_read_between_offsets_and_times(spark: SparkSession, golden: Callable[[str], Path]) -> None:
    """Starts are inclusive, ends exclusive, both for offsets and for storeTimestamp."""
    store = golden("mixed")
    found = reference(store)
    first, last = found[100], found[2000]
    frame = read(
        spark, store, startingOffsets=first.physical_offset, endingOffsets=last.physical_offset
    )
    assert frame.count() == 1900
    assert frame.agg(f.min("physicalOffset")).first()[0] == first.physical_offset  # type: ignore[index]
    times = sorted({record.store_timestamp for record in found})
    low, high = times[len(times) // 3], times[2 * len(times) // 3]
    frame = read(spark, store, startingTimestamp=low, endingTimestamp=high)
    count = sum(low <= record.store_timestamp < high for record in found)
    assert frame.count() == count
    low, high = (datetime.fromtimestamp(at / 1000, UTC).isoformat() for at in (low, high))
    assert read(spark, store, startingTimestamp=low, endingTimestamp=high).count() == count


def test_damaged_range_is_a_row_that_says_why(
    spark: SparkSession, golden: Callable[[str], Path]
) -> None:
    """Every sound record around it is there; onCorrupt=fail stops with the position."""
    store = golden("plain")
    victim = reference(store)[1000]
    file = sorted((store / "commitlog").iterdir())[victim.physical_offset // 262144]
    with file.open("r+b") as out:
        out.seek(victim.physical_offset % 262144 + 4)
        out.write(b"\x00\x00\x00\x01")
    frame = read(spark, store)
    assert frame.where("corruptReason is null").count() == 3169
    (bad,) = frame.where("corruptReason is not null").collect()
    assert (bad.physicalOffset, bad.storeSize, bad.corruptReason, bad.topic) == (
        victim.physical_offset, victim.total_size, "bad_magic", None,
    )  # fmt: skip
    with pytest.raises(PySparkException, match=f"physical offset {victim.physical_offset}"):
        read(spark, store, onCorrupt="fail").count()


def test_wrong_body_is_found_with_verify_crc_only(
    spark: SparkSession, golden: Callable[[str], Path]
) -> None:
    """RocketMQ's reput never checks bodies; we do when asked."""
    store = golden("plain")
    victim = reference(store)[10]
    file = sorted((store / "commitlog").iterdir())[0]
    with file.open("r+b") as out:
        out.seek(victim.physical_offset + 88)
        out.write(bytes([victim.body[0] ^ 1]))
    assert read(spark, store).where("corruptReason is not null").count() == 0
    (bad,) = read(spark, store, verifyCrc=True).where("corruptReason is not null").collect()
    assert (bad.physicalOffset, bad.corruptReason) == (victim.physical_offset, "bad_body_crc")


def test_a_batch_read_that_ends_before_it_begins_is_refused(golden: Callable[[str], Path]) -> None:
    """By a record, the last one of the log, too, and by a time; at one place there is nothing."""
    store = golden("plain")
    *_, before, last = (one.physical_offset for one in reference(store))

    def parts(**ends: str) -> Sequence[object]:
        options = {"path": str(store), "startingOffsets": str(last), **ends}
        reader = CommitLogBatchReader(CommitLogOptions(options), from_arrow_schema(ROWS_SCHEMA))
        return reader.partitions()

    assert parts(endingOffsets=str(last)) == []
    for ends, place in ({"endingOffsets": str(before)}, before), ({"endingTimestamp": "1"}, 0):
        with pytest.raises(UsageError, match=f"would end at {place}, before its start at {last}"):
            parts(**ends)
