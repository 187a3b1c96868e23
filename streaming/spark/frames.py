"""A frame's rows as Arrow batches, collected by the driver or mapped by tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark import util
from pyspark.sql import DataFrame, udf

from reput.sources.plainspark import go_plain, is_plain
from reput.streaming.spark.errors import first_line

MAP_IN_ARROW = "mapInArrow"
"""A method of Spark's own frames."""

MapFunction = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def collected(frame: DataFrame) -> Sequence[pa.RecordBatch]:
    """Run a frame's job and return its rows, in the order of the frame's partitions."""
    if is_plain():
        batches: Sequence[pa.RecordBatch] = frame.toArrow().to_batches()
    else:
        # what toArrow does besides, with schema and settings, is a tenth of a small batch's time
        batches = frame._collect_as_arrow()  # type: ignore[operator]
    return batches


def mapped(frame: DataFrame, function: MapFunction, schema: str) -> DataFrame:
    """Return what a function makes of each of a frame's partitions."""
    if not is_plain():
        try:
            return _mapped_in_java(frame, function, schema)
        except (Py4JError, TypeError) as error:
            version = frame.sparkSession.version
            go_plain(f"spark {version} has another {MAP_IN_ARROW}, {first_line(error)}")
    return frame.mapInArrow(function, schema)


def _mapped_in_java(frame: DataFrame, function: MapFunction, schema: str) -> DataFrame:
    """Return the same without pandas, which pyspark asks for and makes no use of
    (``spark.withoutpandas``)."""
    made = udf._create_udf(function, schema, util.PythonEvalType.SQL_MAP_ARROW_ITER_UDF)
    column: Any = made(*[frame[name] for name in frame.columns])
    map_in_arrow = getattr(frame._jdf, MAP_IN_ARROW)
    return DataFrame(map_in_arrow(column._jc, False, None), frame.sparkSession)
