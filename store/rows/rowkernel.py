"""The kernels that turn records into the columns of rows.

Each window takes two steps: ``decode_range`` or ``decode_units`` put a record's numbers into one
table and the positions of its texts into another; then each selected column gathers its own. A
value that a kernel cannot handle (malformed UTF-8, IPv6 hosts, repeated properties) is copied as
stored and listed as odd, and the caller falls back to the plain decoder. The reference is
``store.log.record.decode``, ``store.log.properties.parse`` and ``store.log.java.decode``.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from reput.store.log import properties, record
from reput.store.log.kernelbase import (
    BLOCK,
    copy_bytes,
    find_byte,
    i32,
    i64,
    kernel,
    le64,
    read_bytes,
    u8,
)
from reput.store.log.kernels import (
    BAD_SIZE,
    EMPTY,
    FULL,
    NEED_MORE,
    NONE_FOUND,
    OK,
    checked_frame,
    decode_char,
    find_two,
    is_schedule_topic,
    next_end,
    property_name,
    tags_code,
    topic_starts_with,
)
from reput.store.log.status import Status
from reput.store.log.sysflag import SysFlag
from reput.store.log.systemtopics import SYSTEM_TOPIC_PREFIX, SYSTEM_TOPICS

# rows of the table of numbers, int64[NUMBER_FIELDS, capacity]; column r is row r of the batch
(
    STATUS,
    PHYSICAL_OFFSET,
    STORE_SIZE,
    QUEUE_ID,
    QUEUE_OFFSET,
    TAGS_CODE,
    SYS_FLAG,
    FLAG,
    RECONSUME_TIMES,
    PREPARED_TRANSACTION_OFFSET,
    BORN_TIMESTAMP,
    STORE_TIMESTAMP,
    INTERNAL,
) = range(13)
NUMBER_FIELDS = 13

# columns of the table of slices, int64[capacity, SLICE_FIELDS]: start in the buffer (-1: null),
# end next to it; row i is the i-th record of the last call
TOPIC, BODY, PROPERTIES, BORN_HOST, STORE_HOST, TAGS, KEYS = range(0, 14, 2)
SLICE_FIELDS = 14

# columns of the table of pieces to read
PIECE_OFFSET, PIECE_POSITION, PIECE_SIZE, PIECE_FILE = range(4)
PIECE_FIELDS = 4

HOST_TEXT_LENGTH = len("255.255.255.255:-2147483648")
MIN_PROPERTY_LENGTH = 4
"""Shortest property with its separators; the last one may lack one byte."""

_BORN_V6 = SysFlag.BORN_HOST_V6
_STORE_V6 = SysFlag.STORE_HOST_V6
_ZERO_HOLE = int(Status.ZERO_HOLE)
_TAGS = property_name(properties.TAGS)
_KEYS = property_name(properties.KEYS)
_HIGH_BITS = np.uint64(0x8080808080808080)
_REPLACEMENT = 0xFFFD
# names are compared in pairs, so blocks with more properties are left to a dictionary
_MAX_PAIRS = 64

_TRANSACTION_MASK = SysFlag.TRANSACTION_MASK
_PREPARED = SysFlag.PREPARED
_ROLLBACK = SysFlag.ROLLBACK
_SYSTEM_PREFIX = np.frombuffer(SYSTEM_TOPIC_PREFIX.encode(), np.uint8)
_SYSTEM_NAMES = np.frombuffer("".join(sorted(SYSTEM_TOPICS)).encode(), np.uint8)
_SYSTEM_BOUNDS = np.cumsum([0, *map(len, sorted(SYSTEM_TOPICS))])
_LONGEST_SYSTEM_NAME = max(map(len, SYSTEM_TOPICS))
_SYSTEM_LENGTHS = np.isin(np.arange(_LONGEST_SYSTEM_NAME + 1), np.diff(_SYSTEM_BOUNDS))


@kernel
def put_damaged(row, index, offset, size, status, numbers, slices):
    """Put the row of a range that is not a record: STATUS, start and size, the rest null."""
    if status in (EMPTY, NEED_MORE):
        status = _ZERO_HOLE
    numbers[:, row] = 0
    numbers[STATUS, row] = status
    numbers[PHYSICAL_OFFSET, row] = offset
    numbers[STORE_SIZE, row] = size
    slices[index, :] = -1


@kernel
def _decode_row(
    buf, length, pos, base, file_end, verify_crc, crc_tables, delay_levels_ms, find_names,
    row, index, numbers, slices,
):  # fmt: skip
    """(status, totalSize) of the record at ``pos``; with OK its row is filled."""
    status, size, stored, body, body_length, topic, topic_length, props = checked_frame(
        buf, length, pos, base, file_end, verify_crc, crc_tables
    )
    if status != OK:
        return status, size
    store_timestamp, end = i64(buf, stored), pos + size
    status, code = tags_code(
        buf, props, end, store_timestamp, is_schedule_topic(buf, topic, topic_length),
        delay_levels_ms,
    )  # fmt: skip
    if status != OK:
        return status, size
    sys_flag, tail = i32(buf, pos + record.SYS_FLAG_POSITION), body - record.TAIL_LENGTH
    numbers[STATUS, row] = OK
    numbers[PHYSICAL_OFFSET, row] = base + pos
    numbers[STORE_SIZE, row] = size
    numbers[QUEUE_ID, row] = i32(buf, pos + record.QUEUE_ID_POSITION)
    numbers[FLAG, row] = i32(buf, pos + record.FLAG_POSITION)
    numbers[QUEUE_OFFSET, row] = i64(buf, pos + record.QUEUE_OFFSET_POSITION)
    numbers[SYS_FLAG, row] = sys_flag
    numbers[BORN_TIMESTAMP, row] = i64(buf, pos + record.BORN_TIMESTAMP_POSITION)
    numbers[STORE_TIMESTAMP, row] = store_timestamp
    numbers[RECONSUME_TIMES, row] = i32(buf, tail + record.RECONSUME_TIMES_IN_TAIL)
    numbers[PREPARED_TRANSACTION_OFFSET, row] = i64(buf, tail + record.PREPARED_OFFSET_IN_TAIL)
    numbers[TAGS_CODE, row] = code
    slices[index, TOPIC] = topic
    slices[index, TOPIC + 1] = topic + topic_length
    slices[index, BODY] = body
    slices[index, BODY + 1] = body + body_length
    slices[index, PROPERTIES] = props
    slices[index, PROPERTIES + 1] = end
    slices[index, BORN_HOST] = pos + record.BORN_HOST_POSITION
    slices[index, BORN_HOST + 1] = stored
    slices[index, STORE_HOST] = stored + record.STORE_TIMESTAMP_LENGTH
    slices[index, STORE_HOST + 1] = tail
    if find_names:
        tags, tags_end, keys, keys_end = find_two(buf, props, end, _TAGS, _KEYS)
        slices[index, TAGS] = tags
        slices[index, TAGS + 1] = tags_end
        slices[index, KEYS] = keys
        slices[index, KEYS + 1] = keys_end
    return OK, size


@kernel
def decode_range(
    buf, length, base, file_end, pos, stop, verify_crc, crc_tables, delay_levels_ms, find_names,
    row, numbers, slices,
):  # fmt: skip
    """Decode records that start before log offset ``stop`` into rows from ``row`` on.

    With ``find_names`` it looks for TAGS and KEYS. Returns (status, pos, records): OK if ``stop``
    was reached, FULL if the table is full, otherwise the status of the bytes at ``pos``.
    """
    count = np.int64(0)
    while base + pos < stop:
        if row + count >= numbers.shape[1]:
            return FULL, pos, count
        status, size = _decode_row(
            buf, length, pos, base, file_end, verify_crc, crc_tables, delay_levels_ms, find_names,
            row + count, count, numbers, slices,
        )  # fmt: skip
        if status != OK:
            return status, pos, count
        pos += size
        count += 1
    return OK, pos, count


@kernel
def decode_units(
    buf, offsets, sizes, first, count, statuses, positions, available, verify_crc, crc_tables,
    delay_levels_ms, find_names, row, numbers, slices,
):  # fmt: skip
    """Decode the records of units ``first`` .. ``first + count`` into rows from ``row`` on.

    Unit u's bytes are in ``buf`` at ``positions[u]``, ``available[u]`` of them; if ``statuses[u]``
    is not OK, it is the reason why there are none. The result equals ``CommitLog.record_at``.
    """
    for index in range(count):
        unit = first + index
        offset, size, pos = offsets[unit], np.int64(sizes[unit]), positions[unit]
        file_end = offset + size + record.END_FILE_MIN_BLANK_LENGTH
        status = statuses[unit]
        if status == OK:
            status, record_size = _decode_row(
                buf, pos + available[unit], pos, offset - pos, file_end,
                verify_crc, crc_tables, delay_levels_ms, find_names,
                row + index, index, numbers, slices,
            )  # fmt: skip
            if status == OK and record_size != size:
                status = np.int64(BAD_SIZE)
        if status != OK:
            put_damaged(row + index, index, offset, size, status, numbers, slices)


@njit(inline="always")
def _is_system_topic(buf, topic, length):
    """``store.log.systemtopics.is_system_topic`` of the topic at ``topic``."""
    if topic_starts_with(buf, topic, length, _SYSTEM_PREFIX):
        return True
    if length > _LONGEST_SYSTEM_NAME or not _SYSTEM_LENGTHS[length]:
        return False
    for name in range(len(_SYSTEM_BOUNDS) - 1):
        first, end = _SYSTEM_BOUNDS[name], _SYSTEM_BOUNDS[name + 1]
        if end - first == length and topic_starts_with(
            buf, topic, length, _SYSTEM_NAMES[first:end]
        ):
            return True
    return False


@kernel
def mark_internal(buf, slices, count, row, numbers):
    """Put into INTERNAL of rows from ``row`` on whether each is an internal record
    (``store.rows.rowform``)."""
    for index in range(count):
        kind = numbers[SYS_FLAG, row + index] & _TRANSACTION_MASK
        topic, end = slices[index, TOPIC], slices[index, TOPIC + 1]
        numbers[INTERNAL, row + index] = numbers[STATUS, row + index] == OK and (
            kind in (_PREPARED, _ROLLBACK) or _is_system_topic(buf, topic, end - topic)
        )


@kernel
def plan_reads(offsets, sizes, files, first, limit, statuses, gap, room, positions, pieces):
    """Plan the pieces of the log to read for units from ``first`` on, neighbours in one piece.

    Fills ``positions`` and ``pieces``, int64[limit, PIECE_FIELDS]; units without OK in ``statuses``
    need nothing. Takes up to ``limit`` units that fit ``room`` bytes, but at least one. Returns
    (units, pieces, bytes).
    """
    piece = np.int64(-1)
    start = stop = at = used = total = file = np.int64(0)
    for index in range(limit):
        unit = first + index
        positions[unit] = 0
        if statuses[unit] != OK:
            continue
        offset, size = offsets[unit], np.int64(sizes[unit])
        joins = piece >= 0 and files[unit] == file and start <= offset <= stop + gap
        needed = max(used, at + offset + size - start) if joins else used + size
        total += size
        # units may repeat each other, so the bytes gathered for them are limited too
        if piece >= 0 and (needed > room or total > room):
            return index, piece + 1, used
        if joins:
            stop = max(stop, offset + size)
        else:
            piece += 1
            start, stop, at, file = offset, offset + size, used, files[unit]
            pieces[piece, PIECE_OFFSET] = start
            pieces[piece, PIECE_POSITION] = at
            pieces[piece, PIECE_FILE] = file
        used = needed
        pieces[piece, PIECE_SIZE] = used - at
        positions[unit] = at + offset - start
    return limit, piece + 1, used


@kernel
def read_pieces(pieces, first, count, descriptors, starts, buf):
    """Read pieces from ``first`` on; return the first that was read partly, or ``count``.

    ``descriptors`` and ``starts`` hold, by file, the open file and the log offset of its first
    byte.
    """
    for piece in range(first, count):
        file, size = pieces[piece, PIECE_FILE], pieces[piece, PIECE_SIZE]
        offset = pieces[piece, PIECE_OFFSET] - starts[file]
        if read_bytes(descriptors[file], offset, buf, pieces[piece, PIECE_POSITION], size) != size:
            return piece
    return count


@njit(inline="always")
def _is_sound(buf, pos, end):
    """Whether the bytes are valid UTF-8 for ``store.log.java.decode`` (or hold U+FFFD)."""
    while end - pos >= 8:
        if le64(buf, pos) & _HIGH_BITS != 0:
            break
        pos += 8
    while pos < end:
        if u8(buf, pos) < 0x80:
            pos += 1
            continue
        code_point, consumed = decode_char(buf, pos, end)
        if code_point == _REPLACEMENT:
            return False
        pos += consumed
    return True


@kernel
def gather_bytes(buf, slices, column, count, row, data, offsets, present):
    """Append a column's slices to ``data`` and rows from ``row`` on; ``data`` has the room."""
    at = np.int64(offsets[row])
    for index in range(count):
        pos, end = slices[index, column], slices[index, column + 1]
        copy_bytes(data, at, buf, pos, end - pos)
        at += end - pos
        offsets[row + index + 1] = at
        present[row + index] = pos >= 0


