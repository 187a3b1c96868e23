"""The numba kernel that writes records as a broker does; ``store.log.record.encode`` is its
twin."""

from __future__ import annotations

import numpy as np

from reput.store.log import properties, record
from reput.store.log.kernelbase import copy_bytes, crc32, kernel, put32, put64
from reput.store.log.sysflag import SysFlag

_TRANSACTION_MASK = SysFlag.TRANSACTION_MASK
_COMMIT = SysFlag.COMMIT
_BORN_V6 = SysFlag.BORN_HOST_V6
_STORE_V6 = SysFlag.STORE_HOST_V6
_PROPERTY_CRC_HEAD = np.frombuffer(properties.PROPERTY_CRC_NAME + b"\x01", np.uint8)
_PROPERTY_CRC_SIZE = properties.PROPERTY_CRC_SIZE
_PROPERTY_CRC_DIGITS = properties.PROPERTY_CRC_DIGITS


@kernel
def _copy(out, pos, source, start, end):
    copy_bytes(out, pos, source, start, end - start)
    return pos + end - start


@kernel
def _put_property_crc(out, at, value):
    at = _copy(out, at, _PROPERTY_CRC_HEAD, 0, len(_PROPERTY_CRC_HEAD))
    for _ in range(_PROPERTY_CRC_DIGITS):
        out[np.uint64(at)] = np.uint8(48 + value % 10)
        value //= 10
        at += 1
    out[np.uint64(at)] = np.uint8(2)


@kernel
def append_records(
    out, base, file_end, first, last, store_timestamp, born_host, store_host, property_crc,
    crc_tables, topics, topic_bounds, topic_ids, queue_ids, sys_flags, flags, born_timestamps,
    bodies, body_bounds, props, prop_bounds, queue_offsets,
):  # fmt: skip
    """Write messages [first, last) to the start of ``out``, which stands at log offset ``base``.

    ``topics``, ``bodies`` and ``props`` are uint8 arenas, value i at ``bounds[i]:bounds[i + 1]``.
    ``queue_offsets`` is int64[topic, queue id], the next offsets, and is advanced. The kernel stops
    where ``out`` is full or the file has no room for the next record and a BLANK. Returns (messages
    written, bytes written, whether the file is full).
    """
    pos = np.int64(0)
    extra = _PROPERTY_CRC_SIZE if property_crc else 0
    for message in range(first, last):
        topic = topic_ids[message]
        topic_length = topic_bounds[topic + 1] - topic_bounds[topic]
        body_length = body_bounds[message + 1] - body_bounds[message]
        props_length = prop_bounds[message + 1] - prop_bounds[message] + extra
        length_size = 2 if topic_length > 127 else 1
        size = (
            record.FIXED_LENGTH + len(born_host) + len(store_host) + body_length
            + length_size + topic_length + record.PROPERTIES_LENGTH_SIZE + props_length
        )  # fmt: skip
        if base + pos + size + record.END_FILE_MIN_BLANK_LENGTH > file_end:
            return message - first, pos, True
        if pos + size > len(out):
            return message - first, pos, False
        sys_flag = np.int64(sys_flags[message])
        if len(born_host) > record.HOST_V4_LENGTH:
            sys_flag |= _BORN_V6
        if len(store_host) > record.HOST_V4_LENGTH:
            sys_flag |= _STORE_V6
        kind = sys_flag & _TRANSACTION_MASK
        queue_offset = np.int64(0)
        if kind == 0 or kind == _COMMIT:
            queue_offset = queue_offsets[topic, queue_ids[message]]
            queue_offsets[topic, queue_ids[message]] = queue_offset + 1
        body = body_bounds[message]
        put32(out, pos, size)
        magic = record.MESSAGE_MAGIC_V2 if length_size == 2 else record.MESSAGE_MAGIC_V1
        put32(out, pos + record.MAGIC_POSITION, magic)
        body_crc = crc32(crc_tables, bodies, body, body + body_length)
        put32(out, pos + record.BODY_CRC_POSITION, body_crc)
        put32(out, pos + record.QUEUE_ID_POSITION, np.int64(queue_ids[message]))
        put32(out, pos + record.FLAG_POSITION, np.int64(flags[message]))
        put64(out, pos + record.QUEUE_OFFSET_POSITION, queue_offset)
        put64(out, pos + record.PHYSICAL_OFFSET_POSITION, base + pos)
        put32(out, pos + record.SYS_FLAG_POSITION, sys_flag)
        put64(out, pos + record.BORN_TIMESTAMP_POSITION, born_timestamps[message])
        at = _copy(out, pos + record.BORN_HOST_POSITION, born_host, 0, len(born_host))
        put64(out, at, store_timestamp)
        at = _copy(out, at + record.STORE_TIMESTAMP_LENGTH, store_host, 0, len(store_host))
        put32(out, at + record.RECONSUME_TIMES_IN_TAIL, 0)
        put64(out, at + record.PREPARED_OFFSET_IN_TAIL, 0)
        put32(out, at + record.BODY_LENGTH_IN_TAIL, body_length)
        at = _copy(out, at + record.TAIL_LENGTH, bodies, body, body + body_length)
        if length_size == 2:
            out[np.uint64(at)] = np.uint8(topic_length >> 8)
            at += 1
        out[np.uint64(at)] = np.uint8(topic_length)
        at = _copy(out, at + 1, topics, topic_bounds[topic], topic_bounds[topic + 1])
        out[np.uint64(at)] = np.uint8(props_length >> 8)
        out[np.uint64(at + 1)] = np.uint8(props_length)
        at += record.PROPERTIES_LENGTH_SIZE
        at = _copy(out, at, props, prop_bounds[message], prop_bounds[message + 1])
        if property_crc:
            _put_property_crc(out, at, crc32(crc_tables, out, pos, at))
        pos += size
    return last - first, pos, False
