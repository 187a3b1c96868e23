"""Spark's contract: options, limits, Trigger.AvailableNow, data loss, restarts."""

from __future__ import annotations

import hashlib
import pickle
import re
import shutil
import venv
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows
from pyspark.sql.types import StructType

from reput.sources import interpreter
from reput.sources.commitlog import CommitLogBatchReader, CommitLogDataSource, CommitLogStreamReader
from reput.sources.commitlogoptions import CommitLogOptions
from reput.sources.consumequeue import ConsumeQueueBatchReader, ConsumeQueueDataSource
from reput.sources.plainspark import PLAIN_VARIABLE
from reput.sources.queueoptions import ConsumeQueueOptions
from reput.sources.schemas import rows_schema
from reput.store.errors import CommitLogDataLossError, StoreError, UsageError
from reput.store.log.record import Record
from reput.store.state.logoffset import offset_json, parse_offset
from reput.streaming.config import DispatcherConfig
from reput.workload.appender import Appender
from tests.sources.test_rows import read, reference
from tests.support.processes import open_files
from tests.support.several_paths import state_paths
from tests.support.sparkless import dispatch
from tests.support.wire import PlainLog, file_name

pytestmark = pytest.mark.usefixtures("spark")


def stream_reader(store: Path, **options: str) -> CommitLogStreamReader:
    """The reader as Spark's planner makes it."""
    schema = StructType.fromDDL(rows_schema(True, True))
    return CommitLogStreamReader(CommitLogOptions({"path": str(store), **options}), schema)


def start(
    spark: SparkSession,
    store: Path,
    checkpoint: Path,
    sink: Path,
    trigger: str = "availableNow",
    **options: str,
) -> StreamingQuery:
    """A stream of offsets into Parquet files, as much as there is."""
    frame = spark.readStream.format("rocketmq-commitlog").option("path", str(store))
    for key, value in options.items():
        frame = frame.option(key, value)
    query = frame.load().select("physicalOffset").writeStream.trigger(**{trigger: True})
    query = query.option("checkpointLocation", str(checkpoint)).option("path", str(sink))
    return query.format("parquet").start()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"startingOffset": "earliest"}, "did you mean startingOffsets"),
        ({"maxBytesPerTrigger": "lots"}, "option maxBytesPerTrigger is 'lots'"),
        ({"failOnDataLoss": "maybe"}, "must be true or false"),
        ({"startingOffsets": "-7"}, "option startingOffsets"),
        ({"maxBytesPerTrigger": "1m", "maxOffsetsPerTrigger": "5"}, "not both"),
        ({"mode": "columns"}, "must be one of rows, runs"),
        ({"kafka.bootstrap.servers": "a:9092"}, "kafka.bootstrap.servers, which is path here"),
    ],
)
def test_wrong_option_is_named(tmp_path: Path, options: dict[str, str], message: str) -> None:
    """The option, the value and what would be right, in one line."""
    with pytest.raises(UsageError, match=message):
        CommitLogOptions({"path": str(tmp_path), **options})


def test_wrong_option_fails_at_load(spark: SparkSession, golden: Callable[[str], Path]) -> None:
    """It does not wait for the first batch."""
    with pytest.raises(PySparkException, match="did you mean startingOffsets"):
        read(spark, golden("plain"), startingOfsets="earliest")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"startingOffsets": "latest"}, "must begin at or before its end"),
        ({"startingOffsets": "100"}, "inside a record; one starts at"),
        ({"startingOffsets": "12k"}, "a physical offset of up to 18 digits"),
        ({"endingOffsets": "77"}, "inside a record; one starts at"),
        ({"startingTimestamp": "99999999999999"}, "no record has a storeTimestamp"),
        ({"startingTimestamp": "5138-11-16T09:46:40Z"}, "no record has a storeTimestamp"),
        ({"startingTimestamp": "yesterday"}, "milliseconds since the epoch, or a time such as"),
        ({"startingTimestamp": "2026-01-31T12:30 Nowhere/City"}, "or a time such as"),
        ({"startingTimestamp": "2026-01-31T12:30Z Europe/Berlin"}, "or a time such as"),
        ({"startingTimestamp": "1969-12-31T23:59Z"}, "or a time such as"),
        ({"path": "/nowhere"}, "there is no directory /nowhere"),
    ],
)
def test_wrong_range_of_a_batch_read_is_named(
    spark: SparkSession, golden: Callable[[str], Path], options: dict[str, str], message: str
) -> None:
    """The line of our error is in what Spark raises."""
    store = golden("plain")
    with pytest.raises(PySparkException, match=message):
        read(spark, Path(options.pop("path", str(store))), **options).count()


