"""Filters that Spark pushes into a batch read: rows that they rule out never reach the JVM.

They are hints. Spark evaluates each of them again, so a filter that is not understood is let be,
and nothing here may drop a row that fulfils them all.

Spark pushes filters only where ``spark.sql.python.filterPushdown.enabled`` is on, in a worker of
its own kind, and it rejects a reader that merely could take them where the setting is off. So a
reader takes filters in that kind of worker and nowhere else.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from reput.store.log.commitlog import CommitLog
from reput.store.log.cursor import Window, walk
from reput.store.log.places import record_start

if TYPE_CHECKING:
    import pyarrow as pa

SETTING = "spark.sql.python.filterPushdown.enabled"
_WORKER = "pyspark.sql.worker.data_source_pushdown_filters"
Bound = GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual
_COMPARISONS: dict[type[Filter], str] = {
    EqualTo: "equal",
    GreaterThan: "greater",
    GreaterThanOrEqual: "greater_equal",
    LessThan: "less",
    LessThanOrEqual: "less_equal",
}


def is_pushing() -> bool:
    """Return whether Spark asks this process for a reader that takes filters."""
    return _WORKER in sys.modules


def whole_bounds(filters: Iterable[Filter], column: str) -> tuple[int, int | None]:
    """Return [first, end) of a column of whole numbers from 0 on; None for no end."""
    first, end = 0, None
    for each in filters:
        if not isinstance(each, EqualTo | Bound) or each.attribute != (column,):
            continue
        if type(each.value) is int:
            after = each.value + isinstance(each, EqualTo | GreaterThan | LessThanOrEqual)
            if isinstance(each, EqualTo):
                first = max(first, each.value)
            if isinstance(each, GreaterThan | GreaterThanOrEqual):
                first = max(first, after)
            else:
                end = after if end is None else min(end, after)
    return first, end


def narrowed(log: CommitLog, start: int, end: int, filters: Collection[Filter]) -> tuple[int, int]:
    """Return the part of [start, end), of record starts, that holds the physical offsets which
    filters leave."""
    first, last = whole_bounds(filters, "physicalOffset")
    begin, stop = start, end
    if start < first:
        begin = min(max(start, _row_start(log, first)), end)
    if last is not None and last < end:
        stop = _row_start(log, last)
        if stop < last:
            # what contains the bound begins before it
            gap = log.segments.gap_at(stop)
            stop = gap[1] if gap else walk(log, Window(log), stop, end, max_records=1).offset
    return begin, max(begin, min(stop, end))


def _row_start(log: CommitLog, offset: int) -> int:
    """Return where the row begins that contains ``offset``; a damaged one is passed over."""
    gap = log.segments.gap_at(offset)
    return gap[0] if gap else record_start(log, offset)


def matching(batch: pa.RecordBatch, filters: Iterable[Filter]) -> pa.RecordBatch:
    """Return the rows of a batch that ``filters`` do not rule out."""
    import pyarrow as pa  # noqa: PLC0415  the planner needs none
    import pyarrow.compute as pc  # noqa: PLC0415

    kept: Any = None
    for each in filters:
        if (
            not isinstance(each, EqualTo | In | Bound)
            or each.attribute[0] not in batch.schema.names
        ):
            continue
        column = batch.column(each.attribute[0])
        if len(each.attribute) > 1 or pa.types.is_nested(column.type):
            continue
        try:
            if isinstance(each, In):
                matches = pc.is_in(
                    column, pa.array([_exact(value, column.type) for value in each.value])
                )
            else:
                compare: Callable[..., Any] = getattr(pc, _COMPARISONS[type(each)])
                matches = compare(column, _exact(each.value, column.type))
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            continue  # Spark knows what a value means that the column cannot have
        kept = matches if kept is None else pc.and_(kept, matches)
    return batch if kept is None else batch.filter(kept)


def _exact(value: object, kind: pa.DataType) -> pa.Scalar:
    """Return a value in a column's type. Raises ValueError where it would be another one."""
    import pyarrow as pa  # noqa: PLC0415

    scalar = pa.scalar(value, kind)
    if scalar.as_py() != value:
        raise ValueError(value)
    return scalar
