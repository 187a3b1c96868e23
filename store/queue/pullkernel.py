"""The kernel of a pull: which records it takes, their bytes, and whether they are whole.

It applies the rules of ``readers.getmessage`` to units that are all plain; tests/readers compares
the two. A queue's records lie scattered in the log, and a system call for each would take most of
the time, so they are copied out of the mapped files. Access to a mapping whose file was cut, or
cannot be read, would end the process. The kernel therefore asks the system to read the pages first
(MADV_POPULATE_READ), which fails where a read would. If it fails, or the system does not know it,
each record is read by a system call.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from reput.store.log import record
from reput.store.log.kernelbase import copy_mapped, i32, i64, kernel, populate, read_bytes
from reput.store.log.kernels import OK, frame
from reput.store.queue.consumequeue import (
    CQ_STORE_UNIT_SIZE,
    PRE_BLANK_SIZE,
    SIZE_IN_UNIT,
    TAGS_CODE_IN_UNIT,
)
from reput.store.queue.consumequeueext import MAX_ADDR

UNUSUAL, NO_ROOM, NOT_OPEN = -1, -2, -3
"""Results in place of a number of units: a unit that ``get_message`` must handle; ``out`` is too
small; a file of the log is not open."""
_IN_MEMORY, _ON_DISK = 4, 6
"""Indices in ``limits`` of (bytes, count) for messages in memory and on disk."""
_NEAR_BYTES = 64 << 10
"""Records up to this far apart are read in together."""
_MIN_BLANK = record.END_FILE_MIN_BLANK_LENGTH
_MIN_RECORD = record.MIN_RECORD_LENGTH
_MAX_RECORD = record.MAX_RECORD_LENGTH


@kernel
def pull_records(units, first, count, codes, max_count, max_bytes, limits, files, out):
    """Write the records of the units [first, first + count) to ``out`` as they are stored; return
    (units looked at, records, bytes).

    Without ``codes`` every unit is taken. ``limits`` are those of ``readers.getranges``. ``files``
    has (descriptor, address) of each of the log's files. A descriptor of -1 is not open, and the
    second result is then the file's number; an address of 0 is not mapped.
    """
    log_start, log_end, file_size, memory_start = limits[0], limits[1], limits[2], limits[3]
    record_count, end, populated = 0, np.int64(0), np.int64(-1)
    for i in range(count):
        unit = (first + i) * CQ_STORE_UNIT_SIZE
        offset, size = i64(units, unit), i32(units, unit + SIZE_IN_UNIT)
        code = i64(units, unit + TAGS_CODE_IN_UNIT)
        if size == PRE_BLANK_SIZE or code <= MAX_ADDR:
            return UNUSUAL, 0, 0
        if record_count > 0:
            total = end + size
            if record_count + 1 > max_count or total > max_bytes:
                return i, record_count, end
            at = _IN_MEMORY if offset >= memory_start else _ON_DISK
            if total > limits[at] or record_count >= limits[at + 1]:
                return i, record_count, end
        if len(codes) > 0 and not _is_among(codes, np.int64(np.int32(code))):
            continue
        if offset < log_start or offset + size > log_end:
            return UNUSUAL, 0, 0
        if size < _MIN_RECORD or size > _MAX_RECORD:
            return UNUSUAL, 0, 0
        if end + size > len(out):
            return NO_ROOM, 0, end + size
        file = (offset - log_start) // file_size
        in_file = offset - log_start - file * file_size
        fd, address = files[file, 0], files[file, 1]
        if fd < 0:
            return NOT_OPEN, file, 0
        if in_file + size > file_size:
            return UNUSUAL, 0, 0
        if address and offset + size > populated:
            until = _end_of_near(units, first + i, first + count, file_size - in_file)
            if populate(address, in_file, until - offset):
                populated = until
        if offset + size <= populated:
            copy_mapped(out, end, address + in_file, size)
        elif read_bytes(fd, in_file, out, end, size) != size:
            return UNUSUAL, 0, 0
        # framed as if it were the last one of its file, as ``CommitLog.record_at`` does
        status, stated, _, _, _, _, _, _ = frame(
            out, end + size, end, offset - end, offset + size + _MIN_BLANK
        )
        if status != OK or stated != size:
            return UNUSUAL, 0, 0
        record_count += 1
        end += size
    return count, record_count, end


@njit(inline="always")
def _is_among(codes, code):
    is_among = False
    for j in range(len(codes)):
        is_among = is_among or codes[j] == code
    return is_among


@njit(inline="always")
def _end_of_near(units, index, end, room):
    """Return the physical offset up to which to read in at once: the end of the last record of a
    series that begins with this unit's, each close to the one before, within ``room`` bytes."""
    start = i64(units, index * CQ_STORE_UNIT_SIZE)
    until = start + i32(units, index * CQ_STORE_UNIT_SIZE + SIZE_IN_UNIT)
    for j in range(index + 1, end):
        unit = j * CQ_STORE_UNIT_SIZE
        offset = i64(units, unit)
        stop = offset + i32(units, unit + SIZE_IN_UNIT)
        if offset < until or offset > until + _NEAR_BYTES or stop - start > room:
            break
        until = stop
    return until
