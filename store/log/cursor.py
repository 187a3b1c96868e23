"""Walking the log: from record to record, over damage, and up to the live end.

Three outcomes are kept apart and never merged into one None. At a torn or unwritten tail the walk
waits, at a BLANK it goes on with the next file, and at damage it looks for the next trusted
boundary.
"""

from __future__ import annotations

import re
import sys
import time
import zlib
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
    window.load(offset, limit=NEAR_BYTES)
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
    if stated and _is_boundary(log, offset + stated, file_end):
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
            if _is_boundary(log, position, file_end):
                return position
            position += 1
    return blank


def _is_boundary(log: CommitLog, offset: int, file_end: int) -> bool:
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


class LogTail:
    """The live end of the log: how far a reader may go (the seal rule, ARCHITECTURE.md).

    A record counts as written if a sound record or a BLANK follows it, or if its body CRC is right
    and two polls some milliseconds apart saw the same bytes. At a torn tail the reader waits. Bytes
    that stay damaged before sound records are damage and are passed; while a broker may still be
    writing, only after a grace time.
    """

    SEAL_SECONDS = 0.002
    DAMAGE_GRACE_SECONDS = 5.0
    HOLE_CHECK_SECONDS = 60.0

    def __init__(self, log: CommitLog) -> None:
        self._log = log
        self._window = Window(log)
        self._offset = log.min_offset
        self._candidate: tuple[int, int, int, float] | None = None
        self._stuck: tuple[int, float] | None = None
        self._next_hole_check = 0.0
        self._idle_end: int | None = None

    @property
    def is_idle(self) -> bool:
        """Whether the last poll has found the log whole, and nothing after its sealed end."""
        return self._idle_end is not None

    def settled(self, start: int = 0, *, patient: bool = False) -> int:
        """The sealed end after two polls, so that it includes the last record, which one poll
        omits.

        With ``patient``, damage is waited for as in ``poll``; otherwise it is passed at once, as
        for a log that does not grow.
        """
        self.poll(start, patient=patient)
        time.sleep(self.SEAL_SECONDS * 2)
        return self.poll(start, patient=patient)

    def poll(self, start: int = 0, *, patient: bool = True) -> int:
        """The sealed end now: a log offset after the last record that may be dispatched.

        ``start`` is a known record start; nothing before it is walked again.
        """
        self._log.refresh()
        if self._is_idle(start):
            return max(start, self._idle_end or 0)
        active = self._log.active_segment()
        if active is None:
            return start
        self._idle_end = None
        if self._offset < active.start or not self._log.segments.at(self._offset - 1):
            self._offset = active.start
        if self._offset < start <= active.start + self._log.file_size:
            self._offset = start
        while True:
            segment = self._log.segments.at(self._offset)
            if segment is None:
                return self._offset
            hop = hop_file(self._log, self._window, self._offset)
            if hop.status is Status.BLANK:
                self._offset = segment.start + self._log.file_size
                continue
            if hop.last_record_offset >= 0:
                # every earlier record has a sound successor
                self._offset = hop.last_record_offset
            sealed = hop.offset if self._is_sealed(hop) else self._offset
            resumed = self._end_of_damage(segment, hop, patient)
            if resumed is None:
                if sealed == hop.offset and hop.status is Status.EMPTY:
                    self._idle_end = sealed
                return sealed
            self._offset = resumed

    def _is_idle(self, start: int) -> bool:
        """Whether the log is unchanged since a poll that sealed all of it, by one small read."""
        end = self._idle_end
        if end is None or start > end or time.monotonic() >= self._next_hole_check:
            return False
        return self._log.read(end, record.SIZE_MAGIC_LENGTH) == bytes(record.SIZE_MAGIC_LENGTH)

    def _is_sealed(self, hop: Hop) -> bool:
        if hop.last_record_offset < 0:
            return True
        size = hop.offset - hop.last_record_offset
        data = self._log.read(hop.last_record_offset, size)
        file_end = hop.offset + record.END_FILE_MIN_BLANK_LENGTH
        result = record.decode(data, hop.last_record_offset, file_end, verify_crc=True)
        if isinstance(result, Outcome) and result.status is not Status.BAD_PROPERTY:
            return False
        texts = (data,) if isinstance(result, Outcome) else (result.topic, result.properties)
        if any(text.endswith(b"\0") for text in texts):
            # such records have no CRC, but text that ends in zeros is not fully written yet
            return False
        now = time.monotonic()
        digest = zlib.crc32(data)
        seen = self._candidate
        if seen is None or seen[:3] != (hop.last_record_offset, size, digest):
            self._candidate = (hop.last_record_offset, size, digest, now)
            return False
        return now - seen[3] >= self.SEAL_SECONDS

    def _end_of_damage(self, active: Segment, hop: Hop, patient: bool) -> int | None:
        """Offset at which sound records continue after damage; None to wait."""
        now = time.monotonic()
        if self._stuck is None or self._stuck[0] != hop.offset:
            self._stuck = (hop.offset, now)
            self._next_hole_check = 0.0
        if patient and now - self._stuck[1] < self.DAMAGE_GRACE_SECONDS:
            return None
        if now < self._next_hole_check and patient:
            return None
        self._next_hole_check = now + self.HOLE_CHECK_SECONDS
        next_start = resync(self._log, self._window, hop.offset)
        file_end = active.start + self._log.file_size
        if next_start < file_end:
            return next_start
        # nothing sound is left in this file; later ones may have lost their first records as well
        later = (file.start for file in self._log.segments.listed if file.start >= file_end)
        return file_end if any(map(self._has_record, later)) else None

    def _has_record(self, start: int) -> bool:
        """Whether the file that begins at ``start`` holds a record or its BLANK."""
        end = start + self._log.file_size
        return _is_boundary(self._log, start, end) or resync(self._log, self._window, start) < end


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
    window = Window(log, min(BUFFER_SIZE, max(end - start, NEAR_BYTES)))
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
        if _is_boundary(log, position, segment.start + log.file_size):
            return position
    return None
