"""One queue at one moment: its bounds, units from an offset on, search by time.

Both kinds of queue have the same interface. Offsets are queue offsets, ends are exclusive, times
are ms. Units past ``end``, the byte position that follows from the log's trusted end, are ignored.
If a queue's files are removed meanwhile, it raises FileNotFoundError and must be reopened. Source:
RocketMQ 5.3.3 ``ConsumeQueue``, ``BatchConsumeQueue``, ``MappedFileQueue``; formats.md §5 and §7.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from store.log.commitlog import NO_TIME, CommitLog
from store.queue.batchconsumequeue import BATCH_CQ_STORE_UNIT_SIZE, BatchConsumeQueueFiles
from store.queue.consumequeue import (
    CQ_STORE_UNIT_SIZE,
    PRE_BLANK_SIZE,
    BoundaryType,
    ConsumeQueueFiles,
)
from store.queue.consumequeueext import MAX_ADDR, ConsumeQueueExtFiles, ExtUnit, is_ext_addr


@dataclass(frozen=True, slots=True)
class CqUnit:
    """A queue's unit for one message or one inner batch (``CqUnit``)."""

    queue_offset: int
    physical_offset: int
    size: int
    tags_code: int | None
    """None if the queue holds the address of an ext unit that is gone."""
    ext: ExtUnit | None = None
    batch_num: int = 1


@dataclass(frozen=True, slots=True)
class UnitColumns:
    """Many units, with a column for each field of CqUnit; blanks are left out."""

    queue_offsets: NDArray[np.int64]
    physical_offsets: NDArray[np.int64]
    sizes: NDArray[np.int32]
    tags_codes: NDArray[np.int64]
    """The raw ext address, which is never a tags code, if the ext unit is gone."""
    ext: NDArray[np.object_] | None = None
    """ExtUnit or None of each; None if the queue has no ext."""

    def __len__(self) -> int:
        return len(self.sizes)

    def taken(self, which: NDArray[np.bool_] | slice) -> UnitColumns:
        """The selected units."""
        return UnitColumns(
            self.queue_offsets[which],
            self.physical_offsets[which],
            self.sizes[which],
            self.tags_codes[which],
            None if self.ext is None else self.ext[which],
        )


@dataclass(frozen=True, slots=True)
class LogView:
    """The part of the log that may be read."""

    log: CommitLog
    end: int
    """Physical offset, exclusive."""

    def store_time(self, offset: int, size: int) -> int:
        """storeTimestamp of the record at ``offset``, NO_TIME if there is none
        (``CommitLog.pickupStoreTimestamp``)."""
        return NO_TIME if offset + size > self.end else self.log.store_time(offset)


class QueueReader(Protocol):
    """The interface of both kinds of queue."""

    unit_size: int
    """Bytes."""
    min_offset: int
    max_offset: int

    def units_from(self, offset: int, count: int) -> Iterator[CqUnit] | None:
        """Up to ``count`` units, from the one that holds ``offset`` to the end of its file.

        None if no file holds it.
        """
        ...

    def columns_from(self, offset: int, count: int) -> tuple[UnitColumns, int] | None:
        """The units of ``units_from`` as columns, and the offset after the last of them."""
        ...

    def roll_next_file(self, offset: int, /) -> int:
        """The first offset of the file after the one that holds ``offset``."""
        ...

    def offset_by_time(self, timestamp: int, boundary: BoundaryType) -> int:
        """Result of a search by store time, not yet clamped to the queue's bounds."""
        ...