def test_stream_refuses_an_end(golden: Callable[[str], Path]) -> None:
    """endingOffsets is for batches, as with Spark's Kafka source."""
    with pytest.raises(UsageError, match="a stream has no end"):
        stream_reader(golden("plain"), endingOffsets="latest")


@pytest.mark.parametrize("limit", [ReadMaxRows(7), ReadMaxBytes(3000), ReadMaxBytes(300_000)])
def test_limits_are_obeyed_and_lead_to_the_end(
    golden: Callable[[str], Path], limit: ReadMaxRows | ReadMaxBytes
) -> None:
    """Every end is where a record ends or a file starts, within the limit (but for one record
    that is larger), and the last one is the log's end."""
    store = golden("plain")
    starts = {record.physical_offset: record for record in reference(store)}
    ends = {at + record.total_size for at, record in starts.items()}
    reader = stream_reader(store, startingOffsets="earliest")
    reader.prepareForTriggerAvailableNow()
    offset = reader.initialOffset()
    steps = 0
    while (following := reader.latestOffset(offset, limit)) != offset:
        low, high = parse_offset(offset), parse_offset(following)
        assert low is not None and high is not None
        if isinstance(limit, ReadMaxRows):
            inside = sum(low <= at < high for at in starts)
            assert inside <= limit.max_rows
        else:
            read_bytes = max(end for end in ends if end <= high) - low
            assert read_bytes <= limit.max_bytes or read_bytes == starts[low].total_size
        assert high in ends or high % 262144 == 0
        offset = following
        steps += 1
    assert parse_offset(offset) == 1724243
    assert steps >= 1724243 // 300_000


def test_no_batch_of_a_few_bytes_comes_last(golden: Callable[[str], Path]) -> None:
    """A limit splits evenly, at file starts: 6.6 files by a limit of 6.5."""
    reader = stream_reader(golden("plain"), startingOffsets="earliest")
    reader.prepareForTriggerAvailableNow()
    middle = reader.latestOffset(reader.initialOffset(), ReadMaxBytes(1_700_000))
    assert parse_offset(middle) == 3 * 262144
    assert parse_offset(reader.latestOffset(middle, ReadMaxBytes(1_700_000))) == 1724243


def test_one_record_passes_a_limit_smaller_than_itself(golden: Callable[[str], Path]) -> None:
    """A stream never stands still for a limit."""
    store = golden("plain")
    reader = stream_reader(store, startingOffsets="earliest")
    reader.prepareForTriggerAvailableNow()
    first = reader.latestOffset(reader.initialOffset(), ReadMaxBytes(1))
    assert parse_offset(first) == reference(store)[0].total_size


def test_end_is_frozen_for_available_now(golden: Callable[[str], Path], tmp_path: Path) -> None:
    """Messages appended after the query began belong to the next one."""
    full, store = golden("plain"), tmp_path / "growing"
    (store / "commitlog").mkdir(parents=True)
    files = sorted((full / "commitlog").iterdir())
    for file in files[:2]:
        shutil.copy(file, store / "commitlog")
    reader = stream_reader(store, startingOffsets="earliest")
    reader.prepareForTriggerAvailableNow()
    shutil.copy(files[2], store / "commitlog")
    end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    assert parse_offset(end) == 2 * 262144


