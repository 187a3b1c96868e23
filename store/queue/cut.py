"""Cuts a queue of either kind after a watermark, when a run was cut short or the log was.

After a power cut the units beyond the watermark may be there in part. A unit that lies over two
pages, of which the disk has kept the second alone, lacks the first bytes of its offset, which then
looks like that of an earlier message. A smaller offset than that of the unit before shows it; where
that one is smaller still, the log does: the message there is of another queue, or has its unit.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np

from reput.store.queue.consumequeue import PRE_BLANK_SIZE, QueueFiles, may_follow
from reput.store.queue.mappedfilequeue import data_end

CountUnits = Callable[[int, int], int | None]
"""Returns how many units the message at (physical offset, size) has in the queue; None where
nothing tells."""
_NEAR_BYTES = 8192


def cut_after(files: QueueFiles, end_offset: int, count_units: CountUnits) -> None:
    """Remove all units of messages that end after ``end_offset``, whole or torn, durably."""
    if not ends_by(files, end_offset, count_units):
        files.clear_from(whole_end(files, end_offset, count_units))


def ends_by(files: QueueFiles, end_offset: int, count_units: CountUnits) -> bool:
    """Whether the last nonzero bytes are a whole unit of a message that ends at or before
    ``end_offset``.

    If so, no unit of a later message exists. False if such bytes are not found soon, and where a
    file is empty: that one has to go.
    """
    if files.empty or not files.starts:
        return not files.empty
    start, size = files.starts[-1], files.unit_size
    with files.path(start).open("rb", buffering=0) as file:
        end = min(data_end(file.fileno()), files.file_size)
        first = max(end - _NEAR_BYTES, 0) // size
        data = os.pread(file.fileno(), _NEAR_BYTES + size, first * size)
    units = np.frombuffer(data[: len(data) // size * size], files.UNIT_DTYPE)
    used = np.flatnonzero(units != np.zeros(1, files.UNIT_DTYPE))
    if not len(used):
        return False
    last = units[used[-1]]
    is_unit = 0 < last["size"] < PRE_BLANK_SIZE
    if used[-1]:
        is_unit = is_unit and may_follow(units[used[-1] - 1], last)
    if not is_unit or last["offset"] + last["size"] > end_offset:
        return False
    return not _is_torn(files, start // size + first + int(used[-1]), count_units)


def whole_end(files: QueueFiles, end_offset: int, count_units: CountUnits) -> int:
    """The result of ``files.find_end(end_offset)``, without a last unit that is torn."""
    end = files.find_end(end_offset)
    index, begin = end // files.unit_size - 1, (files.starts or [0])[0] // files.unit_size
    if index < begin or not _is_torn(files, index, count_units):
        return end
    before = files.real_unit_up_to(index - 1, begin)
    return (begin if before is None else before[0] + 1) * files.unit_size


def _is_torn(files: QueueFiles, index: int, count_units: CountUnits) -> bool:
    """Whether the last unit of a queue is torn."""
    begin, last = files.starts[0] // files.unit_size, files.read(index, 1)[0]
    count = count_units(int(last["offset"]), int(last["size"]))
    if count is None:
        return False
    for _ in range(count + 1):
        real = files.real_unit_up_to(index, begin)
        if real is None or real[1]["offset"] != last["offset"]:
            return False
        index = real[0] - 1
    return True
