"""An error's advice about options of a source is followed in the state that prints it.

The readers are called as Spark's planner and tasks call them.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable

from reput.sources.commitlog import CommitLogBatchReader
from reput.sources.commitlogoptions import CommitLogOptions
from reput.sources.consumequeue import ConsumeQueueBatchReader
from reput.sources.queueoptions import ConsumeQueueOptions
from reput.store.errors import CommitLogDataLossError, ReputError, UsageError
from reput.store.rows.rowschema import ROWS_SCHEMA
from tests.sources.test_contract import stream_reader

Options = Mapping[str, str]
LATE = "4000000000000"
"""A time that no message of a golden store has, in ms."""
ONE_QUEUE = '{"Topic_0": {"0": 1}}'
ALL_QUEUES = '{"Topic_0": {"0": 1, "1": 0, "2": -2, "3": -1}}'
OF_ONE: Options = {"topics": "Topic_0"}
STRATEGY: Options = {"startingOffsetsByTimestampStrategy": "latest"}


def read_log(store: Path, options: Options) -> int:
    """The number of rows that a batch read of the log gives."""
    reader = CommitLogBatchReader(
        CommitLogOptions({"path": str(store), **options}), from_arrow_schema(ROWS_SCHEMA)
    )
    return sum(len(batch) for part in reader.partitions() for batch in reader.read(part))


def read_queues(store: Path, options: Options) -> int:
    """The same of the queues."""
    reader = ConsumeQueueBatchReader(
        ConsumeQueueOptions({"path": str(store), **options}), from_arrow_schema(ROWS_SCHEMA)
    )
    return sum(len(batch) for part in reader.partitions() for batch in reader.read(part))


def leave(_: Path) -> None:
    """A sound store."""


def damage(store: Path) -> None:
    """Some bytes in the middle of the log are no record."""
    with sorted((store / "commitlog").iterdir())[3].open("r+b") as log:
        log.seek(5000)
        log.write(b"\xff" * 3000)


def lose_a_log_file(store: Path) -> None:
    """A file between others is gone."""
    sorted((store / "commitlog").iterdir())[3].unlink()


@pytest.mark.parametrize(
    ("read", "spoil", "wrong", "advice", "right"),
    [
        (read_log, leave, {"startingTimestamp": LATE},
         "set startingOffsetsByTimestampStrategy to latest",
         [{"startingTimestamp": LATE, **STRATEGY}]),
        (read_queues, leave, {"startingTimestamp": LATE},
         "set startingOffsetsByTimestampStrategy to latest",
         [{"startingTimestamp": LATE, **STRATEGY}]),
        (read_log, damage, {"onCorrupt": "fail"}, "set onCorrupt to quarantine",
         [{"onCorrupt": "quarantine"}]),
        (read_log, lose_a_log_file, {}, "set failOnDataLoss to false",
         [{"failOnDataLoss": "false"}]),
        (read_queues, lose_a_log_file, {}, "set failOnDataLoss to false",
         [{"failOnDataLoss": "false"}]),
        (read_queues, leave, {"topics": "Topic_0", "topicPattern": "Topic_.*"},
         "give topics or topicPattern, not both", [OF_ONE, {"topicPattern": "Topic_.*"}]),
        (read_queues, leave, {**OF_ONE, "startingOffsets": ONE_QUEUE}, "name every queue",
         [{**OF_ONE, "startingOffsets": ALL_QUEUES}]),
        (read_queues, leave, {"topiks": "Topic_0"}, "did you mean topics", [OF_ONE]),
        (read_queues, leave, {"tags": " "}, "give * for all", [{"tags": "*"}]),
        (read_queues, leave, {"tags": "sql:a > 1"}, "filter the rows to select by properties",
         [{}]),
        (read_log, leave, {"startingOffsets": "latest"}, "must begin at or before its end",
         [{"startingOffsets": "earliest"}, {"startingOffsets": "0"}]),
        (read_log, leave, {"startingOffsets": "1"}, "one starts at 0", [{"startingOffsets": "0"}]),
    ],
)  # fmt: skip
def test_a_read(
    golden: Callable[[str], Path],
    read: Callable[[Path, Options], int],
    spoil: Callable[[Path], None],
    wrong: Options,
    advice: str,
    right: Sequence[Options],
) -> None:
    """Refused with the advice, and each way of it gives rows, or none beyond the last time."""
    store = golden("plain")
    spoil(store)
    with pytest.raises(ReputError) as refused:
        read(store, wrong)
    assert advice in str(refused.value)
    for options in right:
        assert (read(store, options) > 0) == ("startingTimestamp" not in options)


def test_a_topic_with_queues_of_both_kinds(golden: Callable[[str], Path]) -> None:
    """The one that topics.json does not declare is taken away."""
    store = golden("plain")
    rows = read_queues(store, {})
    other = store / "batchconsumequeue" / "Topic_0" / "0" / f"{0:020}"
    other.parent.mkdir(parents=True)
    other.write_bytes(bytes(9200))
    with pytest.raises(UsageError, match="keep the one that config/topics"):
        read_queues(store, {})
    topics = json.loads((store / "config" / "topics.json").read_text())["topicConfigTable"]
    assert "BatchCQ" not in str(topics["Topic_0"])
    shutil.rmtree(store / "batchconsumequeue" / "Topic_0")
    assert read_queues(store, {}) == rows


@pytest.mark.usefixtures("spark")
def test_a_stream_of_a_store_that_moved(golden: Callable[[str], Path]) -> None:
    """With the identity that its offsets name it goes on."""
    store = golden("plain")
    reader = stream_reader(store, startingOffsets="earliest")
    offset = reader.initialOffset()
    moved = store.rename(store.with_name("moved"))
    with pytest.raises(CommitLogDataLossError, match="with option storeId") as refused:
        reader = stream_reader(moved)
        reader.partitions(offset, reader.latestOffset(offset, ReadAllAvailable()))
    identity = str(offset["store"])
    assert identity in str(refused.value)
    reader = stream_reader(moved, storeId=identity)
    assert reader.partitions(offset, reader.latestOffset(offset, ReadAllAvailable()))