@kernel
def gather_texts(buf, slices, column, count, row, data, offsets, present, odd, odd_count):
    """Like ``gather_bytes``, and put rows of malformed text into ``odd``; return their number."""
    gather_bytes(buf, slices, column, count, row, data, offsets, present)
    for index in range(count):
        if not _is_sound(buf, slices[index, column], slices[index, column + 1]):
            odd[odd_count] = row + index
            odd_count += 1
    return odd_count


@njit(inline="always")
def _put_decimal(data, at, value):
    """Write the digits of ``value``, not negative, from ``at`` on; return their end."""
    above = np.int64(10)
    end = at + 1
    while value >= above:
        above *= 10
        end += 1
    for index in range(end - at):
        data[np.uint64(end - 1 - index)] = np.uint8(48 + value % 10)
        value //= 10
    return end


@kernel
def _put_host(buf, pos, data, at):
    """Write ``address:port`` of an IPv4 host; return its end."""
    for index in range(4):
        at = _put_decimal(data, at, u8(buf, pos + index))
        data[np.uint64(at)] = np.uint8(0x3A if index == 3 else 0x2E)
        at += 1
    port = i32(buf, pos + record.HOST_V4_LENGTH - record.PORT_LENGTH)
    if port < 0:
        data[np.uint64(at)] = np.uint8(0x2D)
        return _put_decimal(data, at + 1, -port)
    return _put_decimal(data, at, port)


