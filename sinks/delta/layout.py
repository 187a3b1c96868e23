"""The layout of a Delta table: partitions are columns of their own, and the order of rows stands in
the schema, since the format knows no order.

| part | partition columns |
|---|---|
| ``topic`` | topic |
| ``day`` | date |
| ``hour`` | date, hour |
| ``queue(N)`` | queueModN |

Columns that only such a table has:

| column | type | content |
|---|---|---|
| hour | integer | of storeTimestamp, 0 to 23, UTC; null if that is |
| queueModN | integer | queueId modulo N, such as queueMod8; null if there is no queueId |

The number of buckets is a part of the column's name, so that neither writers nor readers need to
look for it elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from reput.sinks.tables.follower import unfit_table
from reput.sinks.tables.layout import SORTABLE, Layout, buckets
from reput.sinks.tables.ordering import chunks, rows_in_order

if TYPE_CHECKING:
    from deltalake import DeltaTable

SORT_MARK = "reput.sortPosition"
"""In the metadata of a column by which rows are sorted, its place among those columns, from 0."""
_HOUR = "hour"
_MODULO = re.compile(r"queueMod([1-9][0-9]{0,4})\Z", re.ASCII)
_FOUND = "topic", "date", "queueId"
"""Columns of every table by which one may be partitioned."""


@dataclass(frozen=True, slots=True)
class DeltaLayout:
    """Partition columns and order of one table."""

    partition_columns: tuple[str, ...]
    sort_by: tuple[str, ...]

    @classmethod
    def of_new_table(cls, layout: Layout) -> DeltaLayout:
        """As declared."""
        columns = (column for part in layout.partition_by for column in _columns(part))
        return cls(tuple(dict.fromkeys(columns)), layout.sort_by)

    @classmethod
    def of_table(cls, table: DeltaTable, name: str) -> DeltaLayout:
        """The one that a table has. Raises UsageError for partitions without a value here; ``name``
        is the table's, for the message."""
        fields = {field.name: field for field in table.schema().fields}
        columns = table.metadata().partition_columns
        for column in columns:
            kind = getattr(fields[column].type, "type", None)
            is_own = column == _HOUR or _MODULO.match(column) is not None
            if column not in _FOUND and not (is_own and kind == "integer"):
                wrong = f"has the partition column {column}, for which there is no value here"
                raise unfit_table(name, wrong)
        ours = (name for name in SORTABLE if name in fields and SORT_MARK in fields[name].metadata)
        sort_by = sorted(ours, key=lambda name: str(fields[name].metadata[SORT_MARK]))
        return cls(tuple(columns), tuple(sort_by))

    @property
    def fields(self) -> list[pa.Field]:
        """Columns besides those of every table."""
        own = (one for one in self.partition_columns if one not in _FOUND)
        return [pa.field(name, pa.int32()) for name in own]

    def marked(self, schema: pa.Schema) -> pa.Schema:
        """Return a new table's schema, which tells the order."""
        for place, name in enumerate(self.sort_by):
            at = schema.get_field_index(name)
            schema = schema.set(at, schema.field(at).with_metadata({SORT_MARK: str(place)}))
        return schema

    def laid_out(self, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield rows with these columns, in this order, of which as many are sorted at once as a
        chunk has."""
        rows = map(self._with_columns, rows) if self.fields else rows
        if not self.sort_by:
            yield from rows
            return
        columns = [(name, "ascending", True) for name in self.sort_by]
        for chunk in chunks(rows):
            yield chunk.take(rows_in_order(chunk, columns))

    def _with_columns(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        for field in self.fields:
            rows = rows.append_column(field, _values(rows, field.name))
        return rows


def _columns(part: str) -> tuple[str, ...]:
    if (count := buckets(part)) is not None:
        return (f"queueMod{count}",)
    return {"topic": ("topic",), "day": ("date",), "hour": ("date", _HOUR)}[part]


def _values(rows: pa.RecordBatch, column: str) -> pa.Array:
    if column == _HOUR:
        # without its zone, whose rules a machine may lack
        times = rows.column("storeTimestamp").cast(pa.timestamp("us"))
        return pc.hour(times).cast(pa.int32())
    found = _MODULO.match(column)
    assert found is not None
    queue_ids = rows.column("queueId")
    # a damaged record may have a negative one; the rest is of the divisor's sign
    rest = np.mod(queue_ids.fill_null(0).to_numpy(zero_copy_only=False), int(found[1]))
    return pa.array(rest, pa.int32(), mask=queue_ids.is_null().to_numpy(zero_copy_only=False))
