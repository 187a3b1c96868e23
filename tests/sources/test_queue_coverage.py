"""Messages that queues lack, or hold beyond the log's end, are a loss of the queue source.

The stores are made byte by byte; the readers are called as Spark's planner calls them.
"""

from __future__ import annotations

import logging
import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from reput.store.brokerlock import BrokerLock
from reput.store.errors import CommitLogDataLossError
from tests.sources.test_queue_contract import stream_reader
from tests.sources.test_queue_rows import batch_reader, rows_of
from tests.support.broker_store import BrokerStore, four_queues
from tests.support.cli import Call
from tests.support.derived_output import DerivedOutput
from tests.support.processes import holder

Damage = Callable[[BrokerStore], object]


def _all_zeroed(made: BrokerStore) -> None:
    for key in made.queues:
        if key[0] != "Idle":
            made.zero_last(*key, 5)


def _one_zeroed(made: BrokerStore) -> None:
    made.zero_last("Orders", 1, 5)


def _all_removed(made: BrokerStore) -> None:
    shutil.rmtree(made.root / "consumequeue")


def _one_removed(made: BrokerStore) -> None:
    shutil.rmtree(made.root / "consumequeue" / "Payments")


@pytest.mark.parametrize("damage", [_all_zeroed, _one_zeroed, _all_removed, _one_removed])
def test_queues_that_end_before_the_log_are_an_error(
    tmp_path: Path, damage: Damage, caplog: pytest.LogCaptureFixture
) -> None:
    """In a batch, at a stream's beginning and when it goes on; a warning without failOnDataLoss,
    which gives the messages that have units."""
    made = four_queues(tmp_path)
    made.write()
    everything = rows_of(batch_reader(tmp_path))
    offset = stream_reader(tmp_path).initialOffset()
    damage(made)
    with pytest.raises(CommitLogDataLossError, match=r"NOT_IN_QUEUES: [0-9,]+ bytes .* reput run"):
        rows_of(batch_reader(tmp_path))
    with pytest.raises(CommitLogDataLossError, match="NOT_IN_QUEUES"):
        stream_reader(tmp_path, startingOffsets="earliest").initialOffset()
    with pytest.raises(CommitLogDataLossError, match=r"NOT_IN_QUEUES|QUEUE_DELETED|START_ABOVE"):
        stream_reader(tmp_path).latestOffset(offset, ReadAllAvailable())
    caplog.set_level(logging.WARNING, "reput")
    left = rows_of(batch_reader(tmp_path, failOnDataLoss="false"))
    assert [row for row in everything if row in left] == left != everything
    (said,) = [record.getMessage() for record in caplog.records]
    lost = sum(row["storeSize"] for row in everything) - sum(row["storeSize"] for row in left)
    assert f"NOT_IN_QUEUES: {lost:,} bytes" in said


def test_only_selected_queues_count(tmp_path: Path) -> None:
    """Messages after the moment of a read do not."""
    made = four_queues(tmp_path)
    made.write()
    made.zero_last("Orders", 1, 5)
    first = made.queues["Orders", 1][-5][0]
    assert len(rows_of(batch_reader(tmp_path, topics="Payments"))) == 120
    assert len(rows_of(batch_reader(tmp_path, topics="Orders", queueIds=0))) == 60
    assert rows_of(batch_reader(tmp_path, physicalOffsetAsOf=first))
    with pytest.raises(CommitLogDataLossError, match="NOT_IN_QUEUES"):
        rows_of(batch_reader(tmp_path, topics="Orders"))
    with pytest.raises(CommitLogDataLossError, match="NOT_IN_QUEUES"):
        rows_of(batch_reader(tmp_path, physicalOffsetAsOf=made.log.end))


def test_lag_is_no_loss(tmp_path: Path) -> None:
    """It may be a dispatcher's, whose watermark says how far it has come, or that of a broker which
    has the store open. A unit that is missing below the watermark is a loss again."""
    made = four_queues(tmp_path / "store")
    made.write()
    output = DerivedOutput(made.root, tmp_path / "output")
    output.start()
    made.put("Orders", 0, 3)
    made.log.write(made.root / "commitlog")
    for moment in ({}, {"timestampAsOf": "2100-01-01 00:00:00"}):
        assert len(rows_of(batch_reader(made.root, output=output.root, **moment))) == 243
    with pytest.raises(CommitLogDataLossError, match="NOT_IN_QUEUES"):
        batch_reader(made.root).partitions()
    with holder(BrokerLock(made.root).__enter__):
        assert len(rows_of(batch_reader(made.root))) == 243
    (made.root / "abort").touch()
    assert len(rows_of(batch_reader(made.root))) == 243
    made.queues["Payments", 1] = made.queues["Payments", 1][:60]
    made.zero_last("Payments", 1, 5, output.root)
    with pytest.raises(CommitLogDataLossError, match=r"NOT_IN_QUEUES.*reput rebuild"):
        batch_reader(made.root, output=output.root).partitions()


@pytest.mark.usefixtures("spark")
def test_units_beyond_the_logs_end_are_an_error(tmp_path: Path, call: Call) -> None:
    """As after a copy of queues that is younger than that of the log; a running broker may have
    appended since the log was looked at. The command in the error cuts them."""
    made = four_queues(tmp_path)
    made.write()
    made.log.cut(made.queues["Payments", 1][-1][0])
    made.log.write(made.root / "commitlog")
    text = f"QUEUE_ABOVE_LOG: topic Payments queue 1 of {tmp_path} holds units up to"
    for reader in (batch_reader(tmp_path).partitions, stream_reader(tmp_path).initialOffset):
        with pytest.raises(CommitLogDataLossError, match=re.escape(text)) as raised:
            reader()
    assert rows_of(batch_reader(tmp_path, topics="Orders"))
    with holder(BrokerLock(tmp_path).__enter__):
        batch_reader(tmp_path).partitions()
    command = re.search("so does reput (.* --once)", str(raised.value))
    assert command is not None
    done = call(*shlex.split(command[1]))
    assert done.returncode == 0, done.stderr
    assert len(rows_of(batch_reader(tmp_path))) == len(made.log.spans)
