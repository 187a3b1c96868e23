"""Numba kernels: the same results as the plain decoder, at memory speed.

Each kernel is a free function over arrays and integers that returns a ``store.log.status.Status``
number; the caller turns it into an error or a quarantined range. The reference is
``store.log.record.decode`` and ``store.log.record.tags_code``: ``tests/store/log/test_kernels.py``
compares the kernels with it on sound, mutated and random bytes.

Positions inside a buffer are ``pos``; positions in the log are ``offset``; ``base`` is the log
offset of buffer byte 0.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from reput.store.log import properties, record
from reput.store.log.kernelbase import (
    BLOCK,
    crc32,
    equal_bytes,
    i16,
    i32,
    i64,
    kernel,
    le64,
    lowest_bit,
    u8,
    u32,
)
from reput.store.log.status import Status
from reput.store.log.sysflag import SysFlag

OK = int(Status.OK)
NEED_MORE = int(Status.NEED_MORE)
BLANK = int(Status.BLANK)
EMPTY = int(Status.EMPTY)
FULL = int(Status.FULL)
BAD_MAGIC = int(Status.BAD_MAGIC)
BAD_SIZE = int(Status.BAD_SIZE)
BAD_LENGTH = int(Status.BAD_LENGTH)
BAD_PHYSICAL_OFFSET = int(Status.BAD_PHYSICAL_OFFSET)
BAD_BLANK = int(Status.BAD_BLANK)
BAD_PROPERTY = int(Status.BAD_PROPERTY)
BAD_BODY_CRC = int(Status.BAD_BODY_CRC)
BAD_FILE_END = int(Status.BAD_FILE_END)

_BORN_V6 = SysFlag.BORN_HOST_V6
_STORE_V6 = SysFlag.STORE_HOST_V6
_TRANSACTION_MASK = SysFlag.TRANSACTION_MASK
_COMMIT = SysFlag.COMMIT

_NOT_ASCII = np.uint64(0x8080808080808080)
_LANES_16 = np.uint64(0x00FF00FF00FF00FF)
_LANES_32 = np.uint64(0x0000FFFF0000FFFF)
_LOW_32 = np.uint64(0xFFFFFFFF)
_POWER_8 = 31**8 & 0xFFFFFFFF
NONE_FOUND, _ONE = np.uint64(0), np.uint64(1)
_SEPARATOR = properties.PROPERTY_SEPARATOR[0]
_LONG_MIN_TENTH = -922337203685477580  # ten times this still fits in 64 bits


@njit(inline="always")
def frame(buf, length, pos, base, file_end):
    """Frame a record like ``store.log.record.decode``, but without decoding its contents.

    Returns (status, totalSize, position of storeTimestamp, of the body, body length, position of
    the topic, topic length, position of the properties); positions only with OK.
    """
    remaining = file_end - base - pos
    available = length - pos
    if remaining < record.END_FILE_MIN_BLANK_LENGTH:
        return BAD_FILE_END, 0, 0, 0, 0, 0, 0, 0
    if available < record.SIZE_MAGIC_LENGTH:
        return NEED_MORE, 0, 0, 0, 0, 0, 0, 0
    size = i32(buf, pos)
    magic = u32(buf, pos + record.MAGIC_POSITION)
    if magic != record.MESSAGE_MAGIC_V1 and magic != record.MESSAGE_MAGIC_V2:
        status = BAD_MAGIC
        if magic == record.BLANK_MAGIC:
            status = BLANK if size == remaining else BAD_BLANK
        elif magic == 0 and size == 0:
            status = EMPTY
        return status, size, 0, 0, 0, 0, 0, 0
    if (
        size < record.MIN_RECORD_LENGTH
        or size > remaining - record.END_FILE_MIN_BLANK_LENGTH
        or size > record.MAX_RECORD_LENGTH
    ):
        return BAD_SIZE, size, 0, 0, 0, 0, 0, 0
    if available < record.SYS_FLAG_POSITION:
        return NEED_MORE, size, 0, 0, 0, 0, 0, 0
    if i64(buf, pos + record.PHYSICAL_OFFSET_POSITION) != base + pos:
        return BAD_PHYSICAL_OFFSET, size, 0, 0, 0, 0, 0, 0
    if available < size:
        return NEED_MORE, size, 0, 0, 0, 0, 0, 0
    sys_flag = i32(buf, pos + record.SYS_FLAG_POSITION)
    born_length = record.HOST_V6_LENGTH if sys_flag & _BORN_V6 else record.HOST_V4_LENGTH
    store_length = record.HOST_V6_LENGTH if sys_flag & _STORE_V6 else record.HOST_V4_LENGTH
    length_size = 2 if magic == record.MESSAGE_MAGIC_V2 else 1
    end = pos + size
    body = pos + record.FIXED_LENGTH + born_length + store_length
    if body + length_size + record.PROPERTIES_LENGTH_SIZE > end:
        return BAD_LENGTH, size, 0, 0, 0, 0, 0, 0
    body_length = i32(buf, body - record.TAIL_LENGTH + record.BODY_LENGTH_IN_TAIL)
    topic = body + body_length + length_size
    if body_length < 0 or topic + record.PROPERTIES_LENGTH_SIZE > end:
        return BAD_LENGTH, size, 0, 0, 0, 0, 0, 0
    if length_size == 2:
        topic_length = i16(buf, topic - length_size)
    else:
        topic_length = np.int64(np.int8(buf[np.uint64(topic - length_size)]))
    props = topic + topic_length + record.PROPERTIES_LENGTH_SIZE
    if topic_length < 0 or props > end:
        return BAD_LENGTH, size, 0, 0, 0, 0, 0, 0
    props_length = i16(buf, props - record.PROPERTIES_LENGTH_SIZE)
    if props_length < 0 or props + props_length != end:
        return BAD_LENGTH, size, 0, 0, 0, 0, 0, 0
    stored = pos + record.BORN_HOST_POSITION + born_length
    return OK, size, stored, body, body_length, topic, topic_length, props


@njit(inline="always")
def checked_frame(buf, length, pos, base, file_end, verify_crc, crc_tables):
    """``frame``, which with ``verify_crc`` checks the body's CRC as well."""
    status, size, stored, body, body_length, topic, topic_length, props = frame(
        buf, length, pos, base, file_end
    )
    if status == OK and verify_crc and body_length > 0:
        stated = i32(buf, pos + record.BODY_CRC_POSITION)
        if crc32(crc_tables, buf, body, body + body_length) != stated:
            status = BAD_BODY_CRC
    return status, size, stored, body, body_length, topic, topic_length, props


