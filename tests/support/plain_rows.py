"""Rows of a log, made one by one with the plain decoder: what the kernels are held against."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

from reput.store.log import java
from reput.store.log.commitlog import CommitLog
from reput.store.log.cursor import BadRange, records
from reput.store.log.record import DEFAULT_DELAY_LEVELS_MS, Record, tags_code
from reput.store.log.status import Outcome, Status
from reput.store.log.sysflag import SysFlag

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TRANSACTION_TYPES = {0: "none", 4: "prepared", 8: "commit", 12: "rollback"}
CODECS = {0: "zlib", 0x100: "lz4", 0x200: "zstd", 0x300: "zlib"}

OWN_TOPICS = frozenset(
    (
        "TBW102", "SCHEDULE_TOPIC_XXXX", "BenchmarkTest", "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRACE_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC",
        "SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT", "CHECKPOINT_TOPIC",
        "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC", "RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC",
    )
)  # fmt: skip
"""``TopicValidator.SYSTEM_TOPIC_SET`` of RocketMQ 5.5.1."""

Inflate = Callable[[bytes, str], bytes | None]
"""(body, codec) to the plain body; None where it stays as stored."""


def stored(_body: bytes, _codec: str) -> None:
    """Inflates nothing."""


def inflated(body: bytes, codec: str) -> bytes:
    """By libraries that this project does not use for it."""
    if codec == "zlib":
        return zlib.decompress(body)
    plain: bytes = pa.CompressedInputStream(pa.BufferReader(body), codec).read()
    return plain


def plain_row(record: Record, inflate: Inflate = stored) -> dict[str, Any]:
    """The columns of a record by name."""
    values = {java.decode(k): java.decode(v) for k, v in record.property_map.items()}
    codec, body = None, record.body
    if record.sys_flag & SysFlag.COMPRESSED:
        codec = CODECS.get(record.sys_flag & SysFlag.COMPRESSION_MASK, "unknown")
        plain = inflate(body, codec)
        if plain is not None:
            codec, body = None, plain
    return {
        "topic": java.decode(record.topic),
        "queueId": record.queue_id,
        "queueOffset": record.queue_offset,
        "physicalOffset": record.physical_offset,
        "storeSize": record.total_size,
        "tags": values.get("TAGS"),
        "keys": values.get("KEYS"),
        "tagsCode": tags_code(record, DEFAULT_DELAY_LEVELS_MS),
        "sysFlag": record.sys_flag,
        "flag": record.flag,
        "reconsumeTimes": record.reconsume_times,
        "preparedTransactionOffset": record.prepared_transaction_offset,
        "transactionType": TRANSACTION_TYPES[record.transaction_type],
        "bornTimestamp": timestamp(record.born_timestamp),
        "storeTimestamp": timestamp(record.store_timestamp),
        "bornHost": host(record.born_host),
        "storeHost": host(record.store_host),
        "bodyCompression": codec,
        "properties": list(values.items()),
        "body": body,
        "corruptReason": None,
    }


def is_internal(row: dict[str, Any]) -> bool:
    """Whether consumers of RocketMQ never see the record of a row; a damaged range is none."""
    topic = row.get("topic") or ""
    return (
        row.get("transactionType") in ("prepared", "rollback")
        or topic in OWN_TOPICS
        or topic.startswith("rmq_sys_")
    )


def timestamp(milliseconds: int) -> datetime | None:
    """None where Python, as Spark, has no such time."""
    try:
        return EPOCH + timedelta(milliseconds=milliseconds)
    except OverflowError:
        return None


def host(address: tuple[str, int]) -> str:
    """IPv6 addresses in brackets."""
    return f"[{address[0]}]:{address[1]}" if ":" in address[0] else f"{address[0]}:{address[1]}"


def damaged_row(offset: int, size: int, status: Status) -> dict[str, Any]:
    """The columns of a range that is no record; those that are left out are null."""
    return {"physicalOffset": offset, "storeSize": size, "corruptReason": status.name.lower()}


def plain_rows(
    log: CommitLog, start: int, end: int, inflate: Inflate = stored, **iteration: Any
) -> Iterator[dict[str, Any]]:
    """[start, end) of the log."""
    for found in records(log, start, end, **iteration):
        if isinstance(found, BadRange):
            yield damaged_row(found.start, found.end - found.start, found.status)
        else:
            yield plain_row(found, inflate)


def plain_rows_at(
    log: CommitLog, units: Iterable[tuple[int, int]], *, verify_crc: bool = False
) -> Iterator[dict[str, Any]]:
    """The message at (offset, size) of each unit."""
    for offset, size in units:
        if log.segments.at(offset) is None:
            yield damaged_row(offset, size, Status.SEGMENT_DELETED)
        elif not 91 <= size <= 64 << 20:
            yield damaged_row(offset, size, Status.BAD_SIZE)
        else:
            found = log.record_at(offset, size, verify_crc=verify_crc)
            if isinstance(found, Outcome):
                zeros = found.status in (Status.EMPTY, Status.NEED_MORE)
                yield damaged_row(offset, size, Status.ZERO_HOLE if zeros else found.status)
            else:
                yield plain_row(found)


def as_table(rows: Iterable[dict[str, Any]], schema: pa.Schema) -> pa.Table:
    """Rows as columns."""
    listed = list(rows)
    columns = [pa.array([row.get(field.name) for row in listed], field.type) for field in schema]
    return pa.table(columns, schema=schema)
