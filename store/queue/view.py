"""One queue as its readers see it: its bounds, units from an offset on, search by time.

Both kinds of queue have the same interface. Offsets are queue offsets, ends are exclusive, times
are ms. Units beyond the end that ``follow`` found are ignored. If files are removed meanwhile, it
raises FileNotFoundError and must be reopened. Source: RocketMQ 5.3.3 ``ConsumeQueue``,
``BatchConsumeQueue``, ``MappedFileQueue``; formats.md §5 and §7.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from reput.store.config import StoreSettings
from reput.store.log.commitlog import NO_TIME, CommitLog
from reput.store.queue.batchconsumequeue import BatchConsumeQueueFiles
from reput.store.queue.consumequeue import (
    CQ_STORE_UNIT_SIZE,
    PRE_BLANK_SIZE,
    UNITS_PER_READ,
    BoundaryType,
    ConsumeQueueFiles,
    QueueKey,
    open_whole_queue,
)
from reput.store.queue.consumequeueext import MAX_ADDR, ConsumeQueueExtFiles, ExtUnit, is_ext_addr
from reput.store.queue.kinds import QueueKind, open_ext

READ_AHEAD_UNITS = 512
"""Units that a small read takes, since the next one usually continues there."""
_NO_UNITS = np.empty(0, np.uint8)
StoreTime = Callable[[int, int], int]
"""storeTimestamp of the record at a physical offset with a size; negative if there is none."""


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
    """The raw ext address, which is never a tags code, if the ext unit is gone or was not read."""
    ext: NDArray[np.object_] | None = None
    """ExtUnit or None of each; None if no ext unit was read."""

    def __len__(self) -> int:
        return len(self.sizes)

    def select(self, which: NDArray[np.bool_] | slice) -> UnitColumns:
        """The selected units."""
        return UnitColumns(
            self.queue_offsets[which],
            self.physical_offsets[which],
            self.sizes[which],
            self.tags_codes[which],
            None if self.ext is None else self.ext[which],
        )


class QueueView(ABC):
    """A queue of either kind, read up to the end that was last found.

    Units are counted from the queue's byte 0. Such an index is the queue offset in a consume queue.
    In a batch consume queue, a unit is a message or an inner batch and states its queue offset.
    """

    kind: QueueKind

    def __init__(self, files: ConsumeQueueFiles | BatchConsumeQueueFiles, log: CommitLog) -> None:
        self.files = files
        self.max_offset = 0
        """Queue offset after the last message."""
        self._log = log
        self._end = 0
        self._known_min: tuple[int, int] | None = None
        """(min offset of the log, that of the queue)."""

    def follow(self, end_offset: int | None) -> None:
        """Find the end again: after the last message that ends at or before ``end_offset`` of the
        log, or after the last valid unit."""
        self._end = self.files.grown_end(self._end, end_offset)
        self.max_offset = self.files.max_offset_in_queue(self._end)
        self._known_min = None

    @property
    def unit_size(self) -> int:
        """Bytes."""
        return self.files.unit_size

    @property
    def first_unit(self) -> int:
        """Index of the first unit that the files cover."""
        return (self.files.starts[0] if self.files.starts else 0) // self.unit_size

    @property
    def end_unit(self) -> int:
        """Index after the last unit."""
        return self._end // self.unit_size

    @property
    def max_physic_offset(self) -> int:
        """Physical offset after the last message with a unit; -1 without one."""
        return self.files.max_physic_offset(self._end)

    @property
    def min_offset(self) -> int:
        """Queue offset of the first message that is still in the log; the max offset if there is
        none."""
        return max(self.stated_min_offset, 0)

    @property
    def stated_min_offset(self) -> int:
        """The min offset that RocketMQ states in a pull: -1 for a batch queue without units."""
        log_min_offset = self._log.min_offset
        if self._known_min is None or self._known_min[0] != log_min_offset:
            offset = self.files.min_offset_in_queue(self._end, log_min_offset)
            self._known_min = log_min_offset, offset
        return self._known_min[1]

    def is_gone(self, offset: int) -> bool:
        """Whether the message at ``offset`` was removed from the log, or its unit with its file."""
        index = self.unit_from(offset)
        if index >= self.end_unit:
            return False
        units = self.files.read(index, 1)
        if units["size"][0] != PRE_BLANK_SIZE and units["offset"][0] < self._log.min_offset:
            return True
        return index == self.first_unit > 0 and self.queue_offsets(index, units)[0] > offset

    def first_from_time(self, timestamp: int) -> int | None:
        """Queue offset of the first message that is still in the log and was stored at
        ``timestamp`` or later; None without one. Store times are assumed to ascend.

        The result is that of ``offset_by_time``, except that LOWER in a batch queue may skip
        messages of that time.
        """
        index = max(self._unit_by_time(timestamp), self.unit_from(self.min_offset))
        return None if index >= self.end_unit else self.offset_of(index)

    def offset_of(self, index: int) -> int:
        """Queue offset of the unit at ``index``; the max offset if there is none."""
        if index >= self.end_unit:
            return self.max_offset
        return int(self.queue_offsets(index, self.files.read(index, 1))[0])

    def unit_before(self, offset: int) -> tuple[int, int] | None:
        """(physical offset, size) of the last message before a queue offset; None without one, or
        where its unit is gone. Blank units before ``offset`` are passed, some thousand at most."""
        index = self.unit_from(offset) - 1
        first = max(self.first_unit, index - UNITS_PER_READ)
        entry = self.files.real_unit_up_to(index, first)
        return None if entry is None else (int(entry[1]["offset"]), int(entry[1]["size"]))

    def first_at(self, physical_offset: int) -> int:
        """Queue offset of the first message that lies at a physical offset or beyond it; the max
        offset if there is none."""
        low, high = self.first_unit, self.end_unit
        while low < high:
            middle = (low + high) // 2
            entry = self.files.real_unit_up_to(middle, low)
            if entry is None or entry[1]["offset"] < physical_offset:
                low = middle + 1
            else:
                high = entry[0]
        return self.offset_of(low)

    def units_from(self, offset: int, count: int) -> Iterator[CqUnit] | None:
        """Up to ``count`` units, from the one that holds ``offset`` to the end of its file.

        None if no file holds it. In a batch queue, the first unit may begin before ``offset``, and
        after a jump of offsets also end before it.
        """
        index = self._holder(offset)
        units = None if index is None else self._in_file(index, count)
        if index is None or units is None:
            return None
        return (self._unit(index + at, *unit) for at, unit in enumerate(units.tolist()))

    def columns_from(self, offset: int, count: int) -> tuple[UnitColumns, int] | None:
        """The units of ``units_from`` with their ext units as columns, and the offset after the
        last of them; a first unit that ends before ``offset`` is left out."""
        if self._holder(offset) is None:
            return None
        index = self.unit_from(self.unit_start(offset))
        units = self._in_file(index, count)
        if units is None:
            return None
        columns = self.with_ext(self.columns(index, units))
        return columns, self._offset_after(index, units)

    def columns(self, index: int, units: NDArray[np.void]) -> UnitColumns:
        """Units as stored from ``index`` on (``QueueFiles.read``), without their ext units."""
        columns = UnitColumns(
            self.queue_offsets(index, units),
            units["offset"].astype(np.int64),
            units["size"].astype(np.int32),
            units["tags_code"].astype(np.int64),
        )
        return columns.select(columns.sizes != PRE_BLANK_SIZE)

    def with_ext(self, columns: UnitColumns) -> UnitColumns:
        """The same units with their ext units, and those units' tags codes."""
        return columns

    def _in_file(self, index: int, count: int) -> NDArray[np.void] | None:
        """Up to ``count`` units from ``index`` on, within its file; None if the file is gone."""
        per_file = self.files.file_size // self.unit_size
        left = min(per_file - index % per_file, self.end_unit - index)
        units = self.files.read(index, min(count, left))
        return units if len(units) else None

    def _offset_after(self, index: int, units: NDArray[np.void]) -> int:
        """Queue offset after the last of ``units``, the first of which has ``index``."""
        return index + len(units)

    @abstractmethod
    def unit_from(self, offset: int) -> int:
        """Index of the first unit at or after a queue offset."""

    @abstractmethod
    def unit_start(self, offset: int) -> int:
        """``offset``, or the queue offset of the inner batch that contains it."""

    @abstractmethod
    def roll_next_file(self, offset: int) -> int:
        """The first offset of the file after the one that holds ``offset``."""

    @abstractmethod
    def offset_by_time(self, timestamp: int, boundary: BoundaryType, store_time: StoreTime) -> int:
        """Result of RocketMQ's search by store time, not yet clamped to the queue's bounds."""

    @abstractmethod
    def _holder(self, offset: int) -> int | None:
        """Index of the unit that holds ``offset``; None if the queue has no message there."""

    @abstractmethod
    def _unit(self, index: int, offset: int, size: int, tags_code: int, *rest: int) -> CqUnit: ...

    @abstractmethod
    def queue_offsets(self, index: int, units: NDArray[np.void]) -> NDArray[np.int64]:
        """int64[n], the queue offsets of units as stored from ``index`` on."""

    @abstractmethod
    def _unit_by_time(self, timestamp: int) -> int:
        """Index of the first unit that was stored at ``timestamp`` or later."""


