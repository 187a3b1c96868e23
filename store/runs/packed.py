"""The packed form in Arrow, as tasks write it and the driver reads it: a row per run, per range
that could not be dispatched, and for the scanned range (``store.runs.packedschema``)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby, pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from reput.store.log.commitlog import CommitLog
from reput.store.log.cursor import BadRange
from reput.store.log.status import Status
from reput.store.queue.consumequeue import CQ_STORE_UNIT_SIZE, UNIT_DTYPE
from reput.store.runs import scankernel
from reput.store.runs.dispatch import (
    DETAIL_DTYPE,
    INDEX_ENTRY_BYTES,
    BatchSettings,
    IndexEntries,
    Run,
    ScannedRange,
)
from reput.store.runs.manifest import QueueManifest
from reput.store.runs.packedschema import PACKED_SCHEMA, RowKind
from reput.store.runs.scan import Item, PackedChunk, runs_of, scan

AddBitMaps = Callable[[Sequence[Run]], Sequence[Run]]
"""Returns the runs with bit maps added to those whose topic has filters."""
_RUN_COLUMNS = (
    "topic", "queueId", "messageCount", "bytesPerMessage", "firstPhysicalOffset",
    "firstQueueOffset", "lastStoreTimestamp",
)  # fmt: skip
_NO_ENTRIES = (np.empty(0, np.int64), np.empty(0, np.int32), np.empty(0, np.int64))


def read_runs(
    log: CommitLog,
    start: int,
    end: int,
    add_bit_maps: AddBitMaps | None = None,
    **scan_options: Any,
) -> Iterator[pa.RecordBatch]:
    """Read [start, end) of the log in the packed form; ``scan_options`` are passed to ``scan``."""
    for item in scan(log, start, end, **scan_options):
        if isinstance(item, PackedChunk):
            yield _runs_batch(item, add_bit_maps)
            for bad in item.unusable:
                yield _bad_row(bad)
            if item.index_entries is not None:
                yield _index_row(item.index_entries)
        elif isinstance(item, ScannedRange):
            # the disk reads on while the next batch is planned
            log.will_need(item.end, item.end - item.start)
            yield scanned_row(item)
        else:
            yield _bad_row(item)


def queue_row(manifest: QueueManifest) -> pa.RecordBatch:
    """The row of a queue that a task has written, in place of its runs."""
    return _one_row(
        kind=RowKind.QUEUE,
        messageCount=manifest.unit_count,
        firstPhysicalOffset=manifest.first_physical_offset,
        endPhysicalOffset=manifest.end_physical_offset,
        units=manifest.to_text().encode(),
    )


def scanned_row(scanned: ScannedRange) -> pa.RecordBatch:
    """Return the row of a scanned range."""
    return _one_row(
        kind=RowKind.SCANNED,
        messageCount=scanned.message_count,
        firstPhysicalOffset=scanned.start,
        endPhysicalOffset=scanned.end,
        plannedEndOffset=scanned.planned_end,
        lastRecordOffset=scanned.last_record_offset,
        units=scanned.settings.to_text().encode(),
        unitCount=scanned.unit_count,
    )


def _bad_row(bad: BadRange) -> pa.RecordBatch:
    return _one_row(
        kind=RowKind.BAD,
        messageCount=0,
        firstPhysicalOffset=bad.start,
        endPhysicalOffset=bad.end,
        status=int(bad.status),
    )


def _index_row(entries: IndexEntries) -> pa.RecordBatch:
    columns = (entries.offsets, entries.hashes, entries.store_timestamps)
    return _one_row(
        kind=RowKind.INDEX,
        messageCount=len(entries.offsets),
        firstPhysicalOffset=entries.first_physical_offset,
        endPhysicalOffset=entries.first_physical_offset,
        bytesPerMessage=INDEX_ENTRY_BYTES,
        units=b"".join(column.tobytes() for column in columns),
    )


def _one_row(**values: Any) -> pa.RecordBatch:
    columns = [pa.array([values.get(field.name)], field.type) for field in PACKED_SCHEMA]
    return pa.RecordBatch.from_arrays(columns, schema=PACKED_SCHEMA)


def _runs_batch(chunk: PackedChunk, add_bit_maps: AddBitMaps | None) -> pa.RecordBatch:
    runs = chunk.runs
    counts = runs[:, scankernel.RUN_COUNT]
    contiguous = runs[:, scankernel.RUN_CONTIGUOUS] == 1
    bounds = np.concatenate(([0], np.cumsum(counts)))
    topic_bounds = np.concatenate(([0], np.cumsum(runs[:, scankernel.RUN_TOPIC_LENGTH])))
    widths, data = _columns_of_runs(chunk, add_bit_maps)
    places = np.concatenate(([0], np.cumsum(counts * widths)))
    columns = {
        "kind": np.full(len(runs), RowKind.RUN, np.int32),
        "topic": _binary(topic_bounds, chunk.topic_arena),
        "queueId": runs[:, scankernel.RUN_QUEUE_ID].astype(np.int32),
        "messageCount": counts,
        "firstPhysicalOffset": runs[:, scankernel.RUN_FIRST_OFFSET],
        "endPhysicalOffset": runs[:, scankernel.RUN_END_OFFSET],
        "firstQueueOffset": runs[:, scankernel.RUN_FIRST_QUEUE_OFFSET],
        "queueOffsets": _queue_offsets(chunk, bounds, contiguous),
        "lastStoreTimestamp": runs[:, scankernel.RUN_LAST_STORE_TIMESTAMP],
        "bytesPerMessage": widths,
        "units": _binary(places, data),
    }
    arrays = [
        pa.array(columns[field.name], field.type)
        if field.name in columns
        else pa.nulls(len(runs), field.type)
        for field in PACKED_SCHEMA
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=PACKED_SCHEMA)


def _columns_of_runs(chunk: PackedChunk, add_bit_maps: AddBitMaps | None) -> tuple[Any, Any]:
    """Return (int32[runs]: bytes per message, uint8 array): the columns of each run, in
    sequence."""
    widths = np.full(len(chunk.runs), CQ_STORE_UNIT_SIZE, np.int32)
    if chunk.details is None or not len(chunk.runs):
        return widths, chunk.units
    parts = []
    runs = list(runs_of(chunk))
    for index, run in enumerate(add_bit_maps(runs) if add_bit_maps else runs):
        maps = run.bit_maps
        columns = [run.units, run.details] if maps is None else [run.units, run.details, maps]
        parts += [np.ascontiguousarray(column).view(np.uint8).reshape(-1) for column in columns]
        widths[index] += DETAIL_DTYPE.itemsize + (0 if maps is None else maps.shape[1])
    return widths, np.concatenate(parts)


def _binary(bounds: Any, data: Any) -> pa.Array:
    """Return a binary column over ``data`` without a copy: value i is
    ``data[bounds[i]:bounds[i+1]]``."""
    offsets = pa.py_buffer(bounds.astype(np.int32))
    return pa.Array.from_buffers(pa.binary(), len(bounds) - 1, [None, offsets, pa.py_buffer(data)])


def _queue_offsets(chunk: PackedChunk, bounds: Any, contiguous: Any) -> pa.Array:
    if contiguous.all():
        return pa.nulls(len(contiguous), pa.binary())
    return pa.array(
        [
            None if plain else chunk.queue_offsets[low:high].tobytes()
            for plain, low, high in zip(contiguous, bounds, bounds[1:], strict=False)
        ],
        pa.binary(),
    )


def unpack(batches: Iterable[pa.RecordBatch]) -> Iterator[Item]:
    """Rows of the packed form as objects; units stay in Arrow's memory."""
    for batch in batches:
        at = 0
        # rows that came through Spark are in batches of its own
        for kind, rows in groupby(batch.column("kind").to_pylist()):
            part = batch.slice(at, len(list(rows)))
            at += len(part)
            yield from _runs(part) if kind == RowKind.RUN else map(_item, *_rows(part))


