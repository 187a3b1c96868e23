"""The recipe for the lag of a user's own stream, ``docs/examples/stream_lag.py``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from queue import Queue

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import QueryTerminatedEvent

import reput.sources
from docs.examples.stream_lag import LagListener, lag
from tests.support.queue_units import queue_units

END = 1724243


class Recorder(LagListener):
    """A listener that says when a query has ended, too."""

    def __init__(self, told: Queue[int | None]) -> None:
        super().__init__(lambda _name, distance: told.put(distance))
        self._told = told

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """The last event of a query."""
        self._told.put(-1 if event.exception else None)


@pytest.mark.extended
@pytest.mark.parametrize("several", [False, True], ids=["one", "pattern"])
@pytest.mark.parametrize("source", ["rocketmq-commitlog", "rocketmq-consumequeue"])
def test_the_lag_after_each_batch(
    spark: SparkSession, golden: Callable[[str], Path], tmp_path: Path, source: str, several: bool
) -> None:
    """It is what is left: messages of queues, bytes of the log; nothing in the end."""
    store = golden("plain")
    whole = END if source == "rocketmq-commitlog" else len(queue_units(store))
    told: Queue[int | None] = Queue()
    reput.sources.register(spark)
    listener = Recorder(told)
    spark.streams.addListener(listener)
    try:
        reader = spark.readStream.format(source).option("startingOffsets", "earliest")
        reader = reader.option("maxOffsetsPerTrigger", "1500").option("includeInternal", "true")
        frame = reader.load(f"{store.parent}/plai*" if several else str(store))
        writer = frame.select("physicalOffset").writeStream.format("noop")
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        writer.trigger(availableNow=True).start().awaitTermination()
        found = list(iter(lambda: told.get(timeout=60), None))
    finally:
        spark.streams.removeListener(listener)
    lags = [each for each in found if each is not None]
    assert len(lags) >= 2
    assert lags == sorted(lags, reverse=True)
    assert whole > lags[0] > 0 == lags[-1]
    if source == "rocketmq-consumequeue":
        assert whole - 1500 <= lags[0] <= whole - 1400


def test_queues_that_an_offset_does_not_have() -> None:
    """They are read from their beginning."""
    latest = {"A": {"0": 5, "1": 3}, "B": {"0": 2}}
    assert lag({"A": {"0": 4}, "/evidence": {"log": "", "units": {}}}, latest) == 1 + 3 + 2
    stores = {"/a": latest, "/b": latest}
    assert lag({"stores": {"/a": latest}}, {"stores": stores}) == 10
    assert lag({"stores": {"/a": {"offset": 7}}}, {"stores": {"/a": {"offset": 9}}}) == 2
