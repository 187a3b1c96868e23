"""Messages as rows, with the columns of ``store.rows.rowschema``.

A window of the log is read, kernels decode its records, and only the wanted columns are made.
Damage has rows as well, each with its reason. Nothing here knows Spark, so that Spark's sources,
DuckDB and exports share it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from reput.store.log import record
from reput.store.log.commitlog import CommitLog
from reput.store.log.cursor import BUFFER_SIZE, BadRange, Window, decode_windows
from reput.store.log.kernelbase import CRC_TABLES
from reput.store.log.losses import Losses, loss_error
from reput.store.log.segments import OpenFile, Segment
from reput.store.log.status import Status
from reput.store.rows import rowkernel
from reput.store.rows.rowcolumns import RowBuilder
from reput.store.rows.rowform import RowForm
from reput.store.rows.rowschema import INTERNAL

ROWS_PER_BATCH = 1 << 15
GAP_BYTES = 4 << 10
"""Bytes read along between two selected records; that costs less than a separate read."""


def read_rows(
    log: CommitLog,
    start: int,
    end: int,
    schema: pa.Schema,
    *,
    delay_levels_ms: tuple[int, ...],
    fail_on_corrupt: bool,
    max_inflated_bytes: int | None,
    verify_crc: bool = False,
    fail_on_data_loss: bool = True,
    losses: Losses | None = None,
) -> Iterator[pa.RecordBatch]:
    """Read [start, end) of the log as rows, in its order; ``schema`` has fields of ROWS_SCHEMA,
    and perhaps INTERNAL.

    Bodies are inflated up to ``max_inflated_bytes``, if given. With the ``fail_on_`` flags it
    raises CorruptRecordError and CommitLogDataLossError; otherwise an unreadable range is a row
    with corruptReason, and added to ``losses``.
    """
    levels = np.array(delay_levels_ms, np.int64)
    builder = RowBuilder(schema, ROWS_PER_BATCH, max_inflated_bytes)

    def decode(window: Window, segment: Segment, pos: int, stop: int) -> tuple[int, int]:
        file_end = segment.start + log.file_size
        status, pos, count = rowkernel.decode_range(
            window.data, window.length, window.base, file_end, pos, stop, verify_crc, CRC_TABLES,
            levels, builder.finds_names, builder.count, builder.numbers, builder.slices,
        )  # fmt: skip
        builder.take(window.data, count)
        return status, pos

    for _, outcome in decode_windows(log, start, end, decode, fail_on_data_loss):
        if isinstance(outcome, BadRange):
            if fail_on_corrupt:
                raise loss_error(log, outcome)
            if losses is not None:
                losses.add(outcome)
            builder.add_damaged(outcome.start, outcome.end - outcome.start, outcome.status)
        if builder.is_full:
            yield from builder.batches()
    yield from builder.batches()


def message_rows(
    log: CommitLog,
    start: int,
    end: int,
    schema: pa.Schema,
    form: RowForm,
    left_out: Callable[[int], None] = lambda _: None,
    **reading: Any,
) -> Iterator[pa.RecordBatch]:
    """Read [start, end) of the log as ``read_rows`` does, in the form that is asked for.

    ``schema`` includes the topic; ``left_out`` receives numbers of internal records that are none
    of the rows.
    """
    marked = marked_schema(schema, form)
    for batch in read_rows(
        log, start, end, marked, max_inflated_bytes=form.max_inflated_bytes, **reading
    ):
        kept = without_internal(batch, form)
        left_out(batch.num_rows - kept.num_rows)
        if kept.num_rows:
            yield kept.select(schema.names)


def marked_schema(schema: pa.Schema, form: RowForm) -> pa.Schema:
    """``schema`` with the column that ``without_internal`` needs."""
    return schema if form.include_internal else schema.append(INTERNAL)


def without_internal(batch: pa.RecordBatch, form: RowForm) -> pa.RecordBatch:
    """The rows that are wanted among those of a marked schema: all but internal records."""
    if form.include_internal or not batch.column(INTERNAL.name).true_count:
        return batch
    mask = pc.invert(batch.column(INTERNAL.name))
    if form.named_topics:
        named = pa.array(sorted(form.named_topics), pa.string())
        mask = pc.or_(mask, pc.is_in(batch.column("topic"), named))
    return batch.filter(mask)


def rows_at(
    log: CommitLog,
    offsets: NDArray[np.int64],
    sizes: NDArray[np.int32],
    schema: pa.Schema,
    *,
    delay_levels_ms: tuple[int, ...],
    max_inflated_bytes: int | None = None,
    verify_crc: bool = False,
    gap_bytes: int = GAP_BYTES,
) -> Iterator[pa.RecordBatch]:
    """Read the records to which units of a queue point, a row each, in the units' order.

    If there is no such record, the row is that of a damaged range: physicalOffset and storeSize are
    the unit's, and corruptReason gives the reason (``segment_deleted`` if no file covers it). There
    are as many rows as units, in one or more batches. Up to ``gap_bytes`` between two are read
    along.
    """
    levels = np.array(delay_levels_ms, np.int64)
    units = _Units(log, offsets, sizes, gap_bytes)
    builder = RowBuilder(schema, min(ROWS_PER_BATCH, max(len(offsets), 1)), max_inflated_bytes)
    first = 0
    while first < len(offsets):
        count = units.load(first, min(len(builder.slices) - builder.count, len(offsets) - first))
        rowkernel.decode_units(
            units.data, units.offsets, units.sizes, first, count, units.statuses, units.positions,
            units.available, verify_crc, CRC_TABLES, levels, builder.finds_names, builder.count,
            builder.numbers, builder.slices,
        )  # fmt: skip
        builder.take(units.data, count)
        first += count
        if builder.is_full:
            yield from builder.batches()
    yield from builder.batches()


class _Units:
    """The bytes to which units point, many units per buffer."""

    def __init__(
        self,
        log: CommitLog,
        offsets: NDArray[np.int64],
        sizes: NDArray[np.int32],
        gap_bytes: int,
    ) -> None:
        self._log = log
        self._gap_bytes = gap_bytes
        self.offsets = np.ascontiguousarray(offsets, np.int64)
        self.sizes = np.ascontiguousarray(sizes, np.int32)
        self.data: NDArray[np.uint8] = np.empty(BUFFER_SIZE, np.uint8)
        self.positions = np.empty(len(self.offsets), np.int64)
        self.available = self.sizes.copy()
        self._segments = log.segments.listed
        # index 0 means no file
        self._starts = np.array([-1, *(segment.start for segment in self._segments)], np.int64)
        self._descriptors = np.full(len(self._starts), -1, np.int32)
        self._open_files: list[OpenFile] = []
        self._files = np.searchsorted(self._starts, self.offsets, "right") - 1
        self.statuses = np.full(len(self.offsets), int(Status.OK), np.int64)
        sound = (self.sizes >= record.MIN_RECORD_LENGTH) & (self.sizes <= record.MAX_RECORD_LENGTH)
        self.statuses[~sound] = Status.BAD_SIZE
        deleted = (self._files <= 0) | (self.offsets - self._starts[self._files] >= log.file_size)
        self.statuses[deleted] = Status.SEGMENT_DELETED

    def load(self, first: int, limit: int) -> int:
        """Read for units from ``first`` on; return how many, up to ``limit``, the buffer took."""
        pieces = np.empty((limit, rowkernel.PIECE_FIELDS), np.int64)
        count, piece_count, size = rowkernel.plan_reads(
            self.offsets, self.sizes, self._files, first, limit, self.statuses,
            self._gap_bytes, BUFFER_SIZE, self.positions, pieces,
        )  # fmt: skip
        if size > len(self.data):
            self.data = np.empty(size, np.uint8)
        self._open(pieces[:piece_count])
        piece = 0
        while piece < piece_count:
            piece = rowkernel.read_pieces(
                pieces, piece, piece_count, self._descriptors, self._starts, self.data
            )
            if piece < piece_count:
                self._read_again(pieces[piece], slice(first, first + count))
                piece += 1
        return int(count)

    def _open(self, pieces: NDArray[np.int64]) -> None:
        """Put the open files of pieces into ``_descriptors``; -1 if a file cannot be opened."""
        for file in np.unique(pieces[:, rowkernel.PIECE_FILE]).tolist():
            if self._descriptors[file] < 0:
                with suppress(OSError):
                    self._open_files.append(self._log.segments.open(self._segments[file - 1]))
                    self._descriptors[file] = self._open_files[-1].fd

    def _read_again(self, piece: NDArray[np.int64], units: slice) -> None:
        """Read a partly read piece again: its units get the available bytes, or this raises."""
        offset, start, size, _ = piece.tolist()
        byte_count = self._log.read_into(offset, self.data.data[start : start + size])
        positions = self.positions[units]
        left = np.clip(start + byte_count - positions, 0, self.sizes[units])
        affected = (positions >= start) & (positions < start + size)
        self.available[units] = np.where(affected, left, self.available[units])