@kernel
def hop_records(buf, length, base, file_end, pos, stop, max_records, max_timestamp):
    """Walk records from ``pos`` without decoding their contents.

    Stops at the first record that would end after log offset ``stop``, after ``max_records``,
    at the first with a later storeTimestamp than ``max_timestamp``, or at anything but a record.
    Returns (status, pos, records passed, pos of the last one or -1); OK means stopped by a bound.
    """
    count = np.int64(0)
    last = np.int64(-1)
    while True:
        if count >= max_records or base + pos >= stop:
            return OK, pos, count, last
        status, size, stored, _, _, _, _, _ = frame(buf, length, pos, base, file_end)
        if status != OK:
            return status, pos, count, last
        if base + pos + size > stop or i64(buf, stored) > max_timestamp:
            return OK, pos, count, last
        last = pos
        pos += size
        count += 1


@kernel
def find_record(buf, length, base, file_end, pos):
    """First position >= ``pos`` that holds a sound record or a BLANK: (status, position).

    NEED_MORE means that a possible record starts there but ends after the buffer, or (at
    ``length`` - 7 or later) that nothing was found and the search continues from there.
    """
    while pos + record.SIZE_MAGIC_LENGTH <= length:
        first = buf[np.uint64(pos + record.MAGIC_POSITION)]
        if first == 0xDA or first == 0xCB:
            status, _, _, _, _, _, _, _ = frame(buf, length, pos, base, file_end)
            if status == OK or status == BLANK or status == NEED_MORE:
                return status, pos
        pos += 1
    return NEED_MORE, pos


