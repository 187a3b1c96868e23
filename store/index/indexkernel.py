"""The numba kernels that fill and rebuild an index file; RocketMQ's ``IndexFile.putKey``.

``data`` is a whole file, uint8[file size]. The layout is in ``store.index.indexfile``; the plain
twin is the model in ``tests/support/index_model.py``.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from reput.store.index import indexfile
from reput.store.log.kernelbase import i32, i64, kernel, prefetch, put32, put64

_slot_position = njit(inline="always")(indexfile.slot_position)
_entry_position = njit(inline="always")(indexfile.entry_position)
INTEGER_MAX = 0x7FFFFFFF
PREFETCH_DISTANCE = 16
"""Entries to prefetch ahead: slots spread over 20 MB, and a cache miss costs ten entries."""


@njit(inline="always")
def _put_key(data, position, slot, index, key_hash, offset, time_diff):
    """Write entry ``index`` at ``position``; return the previous entry of its slot, or 0."""
    previous = i32(data, slot)
    if previous < 0 or previous > index:
        previous = np.int64(0)
    put32(data, position + indexfile.KEY_HASH_IN_ENTRY, key_hash)
    put64(data, position + indexfile.PHY_OFFSET_IN_ENTRY, offset)
    put32(data, position + indexfile.TIME_DIFF_IN_ENTRY, time_diff)
    put32(data, position + indexfile.PREVIOUS_IN_ENTRY, previous)
    put32(data, slot, index)
    return previous


@kernel
def put_keys(data, max_hash_slot_num, max_index_num, offsets, hashes, store_timestamps):
    """Add entries until the file is full: int64[n], int32[n] (0 or positive), int64[n] ms.

    The header is written with every entry, as in RocketMQ, so a reader never sees a slot that
    points beyond the header's count. Returns the number of entries added.
    """
    begin_timestamp = i64(data, indexfile.BEGIN_TIMESTAMP_POSITION)
    used = i32(data, indexfile.HASH_SLOT_COUNT_POSITION)
    first = max(i32(data, indexfile.INDEX_COUNT_POSITION), np.int64(1))
    count = min(np.int64(len(offsets)), max_index_num - first)
    slots = np.uint32(max_hash_slot_num)
    for at in range(count):
        if at + PREFETCH_DISTANCE < count:
            ahead = np.int64(np.uint32(hashes[at + PREFETCH_DISTANCE]) % slots)
            prefetch(data, _slot_position(ahead))
        index = first + at
        offset = offsets[at]
        store_timestamp = store_timestamps[at]
        time_diff = np.int64(0)
        if begin_timestamp > 0:
            # Java's division rounds to zero, which differs only for negative values
            time_diff = min(max((store_timestamp - begin_timestamp) // 1000, 0), INTEGER_MAX)
        key_hash = np.int64(hashes[at])
        slot = _slot_position(np.int64(np.uint32(key_hash) % slots))
        position = _entry_position(max_hash_slot_num, index)
        previous = _put_key(data, position, slot, index, key_hash, offset, time_diff)
        if index == 1:
            begin_timestamp = store_timestamp
            put64(data, indexfile.BEGIN_PHY_OFFSET_POSITION, offset)
            put64(data, indexfile.BEGIN_TIMESTAMP_POSITION, store_timestamp)
        if previous == 0:
            used += 1
            put32(data, indexfile.HASH_SLOT_COUNT_POSITION, used)
        put32(data, indexfile.INDEX_COUNT_POSITION, index + 1)
        put64(data, indexfile.END_PHY_OFFSET_POSITION, offset)
        put64(data, indexfile.END_TIMESTAMP_POSITION, store_timestamp)
    return max(count, np.int64(0))


@kernel
def rebuild_slots(entries, index, used, last_offset, end_offset, slots):
    """Rebuild the slots from the sound leading entries of messages before ``end_offset``.

    ``entries`` (uint8) begin with number ``index``. The next arguments are 1, 0, 0 for a file's
    first entries, and for later ones the values returned for the previous call. Only entries are
    read; header and slots may be anything. An entry is sound if offsets do not decrease, no field
    is negative, and it is chained to the current value in ``slots`` (int32[maxHashSlotNum], zeros
    before the first call). Returns (indexCount, hashSlotCount, last offset).
    """
    for position in range(0, len(entries) - indexfile.INDEX_SIZE + 1, indexfile.INDEX_SIZE):
        key_hash = i32(entries, position + indexfile.KEY_HASH_IN_ENTRY)
        offset = i64(entries, position + indexfile.PHY_OFFSET_IN_ENTRY)
        if key_hash < 0 or i32(entries, position + indexfile.TIME_DIFF_IN_ENTRY) < 0:
            break
        if offset < last_offset or offset >= end_offset:
            break
        slot = key_hash % len(slots)
        previous = np.int64(slots[slot])
        if i32(entries, position + indexfile.PREVIOUS_IN_ENTRY) != previous:
            break
        if previous == 0:
            used += 1
        slots[slot] = index
        last_offset = offset
        index += 1
    return index, used, last_offset
