"""Batches that wait for more messages, as Spark's Kafka source holds them back."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
)

from reput.sources.commitlogoptions import CommitLogOptions
from reput.sources.options import SourceOptions, parse_duration_ms
from reput.sources.queueoptions import ConsumeQueueOptions
from reput.sources.triggerdelay import MessageCount, TriggerDelay
from reput.store.errors import UsageError
from reput.store.log.commitlog import CommitLog
from reput.store.log.record import Record
from reput.workload.appender import Appender
from tests.sources import test_contract, test_queue_contract
from tests.sources.test_queue_stream import Growing, found, start
from tests.support.micro_batches import plain
from tests.support.wire import PlainLog

NEVER = {"maxTriggerDelay": "1000d"}


@pytest.mark.parametrize("options", [CommitLogOptions, ConsumeQueueOptions])
def test_options_of_held_batches(
    options: Callable[[dict[str, str]], SourceOptions], tmp_path: Path
) -> None:
    """A smallest batch above the largest is refused; the delay is 15 minutes, as at Kafka."""
    given = {"path": str(tmp_path), "maxOffsetsPerTrigger": "7"}
    assert options({**given, "minOffsetsPerTrigger": "7"})["maxTriggerDelay"] == 15 * 60_000
    with pytest.raises(UsageError, match=r"minOffsetsPerTrigger is 8.*which is 7"):
        options({**given, "minOffsetsPerTrigger": "8"})
    with pytest.raises(UsageError, match=r"option maxTriggerDelay is 'soon'.*500ms, 30s"):
        options({**given, "maxTriggerDelay": "soon"})


@pytest.mark.parametrize(
    ("text", "ms"),
    [("0", 0), ("250", 250), (" 15M ", 900_000), ("2min", 120_000), ("30s", 30_000),
     ("1h", 3_600_000), ("1d", 86_400_000), ("7ms", 7), ("1999us", 1)],
)  # fmt: skip
def test_durations_are_those_of_spark(text: str, ms: int) -> None:
    """A number alone is milliseconds."""
    assert parse_duration_ms(text) == ms


@pytest.mark.parametrize("text", ["", "-1s", "1.5s", "1 s", "1w", "s"])
def test_other_durations_are_refused(text: str) -> None:
    """The error shows the forms."""
    with pytest.raises(ValueError, match="must be a time such as"):
        parse_duration_ms(text)


def held(looks: list[tuple[float, int]], least: str = "10", delay: str = "60s") -> str:
    """For looks at (seconds, messages there): ``.`` where the batch is held, ``B`` where not."""
    options = CommitLogOptions(
        {"path": "/", "minOffsetsPerTrigger": least, "maxTriggerDelay": delay}
    )
    now = [0.0]
    delayed = TriggerDelay(options, lambda: now[0])
    limit = delayed.limit(None)
    shown = ""
    for at, count in looks:
        now[0] = at
        shown += "." if delayed.holds(limit, partial(int, count)) else "B"
    return shown


@pytest.mark.parametrize(
    ("looks", "shown"),
    [
        ([(0, 1), (1, 1), (2, 9), (3, 10), (4, 1)], "B..B."),  # the first look takes what is there
        ([(0, 1), (59, 1), (60, 1), (61, 9), (119, 9), (120, 0)], "B.B..B"),
        ([(0, 0), (1, 1), (60, 1), (61, 1)], "B.B."),  # an empty look counts, too
        ([(0, 0), (30, 10), (61, 1), (90, 1)], "BB.B"),  # the delay began again at 30
    ],
)
def test_a_batch_waits_for_messages_or_for_the_delay(
    looks: list[tuple[float, int]], shown: str
) -> None:
    """``delayBatch`` of KafkaMicroBatchStream, look by look."""
    assert held(looks) == shown


def test_without_a_least_number_nothing_waits() -> None:
    """Trigger.Once is told by ReadAllAvailable, which no limit of ours may be then."""
    bare = TriggerDelay(CommitLogOptions({"path": "/"}))
    assert bare.limit(None) == ReadAllAvailable()
    assert not any(bare.holds(ReadAllAvailable(), lambda: 0) for _ in range(3))
    least = TriggerDelay(CommitLogOptions({"path": "/", "minOffsetsPerTrigger": "5"}))
    assert least.limit(None) == ReadMinRows(5)
    assert least.limit(ReadMaxBytes(9)) == ReadMaxBytes(9)
    assert [least.holds(ReadMinRows(5), lambda: 0) for _ in range(2)] == [False, True]
    assert not least.holds(ReadAllAvailable(), lambda: 0)


@pytest.mark.parametrize("step", [1, 3, 7])
def test_messages_are_counted_as_they_come(tmp_path: Path, step: int) -> None:
    """From each beginning, over the ends of files, up to as many as are asked for; those that are
    left where the log was cut."""
    log = PlainLog(1024, 0)
    for _ in range(30):
        log.append(body=b"b" * 40)
    opened = CommitLog([log.write(tmp_path / "commitlog")], 1024)
    count = MessageCount(opened)
    for begin, _ in log.spans[::5]:
        for _, end in log.spans[step::step]:
            inside = sum(begin <= at < end for at, _ in log.spans)
            assert count.within(begin, end, 1000) == inside
            assert min(count.within(begin, end, 4), 4) == min(inside, 4)
        cut = log.spans[step][1]
        assert count.within(begin, cut, 1000) == sum(begin <= at < cut for at, _ in log.spans)
    opened.close()


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("most", [{}, {"maxOffsetsPerTrigger": "4"}, {"maxBytesPerTrigger": "1g"}])
def test_a_stream_of_the_log_waits(tmp_path: Path, most: dict[str, str]) -> None:
    """For four messages; a fixed end is reached at once."""
    options = {"startingOffsets": "earliest", "minOffsetsPerTrigger": "4", **NEVER, **most}
    with Appender(tmp_path / "store", file_size=1 << 16) as appender:
        appender.append(Record(topic=b"T", body=b"0"))
        reader = test_contract.stream_reader(tmp_path / "store", **options)
        limit = reader.getDefaultReadLimit()
        first = reader.latestOffset(reader.initialOffset(), limit)
        assert first["offset"] == appender.end_offset
        for number in range(3):
            appender.append(Record(topic=b"T", body=b"%d" % number))
            assert reader.latestOffset(first, limit) is first
        assert reader.latestOffset(first, ReadAllAvailable()) != first
        appender.append(Record(topic=b"T", body=b"4"))
        # a last record is sealed by the second look
        looks = [reader.latestOffset(first, limit) for _ in range(2)]
        while looks[-1] is first:
            looks.append(reader.latestOffset(first, limit))
        assert looks[-1]["offset"] == appender.end_offset
        appender.append(Record(topic=b"T", body=b"5"))
        reader.prepareForTriggerAvailableNow()
        assert reader.latestOffset(looks[-1], limit)["offset"] == appender.end_offset
        reader.stop()


@pytest.mark.parametrize("limit", [ReadMinRows(100), ReadMaxRows(400)])
def test_a_stream_of_queues_waits(
    golden: Callable[[str], Path], tmp_path: Path, limit: ReadLimit
) -> None:
    """For a hundred messages of all queues together; an hour later it would not."""
    growing = Growing(golden("plain"), tmp_path / "output")
    growing.build(5)
    options = {"output": growing.output, "startingOffsets": "earliest"}
    options |= {"minOffsetsPerTrigger": 100}
    reader = test_queue_contract.stream_reader(growing.store, **options, **NEVER)
    first = reader.latestOffset(reader.initialOffset(), limit)
    for count in (6, 7, 104):
        growing.build(count)
        assert reader.latestOffset(first, limit) == first
        assert reader.latestOffset(first, limit) == first
    growing.build(105)
    second = reader.latestOffset(first, limit)
    assert plain(second) == test_queue_contract.ends_of(growing.output)
    growing.build(106)
    assert reader.latestOffset(second, limit) == second
    reader._delay._delay_seconds = 0.0
    assert plain(reader.latestOffset(second, limit)) == test_queue_contract.ends_of(growing.output)


def test_fixed_ends_of_queues_are_reached(golden: Callable[[str], Path], tmp_path: Path) -> None:
    """The second batch up to them has fewer messages than a batch that waits."""
    growing = Growing(golden("plain"), tmp_path / "output")
    growing.build(300)
    options = {"output": growing.output, "startingOffsets": "earliest"}
    options |= {"minOffsetsPerTrigger": 200, "maxOffsetsPerTrigger": 250}
    reader = test_queue_contract.stream_reader(growing.store, **options, **NEVER)
    reader.prepareForTriggerAvailableNow()
    offset, limit = reader.initialOffset(), reader.getDefaultReadLimit()
    for _ in range(3):
        offset = reader.latestOffset(offset, limit)
    assert plain(offset) == test_queue_contract.ends_of(growing.output)


def test_spark_holds_batches_of_both_sources(
    spark: SparkSession, golden: Callable[[str], Path], tmp_path: Path
) -> None:
    """Neither is asked to wait for what Trigger.AvailableNow has to read."""
    growing = Growing(golden("plain"), tmp_path / "output")
    growing.build(5)
    options = {"startingOffsets": "earliest", "minOffsetsPerTrigger": "100", **NEVER}
    query = start(spark, growing, tmp_path, once=False, **options)
    try:
        counts = [len(rows_after(spark, query, tmp_path))]
        for built in (104, 105, 150):
            growing.build(built)
            counts.append(len(rows_after(spark, query, tmp_path)))
        assert counts == [5, 5, 105, 105]
    finally:
        query.stop()
    start(spark, growing, tmp_path, once=True, **options).awaitTermination()
    assert len(found(spark, tmp_path)) == 150
    options |= {"maxOffsetsPerTrigger": "1600"}
    log = test_contract.start(
        spark, growing.store, tmp_path / "log-checkpoint", tmp_path / "log-sink", **options
    )
    log.awaitTermination()
    rows = spark.read.parquet(str(tmp_path / "log-sink")).collect()
    assert len(rows) == len(growing.records) > 1600


def rows_after(
    spark: SparkSession, query: StreamingQuery, directory: Path
) -> list[tuple[object, ...]]:
    """The rows of the sink after the query has taken what it wants."""
    query.processAllAvailable()
    return found(spark, directory)