def test_an_idle_stream_is_answered_when_a_message_comes(tmp_path: Path) -> None:
    """With ``maxWaitMs``; without it, Spark asks again."""
    with Appender(tmp_path / "store", file_size=1 << 16) as appender:
        appender.append(Record(topic=b"T", body=b"1"))
        known = {"sealedEnd": str(appender.end_offset)}
        waiting, asking = (
            stream_reader(tmp_path / "store", **known, **options)
            for options in ({"maxWaitMs": "60000"}, {})
        )
        end = asking.latestOffset(asking.initialOffset(), ReadAllAvailable())
        assert asking.latestOffset(end, ReadAllAvailable()) == end
        with ThreadPoolExecutor(1) as pool:
            waiting.latestOffset(waiting.initialOffset(), ReadAllAvailable())
            answer = pool.submit(waiting.latestOffset, end, ReadAllAvailable())
            appender.append(Record(topic=b"T", body=b"2"))
        found = parse_offset(answer.result(), waiting._store_id)
        assert found == appender.end_offset > parse_offset(end, waiting._store_id)
        waiting.stop()
        asking.stop()


def test_idle_offsets_are_the_same_text(golden: Callable[[str], Path]) -> None:
    """Spark compares offsets as text: an idle query must not run empty batches."""
    reader = stream_reader(golden("plain"), startingOffsets="latest")
    offset = reader.initialOffset()
    assert reader.latestOffset(offset, ReadAllAvailable()) is offset
    assert list(offset) == ["crc", "evidence", "offset", "store"]


def test_first_file_removed_by_retention(golden: Callable[[str], Path]) -> None:
    """failOnDataLoss both ways."""
    store = golden("plain")
    reader = stream_reader(store, startingOffsets="earliest")
    start_offset = reader.initialOffset()
    (store / "commitlog" / f"{0:020d}").unlink()
    with pytest.raises(CommitLogDataLossError, match="START_BELOW_MIN"):
        reader.latestOffset(start_offset, ReadAllAvailable())
    lax = stream_reader(store, startingOffsets="earliest", failOnDataLoss="false")
    lax.prepareForTriggerAvailableNow()
    end = lax.latestOffset(start_offset, ReadAllAvailable())
    parts = lax.partitions(start_offset, end)
    rows = [row for part in parts for batch in lax.read(part) for row in batch.to_pylist()]
    assert rows[0]["corruptReason"] == "segment_deleted"
    assert (rows[0]["physicalOffset"], rows[0]["storeSize"]) == (0, 262144)
    assert len(rows) - 1 == len(reference(store))


def test_log_that_shrank(golden: Callable[[str], Path]) -> None:
    """An offset past the log's end is an error, never an empty range backwards."""
    store = golden("plain")
    offset = stream_reader(store, startingOffsets="latest").initialOffset()
    for file in sorted((store / "commitlog").iterdir())[3:]:
        file.unlink()
    with pytest.raises(CommitLogDataLossError, match="LOG_SHRANK"):
        stream_reader(store).latestOffset(offset, ReadAllAvailable())
    lax = stream_reader(store, failOnDataLoss="false")
    end = lax.latestOffset(offset, ReadAllAvailable())
    assert parse_offset(end) == 3 * 262144
    assert lax.latestOffset(end, ReadAllAvailable()) == end


@pytest.mark.parametrize(
    ("reader", "options"),
    [
        (CommitLogBatchReader, CommitLogOptions),
        (ConsumeQueueBatchReader, ConsumeQueueOptions),
    ],
)
def test_a_reader_leaves_no_file_open(
    golden: Callable[[str], Path],
    reader: type[CommitLogBatchReader] | type[ConsumeQueueBatchReader],
    options: Callable[[dict[str, str]], Any],
) -> None:
    """Spark's workers unpickle a reader a task, and live as long as the session."""
    store = golden("plain")
    schema = StructType.fromDDL(rows_schema(True, True))
    before = open_files(store)
    planner = reader(options({"path": str(store)}), schema)
    part, text = planner.partitions()[0], pickle.dumps(planner)
    del planner
    for _ in range(3):
        assert sum(len(batch) for batch in pickle.loads(text).read(part))
    assert open_files(store) == before