@kernel
def gather_hosts(buf, slices, column, count, row, data, offsets, present, odd, odd_count):
    """Like ``gather_texts``, for hosts: IPv4 as text, IPv6 as stored and odd."""
    at = np.int64(offsets[row])
    last = last_at = last_end = np.int64(-1)
    for index in range(count):
        pos, end = slices[index, column], slices[index, column + 1]
        present[row + index] = pos >= 0
        if end - pos == record.HOST_V6_LENGTH:
            odd[odd_count] = row + index
            odd_count += 1
            copy_bytes(data, at, buf, pos, end - pos)
            at += end - pos
        elif end - pos == record.HOST_V4_LENGTH:
            if last_at >= 0 and i64(buf, pos) == last:
                # most neighbours come from the same host
                copy_bytes(data, at, data, last_at, last_end - last_at)
                at += last_end - last_at
            else:
                last, last_at = i64(buf, pos), at
                at = last_end = _put_host(buf, pos, data, at)
        offsets[row + index + 1] = at
    return odd_count


@njit(inline="always")
def _is_repeated(names, name_offsets, first, pair):
    """Whether the name of ``pair`` equals one of ``first`` .. ``pair``."""
    start = np.int64(name_offsets[pair])
    length = name_offsets[pair + 1] - start
    for other in range(first, pair):
        at = np.int64(name_offsets[other])
        if name_offsets[other + 1] - at != length:
            continue
        index = np.int64(0)
        while index < length and names[np.uint64(at + index)] == names[np.uint64(start + index)]:
            index += 1
        if index == length:
            return True
    return False


