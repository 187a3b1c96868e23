"""Walking the log: from record to record, over damage, and up to the live end.

Three outcomes are kept apart and never merged into one None. At a torn or unwritten tail the walk
waits, at a BLANK it goes on with the next file, and at damage it looks for the next trusted
boundary.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from reput.store.errors import CommitLogDataLossError
from reput.store.log import record
from reput.store.log.commitlog import CommitLog
from reput.store.log.record import Record
from reput.store.log.segments import Segment
from reput.store.log.status import Outcome, Status

BUFFER_SIZE = 1 << 20
"""Bytes per read: fits the cache, and larger buffers were slower (decision 0003)."""
NO_LIMIT = (1 << 63) - 1
NEAR_BYTES = 64 << 10
LIVE_BYTES = 8 << 10
"""The first read at a live end: some messages, since longer reads took more time than they do."""
PLAIN_RECORDS = 10_000
"""Records that a walk passes without numba, which takes half a second or more to import. These take
some ten milliseconds, and are enough for most that plan, look something up, or follow a live log.
"""
PLAIN_BYTES = 1 << 20
"""The same for bytes in which no magic number stands, after the last record or at damage."""
_MAGIC = re.compile(
    b"|".join(
        re.escape(magic.to_bytes(4, "big"))
        for magic in (record.MESSAGE_MAGIC_V1, record.MESSAGE_MAGIC_V2, record.BLANK_MAGIC)
    )
)


@dataclass(frozen=True, slots=True)
class BadRange:
    """The range [start, end) of the log holds no record that can be dispatched."""

    start: int
    end: int
    status: Status


class Window:
    """A reused buffer over the log; ``load`` moves it to an offset."""

    def __init__(self, log: CommitLog, size: int = BUFFER_SIZE) -> None:
        """``size`` is the bytes of a read; one that is larger than the range costs time alone."""
        self._log = log
        self.data: NDArray[np.uint8] = np.empty(size, np.uint8)
        self.base = 0
        self.length = 0

    def load(self, offset: int, needed: int = 0, limit: int | None = None) -> bool:
        """Read from ``offset``, up to ``limit`` bytes; return False if no more bytes came than
        before (the log ends there).

        The buffer grows to ``needed`` bytes, because one record may be larger than it.
        """
        if needed > len(self.data):
            self.data = np.empty(needed, np.uint8)
        before = (self.base + self.length) if self.base <= offset else -1
        self.base = offset
        self.length = self._log.read_into(offset, self.data[:limit].data)
        return self.base + self.length > before

    def plausible_size(self, offset: int) -> int:
        """totalSize of the record at ``offset`` if a record may have it, otherwise 0."""
        head = bytes(self.data[offset - self.base : self.length][: record.SIZE_MAGIC_LENGTH])
        size = int.from_bytes(head[:4], "big", signed=True) if len(head) >= 8 else 0
        return size if record.MIN_RECORD_LENGTH <= size <= record.MAX_RECORD_LENGTH else 0


@dataclass(slots=True)
class Hop:
    """The end of a walk, and what it passed."""

    offset: int
    """Log offset at which the walk stopped."""
    status: Status
    """OK if a bound was reached; otherwise the status of the bytes at ``offset``."""
    record_count: int = 0
    last_record_offset: int = -1
    """Start of the last record passed; -1 if none was."""


def hop_file(
    log: CommitLog,
    window: Window,
    offset: int,
    *,
    stop: int = NO_LIMIT,
    max_records: int = NO_LIMIT,
    max_timestamp: int = NO_LIMIT,
) -> Hop:
    """Walk within one file from ``offset``, a record start, up to a bound or a non-record.

    The bounds are the log offset at which the last record ends, the number of records, and their
    storeTimestamp.
    """
    segment = log.segments.at(offset)
    if segment is None:
        return Hop(offset, Status.NEED_MORE)
    file_end = segment.start + log.file_size
    # at a live end little follows, and the rest of a preallocated file is zeros
    window.load(offset, limit=LIVE_BYTES)
    hop, plain_records = Hop(offset, Status.OK), _plain_records()
    while True:
        if hop.record_count < plain_records:
            hop_records, limit = record.hop_records, min(max_records, plain_records)
        else:
            hop_records, limit = _kernels().hop_records, max_records
        status, pos, count, last = hop_records(
            window.data, window.length, window.base, file_end, hop.offset - window.base, stop,
            limit - hop.record_count, max_timestamp,
        )  # fmt: skip
        hop.offset = window.base + pos
        hop.record_count += count
        if last >= 0:
            hop.last_record_offset = window.base + last
        hop.status = Status(status)
        if hop.record_count == limit < max_records:
            continue
        if hop.status is not Status.NEED_MORE or hop.offset >= file_end:
            return hop
        if not window.load(hop.offset, window.plausible_size(hop.offset)):
            return hop


def _plain_records() -> int:
    """Records to pass before the kernels are worth their import; none once they are there."""
    return 0 if "reput.store.log.kernels" in sys.modules else PLAIN_RECORDS


def _kernels() -> ModuleType:
    from reput.store.log import kernels  # noqa: PLC0415  imports numba

    return kernels


def resync(log: CommitLog, window: Window, offset: int) -> int:
    """The next trusted boundary after the damaged bytes at ``offset``, in the same file.

    A boundary is a sound record (its physical offset equals its position), or the BLANK that ends
    the file if no record follows it; without one it is the file's end. If the damaged record's own
    length leads to a boundary, that one is taken first, because a search could mistake a record
    copied inside a body for a real one.
    """
    segment = log.segments.at(offset)
    if segment is None:
        return offset
    file_end = segment.start + log.file_size
    window.load(offset)
    stated = window.plausible_size(offset)
    if stated and is_boundary(log, offset + stated, file_end):
        return offset + stated
    position, blank, plain_left = offset + 1, file_end, PLAIN_BYTES
    while position + record.END_FILE_MIN_BLANK_LENGTH <= file_end:
        if position + record.SIZE_MAGIC_LENGTH > window.base + window.length:
            # skip holes of a sparse file; a record's first bytes may be zeros at a hole's end
            position = max(position, log.next_data(position) - record.SIZE_MAGIC_LENGTH)
            window.load(position)
            if window.length < record.SIZE_MAGIC_LENGTH:
                break
        magic_position = position - window.base + record.MAGIC_POSITION
        plain_left -= window.length - magic_position
        if plain_left > 0 and not _MAGIC.search(window.data.data, magic_position, window.length):
            position = window.base + window.length - record.SIZE_MAGIC_LENGTH + 1
            continue
        status, pos = _kernels().find_record(
            window.data, window.length, window.base, file_end, position - window.base
        )
        position = window.base + int(pos)
        if status == Status.OK:
            return position
        if status == Status.BLANK:
            # no record follows a BLANK; eight bytes of a body may look like one
            blank = min(blank, position)
            position += 1
            continue
        if position + record.SIZE_MAGIC_LENGTH <= window.base + window.length:
            # this may be a record that ends after the window
            if is_boundary(log, position, file_end):
                return position
            position += 1
    return blank


def is_boundary(log: CommitLog, offset: int, file_end: int) -> bool:
    """Whether a whole record, dispatchable or not, or the file's BLANK is at ``offset``."""
    result = record.decode(log.read(offset, record.MAX_FIXED_LENGTH), offset, file_end)
    if isinstance(result, Outcome) and result.status is Status.NEED_MORE:
        # size and physical offset are right, so the record is worth the memory
        result = record.decode(log.read(offset, result.size), offset, file_end)
    whole = (Status.BLANK, Status.BAD_PROPERTY)
    return not isinstance(result, Outcome) or result.status in whole


