"""The packed form in Arrow: a row per run, a row per bad range, and a row for the scanned range."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from sources.bitmaps import BitMaps
from store.log.commitlog import CommitLog
from store.log.cursor import BadRange
from store.runs import scankernel
from store.runs.dispatch import (
    DETAIL_DTYPE,
    INDEX_ENTRY_BYTES,
    IndexEntries,
    RowKind,
    ScannedRange,
)
from store.runs.scan import PackedChunk, runs_of, scan
from store.runs.spool import ScanMark, SpoolWriter


def read_runs(
    log: CommitLog,
    start: int,
    end: int,
    schema: pa.Schema,
    spool_directory: Path | None,
    bit_maps: BitMaps | None = None,
    **scan_options: Any,
) -> Iterator[pa.RecordBatch]:
    """Read [start, end) of the log in the packed form, with units in the spool if there is one.

    ``bit_maps`` computes those of runs whose topic has filters; ``scan_options`` are passed to
    ``scan``.
    """
    spool = SpoolWriter(spool_directory)
    if spool_directory is None:
        mark = None
    else:
        mark = scan_options["reached"] = ScanMark(spool_directory, start)
    try:
        yield from _rows(scan(log, start, end, **scan_options), schema, spool, bit_maps)
    finally:
        spool.close()
        if mark is not None:
            mark.close()


def _rows(
    items: Iterable[PackedChunk | ScannedRange | BadRange],
    schema: pa.Schema,
    spool: SpoolWriter,
    bit_maps: BitMaps | None,
) -> Iterator[pa.RecordBatch]:
    for item in items:
        if isinstance(item, PackedChunk):
            yield _runs_batch(item, schema, spool, bit_maps)
            for bad in item.unusable:
                yield _bad_row(bad, schema)
            if item.index_entries is not None:
                yield _index_row(item.index_entries, schema, spool)
        elif isinstance(item, ScannedRange):
            yield _one_row(
                schema,
                kind=RowKind.SCANNED,
                messageCount=item.message_count,
                firstPhysicalOffset=item.start,
                endPhysicalOffset=item.end,
                plannedEndOffset=item.planned_end,
                lastRecordOffset=item.last_record_offset,
                units=item.settings.to_text().encode(),
            )
        else:
            yield _bad_row(item, schema)


def _bad_row(bad: BadRange, schema: pa.Schema) -> pa.RecordBatch:
    return _one_row(
        schema,
        kind=RowKind.BAD,
        messageCount=0,
        firstPhysicalOffset=bad.start,
        endPhysicalOffset=bad.end,
        status=int(bad.status),
    )


def _index_row(entries: IndexEntries, schema: pa.Schema, spool: SpoolWriter) -> pa.RecordBatch:
    columns = (entries.offsets, entries.hashes, entries.store_timestamps)
    data = b"".join(column.tobytes() for column in columns)
    spooled = spool.write(memoryview(data))
    place: dict[str, Any] = {"units": data}
    if spooled is not None:
        place = {"spoolName": spool.name, "spoolPosition": spooled}
    return _one_row(
        schema,
        kind=RowKind.INDEX,
        messageCount=len(entries.offsets),
        firstPhysicalOffset=entries.first_physical_offset,
        endPhysicalOffset=entries.first_physical_offset,
        bytesPerMessage=INDEX_ENTRY_BYTES,
        **place,
    )


def _one_row(schema: pa.Schema, **values: Any) -> pa.RecordBatch:
    columns = [pa.array([values.get(field.name)], field.type) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _runs_batch(
    chunk: PackedChunk, schema: pa.Schema, spool: SpoolWriter, bit_maps: BitMaps | None
) -> pa.RecordBatch:
    runs = chunk.runs
    counts = runs[:, scankernel.RUN_COUNT]
    contiguous = runs[:, scankernel.RUN_CONTIGUOUS] == 1
    bounds = np.concatenate(([0], np.cumsum(counts)))
    topic_bounds = np.concatenate(([0], np.cumsum(runs[:, scankernel.RUN_TOPIC_LENGTH])))
    widths, data = _columns_of_runs(chunk, bit_maps)
    places = np.concatenate(([0], np.cumsum(counts * widths)))
    spooled = spool.write(data.data)
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
    }
    if spooled is None:
        columns["units"] = _binary(places, data)
    else:
        columns["spoolName"] = [spool.name] * len(runs)
        columns["spoolPosition"] = spooled + places[:-1]
    arrays = [
        pa.array(columns[field.name], field.type)
        if field.name in columns
        else pa.nulls(len(runs), field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _columns_of_runs(chunk: PackedChunk, bit_maps: BitMaps | None) -> tuple[Any, Any]:
    """Return (int32[runs]: bytes per message, uint8 array): the columns of each run, in
    sequence."""
    widths = np.full(len(chunk.runs), scankernel.UNIT_SIZE, np.int32)
    if chunk.details is None or not len(chunk.runs):
        return widths, chunk.units
    parts = []
    runs = list(runs_of(chunk))
    for index, run in enumerate(runs if bit_maps is None else bit_maps.added_to(runs)):
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
