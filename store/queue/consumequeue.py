"""Consume queue files: 20-byte units, found by position, appended by one writer.

OFFSET  SIZE  FIELD
     0     8  physical offset of the message
     8     4  its size
    12     8  tagsCode (tag hash, or due time of a delayed message, or ext address)
Files are named by the queue's byte offset, all have the same full length from creation, zeros
where nothing was written. A queue whose first message has an offset other than 0 starts with
pre-blank units (0, 2147483647, 0). Source: RocketMQ 5.3.3 ``ConsumeQueue``, ``MappedFileQueue``;
formats.md §5.

Writer: one dispatcher, which owns the output. No checksum. After a crash every unit up to the
watermark is durable; the bytes beyond it may have holes and are rewritten from the log.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from reput.store.errors import QueueFileError
from reput.store.log.layout import struct_of
from reput.store.queue.mappedfilequeue import MappedFileQueue
from reput.store.queue.unsynced import UnsyncedFiles

UNIT_DTYPE = np.dtype([("offset", ">i8"), ("size", ">i4"), ("tags_code", ">i8")])
CQ_STORE_UNIT_SIZE = UNIT_DTYPE.itemsize
if CQ_STORE_UNIT_SIZE != 20:
    raise ImportError("a consume queue unit must have 20 bytes")
SIZE_IN_UNIT = UNIT_DTYPE["offset"].itemsize
TAGS_CODE_IN_UNIT = SIZE_IN_UNIT + UNIT_DTYPE["size"].itemsize
PRE_BLANK_SIZE = 2147483647
UNITS_PER_READ = 4096
PRE_BLANK = np.array([(0, PRE_BLANK_SIZE, 0)], UNIT_DTYPE)

UNIT_BEGIN = struct_of(UNIT_DTYPE)
"""The fields with which units of both kinds begin: physical offset, size, tagsCode."""
_QUEUE_ID = re.compile(r"(0|[1-9][0-9]{0,9})\Z", re.ASCII)
MAX_TOPIC_BYTES = 255
_USUAL_TOPIC = frozenset(b"%|-_0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")


@functools.lru_cache(1 << 16)
def topic_directory(topic: bytes) -> str | None:
    """The directory name of a topic; None if it is not a plain path component (ARCHITECTURE.md).

    Allowed are valid UTF-8, 1 to 255 bytes, no slash, backslash, NUL or other control character,
    and neither ``.`` nor ``..``. RocketMQ's brokers check more strictly, but its store does not.
    """
    try:
        name = topic.decode()
    except UnicodeDecodeError:
        return None
    if not 1 <= len(topic) <= MAX_TOPIC_BYTES or name in (".", ".."):
        return None
    if any(c in "/\\" or ord(c) < 32 or 127 <= ord(c) < 160 for c in name):
        return None
    return name


def is_usual_topic(topic: bytes) -> bool:
    """Whether a RocketMQ broker would accept the name (``TopicValidator``)."""
    return _USUAL_TOPIC.issuperset(topic)


def rounded_file_size(configured: int) -> int:
    """mappedFileSizeConsumeQueue as RocketMQ uses it: rounded up to whole units."""
    return -(-configured // CQ_STORE_UNIT_SIZE) * CQ_STORE_UNIT_SIZE


class BoundaryType(StrEnum):
    """The choice that a search makes among the messages around a time."""

    LOWER = "lower"
    """The first message at or after the time."""
    UPPER = "upper"
    """The last message at or before the time."""


@dataclass(frozen=True, slots=True)
class QueueKey:
    """One queue in an output."""

    topic: str
    queue_id: int

    @property
    def relative_path(self) -> Path:
        """Path relative to ``consumequeue/``."""
        return Path(self.topic, str(self.queue_id))


def list_queues(root: Path) -> Iterator[QueueKey]:
    """Queues in ``consumequeue/``, sorted; other directories are skipped."""
    if not root.is_dir():
        return
    # scandir instead of Paths, because there may be 100,000 directories
    for topic in sorted(os.scandir(root), key=lambda entry: entry.name):
        if topic.is_dir():
            for queue_id in list_queue_ids(Path(topic.path)):
                yield QueueKey(topic.name, queue_id)


def list_queue_ids(topic: Path) -> list[int]:
    """Queues of one topic's directory, sorted; empty if it does not exist."""
    if not topic.is_dir():
        return []
    return sorted(
        int(entry.name)
        for entry in os.scandir(topic)
        if _QUEUE_ID.match(entry.name) and entry.is_dir()
    )


