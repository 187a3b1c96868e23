"""A frame's rows as Arrow batches, collected by the driver or mapped by tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark import util
from pyspark.sql import DataFrame, udf

from reput.sources.plainspark import is_plain

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
    if is_plain():
        return frame.mapInArrow(function, schema)
    # the same without pandas, which pyspark asks for and makes no use of (spark.withoutpandas)
    made = udf._create_udf(function, schema, util.PythonEvalType.SQL_MAP_ARROW_ITER_UDF)
    column: Any = made(*[frame[name] for name in frame.columns])
    return DataFrame(frame._jdf.mapInArrow(column._jc, False, None), frame.sparkSession)
