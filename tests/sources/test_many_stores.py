"""Several stores in one load, against a read of each by itself."""

from __future__ import annotations

import os
import pickle
import shutil
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxRows
from pyspark.sql.types import StructType

from reput.sources.commitlog import CommitLogDataSource
from reput.sources.commitlogoptions import CommitLogOptions
from reput.sources.consumequeue import ConsumeQueueDataSource
from reput.sources.manystores import Stores, StoresStreamReader
from reput.sources.pushdown import SETTING
from reput.sources.queueoptions import ConsumeQueueOptions
from reput.store.errors import UsageError
from tests.readers.stores import SmallStore
from tests.sources.test_pushdown import scanned
from tests.support.processes import open_files

pytestmark = pytest.mark.usefixtures("spark")

NAMES = {"rocketmq-commitlog": CommitLogDataSource, "rocketmq-consumequeue": ConsumeQueueDataSource}
SIZES = {"broker-a": 30, "broker-b": 300}


def write_store(root: Path, count: int, topic: bytes = b"Topic") -> Path:
    """A store with messages that say where they are from."""
    store = SmallStore(root, topic)
    for number in range(count):
        store.append(queue_id=number % 3, body=b"%s %d" % (root.name.encode(), number))
    return store.write()


@pytest.fixture
def stores(tmp_path: Path) -> Path:
    """A directory of two stores, and of what is none."""
    for name, count in SIZES.items():
        write_store(tmp_path / "stores" / name, count)
    (tmp_path / "stores" / "notes").mkdir()
    (tmp_path / "stores" / "list.txt").write_text("broker-a")
    return tmp_path / "stores"


def bodies(frame: DataFrame) -> list[str]:
    """The bodies, sorted."""
    return sorted(bytes(row.body).decode() for row in frame.select("body").collect())


def expected(*names: str) -> list[str]:
    """The bodies of stores."""
    return sorted(f"{name} {number}" for name in names for number in range(SIZES[name]))


@pytest.mark.parametrize("source", NAMES)
def test_every_form_reads_all_stores(spark: SparkSession, stores: Path, source: str) -> None:
    """A pattern, as a path and as a URL, roots with commas between them, and a list."""
    roots = [str(stores / name) for name in SIZES]
    for given in (f"{stores}/*", f"file://{stores}/bro*", ",".join(roots), roots, [f"{stores}/b*"]):
        frame = spark.read.format(source).load(given)  # type: ignore[arg-type]
        assert bodies(frame) == expected(*SIZES), given
    assert bodies(spark.read.format(source).load(f"{stores}/*-a")) == expected("broker-a")


@pytest.mark.parametrize("source", NAMES)
def test_a_row_says_its_store(spark: SparkSession, stores: Path, source: str) -> None:
    """With ``includeStore``, last, and with one store too."""
    table = spark.read.format(source).option("includeStore", "true")
    frame = table.load(f"{stores}/*")
    assert frame.columns[-1] == "store"
    counts = {row.store: row["count"] for row in frame.groupBy("store").count().collect()}
    assert counts == {str(stores / name): size for name, size in SIZES.items()}
    for row in frame.select("store", "body").collect():
        assert bytes(row.body).decode().startswith(Path(row.store).name)
    one = table.option("includeBody", "false").load(str(stores / "broker-a"))
    assert [row.store for row in one.collect()] == [str(stores / "broker-a")] * 30
    assert "store" not in spark.read.format(source).load(f"{stores}/*").columns


@pytest.mark.parametrize("source", NAMES)
def test_a_stream_reads_each_message_of_all_stores_once(
    spark: SparkSession, stores: Path, tmp_path: Path, source: str
) -> None:
    """Over restarts, between which a store comes, and another one is away for a while."""
    sink = str(tmp_path / "sink")

    def run(path: str) -> list[str]:
        stream = spark.readStream.format(source).option("startingOffsets", "earliest")
        frame = stream.option("maxOffsetsPerTrigger", "100").load(path).select("body")
        writer = frame.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = writer.format("parquet").option("path", sink).trigger(availableNow=True).start()
        query.awaitTermination()
        batches.append(len([each for each in query.recentProgress if each["numInputRows"]]))
        return bodies(spark.read.parquet(sink))

    batches: list[int] = []
    assert run(f"{stores}/*") == expected(*SIZES)
    assert batches[0] >= 330 // 100
    write_store(stores / "broker-c", 12)
    later = sorted([*expected(*SIZES), *(f"broker-c {number}" for number in range(12))])
    assert run(f"{stores}/*-[bc]") == later
    assert run(f"{stores}/*") == later
    assert batches[1:] == [1, 0]
    with pytest.raises(StreamingQueryException, match="FOREIGN_OFFSET"):
        run(str(stores / "broker-a"))