def test_pinned_start_does_not_move(golden: Callable[[str], Path], tmp_path: Path) -> None:
    """Spark asks again when it repeats batch 0; ``latest`` must then be what it was."""
    full, store = golden("plain"), tmp_path / "growing"
    (store / "commitlog").mkdir(parents=True)
    files = sorted((full / "commitlog").iterdir())
    shutil.copy(files[0], store / "commitlog")
    pin = {"initialOffsetPath": str(tmp_path / "start"), "startingOffsets": "latest"}
    first = stream_reader(store, **pin).initialOffset()
    shutil.copy(files[1], store / "commitlog")
    assert stream_reader(store, **pin).initialOffset() == first
    assert stream_reader(store, startingOffsets="latest").initialOffset() != first


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"[" * 100_000, None])
def test_a_pinned_start_that_is_none(
    golden: Callable[[str], Path], tmp_path: Path, content: bytes | None
) -> None:
    """It is named, and nothing begins elsewhere; removed, the stream begins anew."""
    store, pin = golden("plain"), tmp_path / "start"
    if content is None:
        pin.mkdir()
    else:
        pin.write_bytes(content)
    kind = StoreError if content is None else UsageError
    with pytest.raises(kind, match=f"{pin}.*(Is a directory|remove it to begin anew)"):
        stream_reader(store, initialOffsetPath=str(pin)).initialOffset()
    if content is not None:
        pin.unlink()
        reader = stream_reader(store, initialOffsetPath=str(pin), startingOffsets="earliest")
        assert reader.initialOffset()["offset"] == 0


def test_a_pinned_start_that_cannot_be_looked_for(
    golden: Callable[[str], Path], tmp_path: Path
) -> None:
    """As one in a directory that is not to be searched: the line names it, and why."""
    pin = tmp_path / ("x" * 300)
    with pytest.raises(StoreError, match=f"^cannot read {pin}: File name too long$"):
        stream_reader(golden("plain"), initialOffsetPath=str(pin)).initialOffset()


def test_stream_reads_each_message_once_over_restarts(
    spark: SparkSession, golden: Callable[[str], Path], tmp_path: Path
) -> None:
    """Two runs over one checkpoint, the log grown in between."""
    full, store, checkpoint = golden("plain"), tmp_path / "growing", tmp_path / "checkpoint"
    (store / "commitlog").mkdir(parents=True)
    files = sorted((full / "commitlog").iterdir())
    for part in (files[:3], files[3:]):
        for file in part:
            shutil.copy(file, store / "commitlog")
        options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "900"}
        start(spark, store, checkpoint, tmp_path / "sink", **options).awaitTermination()
    found = [row[0] for row in spark.read.parquet(str(tmp_path / "sink")).collect()]
    assert sorted(found) == [record.physical_offset for record in reference(full)]


def test_trigger_once_takes_the_last_record(
    spark: SparkSession, golden: Callable[[str], Path], tmp_path: Path
) -> None:
    """Spark asks where the log ends a single time then, and nothing follows the last record."""
    store = golden("plain")
    options = {"startingOffsets": "earliest", "trigger": "once"}
    start(spark, store, tmp_path / "checkpoint", tmp_path / "sink", **options).awaitTermination()
    found = [row[0] for row in spark.read.parquet(str(tmp_path / "sink")).collect()]
    assert sorted(found) == [record.physical_offset for record in reference(store)]


