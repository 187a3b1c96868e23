"""Partitions and order of an Iceberg table: those of a new one, and rows split by those of any."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.sorting import NullOrder, SortDirection, SortField, SortOrder
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    Transform,
)
from pyiceberg.typedef import Record
from pyiceberg.types import IntegerType, TimestamptzType

from reput.sinks.tables.layout import ICEBERG_LAYOUT, Layout, buckets
from reput.sinks.tables.ordering import rows_in_order

_TIME, _TOPIC, _QUEUE = "storeTimestamp", "topic", "queueId"
_FIRST_FIELD_ID = 1000
_WAYS = {SortDirection.ASC: "ascending", SortDirection.DESC: "descending"}


def partition_spec(schema: Schema, layout: Layout) -> PartitionSpec:
    """The partitions of a new table."""
    fields = []
    for number, part in enumerate(layout.partition_by, _FIRST_FIELD_ID):
        name, transform = _transform(part)
        source = schema.find_field(name).field_id
        suffix = "" if isinstance(transform, IdentityTransform) else f"_{part.partition('(')[0]}"
        fields.append(PartitionField(source, number, transform, f"{name}{suffix}"))
    return PartitionSpec(*fields)


def _transform(part: str) -> tuple[str, Transform[Any, Any]]:
    if part == "topic":
        return _TOPIC, IdentityTransform()
    if (count := buckets(part)) is not None:
        return _QUEUE, BucketTransform(count)
    return _TIME, DayTransform() if part == "day" else HourTransform()


def sort_order(schema: Schema, layout: Layout) -> SortOrder:
    """The order of a new table's files."""
    return SortOrder(
        *(
            SortField(schema.find_field(name).field_id, IdentityTransform())
            for name in layout.sort_by
        )
    )


def unfit_partition(metadata: TableMetadata) -> str | None:
    """The name of a partition field for which no value is made here; None where there is none."""
    for field in metadata.spec().fields:
        column = metadata.schema().find_column_name(field.source_id)
        fits = {
            _TIME: (DayTransform, HourTransform), _TOPIC: (IdentityTransform,),
            _QUEUE: (BucketTransform, IdentityTransform),
        }.get(column or "", ())  # fmt: skip
        if not isinstance(field.transform, fits):
            return field.name
    return None


def split(table: Table, rows: pa.RecordBatch) -> Iterator[tuple[Record, Part]]:
    """Yield the values of a partition, and its rows in the table's order."""
    keys = [
        _values(rows.column(table.schema().find_column_name(field.source_id)), field.transform)
        for field in table.spec().fields
    ]
    order = rows_in_order(rows, order_of(table).columns, keys)
    keys = [values.take(order) for values in keys]
    starts = [0, *_changes(keys, rows.num_rows)]
    for start, end in zip(starts, [*starts[1:], rows.num_rows], strict=True):
        partition = Record(*(values[start].as_py() for values in keys))
        yield partition, Part(rows, order.slice(start, end - start))


@dataclass(frozen=True, slots=True)
class Part:
    """Rows of one partition among others, which are copied by whoever writes them."""

    rows: pa.RecordBatch
    numbers: pa.UInt64Array
    """Numbers of the rows, in the table's order."""

    def in_order(self, names: list[str]) -> pa.Table:
        """Return columns of the rows."""
        return pa.Table.from_batches([self.rows.select(names).take(self.numbers)])


@dataclass(frozen=True, slots=True)
class Order:
    """The order of rows within a file."""

    columns: list[tuple[str, str, bool]]
    """Columns, ``ascending`` or ``descending``, and whether nulls are first."""
    order_id: int | None
    """The table's number of it; None for ours, which the table does not know."""


def order_of(table: Table) -> Order:
    """The table's own order, or ours where it has none, or one that is more than columns."""
    fields = table.sort_order().fields
    names = [table.schema().find_column_name(field.source_id) or "" for field in fields]
    if not names or not all(isinstance(field.transform, IdentityTransform) for field in fields):
        return Order([(name, "ascending", False) for name in ICEBERG_LAYOUT.sort_by], None)
    return Order(
        [
            (name, _WAYS[field.direction], field.null_order == NullOrder.NULLS_FIRST)
            for name, field in zip(names, fields, strict=True)
        ],
        table.sort_order().order_id,
    )


def _values(column: pa.Array, transform: Transform[Any, Any]) -> pa.Array:
    """Partition values as pyiceberg has them: days and hours since 1970, before it, too."""
    if isinstance(transform, DayTransform | HourTransform):
        times = column.cast(pa.timestamp("us", tz="UTC"))
        return transform.pyarrow_transform(TimestamptzType())(times)
    if isinstance(transform, BucketTransform):
        return transform.pyarrow_transform(IntegerType())(column)
    return column


def _changes(keys: list[pa.Array], count: int) -> list[int]:
    """Numbers of the rows whose partition differs from that of the row before."""
    changed: NDArray[np.bool_] = np.zeros(max(0, count - 1), np.bool_)
    for values in keys:
        codes = values.dictionary_encode(null_encoding="encode").indices
        changed |= np.diff(np.asarray(codes)) != 0
    return [int(at) for at in np.flatnonzero(changed) + 1]
