"""From collected Arrow rows back to runs and ranges: the driver's side of ``sources.runs``."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from store.consumequeue import UNIT_DTYPE
from store.cursor import BadRange
from store.dispatch import RowKind, Run, ScannedRange
from store.record import Status
from store.spool import SpoolReader


def unpack(table: pa.Table, spool: SpoolReader) -> Iterator[Run | BadRange | ScannedRange]:
    """Rows of the packed form as objects; units stay where Arrow or the spool has them."""
    for batch in table.to_batches():
        units = _values(batch.column("units"))
        queue_offsets = _values(batch.column("queueOffsets"))
        rest = batch.drop_columns(["units", "queueOffsets"]).to_pylist()
        for index, row in enumerate(rest):
            if row["kind"] == RowKind.RUN:
                jumps = queue_offsets[index]
                yield Run(
                    topic=row["topic"],
                    queue_id=row["queueId"],
                    first_physical_offset=row["firstPhysicalOffset"],
                    first_queue_offset=row["firstQueueOffset"],
                    queue_offsets=None if jumps is None else np.frombuffer(jumps, np.int64),
                    units=np.frombuffer(
                        units[index]
                        or spool.take(
                            row["spoolName"],
                            row["spoolPosition"],
                            row["messageCount"] * UNIT_DTYPE.itemsize,
                        ),
                        UNIT_DTYPE,
                    ),
                    last_store_timestamp=row["lastStoreTimestamp"],
                )
            elif row["kind"] == RowKind.SCANNED:
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


def _values(column: pa.Array) -> list[pa.Buffer | None]:
    return [value.as_buffer() for value in column]
