"""The kernel that turns records into packed runs and gathers data for other indexes.

Each index has its own function here, which is compiled away if it is not requested, so the consume
queue alone does not pay for the others. The reference is ``store.log.record.decode``,
``store.log.lightqueues.light_queues`` and ``store.index.indexfile.index_keys``.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from reput.store.index.indexfile import TAG_KEY_PREFIX
from reput.store.log import properties, record
from reput.store.log.kernelbase import find_byte, i32, i64, kernel, le64, read_bytes
from reput.store.log.kernels import (
    FULL,
    NEED_MORE,
    OK,
    checked_frame,
    find_two,
    hash_on,
    is_schedule_topic,
    parse_integer,
    property_name,
    tags_code,
    topic_starts_with,
)
from reput.store.log.sysflag import SysFlag

_TRANSACTION_MASK = SysFlag.TRANSACTION_MASK
_COMMIT = SysFlag.COMMIT
_ROLLBACK = SysFlag.ROLLBACK

# columns of the table of runs that scan_records fills, one row per run
(
    RUN_TOPIC_START,
    RUN_TOPIC_LENGTH,
    RUN_QUEUE_ID,
    RUN_COUNT,
    RUN_FIRST_OFFSET,
    RUN_END_OFFSET,
    RUN_FIRST_QUEUE_OFFSET,
    RUN_LAST_QUEUE_OFFSET,
    RUN_CONTIGUOUS,
    RUN_LAST_STORE_TIMESTAMP,
) = range(10)
RUN_FIELDS = 10

# counters that scan_records keeps between calls
(
    STATE_COUNT,
    STATE_RUNS,
    STATE_ARENA,
    STATE_SKIPPED,
    STATE_LAST_RECORD,
    STATE_LIGHT,
    STATE_KEYS,
    STATE_FIRST_INDEXED,
    STATE_UNUSABLE,
) = range(9)
STATE_FIELDS = 9


_KEYS = property_name(properties.KEYS)
_UNIQ_KEY = property_name(properties.UNIQ_KEY)
_TAGS = property_name(properties.TAGS)
_TAG_KEY_PREFIX = np.frombuffer(TAG_KEY_PREFIX, np.uint8)
_INNER_NUM = property_name(properties.INNER_NUM)
_INNER_BASE = property_name(properties.INNER_BASE)
_MULTI_DISPATCH = property_name(properties.INNER_MULTI_DISPATCH)
_MULTI_QUEUE_OFFSET = property_name(properties.INNER_MULTI_QUEUE_OFFSET)
_RETRY_PREFIX = np.frombuffer(record.RETRY_GROUP_TOPIC_PREFIX, np.uint8)
_SYSTEM_PREFIX = np.frombuffer(record.SYSTEM_TOPIC_PREFIX, np.uint8)
_LMQ_PREFIX = np.frombuffer(record.LMQ_PREFIX, np.uint8)
_NO_LISTS = (0, 0, 0, 0, 0)


@njit(inline="always")
def _put_key(value, offset, store_timestamp, keys, state):
    """``IndexFile.indexKeyHashMethod`` of a hash: its absolute value, 0 for the least integer."""
    key_offsets, key_hashes, key_timestamps = keys
    at = state[STATE_KEYS]
    value = np.int64(np.int32(value))
    if value < 0:
        value = -value if value != -0x80000000 else np.int64(0)
    key_offsets[at] = offset
    key_hashes[at] = value
    key_timestamps[at] = store_timestamp
    state[STATE_KEYS] = at + 1


@kernel
def _index_record(
    buf, topic, topic_length, props, end, offset, store_timestamp, keys, index_tags, state
):  # fmt: skip
    """Put the hashes of a record's keys (``IndexService.buildIndex``); False without room."""
    pos, keys_end, unique, unique_end = find_two(buf, props, end, _KEYS, _UNIQ_KEY)
    if state[STATE_KEYS] + 3 + (keys_end - pos) // 2 > len(keys[0]):
        return False
    if state[STATE_FIRST_INDEXED] < 0:
        state[STATE_FIRST_INDEXED] = offset
    topic_hash = hash_on(np.int64(0), buf, topic, topic + topic_length)
    topic_hash = (31 * topic_hash + 0x23) & 0xFFFFFFFF  # '#'
    if unique >= 0:
        value = hash_on(topic_hash, buf, unique, unique_end)
        _put_key(value, offset, store_timestamp, keys, state)
    while pos < keys_end:
        stop = find_byte(buf, pos, keys_end, 0x20)
        if stop > pos:
            value = hash_on(topic_hash, buf, pos, stop)
            _put_key(value, offset, store_timestamp, keys, state)
        pos = stop + 1
    if index_tags is not None:
        tags, tags_end, _, _ = find_two(buf, props, end, _TAGS, _TAGS)
        if tags >= 0:
            value = hash_on(topic_hash, _TAG_KEY_PREFIX, 0, len(_TAG_KEY_PREFIX))
            value = hash_on(value, buf, tags, tags_end)
            _put_key(value, offset, store_timestamp, keys, state)
    return True