class QueueFiles(MappedFileQueue):
    """The files of one queue, of either kind, with units of one size.

    Positions are bytes in the queue and ends are exclusive; a file holds whole units. A unit begins
    with the physical offset and the size of its message; offsets ascend. Only the consume queue has
    blank units. Not thread-safe.
    """

    UNIT_DTYPE: ClassVar[np.dtype[np.void]]

    @property
    def unit_size(self) -> int:
        """Bytes of a unit."""
        return self.UNIT_DTYPE.itemsize

    @classmethod
    def each(cls, root: Path, file_size: int) -> Iterator[tuple[QueueKey, Self]]:
        """Every queue below ``root``, sorted; files of ``file_size`` bytes."""
        for key in list_queues(root):
            yield key, cls(root / key.relative_path, file_size)

    def units(self, start: int, first: int = 0, count: int | None = None) -> NDArray[np.void]:
        """Units ``first`` .. of the file that starts at ``start``: UNIT_DTYPE[<= count]."""
        size = self.file_size if count is None else count * self.unit_size
        with self._opened(start) as fd:
            data = os.pread(fd, size, first * self.unit_size)
        return np.frombuffer(data[: len(data) // self.unit_size * self.unit_size], self.UNIT_DTYPE)

    @contextmanager
    def _opened(self, start: int) -> Iterator[int]:
        """The file that starts at ``start``; no Path and no file object, because servers look at
        the ends of many queues."""
        fd = os.open(self._path_text(start), os.O_RDONLY | os.O_CLOEXEC)
        try:
            yield fd
        finally:
            os.close(fd)

    def find_end(self, end_offset: int | None) -> int:
        """Byte position after the last unit of a message that ends at or before ``end_offset``.

        None takes every valid unit, as RocketMQ's ``recover`` does. The units before a watermark
        have no holes, so a binary search finds the end.
        """
        for start in reversed(self.starts):
            count = self._valid_count(start, end_offset)
            if count:
                return start + count * self.unit_size
        return self.starts[0] if self.starts else 0

    def grown_end(self, former_end: int, end_offset: int | None) -> int:
        """The result of ``find_end``, given an earlier result ``former_end``.

        It takes one small read if nothing was added. Otherwise it lists the files again; a queue
        that was cut or replaced is searched from its start.
        """
        if self._ends_at(former_end, end_offset):
            return former_end
        self.refresh()
        before = self.read(former_end // self.unit_size - 1, 1 if former_end else 0)
        if not len(before) or not self._count_units(before, end_offset):
            return self.find_end(end_offset)
        while True:
            units = self.read(former_end // self.unit_size, UNITS_PER_READ)
            count = self._count_units(units, end_offset)
            former_end += count * self.unit_size
            if len(units) < UNITS_PER_READ:
                return former_end
            if count < len(units):
                # only blanks to the end of the read part: their unit may come later
                blank = (units["size"][count:] == PRE_BLANK_SIZE).all()
                return self.find_end(end_offset) if blank else former_end

    def _ends_at(self, end: int, end_offset: int | None) -> bool:
        """Whether the unit before byte ``end`` still counts and the one there was never written.

        False also where this cannot be told from one file.
        """
        start = end - end % self.file_size
        if end == start or start not in self.starts:
            return False
        units = self.units(start, (end - start) // self.unit_size - 1, 2)
        if len(units) < 2 or any(units[1:].tobytes()):
            return False
        return self._count_units(units[:1], end_offset) == 1

    def _count_units(self, units: NDArray[np.void], end_offset: int | None) -> int:
        """Count the ``units`` before the end that ``find_end`` looks for."""
        if end_offset is None:
            refused = np.flatnonzero(~self._are_valid(units))
            return int(refused[0]) if len(refused) else len(units)
        offsets, sizes = units["offset"], units["size"]
        real = sizes != PRE_BLANK_SIZE
        ends_by = (offsets >= 0) & (sizes > 0) & (offsets + sizes <= end_offset)
        refused = np.flatnonzero(real & ~ends_by)
        indexes = np.flatnonzero(real[: refused[0] if len(refused) else len(units)])
        return int(indexes[-1]) + 1 if len(indexes) else 0

    def _valid_count(self, start: int, end_offset: int | None) -> int:
        if end_offset is None:
            count = 0
            while True:  # not the whole file, because most of a broker's newest one is zeros
                units = self.units(start, count, UNITS_PER_READ)
                part_count = self._count_units(units, None)
                count += part_count
                if part_count < UNITS_PER_READ:
                    return count
        length = self.file_size
        while True:
            count = self._count_while(
                start, length, lambda offset, size: _ends_by(offset, size, end_offset)
            )
            if self._is_whole(start, count):
                return count
            length = (count - 1) * self.unit_size

    def _is_whole(self, start: int, count: int) -> bool:
        """Whether the last of ``count`` units is complete.

        A power cut may keep a page and lose the previous one. A unit on both then loses its first
        bytes, so that its offset looks small, and the units before it are lost too, unless they
        were durable before: ``store.queue.cut`` asks the log.
        """
        if count < 2:
            return True
        return may_follow(*self.units(start, count - 2, 2))

    def _are_valid(self, units: NDArray[np.void]) -> NDArray[np.bool_]:
        """bool[n]: whether ``recover`` of this kind of queue continues after each unit."""
        valid: NDArray[np.bool_] = (units["offset"] >= 0) & (units["size"] > 0)
        return valid

    def _count_while(self, start: int, length: int, holds: Callable[[int, int], bool]) -> int:
        """Count units before the first real one for which ``holds`` (physical offset, size) is
        false.

        Only units before byte ``length`` of the file count. ``holds`` must be true before that unit
        and false from it on. A blank unit counts as the real one that follows it.
        """
        low, high, unit_size = 0, length // self.unit_size, self.unit_size
        with self._opened(start) as fd:
            while low < high:
                middle = real = (low + high) // 2
                data = os.pread(fd, UNIT_BEGIN.size, middle * unit_size)
                offset, size, _ = UNIT_BEGIN.unpack(data)
                if size == PRE_BLANK_SIZE:
                    real = self._next_real(start, middle, high)
                    if real < high:
                        data = os.pread(fd, UNIT_BEGIN.size, real * unit_size)
                        offset, size, _ = UNIT_BEGIN.unpack(data)
                if real < high and holds(offset, size):
                    low = real + 1
                else:
                    high = middle
        return low

    def _next_real(self, start: int, first: int, last: int) -> int:
        """Index of the first nonblank unit of [first, last); ``last`` without one."""
        if first >= last or self.units(start, first, 1)[0]["size"] != PRE_BLANK_SIZE:
            return first
        real = np.flatnonzero(self.units(start, first, last - first)["size"] != PRE_BLANK_SIZE)
        return first + int(real[0]) if len(real) else last

    def last_unit(self, end: int) -> tuple[int, int] | None:
        """(physical offset, size) of the last real unit before byte ``end``; None without one."""
        for start in reversed(self.starts):
            if start >= end:
                continue
            count = min(end - start, self.file_size) // self.unit_size
            unit = self.units(start, count - 1, 1)[0]
            if unit["size"] == PRE_BLANK_SIZE:
                units = self.units(start, 0, count)
                real = np.flatnonzero(units["size"] != PRE_BLANK_SIZE)
                if not len(real):
                    continue
                unit = units[real[-1]]
            return int(unit["offset"]), int(unit["size"])
        return None

    def max_physic_offset(self, end: int) -> int:
        """Physical offset after the message of the last real unit before byte ``end``; -1 without
        one."""
        last = self.last_unit(end)
        return -1 if last is None else sum(last)

    def first_real_unit(self, end: int) -> tuple[int, np.void] | None:
        """The index of the first nonblank unit before byte ``end``, and the unit itself."""
        for start in self.starts:
            count = max(min(end - start, self.file_size), 0) // self.unit_size
            first = self._next_real(start, 0, count)
            if first < count:
                return start // self.unit_size + first, self.units(start, first, 1)[0]
        return None

    def real_unit_up_to(self, index: int, begin: int) -> tuple[int, np.void] | None:
        """The index of the last nonblank unit of [begin, index], and the unit itself."""
        end, count = index + 1, 1
        while end > begin:
            units = self.read(first := max(end - count, begin), end - first)
            real = np.flatnonzero(units["size"] != PRE_BLANK_SIZE)
            if len(real):
                # the first file may begin after ``first``
                return end - len(units) + int(real[-1]), units[real[-1]]
            end, count = first, UNITS_PER_READ
        return None

    def read(self, first: int, count: int) -> NDArray[np.void]:
        """Units ``first`` .. ``first + count`` by queue offset: UNIT_DTYPE[<= count]."""
        parts = []
        position, end = first * self.unit_size, (first + count) * self.unit_size
        for start in self.starts:
            low, high = max(position, start), min(end, start + self.file_size)
            if low < high:
                unit = self.unit_size
                parts.append(self.units(start, (low - start) // unit, (high - low) // unit))
        # joined as bytes, because numpy's concatenate would convert the byte order
        return np.frombuffer(b"".join(part.tobytes() for part in parts), self.UNIT_DTYPE)

    def write(
        self, position: int, data: bytes | memoryview, root: Path, unsynced: UnsyncedFiles
    ) -> None:
        """Write units, as single bytes, at byte ``position``, across files if needed
        (``write_pieces``)."""
        if 0 < len(data) <= self.file_size - position % self.file_size:
            self.write_piece(position, data, root, unsynced)
        else:
            self.write_pieces(self._pieces(position, memoryview(data)), root, unsynced)

    def _pieces(self, position: int, view: memoryview) -> Iterator[tuple[int, memoryview]]:
        while view:
            part = view[: self.file_size - position % self.file_size]
            yield position, part
            position, view = position + len(part), view[len(part) :]


def may_follow(before: np.void, last: np.void) -> bool:
    """Whether the second of two units may be whole if the first one is."""
    ascends = before["offset"] <= last["offset"] or before["size"] == PRE_BLANK_SIZE
    return bool(before["size"] > 0 and ascends)


class ConsumeQueueFiles(QueueFiles):
    """The files of one consume queue."""

    UNIT_DTYPE = UNIT_DTYPE
    kind = "consume queue"
    setting = "mappedFileSizeConsumeQueue"
    place = "broker.conf or `mapped_file_size_consume_queue=`"

    def max_offset_in_queue(self, end: int) -> int:
        """Queue offset after the last message."""
        return end // self.unit_size

    def min_offset_in_queue(self, end: int, log_min_offset: int) -> int:
        """Index of the first unit whose message is still in the log; the end if there is none."""
        for start in self.starts:
            length = min(max(end - start, 0), self.file_size)
            first = self.units(start, 0, 1)[:length]
            is_real = len(first) and first["size"][0] != PRE_BLANK_SIZE
            if is_real and first["offset"][0] >= log_min_offset:
                # as in most queues: no search
                return start // CQ_STORE_UNIT_SIZE
            gone = self._count_while(start, length, lambda offset, _: offset < log_min_offset)
            kept = self._next_real(start, gone, length // CQ_STORE_UNIT_SIZE) if length else 0
            if kept * CQ_STORE_UNIT_SIZE < length:
                return start // CQ_STORE_UNIT_SIZE + kept
        return end // CQ_STORE_UNIT_SIZE

    def offset_in_queue_by_time(
        self,
        timestamp: int,
        boundary_type: BoundaryType,
        end: int,
        min_offset: int,
        store_time: Callable[[int, int], int],
    ) -> int:
        """Index of the unit that a search by store time (ms) ends at; 0 for none.

        LOWER is the first message at or after the time, or the end if all are earlier. UPPER is the
        last message at or before the time. If times do not ascend, the result is that of RocketMQ's
        binary search (``binarySearchInQueueByTime``), and 0 where it reads no time.

        ``min_offset`` is the first index whose message is still in the log; the result is not yet
        clamped to it. ``store_time`` gives the time of the record at a physical offset with a size,
        and is negative if there is none.
        """

        def time_of(index: int) -> int:
            return store_time(*self._real_from(index, end))

        indexes = self._file_by_time(timestamp, boundary_type, end, min_offset, time_of)
        if not indexes:
            return 0
        is_lower = boundary_type is BoundaryType.LOWER
        floor, ceiling = max(indexes[0], min_offset), indexes[-1]
        if time_of(ceiling) < timestamp:
            return ceiling + is_lower
        if time_of(floor) > timestamp:
            return floor if is_lower else 0
        low, high, left, right = floor, ceiling, 0, 0
        while low <= high:
            middle = (low + high) // 2
            time = time_of(middle)
            if time < 0:
                return 0
            if time == timestamp:
                step, last = (-1, floor) if is_lower else (1, ceiling)
                while middle != last and time_of(middle + step) == timestamp:
                    middle += step
                return middle
            if time > timestamp:
                high, right = middle - 1, middle
            else:
                low, left = middle + 1, middle
        return right if is_lower else left

    def _file_by_time(
        self,
        timestamp: int,
        boundary_type: BoundaryType,
        end: int,
        min_offset: int,
        time_of: Callable[[int], int],
    ) -> range:
        """Units of the file to search (``getConsumeQueueMappedFileByTime``)."""
        stops = [(start, min(start + self.file_size, end)) for start in self.starts if start < end]
        files = [range(start // self.unit_size, stop // self.unit_size) for start, stop in stops]
        files = [units for units in files if units and units[-1] >= min_offset]
        if boundary_type is BoundaryType.UPPER:
            began = (units for units in reversed(files) if time_of(units[0]) <= timestamp)
            return next(began, range(0))
        ended = (units for units in files[:-1] if time_of(units[-1]) >= timestamp)
        return next(ended, files[-1] if files else range(0))

    def _real_from(self, index: int, end: int) -> tuple[int, int]:
        """Physical offset and size of a unit; of the next real one for a blank."""
        unit = self.read(index, 1)[0]
        while unit["size"] == PRE_BLANK_SIZE and index * self.unit_size < end:
            units = self.read(index, min(UNITS_PER_READ, end // self.unit_size - index))
            if not len(units):
                break
            real = np.flatnonzero(units["size"] != PRE_BLANK_SIZE)
            unit, index = units[real[0] if len(real) else -1], index + len(units)
        return int(unit["offset"]), int(unit["size"])


def open_whole_queue(directory: Path, file_size: int) -> ConsumeQueueFiles:
    """Open a queue for appending.

    Raises QueueFileError if a file is missing or misplaced, because the positions after it would be
    wrong.
    """
    files = ConsumeQueueFiles(directory, file_size)
    for index, start in enumerate(files.starts):
        if start % file_size or start != files.starts[0] + index * file_size:
            raise QueueFileError(
                f"consume queue file {files.path(start)} does not follow the one before it at "
                f"{file_size} bytes a file: one is missing or foreign; reput verify names "
                "the command that heals the queue",
                path=files.path(start),
            )
    return files


def _ends_by(offset: int, size: int, end_offset: int) -> bool:
    return offset >= 0 and size > 0 and offset + size <= end_offset
