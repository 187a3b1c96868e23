"""The rows of Spark's sources: the passes count what is there, and what is missing is no time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from bench import sparksources, table_worker
from bench.processes import BenchError
from bench.sparksources import Source
from tests.support.plain_queues import plain_queue


@pytest.mark.parametrize("stream", [False, True])
def test_a_pass_counts_every_row(
    spark: SparkSession, golden: Callable[[str], Path], stream: bool
) -> None:
    """All queues of a store, as a batch read and as a stream that ends."""
    store = golden("plain")
    queues = (store / "consumequeue").glob("*/*")
    expected = sum(1 for queue in queues for _ in plain_queue(store, queue))
    options = {"path": str(store), "startingOffsets": "earliest"}
    request = {"format": "rocketmq-consumequeue", "options": options, "stream": stream}
    answer = table_worker.one_pass(spark, request)
    assert answer["rows"] == expected > 0
    assert sparksources.checked(answer, Source("plain", options, expected)) == answer["seconds"]


def test_a_pass_that_lost_or_doubled_rows_is_no_time() -> None:
    """Whichever source it was."""
    source = Source("kafka", {}, 250)
    assert sparksources.checked({"rows": 250, "seconds": 2.0}, source) == 2.0
    for rows in (249, 251):
        with pytest.raises(BenchError, match=r"kafka gave \d+ rows instead of 250"):
            sparksources.checked({"rows": rows, "seconds": 2.0}, source)