def test_an_interpreter_of_workers_without_the_sources_is_named(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the variable that chooses it, when a source is registered; what it is set to then has
    them."""
    venv.create(tmp_path / "empty")
    python = tmp_path / "empty" / "bin" / "python"
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.delenv(PLAIN_VARIABLE, raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(spark.sparkContext, "pythonExec", str(python))
    for source in (CommitLogDataSource, ConsumeQueueDataSource):
        with pytest.raises(UsageError, match=f"{python}, which cannot ") as refused:
            spark.dataSource.register(source)
    chosen = re.search(r"set PYSPARK_PYTHON=(\S+) in the environment", str(refused.value))
    assert chosen is not None
    monkeypatch.setattr(spark.sparkContext, "pythonExec", chosen[1])
    for source in (CommitLogDataSource, ConsumeQueueDataSource):
        spark.dataSource.register(source)


def test_an_interpreter_that_another_pyspark_does_not_tell_is_not_checked(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a user's own session, where pyspark's private parts may be others."""
    monkeypatch.setattr(interpreter, "KNOWN", set())
    for owner, name in (
        (spark.sparkContext, "pythonExec"),
        (SparkContext, "_active_spark_context"),
    ):
        with monkeypatch.context() as patch:
            patch.delattr(owner, name)
            interpreter.check_workers_interpreter()


@pytest.mark.parametrize("reverse", [False, True])
def test_a_stream_goes_on_after_its_log_got_a_second_directory(
    spark: SparkSession, golden: Callable[[str], Path], tmp_path: Path, reverse: bool
) -> None:
    """Over one checkpoint: the log in STORE/commitlog, then over two, in either order."""
    full, store, checkpoint = golden("plain"), tmp_path / "growing", tmp_path / "checkpoint"
    directories = [store / "commitlog", tmp_path / "second"]
    for directory in directories:
        directory.mkdir(parents=True)
    files = sorted((full / "commitlog").iterdir())
    shutil.copy(full / "broker.conf", store)
    for index, file in enumerate(files):
        if index == 3:
            start(
                spark, store, checkpoint, tmp_path / "sink", startingOffsets="earliest"
            ).awaitTermination()
            state_paths(store, directories[::-1] if reverse else directories)
        shutil.copy(file, directories[index % 2 if index >= 3 else 0])
    start(spark, store, checkpoint, tmp_path / "sink").awaitTermination()
    found = [row[0] for row in spark.read.parquet(str(tmp_path / "sink")).collect()]
    assert sorted(found) == [record.physical_offset for record in reference(full)]


def test_checkpoints_of_earlier_versions_go_on(golden: Callable[[str], Path]) -> None:
    """A store's identity was its log's place: STORE/commitlog as a rule, whose checkpoints fit.
    One of a log that lay elsewhere alone is refused until its identity is given."""
    store = golden("plain")
    reader = stream_reader(store)
    reader.prepareForTriggerAvailableNow()
    ours = offset_json(place_id(store / "commitlog"), 0)
    assert reader.latestOffset(ours, ReadAllAvailable())["offset"] == 1724243
    elsewhere = store / "elsewhere"
    (store / "commitlog").rename(elsewhere)
    state_paths(store, [elsewhere])
    theirs = offset_json(place_id(elsewhere), 0)
    with pytest.raises(CommitLogDataLossError, match=r"FOREIGN_OFFSET.*option storeId") as raised:
        stream_reader(store).latestOffset(theirs, ReadAllAvailable())
    # it would not help
    assert "failOnDataLoss" not in str(raised.value)
    reader = stream_reader(store)
    reader.prepareForTriggerAvailableNow()
    fresh = reader.initialOffset()
    assert reader.latestOffset(fresh, ReadAllAvailable())["offset"] == 1724243
    reader = stream_reader(store, storeId=theirs["store"])
    reader.prepareForTriggerAvailableNow()
    assert reader.latestOffset(theirs, ReadAllAvailable())["offset"] == 1724243


def place_id(directory: Path) -> str:
    return hashlib.sha256(str(directory.resolve()).encode()).hexdigest()[:32]


def test_resume_starts_where_every_queue_is_complete(golden: Callable[[str], Path]) -> None:
    """``resume``: the smallest maxPhysicOffset over the store's queues."""
    store = golden("broker")
    ends: dict[tuple[bytes, int], int] = {}
    for record in reference(store):
        ends[record.topic, record.queue_id] = record.physical_offset + record.total_size
    offset = stream_reader(store, startingOffsets="resume").initialOffset()
    assert parse_offset(offset) == min(ends.values())


@pytest.mark.parametrize("is_cut", [True, False])
def test_resume_stays_within_the_log(tmp_path: Path, *, is_cut: bool) -> None:
    """It may have lost its end since the queues were built, or its beginning, in which a queue
    without newer messages ends."""
    plain = PlainLog(1024)
    plain.append(topic=b"A")
    for number in range(30):
        plain.append(topic=b"B", queue_offset=number)
    plain.write(tmp_path / "commitlog")
    dispatch(DispatcherConfig(tmp_path, tmp_path, once=True))
    if is_cut:
        shutil.rmtree(tmp_path / "consumequeue" / "A")
        shutil.rmtree(tmp_path / "commitlog")
        plain.cut(plain.spans[20][1])
        plain.write(tmp_path / "commitlog")
    else:
        (tmp_path / "commitlog" / file_name(0)).unlink()
    offset = stream_reader(tmp_path, startingOffsets="resume").initialOffset()
    assert parse_offset(offset) == (plain.end if is_cut else 1024)