@njit(inline="always")
def _is_blank(buf, pos, end):
    while pos < end:
        if buf[np.uint64(pos)] > 0x20:
            return False
        pos += 1
    return True


@kernel
def _count_parts(buf, pos, end):
    """(parts, end of the last) of Java's ``split(",")``, which drops trailing empty parts."""
    while end > pos and buf[np.uint64(end - 1)] == 0x2C:
        end -= 1
    parts = np.int64(1 if end > pos else 0)
    for index in range(pos, end):
        parts += buf[np.uint64(index)] == 0x2C
    return parts, end


@kernel
def _is_among(buf, topic, topic_length, topics):
    """Whether a topic is one of ``topics``, given as joined names and the bounds of each."""
    names, bounds = topics
    for index in range(len(bounds) - 1):
        start = bounds[index]
        if bounds[index + 1] - start == topic_length and _equal(
            names, start, buf, topic, topic_length
        ):
            return True
    return False


@kernel
def _multi_dispatch(buf, topic, topic_length, props, end, batch_topics):
    """(parts, names, their end, offsets, their end), as in ``MultiDispatchUtils``.

    parts is 0 without a light queue, and -1 if the lists cannot be used.
    """
    if (
        topic_starts_with(buf, topic, topic_length, _RETRY_PREFIX)
        or topic_starts_with(buf, topic, topic_length, _SYSTEM_PREFIX)
        or is_schedule_topic(buf, topic, topic_length)
        or _is_among(buf, topic, topic_length, batch_topics)
    ):
        return _NO_LISTS
    names, names_end, offsets, offsets_end = find_two(
        buf, props, end, _MULTI_DISPATCH, _MULTI_QUEUE_OFFSET
    )
    if _is_blank(buf, names, names_end) or _is_blank(buf, offsets, offsets_end):
        return _NO_LISTS
    parts, names_end = _count_parts(buf, names, names_end)
    numbers, offsets_end = _count_parts(buf, offsets, offsets_end)
    if parts != numbers:
        parts = np.int64(-1)
    name, number = names, offsets
    for _ in range(parts):
        stop = find_byte(buf, name, names_end, 0x2C)
        number_stop = find_byte(buf, number, offsets_end, 0x2C)
        has_slash = find_byte(buf, name, stop, 0x2F) < stop
        if not has_slash and not parse_integer(buf, number, number_stop, 64)[0]:
            return -1, 0, 0, 0, 0
        name, number = stop + 1, number_stop + 1
    return parts, names, names_end, offsets, offsets_end


@njit(inline="always")
def _topic_hash(buf, topic, length, queue_id):
    """Hash of all bytes, eight at a time; the last eight may overlap those before."""
    key = np.uint64(length) << np.uint64(32) ^ np.uint64(queue_id & 0xFFFFFFFF)
    at = np.int64(0)
    while at < length:
        word = np.uint64(0)
        if length >= 8:
            word = le64(buf, topic + min(at, length - 8))
        else:
            for index in range(length):
                word = word << np.uint64(8) | np.uint64(buf[np.uint64(topic + index)])
        key = (key ^ word) * np.uint64(0x9E3779B97F4A7C15)
        key ^= key >> np.uint64(29)
        at += 8
    return key


