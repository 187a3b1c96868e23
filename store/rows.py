"""Messages as rows: the columns are in ``store.rowschema``."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from store import java, properties
from store.commitlog import CommitLog
from store.cursor import BadRange, records
from store.errors import CorruptRecordError
from store.record import Outcome, Record, Status, SysFlag, tags_code

ROWS_PER_BATCH = 4096
BODY_BYTES_PER_BATCH = 16 << 20
_MAX_TIMESTAMP_MS = 253402300799999  # 9999-12-31T23:59:59.999Z
_MIN_TIMESTAMP_MS = -62135596800000  # 0001-01-01T00:00:00Z
_TRANSACTION_TYPES = {
    0: "none",
    SysFlag.PREPARED: "prepared",
    SysFlag.COMMIT: "commit",
    SysFlag.ROLLBACK: "rollback",
}
# no type bits with the compressed bit set is zlib, as written before 4.9.4
_COMPRESSIONS = {
    0: "zlib",
    SysFlag.COMPRESSION_LZ4: "lz4",
    SysFlag.COMPRESSION_ZSTD: "zstd",
    SysFlag.COMPRESSION_ZLIB: "zlib",
}


def read_rows(
    log: CommitLog,
    start: int,
    end: int,
    schema: pa.Schema,
    *,
    delay_levels_ms: tuple[int, ...],
    fail_on_corrupt: bool,
    max_inflated_bytes: int | None,
    **iteration: Any,
) -> Iterator[pa.RecordBatch]:
    """[start, end) of the log as rows. Raises CorruptRecordError if told to."""
    names = schema.names
    columns: dict[str, list[Any]] = {name: [] for name in names}
    body_bytes = 0
    for found in records(log, start, end, **iteration):
        if isinstance(found, BadRange):
            if fail_on_corrupt:
                segment = log.segment_at(found.start)
                place = str(segment.path) if segment else "the commitlog"
                raise CorruptRecordError(place, found.start, found.end, found.status.name)
            row: dict[str, Any] = {
                "physicalOffset": found.start,
                "storeSize": found.end - found.start,
                "corruptReason": found.status.name.lower(),
            }
        else:
            row = _row(found, delay_levels_ms, max_inflated_bytes)
            body_bytes += len(row["body"])
        for name in names:
            columns[name].append(row.get(name))
        if len(columns["physicalOffset"]) >= ROWS_PER_BATCH or body_bytes >= BODY_BYTES_PER_BATCH:
            yield _batch(columns, schema)
            columns = {name: [] for name in names}
            body_bytes = 0
    if columns["physicalOffset"]:
        yield _batch(columns, schema)


def rows_at(
    log: CommitLog,
    offsets: NDArray[np.int64],
    sizes: NDArray[np.int32],
    schema: pa.Schema,
    *,
    delay_levels_ms: tuple[int, ...],
    max_inflated_bytes: int | None = None,
    verify_crc: bool = False,
) -> Iterator[pa.RecordBatch]:
    """The records to which units of a queue point, a row each, in the units' order.

    Where no such record stands, the row is that of a damaged range: physicalOffset and storeSize
    are the unit's, corruptReason says why (``segment_deleted`` where no file covers it). As many
    rows as units, over one or more batches.
    """
    columns: dict[str, list[Any]] = {name: [] for name in schema.names}
    for offset, size in zip(offsets.tolist(), sizes.tolist(), strict=True):
        found: Record | Outcome = Outcome(Status.SEGMENT_DELETED)
        if log.segment_at(offset) is not None:
            found = log.record_at(offset, max(size, 0), verify_crc=verify_crc)
        if isinstance(found, Outcome):
            zeros = found.status in (Status.EMPTY, Status.NEED_MORE)
            status = Status.ZERO_HOLE if zeros else found.status
            row: dict[str, Any] = {
                "physicalOffset": offset, "storeSize": size, "corruptReason": status.name.lower(),
            }  # fmt: skip
        else:
            row = _row(found, delay_levels_ms, max_inflated_bytes)
        for name in schema.names:
            columns[name].append(row.get(name))
        if len(columns[schema.names[0]]) >= ROWS_PER_BATCH:
            yield _batch(columns, schema)
            columns = {name: [] for name in schema.names}
    if columns[schema.names[0]]:
        yield _batch(columns, schema)


def _batch(columns: dict[str, list[Any]], schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [pa.array(columns[field.name], field.type) for field in schema], schema=schema
    )


def _row(
    found: Record, delay_levels_ms: tuple[int, ...], max_inflated: int | None
) -> dict[str, Any]:
    values = {java.decode(k): java.decode(v) for k, v in found.property_map.items()}
    compression = _compression(found.sys_flag)
    body = found.body
    if max_inflated is not None and compression is not None:
        inflated = inflate(body, compression, max_inflated)
        if inflated is not None:
            body, compression = inflated, None
    return {
        "topic": java.decode(found.topic),
        "queueId": found.queue_id,
        "queueOffset": found.queue_offset,
        "physicalOffset": found.physical_offset,
        "storeSize": found.total_size,
        "tags": values.get(properties.TAGS.decode()),
        "keys": values.get(properties.KEYS.decode()),
        "tagsCode": tags_code(found, delay_levels_ms),
        "sysFlag": found.sys_flag,
        "flag": found.flag,
        "reconsumeTimes": found.reconsume_times,
        "preparedTransactionOffset": found.prepared_transaction_offset,
        "transactionType": _TRANSACTION_TYPES[found.transaction_type],
        "bornTimestamp": _timestamp_us(found.born_timestamp),
        "storeTimestamp": _timestamp_us(found.store_timestamp),
        "bornHost": _host(found.born_host),
        "storeHost": _host(found.store_host),
        "bodyCompression": compression,
        "properties": values,
        "body": body,
    }


def _timestamp_us(milliseconds: int) -> int | None:
    return milliseconds * 1000 if _MIN_TIMESTAMP_MS <= milliseconds <= _MAX_TIMESTAMP_MS else None


def _host(host: tuple[str, int]) -> str:
    return f"[{host[0]}]:{host[1]}" if ":" in host[0] else f"{host[0]}:{host[1]}"


def _compression(sys_flag: int) -> str | None:
    if not sys_flag & SysFlag.COMPRESSED:
        return None
    return _COMPRESSIONS.get(sys_flag & SysFlag.COMPRESSION_MASK, "unknown")


def inflate(body: bytes, compression: str, limit: int) -> bytes | None:
    """The plain body; None where it does not inflate, or not within ``limit`` bytes."""
    inflaters: dict[str, Callable[[bytes, int], bytes]] = {
        "zlib": _inflate_zlib,
        "lz4": lambda data, most: _inflate_arrow(data, "lz4", most),
        "zstd": lambda data, most: _inflate_arrow(data, "zstd", most),
    }
    if compression not in inflaters:
        return None
    try:
        plain = inflaters[compression](body, limit + 1)
    except (zlib.error, OSError, pa.ArrowException):
        return None
    return plain if len(plain) <= limit else None


def _inflate_zlib(body: bytes, most: int) -> bytes:
    inflater = zlib.decompressobj()
    plain = inflater.decompress(body, most)
    if not inflater.eof and len(plain) < most:
        raise zlib.error("the stream is cut")
    return plain


def _inflate_arrow(body: bytes, codec: str, most: int) -> bytes:
    with pa.CompressedInputStream(pa.BufferReader(body), codec) as stream:
        return bytes(stream.read(most))