def reader_of(source: str, path: str, **options: str) -> StoresStreamReader:
    """The reader as Spark's planner makes it."""
    made = NAMES[source]({"path": path, **options})
    reader = made.streamReader(StructType.fromDDL(made.schema()))
    assert isinstance(reader, StoresStreamReader)
    return reader


@pytest.mark.parametrize(
    ("source", "limit", "most"),
    [
        ("rocketmq-commitlog", ReadMaxRows(33), 33),
        ("rocketmq-commitlog", ReadMaxBytes(4000), 40),
        ("rocketmq-consumequeue", ReadMaxRows(33), 33),
    ],
)
def test_a_limit_is_shared_in_proportion_to_lags(
    stores: Path, source: str, limit: ReadLimit, most: int
) -> None:
    """No store waits for the others, and both end together; an idle query keeps its offset."""
    reader = reader_of(source, f"{stores}/*", startingOffsets="earliest")
    offset = reader.initialOffset()
    counts: list[Counter[str]] = []
    while (following := reader.latestOffset(offset, limit)) is not offset:
        rows = rows_between(reader, offset, following)
        counts.append(Counter(row.split()[0] for row in rows))
        offset = following
    assert sum(counts, Counter()) == Counter(SIZES)
    assert all(set(each) == set(SIZES) for each in counts[:-2])
    assert all(each.total() <= most for each in counts)
    assert reader.latestOffset(offset, ReadAllAvailable()) is offset
    assert list(offset["stores"]) == sorted(str(stores / name) for name in SIZES)
    assert reader.reportLatestOffset()["stores"].keys() == offset["stores"].keys()
    assert open_files(stores)
    reader.stop()
    assert not open_files(stores)


@pytest.mark.parametrize("source", NAMES)
def test_a_query_that_ends_reads_no_store_beyond_the_end_of_its_begin(
    stores: Path, source: str
) -> None:
    """Else one of a live log might never end; what came meanwhile is the next query's."""
    reader = reader_of(source, f"{stores}/*", startingOffsets="earliest")
    first = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    for name, count in SIZES.items():
        write_store(stores / name, count + 2)
    end = reader.latestOffset(first, ReadAllAvailable())
    assert sorted(rows_between(reader, first, end)) == expected(*SIZES)
    following = reader_of(source, f"{stores}/*")
    later = rows_between(following, end, following.latestOffset(end, ReadAllAvailable()))
    assert sorted(later) == sorted(f"{n} {c + more}" for n, c in SIZES.items() for more in (0, 1))


def rows_between(
    reader: StoresStreamReader, start: dict[str, Any], end: dict[str, Any]
) -> list[str]:
    """The bodies of a batch, read as tasks do."""
    copy = pickle.loads(pickle.dumps(reader))
    return [
        row["body"].decode()
        for part in reader.partitions(start, end)
        for batch in copy.read(part)
        for row in batch.to_pylist()
    ]


@pytest.mark.parametrize("source", NAMES)
def test_the_first_offsets_of_all_stores_are_pinned(
    stores: Path, tmp_path: Path, source: str
) -> None:
    """In one file; a damaged one is named."""
    pin = tmp_path / "start"
    options = {"initialOffsetPath": str(pin), "startingOffsets": "latest"}
    first = reader_of(source, f"{stores}/*", **options).initialOffset()
    write_store(stores / "broker-c", 12)
    again = reader_of(source, f"{stores}/*", **options)
    assert again.initialOffset() == first
    end = again.latestOffset(first, ReadAllAvailable())
    assert len(rows_between(again, first, end)) == 12
    pin.write_text('{"offset": 7}')
    with pytest.raises(UsageError, match=f"{pin} is damaged"):
        reader_of(source, f"{stores}/*", **options).initialOffset()


def test_an_output_for_each_store(spark: SparkSession, stores: Path, tmp_path: Path) -> None:
    """``outputs`` holds the queues, below the names of the roots."""
    for name in SIZES:
        (tmp_path / "outputs" / name).mkdir(parents=True)
        (stores / name / "consumequeue").rename(tmp_path / "outputs" / name / "consumequeue")
    table = spark.read.format("rocketmq-consumequeue").option("outputs", str(tmp_path / "outputs"))
    assert bodies(table.load(f"{stores}/*")) == expected(*SIZES)
    shutil.move(stores / "broker-b", tmp_path / "more" / "broker-a")
    with pytest.raises(PySparkException, match="would both have the output"):
        table.load(f"{stores}/*,{tmp_path}/more/*")