@njit(inline="always")
def _equal(left, left_pos, right, right_pos, length):
    if length < 8:
        for index in range(length):
            if left[np.uint64(left_pos + index)] != right[np.uint64(right_pos + index)]:
                return False
        return True
    at = np.int64(0)
    while at < length:
        word = min(at, length - 8)
        if le64(left, left_pos + word) != le64(right, right_pos + word):
            return False
        at += 8
    return True


@njit(inline="always")
def _find_run(buf, topic, topic_length, queue_id, runs, arena, slots):
    """(slot, row) of the run of (topic, queue id); row -1 and a free slot if there is none."""
    # the highest bits depend on all bits of the topic
    high = _topic_hash(buf, topic, topic_length, queue_id) >> np.uint64(32)
    slot = np.int64(high * np.uint64(len(slots)) >> np.uint64(32))
    while slots[np.uint64(slot)] >= 0:
        row = np.uint64(slots[np.uint64(slot)])
        if (
            runs[row, RUN_QUEUE_ID] == queue_id
            and runs[row, RUN_TOPIC_LENGTH] == topic_length
            and _equal(arena, runs[row, RUN_TOPIC_START], buf, topic, topic_length)
        ):
            return slot, np.int64(row)
        slot = slot + 1 if slot + 1 < len(slots) else 0
    return slot, np.int64(-1)


@kernel
def _new_run(buf, topic, topic_length, queue_id, runs, state, arena, slots, slot):
    """Row of a new run for (topic, queue id); -1 if the table is full."""
    run = state[STATE_RUNS]
    start = state[STATE_ARENA]
    if run >= len(runs) or start + topic_length > len(arena):
        return np.int64(-1)
    for index in range(topic_length):
        arena[start + index] = buf[np.uint64(topic + index)]
    slots[slot] = run
    runs[run, RUN_TOPIC_START] = start
    runs[run, RUN_TOPIC_LENGTH] = topic_length
    runs[run, RUN_QUEUE_ID] = queue_id
    runs[run, RUN_COUNT] = 0
    runs[run, RUN_CONTIGUOUS] = 1
    state[STATE_RUNS] = run + 1
    state[STATE_ARENA] = start + topic_length
    return run


@njit(inline="always")
def _add(
    buf, topic, topic_length, queue_id, queue_offset, offset, size, code, store_timestamp,
    is_light, offsets, sizes, tags, queue_offsets, run_ids, runs, arena, slots, state,
):  # fmt: skip
    """Add a unit to the run of (topic, queue id) and return its index.

    Returns -1 without room, and -2 for a second light unit of a message in the same run, which is
    left out as a duplicate.
    """
    count = state[STATE_COUNT]
    if count >= len(offsets):
        return np.int64(-1)
    slot, run = _find_run(buf, topic, topic_length, queue_id, runs, arena, slots)
    if run < 0:
        run = _new_run(buf, topic, topic_length, queue_id, runs, state, arena, slots, slot)
        if run < 0:
            return np.int64(-1)
    row = np.uint64(run)
    if is_light and runs[row, RUN_COUNT] > 0 and runs[row, RUN_END_OFFSET] == offset + size:
        return np.int64(-2)
    index = np.uint64(count)
    offsets[index] = offset
    sizes[index] = size
    tags[index] = code
    queue_offsets[index] = queue_offset
    run_ids[index] = run
    if runs[row, RUN_COUNT] == 0:
        runs[row, RUN_FIRST_OFFSET] = offset
        runs[row, RUN_FIRST_QUEUE_OFFSET] = queue_offset
    elif queue_offset != runs[row, RUN_LAST_QUEUE_OFFSET] + 1:
        runs[row, RUN_CONTIGUOUS] = 0
    runs[row, RUN_LAST_QUEUE_OFFSET] = queue_offset
    runs[row, RUN_END_OFFSET] = offset + size
    runs[row, RUN_LAST_STORE_TIMESTAMP] = store_timestamp
    runs[row, RUN_COUNT] += 1
    state[STATE_COUNT] = count + 1
    return count