class ConsumeQueueReader:
    """A consume queue, or a light queue."""

    unit_size = CQ_STORE_UNIT_SIZE

    def __init__(self, files: ConsumeQueueFiles, ext: ConsumeQueueExtFiles, view: LogView) -> None:
        self._files = files
        self._ext = ext
        self._view = view
        self._end = files.find_end(view.end)
        self.max_offset = self._end // CQ_STORE_UNIT_SIZE
        self.min_offset = files.min_queue_offset(self._end, view.log.min_offset)

    def units_from(self, offset: int, count: int) -> Iterator[CqUnit] | None:
        """See QueueReader."""
        units = self._stored(offset, count)
        if units is None:
            return None
        return (self._unit(offset + index, *unit) for index, unit in enumerate(units.tolist()))

    def columns_from(self, offset: int, count: int) -> tuple[UnitColumns, int] | None:
        """See QueueReader."""
        units = self._stored(offset, count)
        if units is None:
            return None
        real = np.flatnonzero(units["size"] != PRE_BLANK_SIZE)
        codes = units["tags_code"].astype(np.int64)[real]
        ext = None
        if (codes <= MAX_ADDR).any():
            found = self._ext.read_many(codes)
            ext = np.array([*found, None], np.object_)[:-1]
            stored = zip(found, codes.tolist(), strict=True)
            codes = np.array([unit.tags_code if unit else code for unit, code in stored], np.int64)
        columns = UnitColumns(
            offset + real,
            units["offset"].astype(np.int64)[real],
            units["size"].astype(np.int32)[real],
            codes,
            ext,
        )
        return columns, offset + len(units)

    def _stored(self, offset: int, count: int) -> NDArray[np.void] | None:
        position = offset * CQ_STORE_UNIT_SIZE
        start = position - position % self._files.file_size
        if start not in self._files.starts or not self.min_offset <= offset < self.max_offset:
            return None
        first = (position - start) // CQ_STORE_UNIT_SIZE
        return self._files.units(start, first, min(count, self._count(start) - first))

    def _count(self, start: int) -> int:
        """Number of units in the file that starts at byte ``start``."""
        return min(self._end - start, self._files.file_size) // CQ_STORE_UNIT_SIZE

    def _unit(self, queue_offset: int, offset: int, size: int, tags_code: int) -> CqUnit:
        if not is_ext_addr(tags_code):
            return CqUnit(queue_offset, offset, size, tags_code)
        ext = self._ext.read(tags_code)
        return CqUnit(queue_offset, offset, size, ext.tags_code if ext else None, ext)

    def roll_next_file(self, offset: int, /) -> int:
        """See QueueReader."""
        per_file = self._files.file_size // CQ_STORE_UNIT_SIZE
        return offset + per_file - offset % per_file

    def offset_by_time(self, timestamp: int, boundary: BoundaryType) -> int:
        """``ConsumeQueueFiles.offset_in_queue_by_time``."""
        return self._files.offset_in_queue_by_time(
            timestamp, boundary, self._end, self.min_offset, self._view.store_time
        )


class BatchConsumeQueueReader:
    """A batch consume queue: a unit for each inner batch."""

    unit_size = BATCH_CQ_STORE_UNIT_SIZE

    def __init__(self, files: BatchConsumeQueueFiles, view: LogView) -> None:
        self._files = files
        self._end = files.find_end(view.end)
        self.max_offset = files.max_offset_in_queue(self._end)
        self.min_offset = files.min_offset_in_queue(self._end, view.log.min_offset)

    def units_from(self, offset: int, count: int) -> Iterator[CqUnit] | None:
        """See QueueReader; the first unit may begin before ``offset``, and after a jump of offsets
        also end before it."""
        index = self._files.find_unit(offset, self._end)
        if index is None:
            return None
        return map(_batch_unit, self._stored(index, count).tolist())

    def columns_from(self, offset: int, count: int) -> tuple[UnitColumns, int] | None:
        """See QueueReader, except that a first unit that ends before ``offset`` is left out."""
        index = self._files.find_unit(offset, self._end)
        if index is None:
            return None
        if _offset_behind(self._files.unit_at(index)) <= offset:
            index += 1
        units = self._stored(index, count)
        if not len(units):
            return None
        columns = UnitColumns(
            units["msg_base_offset"].astype(np.int64),
            units["offset"].astype(np.int64),
            units["size"].astype(np.int32),
            units["tags_code"].astype(np.int64),
        )
        return columns, _offset_behind(units[-1])

    def _stored(self, index: int, count: int) -> NDArray[np.void]:
        """Up to ``count`` units from ``index`` on, within its file; empty if the file is gone."""
        position = index * BATCH_CQ_STORE_UNIT_SIZE
        file_end = position - position % self._files.file_size + self._files.file_size
        left = (min(self._end, file_end) - position) // BATCH_CQ_STORE_UNIT_SIZE
        return self._files.read(index, min(count, left))

    def roll_next_file(self, _offset: int, /) -> int:
        """Always 0, as in RocketMQ."""
        return 0

    def offset_by_time(self, timestamp: int, boundary: BoundaryType) -> int:
        """``BatchConsumeQueueFiles.offset_in_queue_by_time``."""
        return self._files.offset_in_queue_by_time(timestamp, boundary, self._end)


def _offset_behind(unit: np.void) -> int:
    return int(unit["msg_base_offset"]) + int(unit["batch_size"])


def _batch_unit(unit: tuple[int, ...]) -> CqUnit:
    offset, size, tags_code, _, base, batch_num, *_ = unit
    return CqUnit(base, offset, size, tags_code, None, batch_num)
