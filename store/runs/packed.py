"""Unpacks collected Arrow rows into runs and ranges: the driver's side of ``sources.runs``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from store.log.cursor import BadRange
from store.log.record import Status
from store.queue.consumequeue import UNIT_DTYPE
from store.runs.dispatch import (
    DETAIL_DTYPE,
    BatchSettings,
    IndexEntries,
    RowKind,
    Run,
    ScannedRange,
)
from store.runs.spool import SpoolReader

_NO_ENTRIES = (np.empty(0, np.int64), np.empty(0, np.int32), np.empty(0, np.int64))


def unpack(
    batches: Iterable[pa.RecordBatch], spool: SpoolReader
) -> Iterator[Run | BadRange | ScannedRange | IndexEntries]:
    """Rows of the packed form as objects; units stay in Arrow's or the spool's memory."""
    for batch in batches:
        buffers = {name: _values(batch.column(name)) for name in ("units", "queueOffsets")}
        rest = batch.drop_columns(list(buffers))
        names = rest.schema.names
        # by columns, because many queues make hundreds of thousands of rows
        columns = (rest.column(name).to_pylist() for name in names)
        for index, values in enumerate(zip(*columns, strict=True)):
            row = dict(zip(names, values, strict=True))
            kind = row["kind"]
            if kind == RowKind.RUN:
                data = _data(row, buffers["units"][index], spool)
                yield _run(row, data, buffers["queueOffsets"][index])
            elif kind == RowKind.INDEX:
                yield _index_entries(row, _data(row, buffers["units"][index], spool))
            elif kind == RowKind.SCANNED:
                yield ScannedRange(
                    start=row["firstPhysicalOffset"],
                    end=row["endPhysicalOffset"],
                    planned_end=row["plannedEndOffset"],
                    message_count=row["messageCount"],
                    last_record_offset=row["lastRecordOffset"],
                    settings=BatchSettings.from_text(_text(buffers["units"][index])),
                )
            else:
                yield BadRange(
                    row["firstPhysicalOffset"], row["endPhysicalOffset"], Status(row["status"])
                )


def _data(
    row: dict[str, Any], inline: pa.Buffer | None, spool: SpoolReader
) -> pa.Buffer | memoryview:
    if inline is not None:
        return inline
    size = row["messageCount"] * row["bytesPerMessage"]
    return spool.take(row["spoolName"], row["spoolPosition"], size)


def _text(value: pa.Buffer | None) -> str:
    if value is None:
        raise ValueError("a SCANNED row of the packed form lacks its batch settings")
    return str(memoryview(value), "utf-8")


def _run(row: dict[str, Any], data: pa.Buffer | memoryview, jumps: pa.Buffer | None) -> Run:
    count, width = row["messageCount"], row["bytesPerMessage"]
    unit, detailed = UNIT_DTYPE.itemsize, UNIT_DTYPE.itemsize + DETAIL_DTYPE.itemsize
    details = bit_maps = None
    if width >= detailed:
        details = np.frombuffer(data, DETAIL_DTYPE, count, count * unit)
    if width > detailed:
        bit_maps = np.frombuffer(data, np.uint8, -1, count * detailed).reshape(count, -1)
    return Run(
        topic=row["topic"],
        queue_id=row["queueId"],
        first_physical_offset=row["firstPhysicalOffset"],
        first_queue_offset=row["firstQueueOffset"],
        queue_offsets=None if jumps is None else np.frombuffer(jumps, np.int64),
        units=np.frombuffer(data, UNIT_DTYPE, count),
        last_store_timestamp=row["lastStoreTimestamp"],
        details=details,
        bit_maps=bit_maps,
    )


def _index_entries(row: dict[str, Any], data: pa.Buffer | memoryview) -> IndexEntries:
    count = row["messageCount"]
    if not count:  # numpy makes no array of an empty buffer
        return IndexEntries(row["firstPhysicalOffset"], *_NO_ENTRIES)
    return IndexEntries(
        row["firstPhysicalOffset"],
        np.frombuffer(data, np.int64, count),
        np.frombuffer(data, np.int32, count, 8 * count),
        np.frombuffer(data, np.int64, count, 12 * count),
    )


def _values(column: pa.Array) -> list[pa.Buffer | None]:
    if column.null_count == len(column):
        return [None] * len(column)
    return [value.as_buffer() for value in column]