def _rows(batch: pa.RecordBatch) -> tuple[list[dict[str, Any]], Sequence[memoryview | None]]:
    return batch.drop_columns(["units"]).to_pylist(), _values(batch.column("units"))


def _item(row: dict[str, Any], data: memoryview | None) -> Item:
    if row["kind"] == RowKind.QUEUE:
        return QueueManifest.from_text(_text(data))
    if row["kind"] == RowKind.INDEX:
        return _index_entries(row, data)
    if row["kind"] == RowKind.SCANNED:
        return ScannedRange(
            start=row["firstPhysicalOffset"],
            end=row["endPhysicalOffset"],
            planned_end=row["plannedEndOffset"],
            message_count=row["messageCount"],
            last_record_offset=row["lastRecordOffset"],
            settings=BatchSettings.from_text(_text(data)),
            unit_count=row["unitCount"],
        )
    return BadRange(row["firstPhysicalOffset"], row["endPhysicalOffset"], Status(row["status"]))


def _text(value: memoryview | None) -> str:
    if value is None:
        raise ValueError("a SCANNED or QUEUE row of the packed form lacks its text")
    return str(value, "utf-8")


def _runs(batch: pa.RecordBatch) -> Iterator[Run]:
    """The runs of a chunk, by columns: many queues make hundreds of thousands of rows."""
    unit, detailed = UNIT_DTYPE.itemsize, UNIT_DTYPE.itemsize + DETAIL_DTYPE.itemsize
    columns = (batch.column(name).to_pylist() for name in _RUN_COLUMNS)
    values: Any = (_values(batch.column(name)) for name in ("units", "queueOffsets"))
    for topic, queue_id, count, width, offset, queue_offset, timestamp, data, jumps in zip(
        *columns, *values, strict=True
    ):
        details = bit_maps = None
        if width >= detailed:
            details = np.frombuffer(data, DETAIL_DTYPE, count, count * unit)
        if width > detailed:
            bit_maps = np.frombuffer(data, np.uint8, -1, count * detailed).reshape(count, -1)
        yield Run(
            topic=topic,
            queue_id=queue_id,
            first_physical_offset=offset,
            first_queue_offset=queue_offset,
            queue_offsets=None if jumps is None else np.frombuffer(jumps, np.int64),
            units=np.frombuffer(data, UNIT_DTYPE, count),
            last_store_timestamp=timestamp,
            details=details,
            bit_maps=bit_maps,
        )


def _index_entries(row: dict[str, Any], data: Any) -> IndexEntries:
    count = row["messageCount"]
    if not count:  # numpy makes no array of an empty buffer
        return IndexEntries(row["firstPhysicalOffset"], *_NO_ENTRIES)
    return IndexEntries(
        row["firstPhysicalOffset"],
        np.frombuffer(data, np.int64, count),
        np.frombuffer(data, np.int32, count, 8 * count),
        np.frombuffer(data, np.int64, count, 12 * count),
    )


def _values(column: pa.Array) -> Sequence[memoryview | None]:
    """Return the values of a binary column without a copy, and without an object of Arrow's for
    each of them."""
    if column.null_count == len(column):
        return [None] * len(column)
    _, offsets, data = column.buffers()
    bounds = np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1]
    view = memoryview(data or b"")
    values = [view[low:high] for low, high in pairwise(bounds.tolist())]
    if not column.null_count:
        return values
    are_valid = column.is_valid().to_pylist()
    return [value if valid else None for value, valid in zip(values, are_valid, strict=True)]