@njit(inline="always")
def _put_details(index, store_timestamp, base_offset, batch_size, is_light, details):
    timestamps, base_offsets, batch_sizes, are_light = details
    timestamps[index] = store_timestamp
    base_offsets[index] = base_offset
    batch_sizes[index] = batch_size
    are_light[index] = is_light


@kernel
def _add_light(
    buf, lists, lmq, queue_id, offset, size, code, store_timestamp, out, state, details,
    unusable,
):  # fmt: skip
    """Add units in light queues (``ConsumeQueue.multiDispatchLmqQueue``); the caller made room."""
    offsets, sizes, tags, queue_offsets, run_ids, runs, arena, slots = out
    parts, name, names_end, number, numbers_end = lists
    if parts < 0:
        unusable[state[STATE_UNUSABLE], 0] = offset
        unusable[state[STATE_UNUSABLE], 1] = offset + size
        state[STATE_UNUSABLE] += 1
    for _ in range(parts):
        stop = find_byte(buf, name, names_end, 0x2C)
        number_stop = find_byte(buf, number, numbers_end, 0x2C)
        if find_byte(buf, name, stop, 0x2F) == stop:
            is_lmq = lmq and topic_starts_with(buf, name, stop - name, _LMQ_PREFIX)
            _, queue_offset = parse_integer(buf, number, number_stop, 64)
            index = _add(
                buf, name, stop - name, np.int64(0) if is_lmq else queue_id, queue_offset,
                offset, size, code, store_timestamp, True,
                offsets, sizes, tags, queue_offsets, run_ids, runs, arena, slots, state,
            )  # fmt: skip
            if index >= 0:
                state[STATE_LIGHT] += 1
                if details is not None:
                    _put_details(index, store_timestamp, queue_offset, 1, True, details)
        name, number = stop + 1, number_stop + 1


@njit(inline="always")
def _has_room(parts, names_size, out, state, unusable):
    """Whether a record fits with all its light queues, of which all names have ``names_size`` bytes
    at most.

    None may be left to the next chunk, because the order within a queue would be lost.
    """
    offsets, _, _, _, _, runs, arena, _ = out
    needed = 1 + max(parts, 0)
    return (
        state[STATE_COUNT] + needed <= len(offsets)
        and state[STATE_RUNS] + needed <= len(runs)
        and state[STATE_ARENA] + names_size <= len(arena)
        and state[STATE_UNUSABLE] < len(unusable)
    )


@kernel
def _detail_record(buf, props, end, index, store_timestamp, queue_offset, details):
    """Put the details of a record's own unit (``DispatchRequest.batchSize``, ``msgBaseOffset``)."""
    base_offset, batch_size = queue_offset, np.int64(1)
    num, num_end, inner, inner_end = find_two(buf, props, end, _INNER_NUM, _INNER_BASE)
    if num >= 0 and inner >= 0:
        _, batch_size = parse_integer(buf, num, num_end, 16)
        _, base_offset = parse_integer(buf, inner, inner_end, 64)
    _put_details(index, store_timestamp, base_offset, batch_size, False, details)