@kernel
def decode_char(buf, pos, end):
    """``store.log.java._decode_one``: (code point, bytes consumed)."""
    first = u8(buf, pos)
    left = end - pos
    if first < 0x80:
        return first, 1
    if first < 0xC2 or first > 0xF4:
        return 0xFFFD, 1
    if left < 2:
        return 0xFFFD, left
    second = u8(buf, pos + 1)
    bad = second & 0xC0 != 0x80
    if first <= 0xDF:
        return (0xFFFD, 1) if bad else ((first & 0x1F) << 6 | second & 0x3F, 2)
    bad = bad or (first == 0xE0 and second < 0xA0)
    bad = bad or (first == 0xF0 and second < 0x90) or (first == 0xF4 and second > 0x8F)
    if bad:
        return 0xFFFD, 1
    if left < 3:
        return 0xFFFD, left
    third = u8(buf, pos + 2)
    if third & 0xC0 != 0x80:
        return 0xFFFD, 2
    if first <= 0xEF:
        code_point = (first & 0xF) << 12 | (second & 0x3F) << 6 | third & 0x3F
        return (0xFFFD if 0xD800 <= code_point <= 0xDFFF else code_point), 3
    if left < 4:
        return 0xFFFD, left
    fourth = u8(buf, pos + 3)
    if fourth & 0xC0 != 0x80:
        return 0xFFFD, 3
    return (first & 7) << 18 | (second & 0x3F) << 12 | (third & 0x3F) << 6 | fourth & 0x3F, 4


@njit(inline="always")
def _hash_of_word(word):
    """``String.hashCode`` of eight ASCII characters, the first in the lowest byte.

    Neighbours are combined as pairs, fours and eights, whereas a loop waits for one multiplication
    per character.
    """
    word = (word & _LANES_16) * np.uint64(31) + (word >> np.uint64(8) & _LANES_16)
    word = (word & _LANES_32) * np.uint64(31**2) + (word >> np.uint64(16) & _LANES_32)
    return np.int64((word & _LOW_32) * np.uint64(31**4) + (word >> np.uint64(32)))


@kernel
def hash_on(value, buf, pos, end):
    """The hash, 32 bits unsigned, of a text with hash ``value`` followed by ``buf[pos:end]``."""
    while pos < end:
        if end - pos >= 8:
            word = le64(buf, pos)
            if word & _NOT_ASCII == 0:
                value = (_POWER_8 * value + _hash_of_word(word)) & 0xFFFFFFFF
                pos += 8
                continue
        byte = u8(buf, pos)
        if byte < 0x80:
            value = (31 * value + byte) & 0xFFFFFFFF
            pos += 1
            continue
        code_point, consumed = decode_char(buf, pos, end)
        pos += consumed
        if code_point > 0xFFFF:
            value = (31 * value + (0xD800 | (code_point - 0x10000) >> 10)) & 0xFFFFFFFF
            code_point = 0xDC00 | (code_point - 0x10000) & 0x3FF
        value = (31 * value + code_point) & 0xFFFFFFFF
    return value


@njit(inline="always")
def hash_code(buf, pos, end):
    """``store.log.java.hash_code`` of ``buf[pos:end]``."""
    return np.int64(np.int32(hash_on(np.int64(0), buf, pos, end)))


@kernel
def parse_integer(buf, pos, end, bits):
    """``store.log.java.parse_integer``: (whether it is a number, its value)."""
    negative = False
    if pos < end and (buf[pos] == 0x2B or buf[pos] == 0x2D):
        negative = buf[pos] == 0x2D
        pos += 1
    if pos >= end:
        return False, np.int64(0)
    # counts downwards, because the negative range has one more value
    lowest = -(np.int64(1) << (bits - 1)) if bits < 64 else np.int64(-0x8000000000000000)
    value = np.int64(0)
    while pos < end:
        digit = u8(buf, pos) - 0x30
        if digit < 0 or digit > 9 or value < _LONG_MIN_TENTH:
            return False, np.int64(0)
        value *= 10
        if value < lowest + digit:
            return False, np.int64(0)
        value -= digit
        pos += 1
    if negative:
        return True, value
    return (value != lowest), -value


@njit(inline="always")
def starts_with(buf, pos, stop, name):
    """Whether ``buf[pos:stop]`` begins with ``name``, which includes its separator, and a value."""
    if stop - pos <= len(name):
        return False
    for index in range(len(name)):
        if buf[np.uint64(pos + index)] != name[index]:
            return False
    return True


@njit(inline="always")
def topic_starts_with(buf, topic, topic_length, prefix):
    """Whether the topic at ``topic`` begins with, or is, ``prefix``."""
    if topic_length < len(prefix):
        return False
    for index in range(len(prefix)):
        if buf[np.uint64(topic + index)] != prefix[index]:
            return False
    return True


