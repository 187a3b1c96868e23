"""Batch consume queue files: 46-byte units, one for each message or inner batch of messages.

OFFSET  SIZE  FIELD
     0     8  physical offset of the message
     8     4  its size
    12     8  tagsCode
    20     8  storeTime, ms
    28     8  msgBaseOffset: queue offset of its first inner message
    36     2  batchSize: number of inner messages, 1 for a plain message
    38     4  compactedOffset, always -1
    42     4  reserved, 0
Queues of topics with the attribute ``queue.type=BatchCQ``. Units are contiguous from byte 0 on: a
unit's position says nothing about queue offsets, which are searched. Files have their full length
from creation. Source: RocketMQ 5.3.3 ``BatchConsumeQueue``; formats.md §7.

Writer: one dispatcher, which owns the output. No checksum. After a crash every unit up to the
watermark is durable; the bytes beyond it may have holes and are rewritten from the log.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

import numpy as np
from numpy.typing import NDArray

from reput.store.errors import QueueFileError, UsageError
from reput.store.queue.consumequeue import BoundaryType, QueueFiles

BATCH_UNIT_DTYPE = np.dtype(
    [
        ("offset", ">i8"),
        ("size", ">i4"),
        ("tags_code", ">i8"),
        ("store_time", ">i8"),
        ("msg_base_offset", ">i8"),
        ("batch_size", ">i2"),
        ("compacted_offset", ">i4"),
        ("reserved", ">i4"),
    ]
)
BATCH_CQ_STORE_UNIT_SIZE = BATCH_UNIT_DTYPE.itemsize
if BATCH_CQ_STORE_UNIT_SIZE != 46:
    raise ImportError("a batch consume queue unit must have 46 bytes")
INVALID_POS = -1
"""compactedOffset of a queue that is not compacted."""
DEFAULT_FILE_SIZE = 13_800_000
"""mapperFileSizeBatchConsumeQueue: 300,000 units."""
_SETTING = "mapperFileSizeBatchConsumeQueue"


def checked_file_size(configured: int) -> int:
    """Validate mapperFileSizeBatchConsumeQueue for a writer.

    Raises UsageError unless it is a multiple of a unit: RocketMQ uses it unrounded and can append
    nothing once the first file is full.
    """
    if configured < 1 or configured % BATCH_CQ_STORE_UNIT_SIZE:
        raise UsageError(
            f"{_SETTING} is {configured}; it must be a multiple of {BATCH_CQ_STORE_UNIT_SIZE} bytes"
        )
    return configured


class BatchConsumeQueueFiles(QueueFiles):
    """The files of one batch consume queue.

    ``end`` is the byte position after its last unit (``find_end``). Queue offsets and store times
    ascend with the units, as a broker assigns them.
    """

    UNIT_DTYPE = BATCH_UNIT_DTYPE
    kind = "batch consume queue"
    setting = _SETTING

    def _are_valid(self, units: NDArray[np.void]) -> NDArray[np.bool_]:
        # RocketMQ writes an empty batch, but its recovery stops there. So do we: the same units
        # are dispatched once more from the log.
        is_batch = (units["msg_base_offset"] >= 0) & (units["batch_size"] > 0)
        return super()._are_valid(units) & is_batch

    def unit_at(self, index: int) -> np.void:
        """One unit, counted from byte 0 of the queue. Raises QueueFileError if no file holds it."""
        units = self.read(index, 1)
        if not len(units):
            raise QueueFileError(
                f"batch consume queue {self.directory} has no file with unit {index}; rebuild the "
                "queue with reput rebuild",
                path=self.directory,
                position=index * self.unit_size,
            )
        unit: np.void = units[0]
        return unit

    def max_offset_in_queue(self, end: int) -> int:
        """Queue offset after the last message; 0 without one."""
        indexes = self._indexes(end)
        return _end_offset(self.unit_at(indexes[-1])) if indexes else 0

    def min_offset_in_queue(self, end: int, log_min_offset: int) -> int:
        """Queue offset of the first message that is still in the log; the max offset if none is, -1
        without a unit.

        ``BatchConsumeQueue.correctMinOffset`` reads only the first file, because files whose
        messages are all gone are deleted before; here all files count.
        """
        indexes = self._indexes(end)
        if not indexes:
            return -1
        gone = bisect_left(indexes, log_min_offset, key=self._physical_offset)
        # after the last one that is gone, not at the next: queue offsets may jump
        return _end_offset(self.unit_at(indexes[gone - 1])) if gone else self._base(indexes[0])

    def find_unit(self, queue_offset: int, end: int) -> int | None:
        """Index of the unit that holds ``queue_offset``: the last one that begins at or before it.

        None for offsets before the first unit, and from the max offset on. Where offsets jump, the
        unit ends before the requested offset (``BatchConsumeQueue.getBatchMsgIndexBuffer``).
        """
        indexes = self._indexes(end)
        before = bisect_right(indexes, queue_offset, key=self._base)
        if not before or queue_offset >= self.max_offset_in_queue(end):
            return None
        return indexes[before - 1]

    def first_unit_from(self, queue_offset: int, end: int) -> int:
        """Index of the first unit that begins at or after ``queue_offset``, or that of the end."""
        indexes = self._indexes(end)
        return indexes.start + bisect_left(indexes, queue_offset, key=self._base)

    def offset_in_queue_by_time(self, timestamp: int, boundary_type: BoundaryType, end: int) -> int:
        """msgBaseOffset of the unit that a search by storeTime (ms) ends at; -1 for none.

        It is not clamped to the queue's min and max offset; RocketMQ's ``ConsumeQueueStore`` does
        that.

        LOWER follows RocketMQ (``BatchConsumeQueue.getOffsetInQueueByTime``). It searches the
        newest file that begins at or before the time, or else the first file, for the first unit at
        or after the time. If the file's last unit is not later than the time, that unit is the
        result, even if an earlier one has the same time or the next file has the first later one.

        UPPER does not follow RocketMQ, whose search stops too early (storeTimes 0, 0, 1, 1, 1 give
        the first unit for 0, and without an exact hit the next larger one or none). It is the last
        unit at or before the time.
        """
        indexes = self._indexes(end)
        before = bisect_right(indexes, timestamp, key=self._store_time)
        if boundary_type is BoundaryType.LOWER and indexes:
            in_file = self._file_of(indexes[max(0, before - 1)], indexes)
            last = in_file[-1]
            if timestamp >= self._store_time(last):
                return self._base(last)
            return self._base(in_file[bisect_left(in_file, timestamp, key=self._store_time)])
        return self._base(indexes[before - 1]) if before else -1

    def _indexes(self, end: int) -> range:
        first = self.starts[0] if self.starts else end
        return range(first // self.unit_size, end // self.unit_size)

    def _file_of(self, index: int, indexes: range) -> range:
        """The subrange of ``indexes`` that shares a file with ``index``."""
        per_file = self.file_size // self.unit_size
        first = index - index % per_file
        return range(max(first, indexes[0]), min(first + per_file, indexes[-1] + 1))

    def _base(self, index: int) -> int:
        return int(self.unit_at(index)["msg_base_offset"])

    def _store_time(self, index: int) -> int:
        return int(self.unit_at(index)["store_time"])

    def _physical_offset(self, index: int) -> int:
        return int(self.unit_at(index)["offset"])


def _end_offset(unit: np.void) -> int:
    return int(unit["msg_base_offset"]) + int(unit["batch_size"])
