"""An error's advice about options of a source is followed in the state that prints it.

The readers are called as Spark's planner and tasks call them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
from pyspark.sql.pandas.types import from_arrow_schema

from reput.sources.commitlog import CommitLogBatchReader
from reput.sources.commitlogoptions import CommitLogOptions
from reput.sources.consumequeue import ConsumeQueueBatchReader
from reput.sources.queueoptions import ConsumeQueueOptions
from reput.store.errors import ReputError
from reput.store.rows.rowschema import ROWS_SCHEMA

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
        (read_log, damage, {"onCorrupt": "fail"}, "set onCorrupt (run: --on-corrupt) to quarantine",
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