@njit(inline="always")
def is_schedule_topic(buf, topic, topic_length):
    """Whether messages of the topic are delayed ones."""
    return topic_length == len(_SCHEDULE_TOPIC) and topic_starts_with(
        buf, topic, topic_length, _SCHEDULE_TOPIC
    )


@njit(inline="always")
def _separators(buf, block, end):
    """Bit mask of the separators among BLOCK bytes from ``block`` on, and before ``end``."""
    count = end - block
    if block + BLOCK <= len(buf):
        mask = equal_bytes(buf, block, _SEPARATOR)
        if count < BLOCK:
            mask &= (_ONE << np.uint64(count)) - _ONE
    else:
        mask = NONE_FOUND
        for index in range(min(count, BLOCK)):
            if buf[np.uint64(block + index)] == _SEPARATOR:
                mask |= _ONE << np.uint64(index)
    return mask


@njit(inline="always")
def next_end(buf, end, block, ends):
    """(end of the next property before ``end``, block, ends).

    Begin with BLOCK bytes before the first property, and NONE_FOUND; ``ends`` are the ends in the
    block that no call has returned yet. To search for each end alone takes twice as long on the
    usual properties.
    """
    while ends == NONE_FOUND and block + BLOCK < end:
        block += BLOCK
        ends = _separators(buf, block, end)
    if ends == NONE_FOUND:
        return end, block, ends
    return block + lowest_bit(ends), block, ends & (ends - _ONE)


@njit(inline="always")
def find_two(buf, pos, end, first, second):
    """(start, end, start, end) of the values of two properties; start is -1 if one is missing."""
    first_pos = first_end = second_pos = second_end = np.int64(-1)
    block, ends = pos - BLOCK, NONE_FOUND
    while pos < end:
        stop, block, ends = next_end(buf, end, block, ends)
        if starts_with(buf, pos, stop, first):
            first_pos, first_end = pos + len(first), stop
        elif starts_with(buf, pos, stop, second):
            second_pos, second_end = pos + len(second), stop
        pos = stop + 1
    return first_pos, first_end, second_pos, second_end


def property_name(name):
    """Encode a name for ``starts_with`` and ``find_two``."""
    return np.frombuffer(name + properties.NAME_VALUE_SEPARATOR, np.uint8)


_SCHEDULE_TOPIC = np.frombuffer(record.SCHEDULE_TOPIC, np.uint8)
_TAGS = property_name(properties.TAGS)
_DELAY = property_name(properties.DELAY)
_INNER_NUM = property_name(properties.INNER_NUM)
_INNER_BASE = property_name(properties.INNER_BASE)


@njit(inline="always")
def tags_code(buf, props, end, store_timestamp, is_schedule_topic, delay_levels_ms):
    """``store.log.record.tags_code`` of the property block ``buf[props:end]``: (status, code)."""
    tags = tags_end = delay = delay_end = num = num_end = inner = inner_end = np.int64(-1)
    pos = props
    block, ends = pos - BLOCK, NONE_FOUND
    while pos < end:
        stop, block, ends = next_end(buf, end, block, ends)
        first = buf[np.uint64(pos)]
        if first == 0x54:  # T
            if starts_with(buf, pos, stop, _TAGS):
                tags, tags_end = pos + len(_TAGS), stop
        elif first == 0x44:  # D
            if starts_with(buf, pos, stop, _DELAY):
                delay, delay_end = pos + len(_DELAY), stop
        elif first == 0x49:  # I
            if starts_with(buf, pos, stop, _INNER_NUM):
                num, num_end = pos + len(_INNER_NUM), stop
            elif starts_with(buf, pos, stop, _INNER_BASE):
                inner, inner_end = pos + len(_INNER_BASE), stop
        pos = stop + 1
    code = hash_code(buf, tags, tags_end) if tags >= 0 else np.int64(0)
    if is_schedule_topic and delay >= 0:
        sound, level = parse_integer(buf, delay, delay_end, 32)
        if not sound:
            return BAD_PROPERTY, code
        level = min(level, len(delay_levels_ms))
        if level > 0:
            code = store_timestamp + delay_levels_ms[level - 1]
    if num >= 0 and inner >= 0:
        if not (
            parse_integer(buf, num, num_end, 16)[0] and parse_integer(buf, inner, inner_end, 64)[0]
        ):
            return BAD_PROPERTY, code
    return OK, code
