"""Kernels of a pull: which records it takes, how they are read, whether they are whole.

``choose_records`` applies the rules of ``readers.getmessage`` to units that are all plain;
tests/readers compares the two.
"""

from __future__ import annotations

import numpy as np

from store.log import record
from store.log.kernelbase import kernel
from store.log.kernels import OK, frame

_MIN_BLANK = record.END_FILE_MIN_BLANK_LENGTH
_MIN_RECORD = record.MIN_RECORD_LENGTH
_MAX_RECORD = record.MAX_RECORD_LENGTH


@kernel
def choose_records(
    unit_offsets, unit_sizes, unit_codes, codes, log_start, log_end, max_count, max_bytes,
    memory_start, memory_bytes, memory_count, disk_bytes, disk_count, offsets, sizes,
):  # fmt: skip
    """Write offsets and sizes of the records to send; (units looked at, records).

    No ``codes`` take every unit. (-1, 0) if a unit's record cannot be in the log.
    """
    taken, byte_count = 0, 0
    for i in range(len(unit_offsets)):
        offset = unit_offsets[i]
        size = np.int64(unit_sizes[i])
        if taken > 0:
            total = byte_count + size
            if taken + 1 > max_count or total > max_bytes:
                return i, taken
            if offset >= memory_start:
                if total > memory_bytes or taken >= memory_count:
                    return i, taken
            elif total > disk_bytes or taken >= disk_count:
                return i, taken
        if len(codes) > 0:
            code, is_wanted = np.int32(unit_codes[i]), False
            for j in range(len(codes)):
                is_wanted = is_wanted or codes[j] == code
            if not is_wanted:
                continue
        if offset < log_start or offset + size > log_end:
            return -1, 0
        if size < _MIN_RECORD or size > _MAX_RECORD:
            return -1, 0
        offsets[taken], sizes[taken] = offset, size
        taken += 1
        byte_count += size
    return len(unit_offsets), taken


@kernel
def plan_reads(offsets, sizes, file_size, joined_gap, run_offsets, run_lengths, positions):
    """Write the reads that fetch records, and the position of each in the bytes read; the number
    of reads. Records of one file with up to ``joined_gap`` bytes between are read at once."""
    runs, total, end = 0, 0, np.int64(-1)
    for i in range(len(offsets)):
        gap = offsets[i] - end
        is_near = i > 0 and 0 <= gap <= joined_gap
        if is_near and offsets[i] // file_size == run_offsets[runs - 1] // file_size:
            run_lengths[runs - 1] += gap
            total += gap
        else:
            run_offsets[runs], run_lengths[runs] = offsets[i], 0
            runs += 1
        positions[i] = total
        run_lengths[runs - 1] += sizes[i]
        total += sizes[i]
        end = offsets[i] + sizes[i]
    return runs


@kernel
def are_records(buf, positions, offsets, sizes):
    """Whether each of some records is whole: they begin at ``positions`` of ``buf``, at log
    ``offsets``, and have ``sizes``, as their queue states them."""
    for i in range(len(positions)):
        pos = positions[i]
        # framed as if it were the last one of its file, as ``CommitLog.record_at`` does
        file_end = offsets[i] + sizes[i] + _MIN_BLANK
        status, size, _, _, _, _, _, _ = frame(buf, pos + sizes[i], pos, offsets[i] - pos, file_end)
        if status != OK or size != sizes[i]:
            return False
    return True
