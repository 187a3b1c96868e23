"""Queries over queues that grow: new queues, restarts, expired files, the watermark.

The log is a golden store's; its queues are built into an output in steps, as a dispatcher does it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery
from pyspark.sql.streaming.datasource import ReadAllAvailable

from reput.store.config import read_store_settings
from reput.store.errors import CommitLogDataLossError
from reput.store.log.commitlog import CommitLog
from tests.sources.test_queue_contract import ends_of, stream_reader
from tests.sources.test_rows import reference
from tests.support.micro_batches import plain
from tests.support.outputs import Output, Setup
from tests.support.queue_units import queue_units


class Growing:
    """A finished log, whose queues are built as far as the test wants."""

    def __init__(self, store: Path, output: Path) -> None:
        settings = read_store_settings(store)
        self.store, self.output = store, output
        self.records = [found for found in reference(store) if found.transaction_type in (0, 8)]
        setup = Setup(
            CommitLog(settings.commit_log_directories),
            output,
            settings.mapped_file_size_consume_queue,
            {found.physical_offset: found.queue_offset for found in self.records},
        )
        output.mkdir()
        self._dispatcher = Output(setup)

    def build(self, count: int) -> None:
        """Dispatch the first ``count`` messages."""
        last = self.records[count - 1]
        self._dispatcher.run(last.physical_offset + last.total_size)

    def dispatch_without_watermark(self, count: int) -> None:
        """Write units that are not durable yet."""
        last = self.records[count - 1]
        self._dispatcher.dispatch(last.physical_offset + last.total_size)


def start(
    spark: SparkSession, growing: Growing, directory: Path, *, once: bool, **options: str
) -> StreamingQuery:
    """A stream of where messages are into Parquet files, over the checkpoint of ``directory``."""
    frame = spark.readStream.format("rocketmq-consumequeue").option("path", str(growing.store))
    for key, value in {"output": str(growing.output), **options}.items():
        frame = frame.option(key, value)
    columns = "topic", "queueId", "queueOffset", "physicalOffset"
    writer = frame.load().select(*columns).writeStream.format("parquet")
    writer = writer.option("checkpointLocation", str(directory / "checkpoint"))
    writer = writer.option("path", str(directory / "sink"))
    trigger = {"availableNow": True} if once else {"processingTime": "0 seconds"}
    return writer.trigger(**trigger).start()


def found(spark: SparkSession, directory: Path) -> list[tuple[object, ...]]:
    """The rows of the sink, sorted."""
    return sorted(tuple(row) for row in spark.read.parquet(str(directory / "sink")).collect())


def test_a_stream_survives_new_queues_and_restarts(
    spark: SparkSession, golden: Callable[[str], Path], tmp_path: Path
) -> None:
    """Each message once: queues come while the query runs, and while it does not."""
    growing = Growing(golden("plain"), tmp_path / "output")
    growing.build(5)
    query = start(spark, growing, tmp_path, once=False, startingOffsets="earliest")
    try:
        query.processAllAvailable()
        assert len(found(spark, tmp_path)) == 5
        first = json.loads(query.lastProgress["sources"][0]["endOffset"])
        growing.build(900)
        query.processAllAvailable()
        assert len(found(spark, tmp_path)) == 900
        later = json.loads(query.lastProgress["sources"][0]["endOffset"])
        assert plain(later) == ends_of(growing.output)
        assert sum(map(len, first.values())) < sum(map(len, later.values()))
    finally:
        query.stop()
    growing.build(len(growing.records))
    options = {"startingOffsets": "latest", "maxOffsetsPerTrigger": "800"}
    again = start(spark, growing, tmp_path, once=True, **options)
    again.awaitTermination()
    assert len(again.recentProgress) > 2
    assert found(spark, tmp_path) == [
        (unit.topic, unit.queue_id, unit.queue_offset, unit.offset)
        for unit in queue_units(growing.store)
    ]


def test_what_a_report_or_a_plan_sees_first_is_not_missed(
    golden: Callable[[str], Path], tmp_path: Path
) -> None:
    """Spark asks for a report after each look at the ends, and for partitions after that: the
    watermark may move in between, and stay where it is afterwards."""
    growing = Growing(golden("plain"), tmp_path / "output")
    growing.build(5)
    reader = stream_reader(growing.store, output=growing.output, startingOffsets="earliest")
    begin = reader.initialOffset()
    ends = [reader.latestOffset(begin, ReadAllAvailable())]
    growing.build(300)
    assert reader.reportLatestOffset() == ends_of(growing.output)
    ends.append(reader.latestOffset(ends[0], ReadAllAvailable()))
    assert plain(ends[1]) == ends_of(growing.output)
    growing.build(600)
    assert reader.partitions(ends[0], ends[1])
    ends.append(reader.latestOffset(ends[1], ReadAllAvailable()))
    assert plain(ends[2]) == ends_of(growing.output)
    assert reader.latestOffset(ends[2], ReadAllAvailable()) == ends[2]


def test_expired_files_stop_a_stream_or_are_passed_over(
    spark: SparkSession, golden: Callable[[str], Path], tmp_path: Path
) -> None:
    """The same checkpoint with failOnDataLoss both ways."""
    growing = Growing(golden("plain"), tmp_path / "output")
    growing.build(100)
    options = {"startingOffsets": "earliest"}
    start(spark, growing, tmp_path, once=True, **options).awaitTermination()
    growing.build(len(growing.records))
    files = sorted((growing.store / "commitlog").iterdir())
    for file in files[:2]:
        file.unlink()
    with pytest.raises(StreamingQueryException, match=r"COMMITLOG_DATA_LOSS\.START_BELOW_MIN"):
        start(spark, growing, tmp_path, once=True, **options).awaitTermination()
    assert len(found(spark, tmp_path)) == 100
    lax = {**options, "failOnDataLoss": "false"}
    start(spark, growing, tmp_path, once=True, **lax).awaitTermination()
    before = {record.physical_offset for record in growing.records[:100]}
    kept = [u for u in queue_units(growing.store) if u.offset in before or u.offset >= 2 * 262144]
    assert [row[3] for row in found(spark, tmp_path)] == [unit.offset for unit in kept]


def test_only_what_is_below_the_watermark_is_there(
    golden: Callable[[str], Path], tmp_path: Path
) -> None:
    """Units beyond it may have holes; and the end that a query was promised stays."""
    growing = Growing(golden("plain"), tmp_path / "output")
    growing.build(300)
    reader = stream_reader(growing.store, output=growing.output, startingOffsets="earliest")
    begin = reader.initialOffset()
    durable = ends_of(growing.output)
    growing.dispatch_without_watermark(900)
    assert ends_of(growing.output) != durable
    assert plain(stream_reader(growing.store, output=growing.output).initialOffset()) == durable
    assert plain(reader.latestOffset(begin, ReadAllAvailable())) == durable
    reader.prepareForTriggerAvailableNow()
    growing.build(1200)
    assert plain(reader.latestOffset(begin, ReadAllAvailable())) == durable
    fresh = stream_reader(growing.store, output=growing.output)
    assert plain(fresh.latestOffset(begin, ReadAllAvailable())) == ends_of(growing.output)


def test_a_broker_without_a_watermark_is_followed(golden: Callable[[str], Path]) -> None:
    """Its queues' own ends count: units that come, files that come, queues that come."""
    store = golden("broker")
    whole = {path: path.read_bytes() for path in (store / "consumequeue").rglob("0" * 15 + "*")}
    for path in whole:
        path.unlink()
    queue = store / "consumequeue" / "Orders" / "2"
    first, second = queue / f"{0:020d}", queue / f"{20000:020d}"
    first.write_bytes(whole[first][:2000].ljust(20000, b"\0"))
    follow = partial(stream_reader, store, failOnDataLoss="false")  # the other queues are missing
    reader = follow()
    offset = reader.initialOffset()
    assert plain(offset) == {"Orders": {"2": 100}}
    for path, data in ((first, whole[first]), (second, whole[second][:20].ljust(20000, b"\0"))):
        path.write_bytes(data)
    assert plain(follow().initialOffset()) == {"Orders": {"2": 1001}}
    for path, data in whole.items():
        path.write_bytes(data)
    reader.prepareForTriggerAvailableNow()
    assert plain(reader.latestOffset(offset, ReadAllAvailable())) == ends_of(store)


def test_an_offset_of_another_source(golden: Callable[[str], Path]) -> None:
    """No setting helps but a fresh checkpoint."""
    store = golden("plain")
    with pytest.raises(CommitLogDataLossError, match=r"FOREIGN_OFFSET.*begin anew") as raised:
        stream_reader(store).latestOffset({"offset": 7}, ReadAllAvailable())
    assert "failOnDataLoss" not in str(raised.value)
    reader = stream_reader(store, startingOffsets="earliest")
    begin = reader.initialOffset()
    assert reader.latestOffset(begin, ReadAllAvailable()) != begin
