"""Errors that come back through Spark: which of them are ours, wherever a Python worker raises."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from reput.store.errors import CorruptRecordError, StoreError, UsageError
from reput.streaming.spark.errors import error_of_ours
from reput.streaming.spark.frames import collected

# workers do not have the tests' folder
cloudpickle.register_pickle_by_value(sys.modules[__name__])
PLACES = ("schema", "reader", "latestOffset", "partitions", "read")


def raise_usage_error() -> None:
    """A line of the tree's other branch, with a colon of its own."""
    raise UsageError("--output: it is no store")


def raise_from_another() -> None:
    """An error of ours, of a class with a constructor of its own, that another one caused."""
    try:
        raise OSError(5, "reput.store.errors.UsageError: not this one")
    except OSError as error:
        raise CorruptRecordError("/log/0", 12, 20, "BAD_MAGIC") from error


def raise_another() -> None:
    """No error of ours, although its text and the source line have the name of one."""
    raise ValueError(
        "found 'reput.store.errors.UsageError: not ours'"
    )  # reput.store.errors.UsageError: ours


def failing(place: str, fail: Callable[[], None]) -> type[DataSource]:
    """A data source that fails in one of its methods; workers get it by value."""

    def at(here: str) -> None:
        if here == place:
            fail()

    class Reader(DataSourceStreamReader):
        def initialOffset(self) -> dict[str, int]:
            return {"offset": 0}

        def latestOffset(self) -> dict[str, int]:  # type: ignore[override]
            at("latestOffset")
            return {"offset": 1}

        def partitions(self, _start: Any, _end: Any) -> list[InputPartition]:
            at("partitions")
            return [InputPartition(0)]

        def read(self, _partition: InputPartition) -> Iterator[tuple[int]]:
            at("read")
            yield (1,)

    class Source(DataSource):
        @classmethod
        def name(cls) -> str:
            return f"failing_{place}"

        def schema(self) -> str:
            at("schema")
            return "number int"

        def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: ARG002
            at("reader")
            return Reader()

    return Source


def error_of(spark: SparkSession, source: type[DataSource], checkpoint: Path) -> BaseException:
    """The error of a query: that of the batch's collection, if it came as far."""
    raised: list[BaseException] = []

    def collect(frame: DataFrame, _batch_id: int) -> None:
        try:
            collected(frame)
        except BaseException as error:
            raised.append(error)
            raise

    spark.dataSource.register(source)
    with pytest.raises(PySparkException) as caught:
        stream = spark.readStream.format(source.name()).load().writeStream.foreachBatch(collect)
        stream = stream.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
        stream.start().awaitTermination()
    return raised[0] if raised else caught.value


@pytest.mark.parametrize("place", PLACES)
def test_an_error_of_ours_is_known_by_the_name_of_its_class_alone(
    spark: SparkSession, tmp_path: Path, place: str
) -> None:
    """It keeps its whole line and its exit code, and no other text passes for one."""
    cases: tuple[tuple[Callable[[], None], BaseException | None], ...] = (
        (raise_usage_error, UsageError("--output: it is no store")),
        (raise_from_another, StoreError(str(CorruptRecordError("/log/0", 12, 20, "BAD_MAGIC")))),
        (raise_another, None),
    )
    for index, (fail, expected) in enumerate(cases):
        found = error_of_ours(error_of(spark, failing(place, fail), tmp_path / str(index)))
        assert (type(found), str(found)) == (type(expected), str(expected))
