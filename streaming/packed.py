"""From collected Arrow rows back to runs and ranges: the driver's side of ``sources.runs``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from store.consumequeue import UNIT_DTYPE
from store.cursor import BadRange
from store.dispatch import RowKind, Run, ScannedRange
from store.record import Status
from store.spool import SpoolReader


def unpack(
    batches: Iterable[pa.RecordBatch], spool: SpoolReader
) -> Iterator[Run | BadRange | ScannedRange]:
    """Rows of the packed form as objects; units stay where Arrow or the spool has them."""
    for batch in batches:
        buffers = {name: _values(batch.column(name)) for name in ("units", "queueOffsets")}
        rest = batch.drop_columns(list(buffers))
        # by columns: with many queues there are hundreds of thousands of rows
        columns = {name: rest.column(name).to_pylist() for name in rest.schema.names}
        for index, kind in enumerate(columns["kind"]):
            row = {name: values[index] for name, values in columns.items()}
            if kind == RowKind.RUN:
                yield _run(row, buffers["units"][index], buffers["queueOffsets"][index], spool)
            elif kind == RowKind.SCANNED:
                yield ScannedRange(
                    start=row["firstPhysicalOffset"],
                    end=row["endPhysicalOffset"],
                    planned_end=row["plannedEndOffset"],
                    message_count=row["messageCount"],
                    last_record_offset=row["lastRecordOffset"],
                )
            else:
                yield BadRange(
                    row["firstPhysicalOffset"], row["endPhysicalOffset"], Status(row["status"])
                )


def _run(
    row: dict[str, Any], units: pa.Buffer | None, jumps: pa.Buffer | None, spool: SpoolReader
) -> Run:
    if units is None:
        size = row["messageCount"] * UNIT_DTYPE.itemsize
        units = spool.take(row["spoolName"], row["spoolPosition"], size)
    return Run(
        topic=row["topic"],
        queue_id=row["queueId"],
        first_physical_offset=row["firstPhysicalOffset"],
        first_queue_offset=row["firstQueueOffset"],
        queue_offsets=None if jumps is None else np.frombuffer(jumps, np.int64),
        units=np.frombuffer(units, UNIT_DTYPE),
        last_store_timestamp=row["lastStoreTimestamp"],
    )


def _values(column: pa.Array) -> list[pa.Buffer | None]:
    if column.null_count == len(column):
        return [None] * len(column)
    return [value.as_buffer() for value in column]