@kernel
def scan_records(
    buf, length, base, file_end, pos, stop, verify_crc, crc_tables, delay_levels_ms,
    out, state, details, keys, index_tags, unusable, lmq, batch_topics,
):  # fmt: skip
    """Parse records that start before log offset ``stop`` and sort them into runs.

    ``out`` is offsets, sizes, tags, queue_offsets, run_ids (unit i is at index i of each), runs,
    arena, slots. PREPARED and ROLLBACK are only counted in ``state``. An argument of None is not
    gathered and is compiled away: ``details`` are the four columns of DETAIL_DTYPE, ``keys`` the
    three of IndexEntries (with ``index_tags`` including those of TAGS), and ``unusable`` int64[n,
    2] takes [start, end) of records whose light queues are unreadable (``lmq`` is enableLmq;
    messages of ``batch_topics``, in the form of ``_is_among``, have none). Returns (status, pos):
    OK if ``stop`` was reached; with FULL nothing of the record at ``pos`` was added.
    """
    # not unpacked where used: that would count references in every turn of the loop
    offsets, sizes, tags, queue_offsets, run_ids, runs, arena, slots = out
    while base + pos < stop:
        status, size, stored, _, _, topic, topic_length, props = checked_frame(
            buf, length, pos, base, file_end, verify_crc, crc_tables
        )
        if status != OK:
            return status, pos
        store_timestamp, offset, end = i64(buf, stored), base + pos, pos + size
        scheduled = is_schedule_topic(buf, topic, topic_length)
        status, code = tags_code(buf, props, end, store_timestamp, scheduled, delay_levels_ms)
        if status != OK:
            return status, pos
        transaction_type = i32(buf, pos + record.SYS_FLAG_POSITION) & _TRANSACTION_MASK
        dispatched = transaction_type == 0 or transaction_type == _COMMIT
        if unusable is not None:
            lists = _NO_LISTS
            if dispatched:
                lists = _multi_dispatch(buf, topic, topic_length, props, end, batch_topics)
            names_size = topic_length + end - props
            if not _has_room(lists[0], names_size, out, state, unusable):
                return FULL, pos
        keys_before = state[STATE_KEYS]
        if keys is not None:
            if transaction_type != _ROLLBACK and not _index_record(
                buf, topic, topic_length, props, end, offset, store_timestamp, keys, index_tags,
                state,
            ):  # fmt: skip
                return FULL, pos
        if dispatched:
            queue_id = i32(buf, pos + record.QUEUE_ID_POSITION)
            queue_offset = i64(buf, pos + record.QUEUE_OFFSET_POSITION)
            index = _add(
                buf, topic, topic_length, queue_id, queue_offset, offset, size, code,
                store_timestamp, False,
                offsets, sizes, tags, queue_offsets, run_ids, runs, arena, slots, state,
            )  # fmt: skip
            if index < 0:
                state[STATE_KEYS] = keys_before
                return FULL, pos
            if details is not None:
                _detail_record(buf, props, end, index, store_timestamp, queue_offset, details)
            if unusable is not None:
                if lists[0] != 0:
                    _add_light(
                        buf, lists, lmq, queue_id, offset, size, code, store_timestamp, out, state,
                        details, unusable,
                    )  # fmt: skip
        else:
            state[STATE_SKIPPED] += 1
        state[STATE_LAST_RECORD] = offset
        pos = end
    return OK, pos


@kernel
def scan_file(
    fd, file_start, reads, buf, length, base, file_end, pos, stop, verify_crc, crc_tables,
    delay_levels_ms, out, state, details, keys, index_tags, unusable, lmq, batch_topics,
):  # fmt: skip
    """``scan_records``, which goes on after up to ``reads`` more reads of the file into ``buf``.

    It returns ``base`` and ``length`` of the buffer as well. NEED_MORE says, as there, that the
    record at ``pos`` ends after the buffer; if a read fails, that is all that one learns here.
    """
    while True:
        status, pos = scan_records(
            buf, length, base, file_end, pos, stop, verify_crc, crc_tables, delay_levels_ms,
            out, state, details, keys, index_tags, unusable, lmq, batch_topics,
        )  # fmt: skip
        if status != NEED_MORE or reads == 0:
            return status, pos, base, length
        before, base, pos = base + length, base + pos, np.int64(0)
        size = min(len(buf), file_end - base)
        length = max(read_bytes(fd, base - file_start, buf, 0, size), np.int64(0))
        if base + length <= before:
            return NEED_MORE, pos, base, length
        reads -= 1
