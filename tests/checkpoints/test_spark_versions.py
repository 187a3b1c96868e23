"""Spark's own checkpoints in both formats of its offset log, read without Spark."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import DataFrame, SparkSession

from reput.checkpoints.history import read_history
from reput.checkpoints.spark_checkpoint import SparkPosition, read_position, rewind
from reput.sources.offsets import store_id_of
from reput.store.config import read_store_settings
from reput.store.files import SPARK_DIRECTORY, SPARK_START_FILE, STATE_DIRECTORY
from tests.streaming.test_golden import dispatch
from tests.support.golden import difference

END = 1724243
IS_4_2 = pyspark.__version__.startswith("4.2.")
VERSION_2 = {"spark.sql.streaming.offsetLog.formatVersion": "2"}
NAMED = {"spark.sql.streaming.queryEvolution.enableSourceEvolution": "true"}
COMMITS_2 = {"spark.sql.streaming.stateStore.checkpointFormatVersion": "2"}


@contextmanager
def settings(spark: SparkSession, given: dict[str, str]) -> Iterator[None]:
    """The session with some settings."""
    for key, value in given.items():
        spark.conf.set(key, value)
    try:
        yield
    finally:
        for key in given:
            spark.conf.unset(key)


def run_query(spark: SparkSession, store: Path, checkpoint: Path, *, name: str = "") -> list[int]:
    """Run a user's query to the log's end, and return what its batches hold."""
    reader = spark.readStream.name(name) if name else spark.readStream
    reader = reader.format("rocketmq-commitlog").option("maxOffsetsPerTrigger", "900")
    reader = reader.option("initialOffsetPath", str(checkpoint / SPARK_START_FILE))
    frame = reader.option("startingOffsets", "earliest").load(str(store)).select("physicalOffset")
    rows: list[int] = []

    def keep(batch: DataFrame, _batch_id: int) -> None:
        rows.extend(row.physicalOffset for row in batch.collect())

    writer = frame.writeStream.option("checkpointLocation", str(checkpoint)).foreachBatch(keep)
    writer.trigger(availableNow=True).start().awaitTermination()
    return rows


@pytest.mark.parametrize(
    ("given", "name", "line"),
    [
        ({}, "", "{"),
        (VERSION_2, "", "0:{"),
        # Spark 4.3 needs no other setting, and 4.2 writes no name without it
        ({**NAMED, **(VERSION_2 if IS_4_2 else {})}, "orders", "orders:{"),
        ({**VERSION_2, **COMMITS_2}, "", "0:{"),
    ],
    ids=["v1", "v2", "named", "commits"],
)
def test_sparks_own_checkpoint_is_read_and_rewound(
    spark: SparkSession,
    golden: Callable[[str], Path],
    tmp_path: Path,
    given: dict[str, str],
    name: str,
    line: str,
) -> None:
    """Its batches, its position, and a batch that is repeated after a rewind."""
    store, checkpoint = golden("plain"), tmp_path / "checkpoint"
    store_id = store_id_of(read_store_settings(store))
    checkpoint.mkdir()
    with settings(spark, given):
        rows = run_query(spark, store, checkpoint, name=name)
        text = (checkpoint / "offsets" / "1").read_text()
        assert text.splitlines()[0] == ("v2" if ":" in line else "v1")
        assert text.splitlines()[2].startswith(line)
        history = read_history(checkpoint, store_id)
        assert history.damage == ()
        ends = [batch.end for batch in history.batches]
        assert [batch.start for batch in history.batches] == [0, *ends[:-1]]
        assert ends == sorted(ends) and ends[-1] == END
        last = len(ends) - 1
        assert read_position(checkpoint, store_id) == SparkPosition(END, last, True, END)
        rewind(checkpoint, SparkPosition(ends[-2], last - 1, True, ends[-2]))
        again = run_query(spark, store, checkpoint, name=name)
        assert again == [offset for offset in rows if offset >= ends[-2]] != []
        assert read_history(checkpoint, store_id).damage == ()


def test_a_run_goes_on_from_a_checkpoint_of_the_newer_format(
    spark: SparkSession,
    golden: Callable[[str], Path],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It is not moved aside, and the queues are the broker's."""
    caplog.set_level(logging.INFO, "reput")
    full, store, output = golden("plain"), tmp_path / "store", tmp_path / "output"
    (store / "commitlog").mkdir(parents=True)
    shutil.copy(full / "broker.conf", store)
    files = sorted((full / "commitlog").iterdir())
    with settings(spark, VERSION_2):
        for part in (files[:3], files[3:]):
            for file in part:
                shutil.copy(file, store / "commitlog")
            dispatch(store, output, max_bytes_per_trigger=200_000)
    offsets = (output / STATE_DIRECTORY / SPARK_DIRECTORY / "offsets").iterdir()
    assert {path.read_text()[:2] for path in offsets if path.name.isdigit()} == {"v2"}
    assert "moved aside" not in caplog.text
    assert difference(output / "consumequeue", full / "consumequeue") == []
