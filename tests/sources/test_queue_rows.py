"""Messages by way of their queues: against RocketMQ's units and the plain decoder of its log.

Axes: golden stores with every kind of queue, tags, topics, queues, pushed filters; how many bytes a
pruned read takes is counted by the kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from chispa import assert_df_equality
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from reput.filters.java import hash_code
from reput.sources.consumequeue import ConsumeQueueBatchReader, ConsumeQueueDataSource
from reput.sources.pushdown import SETTING
from reput.sources.queueoptions import ConsumeQueueOptions
from reput.store.errors import CorruptRecordError, UsageError
from reput.store.log.record import Record
from reput.store.rows.rowschema import ROWS_SCHEMA
from tests.sources.test_rows import EVERYTHING, expected_row, reference
from tests.sources.test_rows import read as rows_read
from tests.support.golden import GOLDEN_CASES, GOLDEN_NAMES
from tests.support.processes import bytes_read
from tests.support.queue_units import Placed, queue_units

read = partial(rows_read, source=ConsumeQueueDataSource)
"""A batch read of a store's queues."""


def batch_reader(store: Path, **options: object) -> ConsumeQueueBatchReader:
    """The reader as Spark makes it, of every record as stored unless ``options`` say otherwise."""
    given = {key: str(value) for key, value in {**EVERYTHING, **options}.items()}
    return ConsumeQueueBatchReader(
        ConsumeQueueOptions({"path": str(store), **given}), from_arrow_schema(ROWS_SCHEMA)
    )


def rows_of(reader: ConsumeQueueBatchReader) -> list[dict[str, Any]]:
    """Every row, without Spark, by topic, queue and offset."""
    return in_queues(
        row
        for part in reader.partitions()
        for batch in reader.read(part)
        for row in batch.to_pylist()
    )