@kernel
def split_properties(
    buf, slices, count, row, names, name_offsets, values, value_offsets, pairs, present, odd,
    odd_count,
):  # fmt: skip
    """``store.log.properties.parse`` of the blocks, into rows from ``row`` on.

    Row r has pairs ``pairs[r]`` .. ``pairs[r + 1]``; pair p is slice p of names and of values.
    Blocks with malformed text, repeated names or too many pairs are left empty and listed in
    ``odd``, whose length is returned.
    """
    pair = np.int64(pairs[row])
    for index in range(count):
        pos, end = slices[index, PROPERTIES], slices[index, PROPERTIES + 1]
        first = pair
        plain = _is_sound(buf, pos, end)
        block, ends = pos - BLOCK, NONE_FOUND
        while plain and pos < end:
            stop, block, ends = next_end(buf, end, block, ends)
            middle = find_byte(buf, pos, stop, 1)
            if middle > pos and middle + 1 < stop:
                name_at, value_at = np.int64(name_offsets[pair]), np.int64(value_offsets[pair])
                copy_bytes(names, name_at, buf, pos, middle - pos)
                copy_bytes(values, value_at, buf, middle + 1, stop - middle - 1)
                name_offsets[pair + 1] = name_at + middle - pos
                value_offsets[pair + 1] = value_at + stop - middle - 1
                plain = pair - first < _MAX_PAIRS and not _is_repeated(
                    names, name_offsets, first, pair
                )
                pair += 1
            pos = stop + 1
        if not plain:
            pair = first
            odd[odd_count] = row + index
            odd_count += 1
        pairs[row + index + 1] = pair
        present[row + index] = slices[index, PROPERTIES] >= 0
    return odd_count
