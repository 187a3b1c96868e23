"""The kernels that write records and their headers as ``sinks.kafka.records`` describes them.

A producer in Python takes several microseconds for each record; these take a tenth of one, and give
up Python's lock meanwhile, which the thread that sends to Kafka needs. Texts and bytes are uint8
arenas, value i at ``bounds[i]:bounds[i + 1]``. The twin is in tests/sinks/test_kafkarecords.py.
"""

from __future__ import annotations

import numpy as np

from reput.store.log.kernelbase import copy_bytes, kernel

MAX_VARINT_BYTES = 10
MAX_FIELD_BYTES = 1 + 6 * MAX_VARINT_BYTES
"""Upper bound for a record's fields without key, value and headers."""


@kernel
def _zigzag(value):
    return np.uint64(value << 1 ^ value >> 63)


@kernel
def _varint_size(value):
    left = _zigzag(np.int64(value)) >> np.uint64(7)
    size = np.int64(1)
    while left != 0:
        left >>= np.uint64(7)
        size += 1
    return size


@kernel
def _put_varint(out, at, value):
    left = _zigzag(np.int64(value))
    while left > 0x7F:
        out[np.uint64(at)] = np.uint8(left & np.uint64(0x7F) | np.uint64(0x80))
        left >>= np.uint64(7)
        at += 1
    out[np.uint64(at)] = np.uint8(left)
    return at + 1


@kernel
def _put(out, at, source, start, end):
    copy_bytes(out, at, source, start, end - start)
    return at + end - start


@kernel
def _begins_with(data, start, end, prefix):
    if end - start < len(prefix):
        return False
    for index in range(len(prefix)):
        if data[np.uint64(start + index)] != prefix[np.uint64(index)]:
            return False
    return True


@kernel
def encode_headers(
    pairs, names, name_bounds, items, item_bounds, reserved, escape,
    labels, label_bounds, fields, field_bounds, present,
    out, bounds, counts,
):  # fmt: skip
    """Write the headers of each row to ``out``: its properties, then its fields.

    Row r has the properties ``pairs[r]`` .. ``pairs[r + 1]``; a name that begins with ``reserved``
    is written after ``escape``. Field f of row r is value ``f * rows + r`` of ``fields``, with name
    f of ``labels``; it is left out where it is not present. Fills ``bounds`` and ``counts``.
    """
    rows = len(counts)
    at = np.int64(0)
    for row in range(rows):
        count = np.int64(pairs[row + 1]) - pairs[row]
        for pair in range(pairs[row], pairs[row + 1]):
            start, end = np.int64(name_bounds[pair]), np.int64(name_bounds[pair + 1])
            if _begins_with(names, start, end, reserved):
                at = _put_varint(out, at, len(escape) + end - start)
                at = _put(out, at, escape, 0, len(escape))
            else:
                at = _put_varint(out, at, end - start)
            at = _put(out, at, names, start, end)
            start, end = np.int64(item_bounds[pair]), np.int64(item_bounds[pair + 1])
            at = _put_varint(out, at, end - start)
            at = _put(out, at, items, start, end)
        for field in range(len(label_bounds) - 1):
            index = field * rows + row
            if not present[index]:
                continue
            count += 1
            start, end = np.int64(label_bounds[field]), np.int64(label_bounds[field + 1])
            at = _put_varint(out, at, end - start)
            at = _put(out, at, labels, start, end)
            start, end = np.int64(field_bounds[index]), np.int64(field_bounds[index + 1])
            at = _put_varint(out, at, end - start)
            at = _put(out, at, fields, start, end)
        counts[row] = count
        bounds[row + 1] = at


@kernel
def encode_records(
    keys, key_bounds, has_key, values, value_bounds, headers, header_bounds, header_counts,
    timestamps_ms, rows, first_ms, last_ms, former_count, limit, out, at,
):  # fmt: skip
    """Write the records of ``rows``, in this order, to ``out`` from ``at`` on.

    It stops before a record whose key, value and headers would end beyond ``limit``, unless that is
    the batch's first. The batch began at ``first_ms`` and holds ``former_count`` records up to
    ``last_ms``. Returns (records written, end in ``out``, last_ms).
    """
    count = np.int64(0)
    for row in rows:
        key_size = np.int64(key_bounds[row + 1]) - key_bounds[row]
        value_size = np.int64(value_bounds[row + 1]) - value_bounds[row]
        header_size = np.int64(header_bounds[row + 1]) - header_bounds[row]
        if former_count + count > 0 and at + key_size + value_size + header_size > limit:
            break
        stamp = timestamps_ms[row]
        key_length = key_size if has_key[row] else np.int64(-1)
        length = (
            1 + _varint_size(stamp - first_ms) + _varint_size(former_count + count)
            + _varint_size(key_length) + key_size + _varint_size(value_size) + value_size
            + _varint_size(header_counts[row]) + header_size
        )  # fmt: skip
        at = _put_varint(out, at, length)
        out[np.uint64(at)] = np.uint8(0)
        at = _put_varint(out, at + 1, stamp - first_ms)
        at = _put_varint(out, at, former_count + count)
        at = _put_varint(out, at, key_length)
        at = _put(out, at, keys, key_bounds[row], key_bounds[row + 1])
        at = _put_varint(out, at, value_size)
        at = _put(out, at, values, value_bounds[row], value_bounds[row + 1])
        at = _put_varint(out, at, header_counts[row])
        at = _put(out, at, headers, header_bounds[row], header_bounds[row + 1])
        last_ms = max(last_ms, stamp)
        count += 1
    return count, at, last_ms