def walk(
    log: CommitLog,
    window: Window,
    offset: int,
    end: int,
    *,
    max_records: int = NO_LIMIT,
    max_timestamp: int = NO_LIMIT,
) -> Hop:
    """Walk from ``offset`` towards ``end`` over file ends, damage and missing files.

    The walk ends at a record start, a file start or ``end``; ``record_count`` counts sound records.
    Unreadable ranges are skipped here and listed by the scan.
    """
    total = Hop(offset, Status.OK)
    while total.offset < end and total.record_count < max_records:
        segment = log.segments.at(total.offset)
        if segment is None:
            following = log.segments.after(total.offset)
            total.offset = min(following.start, end) if following else end
            continue
        hop = hop_file(
            log, window, total.offset, stop=min(end, segment.start + log.file_size),
            max_records=max_records - total.record_count, max_timestamp=max_timestamp,
        )  # fmt: skip
        total.record_count += hop.record_count
        if hop.last_record_offset >= 0:
            total.last_record_offset = hop.last_record_offset
        if hop.status is Status.OK:
            total.offset = hop.offset
            break
        if hop.status is Status.BLANK:
            total.offset = segment.start + log.file_size
        else:
            # may be beyond ``end``: a damaged range is never cut, so that it is listed once
            total.offset = resync(log, window, hop.offset)
    return total