class ConsumeQueueView(QueueView):
    """A consume queue, or a light queue."""

    kind = QueueKind.CONSUME
    files: ConsumeQueueFiles

    def __init__(self, files: ConsumeQueueFiles, ext: ConsumeQueueExtFiles, log: CommitLog) -> None:
        super().__init__(files, log)
        self._ext = ext
        self._ahead = _NO_UNITS
        self._ahead_offset = 0

    def follow(self, end_offset: int | None) -> None:
        """See QueueView."""
        self._ahead = _NO_UNITS
        super().follow(end_offset)

    def stored_units(self, offset: int, count: int) -> tuple[NDArray[np.uint8], int, int] | None:
        """The units of ``units_from`` as they are in the file: uint8 with others before and after,
        the number of the first, and how many there are. ``offset`` must be within the queue's
        bounds. A small read continues in what the one before it has read ahead."""
        start = offset - self._ahead_offset
        left = len(self._ahead) // CQ_STORE_UNIT_SIZE - start
        if start < 0 or left < min(count, self.max_offset - offset):
            units = self._in_file(offset, max(count, READ_AHEAD_UNITS))
            if units is None:
                return None
            self._ahead, self._ahead_offset = units.view(np.uint8), offset
            start, left = 0, len(units)
        return self._ahead, start, min(count, left)

    def with_ext(self, columns: UnitColumns) -> UnitColumns:
        """See QueueView."""
        codes = columns.tags_codes
        if not (codes <= MAX_ADDR).any():
            return columns
        ext_units = self._ext.read_many(codes)
        stored = zip(ext_units, codes.tolist(), strict=True)
        codes = np.array([unit.tags_code if unit else code for unit, code in stored], np.int64)
        return replace(columns, tags_codes=codes, ext=np.array([*ext_units, None], np.object_)[:-1])

    def unit_from(self, offset: int) -> int:
        """See QueueView."""
        return min(max(offset, self.first_unit), self.end_unit)

    def unit_start(self, offset: int) -> int:
        """See QueueView."""
        return offset

    def roll_next_file(self, offset: int) -> int:
        """See QueueView."""
        per_file = self.files.file_size // self.unit_size
        return offset + per_file - offset % per_file

    def offset_by_time(self, timestamp: int, boundary: BoundaryType, store_time: StoreTime) -> int:
        """``ConsumeQueueFiles.offset_in_queue_by_time``."""
        return self.files.offset_in_queue_by_time(
            timestamp, boundary, self._end, self.min_offset, store_time
        )

    def _holder(self, offset: int) -> int | None:
        return offset if self.min_offset <= offset < self.max_offset else None

    def _unit(self, index: int, offset: int, size: int, tags_code: int, *_rest: int) -> CqUnit:
        if not is_ext_addr(tags_code):
            return CqUnit(index, offset, size, tags_code)
        ext = self._ext.read(tags_code)
        return CqUnit(index, offset, size, ext.tags_code if ext else None, ext)

    def queue_offsets(self, index: int, units: NDArray[np.void]) -> NDArray[np.int64]:
        """See QueueView."""
        return np.arange(index, index + len(units), dtype=np.int64)

    def _unit_by_time(self, timestamp: int) -> int:
        return self.offset_by_time(timestamp, BoundaryType.LOWER, self._known_time)

    def _known_time(self, offset: int, _size: int) -> int:
        """Store time of a record; of an expired one 0, since it was stored before the others, and
        of a lost one that of the first record after it, since it was stored no later."""
        time = self._log.store_time(offset)
        if time == NO_TIME and (gap := self._log.segments.gap_at(offset)) is not None:
            time = self._log.store_time(gap[1])
        return max(time, 0)


