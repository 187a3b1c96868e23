"""Real queries over a store that lost its end and grew again, and over one that grows meanwhile."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from tests.support.rewritten_store import RewrittenStore

SOURCES = "rocketmq-commitlog", "rocketmq-consumequeue"


def run(spark: SparkSession, source: str, store: RewrittenStore, at: Path, **options: Any) -> None:
    """One run with Trigger.AvailableNow over the checkpoint and the sink of a directory."""
    frame = spark.readStream.format(source).option("path", str(store.root)).options(**options)
    query = frame.load().select("body").writeStream.format("parquet").trigger(availableNow=True)
    query = query.option("checkpointLocation", str(at / "checkpoint"))
    query.option("path", str(at / "sink")).start().awaitTermination()


def found(spark: SparkSession, at: Path) -> list[bytes]:
    """Bodies in the sink, sorted."""
    return sorted(bytes(row[0]) for row in spark.read.parquet(str(at / "sink")).collect())


@pytest.mark.extended
@pytest.mark.parametrize("source", SOURCES)
def test_a_restart_after_the_log_was_rewritten(
    spark: SparkSession, tmp_path: Path, source: str
) -> None:
    """It fails and says what to do; done, it gives each new message once."""
    store = RewrittenStore(tmp_path / "store")
    options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "70"}
    first = store.fill(200)
    run(spark, source, store, tmp_path, **options)
    assert found(spark, tmp_path) == sorted(first)
    store.lose(50, clock=True)
    others = store.fill(80, "other")
    with pytest.raises(StreamingQueryException, match=r"LOG_REWRITTEN.*failOnDataLoss"):
        run(spark, source, store, tmp_path, **options)
    run(spark, source, store, tmp_path, failOnDataLoss="false")
    rows = found(spark, tmp_path)
    assert [body for body in rows if body in others] == sorted(others)
    assert set(rows) == set(first + others)
    run(spark, source, store, tmp_path)
    assert found(spark, tmp_path) == rows


@pytest.mark.parametrize("source", SOURCES)
def test_available_now_on_a_growing_store(spark: SparkSession, tmp_path: Path, source: str) -> None:
    """With default options, and from the start: whatever comes between Spark's calls."""
    store, has_ended = RewrittenStore(tmp_path / "store"), threading.Event()
    first = store.fill(50)
    written = list(first)

    def grow() -> None:
        while not has_ended.wait(0.002):
            written.extend(store.fill(1, f"more{len(written)}."))

    grower = threading.Thread(target=grow)
    grower.start()
    try:
        run(spark, source, store, tmp_path / "latest")
        run(spark, source, store, tmp_path, startingOffsets="earliest")
    finally:
        has_ended.set()
        grower.join()
    run(spark, source, store, tmp_path)
    assert found(spark, tmp_path) == sorted(written)