def test_a_topic_that_one_store_has_is_enough(spark: SparkSession, stores: Path) -> None:
    """None of them having it is an error, as in one store."""
    write_store(stores / "broker-c", 12, b"Other")
    table = spark.read.format("rocketmq-consumequeue")
    assert len(bodies(table.option("topics", "Other").load(f"{stores}/*"))) == 12
    with pytest.raises(PySparkException, match="names Typo, for which none of 3 stores has"):
        table.option("topics", "Other,Typo").load(f"{stores}/*").count()


@pytest.mark.parametrize(
    ("given", "part"),
    [
        ({"path": "/nowhere/broker-*"}, "/nowhere/broker-\\*, a pattern that matches no store"),
        ({"path": "/a,s3://b/c"}, "option path is '/a,s3://b/c'; it must be a path of a file"),
        ({"path": "/a,/b", "group": "g"}, "option group is for one store, .*union of the frames"),
        ({"path": "/a,/b", "output": "/c"}, "option output is for one store"),
        ({"path": "/a,/b", "minOffsetsPerTrigger": "7"}, "minOffsetsPerTrigger is for one store"),
        ({"path": "/a,/b", "startingOffsets": '{"T": {"0": 7}}'}, "startingOffsets is for one"),
        ({"path": "/a,/b", "topic": "T"}, "did you mean topics"),
        ({"path": "/a", "outputs": "/b"}, "outputs is for several stores; for one, it is output"),
        ({"paths": '["/a", ""]'}, "it must not be empty"),
        ({"topics": "T"}, "option path is missing"),
    ],
)
def test_what_several_stores_cannot_have(given: dict[str, str], part: str) -> None:
    """In one line, with the way out."""
    with pytest.raises(UsageError, match=part):
        Stores(ConsumeQueueOptions, given)


@pytest.mark.parametrize(
    ("given", "part"),
    [
        ({"path": "/a,/b", "mode": "runs"}, "option mode is for one store"),
        ({"path": "/a,/b", "startingOffsets": "77"}, "startingOffsets is for one store"),
        ({"path": "/a,/b", "outputs": "/c"}, "unknown option outputs"),
    ],
)
def test_what_several_logs_cannot_have(given: dict[str, str], part: str) -> None:
    """As queues."""
    with pytest.raises(UsageError, match=part):
        Stores(CommitLogOptions, given)


@pytest.mark.parametrize(("directory", "count"), [("", 40), ("/data/", 400)])
def test_a_list_of_stores_is_longer_than_any_path(directory: str, count: int) -> None:
    """A file's name has up to 255 bytes, and a path up to 4096; a list is read all the same."""
    roots = [f"{directory}broker-{number:03d}" for number in range(count)]
    found = Stores(CommitLogOptions, {"path": ", ".join(roots)}).by_root
    assert list(found) == roots
    assert [options["path"] for options in found.values()] == roots


def test_a_root_that_cannot_be_looked_for_is_no_list(tmp_path: Path) -> None:
    """It may be there, with a comma in its name: nothing else is read in its place."""
    shut, user = tmp_path / "shut", os.geteuid()
    shut.mkdir(mode=0)
    if user == 0:
        os.seteuid(65534)  # nothing is shut to root
    try:
        with pytest.raises(PermissionError):
            Stores(CommitLogOptions, {"path": f"{shut}/a,b"})
    finally:
        os.seteuid(user)


def test_a_root_whose_name_looks_like_a_pattern(spark: SparkSession, tmp_path: Path) -> None:
    """One that exists is one store, whatever characters it has."""
    root = write_store(tmp_path / "a,b[1]*", 5)
    assert spark.read.format("rocketmq-commitlog").load(str(root)).count() == 5
    assert spark.read.format("rocketmq-commitlog").load(f"file://{quote(str(root))}").count() == 5


@pytest.mark.parametrize("source", NAMES)
def test_filters_reach_every_store(spark: SparkSession, stores: Path, source: str) -> None:
    """No other row leaves a task."""
    spark.conf.set(SETTING, True)
    try:
        frame = spark.read.format(source).load(f"{stores}/*").where("queueId = 1")
        assert len(frame.collect()) == scanned(frame) == sum(SIZES.values()) // 3
    finally:
        spark.conf.unset(SETTING)