def records(
    log: CommitLog,
    start: int,
    end: int,
    *,
    verify_crc: bool = False,
    fail_on_data_loss: bool = True,
) -> Iterator[Record | BadRange]:
    """Every record of [start, end) with its contents, and every range without one.

    This is the plain twin of ``store.runs.scan.scan``. A missing file raises
    CommitLogDataLossError, or gives a BadRange without ``fail_on_data_loss``.
    """
    window = Window(log)
    offset, loaded = start, False
    while offset < end:
        segment = log.segments.at(offset)
        if segment is None:
            bad = missing_range(log, offset, end, fail_on_data_loss)
            yield bad
            offset, loaded = bad.end, False
            continue
        if not loaded:
            window.load(offset)
        file_end = segment.start + log.file_size
        view = window.data.data[offset - window.base : window.length]
        result = record.decode(view, offset, file_end, verify_crc=verify_crc)
        loaded = True
        if not isinstance(result, Outcome):
            yield result
            offset += result.total_size
        elif result.status is Status.BLANK:
            offset, loaded = file_end, False
        elif result.status is not Status.NEED_MORE or not window.load(
            offset, window.plausible_size(offset)
        ):
            bad = bad_range(log, window, offset, result.status)
            yield bad
            offset, loaded = bad.end, False


Decode = Callable[[Window, Segment, int, int], tuple[int, int]]
"""(window, its file, position in the window, stop) -> (status, position). It consumes records that
start before log offset ``stop``, as many as it can, and may move the window along its file."""


def decode_windows(
    log: CommitLog, start: int, end: int, decode: Decode, fail_on_data_loss: bool
) -> Iterator[tuple[int, Status | BadRange]]:
    """Decode [start, end) of the log; both bounds are record or file starts.

    Yields (offset to resume at, reason for the stop): the status after each call of ``decode``, and
    every range without a record. After FULL the caller must make room before it continues. A
    missing file raises CommitLogDataLossError, or gives a BadRange without ``fail_on_data_loss``.
    """
    window = Window(log, min(BUFFER_SIZE, max(end - start, LIVE_BYTES)))
    offset, loaded = start, False
    while offset < end:
        segment = log.segments.at(offset)
        if segment is None:
            bad = missing_range(log, offset, end, fail_on_data_loss)
            offset, loaded = bad.end, False
            yield offset, bad
            continue
        if not loaded:
            window.load(offset)
        file_end = segment.start + log.file_size
        status, pos = decode(window, segment, offset - window.base, min(end, file_end))
        offset, loaded = window.base + pos, True
        if status == Status.BLANK:
            offset, loaded = file_end, False
        yield offset, Status(status)
        if status not in (Status.OK, Status.FULL, Status.BLANK):
            more = status == Status.NEED_MORE and window.load(offset, window.plausible_size(offset))
            if not more:
                bad = bad_range(log, window, offset, Status(status))
                offset, loaded = bad.end, False
                yield offset, bad


def missing_range(log: CommitLog, offset: int, end: int, fail: bool) -> BadRange:
    """The part of [offset, end) that no commitlog file covers. Raises CommitLogDataLossError."""
    following = log.segments.after(offset)
    lost_end = min(following.start, end) if following else end
    if fail:
        line = f"no commitlog file covers [{offset}, {lost_end})"
        raise CommitLogDataLossError("SEGMENT_DELETED", line, physical_offset=offset)
    return BadRange(offset, lost_end, Status.SEGMENT_DELETED)


def bad_range(log: CommitLog, window: Window, offset: int, status: Status) -> BadRange:
    """The damaged bytes at ``offset``, up to the next trusted boundary of the log.

    ``offset`` is below a sealed end, so zeros there are a hole and not the tail.
    """
    if status is Status.BAD_PROPERTY:
        # a whole record, which ends where it says, also where it is the log's last one
        return BadRange(offset, offset + window.plausible_size(offset), status)
    if status in (Status.EMPTY, Status.NEED_MORE):
        status = Status.ZERO_HOLE
    return BadRange(offset, resync(log, window, offset), status)


def record_starts(log: CommitLog, offsets: list[int]) -> Iterator[int]:
    """For each log offset, a likely record start at or after it, in the same file.

    The start is likely, not proven, because a body may hold a forged record. A caller that splits
    work here must check that the walk from the left arrives exactly at the split.
    """
    window = Window(log)
    for offset in offsets:
        yield _start_near(log, offset) or resync(log, window, offset - 1)


def _start_near(log: CommitLog, offset: int) -> int | None:
    """The result of ``resync`` among sound records of usual size, without loading the kernels; None
    if there is none nearby."""
    segment = log.segments.at(offset)
    if segment is None:
        return None
    data = log.read(offset, NEAR_BYTES)
    for match in _MAGIC.finditer(data, record.SIZE_MAGIC_LENGTH // 2):
        position = offset + match.start() - record.SIZE_MAGIC_LENGTH // 2
        if is_boundary(log, position, segment.start + log.file_size):
            return position
    return None