class BatchConsumeQueueView(QueueView):
    """A batch consume queue: a unit for each message or inner batch."""

    kind = QueueKind.BATCH
    files: BatchConsumeQueueFiles

    def unit_from(self, offset: int) -> int:
        """See QueueView."""
        return self.files.first_unit_from(offset, self._end)

    def unit_start(self, offset: int) -> int:
        """See QueueView."""
        index = self._holder(offset)
        if index is None:
            return offset
        unit = self.files.unit_at(index)
        first, count = int(unit["msg_base_offset"]), int(unit["batch_size"])
        return first if offset < first + count else offset

    def roll_next_file(self, _offset: int) -> int:
        """Always 0, as in RocketMQ."""
        return 0

    def offset_by_time(self, timestamp: int, boundary: BoundaryType, _: StoreTime) -> int:
        """``BatchConsumeQueueFiles.offset_in_queue_by_time``: units state their times."""
        return self.files.offset_in_queue_by_time(timestamp, boundary, self._end)

    def _holder(self, offset: int) -> int | None:
        return self.files.find_unit(offset, self._end)

    def _unit(self, _index: int, offset: int, size: int, tags_code: int, *rest: int) -> CqUnit:
        _, base, batch_num, *_ = rest
        return CqUnit(base, offset, size, tags_code, None, batch_num)

    def queue_offsets(self, _index: int, units: NDArray[np.void]) -> NDArray[np.int64]:
        """See QueueView."""
        return units["msg_base_offset"].astype(np.int64)

    def _offset_after(self, _index: int, units: NDArray[np.void]) -> int:
        return int(units["msg_base_offset"][-1]) + int(units["batch_size"][-1])

    def _unit_by_time(self, timestamp: int) -> int:
        before = self.files.offset_in_queue_by_time(timestamp - 1, BoundaryType.UPPER, self._end)
        return self.unit_from(before + 1)


def open_view(
    output: Path,
    key: QueueKey,
    settings: StoreSettings,
    log: CommitLog,
    kind: QueueKind,
    *,
    whole: bool = False,
) -> QueueView:
    """Open one queue without looking for its end; ``follow`` does that.

    Raises QueueFileError for files of another size and, with ``whole``, if a consume queue lacks a
    file (``open_whole_queue``).
    """
    directory, size = output / kind / key.relative_path, settings.file_size(kind)
    if kind is QueueKind.BATCH:
        return BatchConsumeQueueView(BatchConsumeQueueFiles(directory, size), log)
    files = (open_whole_queue if whole else ConsumeQueueFiles)(directory, size)
    return ConsumeQueueView(files, open_ext(output, key, settings), log)