def in_queues(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows by topic, queue and offset."""
    return sorted(rows, key=lambda row: (row["topic"], row["queueId"], row["queueOffset"]))


def expected(store: Path) -> list[tuple[Any, ...]]:
    """For each unit the row of its record, which says where in its queue it is."""
    records: dict[int, Record] = {found.physical_offset: found for found in reference(store)}
    found = []
    for unit in queue_units(store):
        row = expected_row(records[unit.offset])
        found.append((unit.topic, unit.queue_id, unit.queue_offset, *row[3:]))
    return found


@pytest.mark.extended
@pytest.mark.parametrize("name", GOLDEN_CASES)
def test_rows_equal_the_reference_decoder(
    spark: SparkSession, golden: Callable[[str], Path], name: str
) -> None:
    """Every column of the record of every unit, over several partitions."""
    store = golden(name)
    frame = read(spark, store, maxRecordsPerPartition=900)
    found = frame.orderBy("topic", "queueId", "queueOffset").collect()
    rows = expected(store)
    assert_df_equality(
        spark.createDataFrame(found, frame.schema, verifySchema=False).drop("properties"),
        spark.createDataFrame(rows, frame.schema, verifySchema=False).drop("properties"),
    )
    assert [row.properties for row in found] == [row[18] for row in rows]


@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_where_a_message_is_and_what_its_record_says_agree(
    golden: Callable[[str], Path], name: str
) -> None:
    """Where no queue is a light one and no gap was closed up, the queue's columns are the log's."""
    store = golden(name)
    records = {found.physical_offset: expected_row(found) for found in reference(store)}
    rows = rows_of(batch_reader(store))
    assert len(rows) == len(queue_units(store))
    for row in rows:
        assert tuple(list(row.values())[:3]) == records[row["physicalOffset"]][:3]


@contextmanager
def counting_bytes() -> Iterator[list[int]]:
    """How many bytes this process asked the kernel for, as the kernel counts."""
    counted = [bytes_read()]
    yield counted
    counted[0] = bytes_read() - counted[0]


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({"tags": "TagA"}, lambda unit: unit.tags_code == hash_code("TagA")),
        ({"tags": "NoSuchTag"}, lambda _: False),
        ({"topics": "Topic_3"}, lambda unit: unit.topic == "Topic_3"),
        ({"topicPattern": "Topic|opic_1"}, lambda _: False),
        ({"topicPattern": "Topic_[12]"}, lambda unit: unit.topic in ("Topic_1", "Topic_2")),
        ({"queueIds": "1, 3"}, lambda unit: unit.queue_id in (1, 3)),
        (
            {"queueIds": "0", "tags": "TagB || TagC"},
            lambda unit: (
                unit.queue_id == 0 and unit.tags_code in (hash_code("TagB"), hash_code("TagC"))
            ),
        ),
    ],
)
def test_what_is_not_wanted_is_not_read(
    golden: Callable[[str], Path], options: dict[str, str], wanted: Callable[[Placed], bool]
) -> None:
    """Nothing of the log but the wanted records, byte for byte, and the units themselves."""
    store = golden("plain")
    rows_of(batch_reader(store, topics="Topic_0", queueIds=0))  # what is imported late is there
    units = [unit for unit in queue_units(store) if wanted(unit)]
    log_size = sum(unit.size for unit in queue_units(store))
    reader = batch_reader(store, **options)
    reader.partitions()  # a plan looks at the log's end, once
    with counting_bytes() as counted:
        rows = rows_of(reader)
    assert [row["physicalOffset"] for row in rows] == [unit.offset for unit in units]
    assert sum(unit.size for unit in units) <= counted[0]
    # 24 queues of 6,000 bytes, looked at when planned and read; directories and settings
    assert counted[0] < sum(unit.size for unit in units) + 24 * 20_000 < log_size


def test_a_tag_of_the_same_hash_is_left_out(golden: Callable[[str], Path]) -> None:
    """The text decides, as at a consumer: "Aa" and "BB" have one hash in Java."""
    store = golden("plain")
    tag = next(row["tags"] for row in rows_of(batch_reader(store)) if row["tags"])
    twin = tag[:-2] + chr(ord(tag[-2]) - 1) + chr(ord(tag[-1]) + 31)
    assert hash_code(twin) == hash_code(tag)
    with counting_bytes() as counted:
        assert rows_of(batch_reader(store, tags=twin)) == []
    assert counted[0] > sum(
        unit.size for unit in queue_units(store) if unit.tags_code == hash_code(tag)
    )


@pytest.mark.parametrize("name", ["ext", "mixed"])
def test_tags_of_ext_addresses_and_due_times(golden: Callable[[str], Path], name: str) -> None:
    """Units of ext queues hold addresses, those of delayed messages times: the same rows come."""
    store = golden(name)
    everything = rows_of(batch_reader(store))
    tags = sorted({row["tags"] for row in everything if row["tags"]})
    for tag in tags[:3]:
        found = rows_of(batch_reader(store, tags=tag))
        assert found == [row for row in everything if row["tags"] == tag]
        assert found


def test_ext_tags_prune_too(golden: Callable[[str], Path]) -> None:
    """Ext units are looked up before the log is read."""
    store = golden("ext")
    assert all(unit.tags_code < -(1 << 31) for unit in queue_units(store))
    rows_of(batch_reader(store, topics="Topic_0", queueIds=0))
    with counting_bytes() as everything:
        rows_of(batch_reader(store))
    with counting_bytes() as pruned:
        assert rows_of(batch_reader(store, tags="NoSuchTag")) == []
    assert pruned[0] < everything[0] - sum(unit.size for unit in queue_units(store)) // 2


@pytest.mark.parametrize(
    ("condition", "planned"),
    [
        ("topic = 'Topic_1'", lambda unit: unit.topic == "Topic_1"),
        (
            "topic in ('Topic_1', 'Topic_4') and queueId = 2",
            lambda unit: unit.topic in ("Topic_1", "Topic_4") and unit.queue_id == 2,
        ),
        ("queueOffset >= 100 and queueOffset < 110", lambda unit: 100 <= unit.queue_offset < 110),
        (
            "queueOffset > 149 and queueId <> 0",  # Spark pushes no inequality
            lambda unit: unit.queue_offset > 149,
        ),
        ("tags in ('TagA', 'TagB') and queueId in (0, 1)", lambda unit: unit.queue_id in (0, 1)),
        ("tags is null or topic = 'Topic_1'", lambda _: True),
        ("queueOffset = 5 and topic = 'nowhere'", lambda _: False),
        ("storeTimestamp > timestamp_millis(0) and queueId = 1", lambda unit: unit.queue_id == 1),
    ],
)
def test_pushed_filters_change_what_is_read_not_what_is_found(
    spark: SparkSession,
    golden: Callable[[str], Path],
    condition: str,
    planned: Callable[[Placed], bool],
) -> None:
    """The rows that Spark finds without a push; units that a filter rules out are not planned."""
    store = golden("plain")
    wanted = read(spark, store).where(condition).orderBy("physicalOffset").drop("properties")
    rows = wanted.collect()
    spark.conf.set(SETTING, True)
    try:
        pushed = read(spark, store).where(condition)
        assert pushed.orderBy("physicalOffset").drop("properties").collect() == rows
        single = read(spark, store, maxRecordsPerPartition=1).where(condition)
        # an empty plan has one partition
        units = max(1, sum(map(planned, queue_units(store))))
        assert single.rdd.getNumPartitions() == units
    finally:
        spark.conf.unset(SETTING)


def test_a_damaged_record_has_a_row(golden: Callable[[str], Path]) -> None:
    """It says which message of the queue is lost, unless the read is to stop there."""
    store = golden("plain")
    victim = queue_units(store)[40]
    file = sorted((store / "commitlog").iterdir())[victim.offset // 262144]
    with file.open("r+b") as out:
        out.seek(victim.offset % 262144 + 4)
        out.write(b"\0\0\0\1")
    (bad,) = [row for row in rows_of(batch_reader(store)) if row["corruptReason"]]
    assert (bad["topic"], bad["queueId"], bad["queueOffset"], bad["physicalOffset"]) == (
        victim.topic, victim.queue_id, victim.queue_offset, victim.offset
    )  # fmt: skip
    assert bad["corruptReason"] == "bad_magic"
    with pytest.raises(CorruptRecordError, match=rf"BAD_MAGIC.*offset {victim.offset}"):
        rows_of(batch_reader(store, onCorrupt="fail"))


def test_a_topic_of_both_kinds_is_refused(golden: Callable[[str], Path]) -> None:
    """Nothing says which of the two queues is meant."""
    store = golden("batch")
    (topic,) = (store / "batchconsumequeue").iterdir()
    other = store / "consumequeue" / topic.name / "0"
    other.mkdir(parents=True)
    with pytest.raises(UsageError, match=f"topic {topic.name} has queues of both kinds"):
        rows_of(batch_reader(store))
