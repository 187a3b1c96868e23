"""Kafka's records as a producer writes them (record batch, version 2), encoded by columns.

kafka-python unpacks a record and each of its headers four times on the way into a batch, which
takes nearly all of its time. This module lets Arrow encode the headers of many messages at once and
hands whole batches to kafka-python, which still sends them and keeps sequence numbers and
transactions.

A record in a batch has these fields, all zigzag varints except the attributes:

| field | content |
|---|---|
| length | bytes of all following fields |
| attributes | one byte, 0 |
| timestampDelta, offsetDelta | relative to the first record of the batch |
| keyLength, key | -1 and nothing for no key |
| valueLength, value | |
| headerCount, then for each nameLength, name, valueLength, value | |

Source: Kafka's ``DefaultRecord.java`` and ``DefaultRecordBatch.java``; kafka-python writes the
header of a batch when it sends it.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

_MAGIC = 2
_UNCOMPRESSED = 0
_NOTHING = pa.scalar(b"", pa.binary())


class KafkaRecord(NamedTuple):
    """One message to be sent."""

    topic: str
    partition: int | None
    """None lets the key choose the partition."""
    key: bytes | None
    value: bytes
    headers: bytes
    """Encoded headers, concatenated."""
    header_count: int
    timestamp_ms: int
    physical_offset: int
    """Offset in the commit log."""


@functools.lru_cache(1 << 16)
def varint(value: int) -> bytes:
    """Encode ``value`` in zigzag form, seven bits per byte, the least significant first."""
    left = value << 1 if value >= 0 else (-value << 1) - 1
    encoded = bytearray()
    while left > 0x7F:
        encoded.append(left & 0x7F | 0x80)
        left >>= 7
    encoded.append(left)
    return bytes(encoded)


def with_lengths(texts: pa.Array) -> pa.Array:
    """Each text in UTF-8, or each binary value, prefixed with its length; null stays null."""
    encoded = texts.cast(pa.string()).cast(pa.binary())
    lengths = pc.binary_length(encoded).dictionary_encode()
    table = pa.array([varint(length) for length in lengths.dictionary.to_pylist()], pa.binary())
    return pc.binary_join_element_wise(table.take(lengths.indices), encoded, _NOTHING)


def header_column(name: str, values: pa.Array) -> pa.Array:
    """A header of this name for each value; null stays null."""
    return pc.binary_join_element_wise(_text(name), with_lengths(values), _NOTHING)


def header(name: str, value: str) -> bytes:
    """Encode one header."""
    encoded = value.encode()
    return bytes(_text(name).as_py()) + varint(len(encoded)) + encoded


def join_columns(columns: list[pa.Array]) -> pa.Array:
    """Concatenate the values of each row, without nulls."""
    # Arrow 26 drops rows of nulls only, so every row gets an empty value
    return pc.binary_join_element_wise(_NOTHING, *columns, _NOTHING, null_handling="skip")


def count_values(columns: list[pa.Array]) -> pa.Array:
    """int32: number of values of each row that are not null."""
    return functools.reduce(pc.add, [column.is_valid().cast(pa.int32()) for column in columns])


def join_lists(offsets: pa.Array, values: pa.Array) -> pa.Array:
    """Concatenate the values of each list."""
    return pc.binary_join(pa.ListArray.from_arrays(offsets, values), _NOTHING)


def _text(text: str) -> pa.Scalar:
    encoded = text.encode()
    return pa.scalar(varint(len(encoded)) + encoded, pa.binary())


class RecordBatch:
    """Records of one partition, before and after they are handed to kafka-python."""

    def __init__(self, topic: str, partition: int, first_timestamp_ms: int) -> None:
        from kafka.record.default_records import DefaultRecordBatchBuilder  # noqa: PLC0415

        self.topic, self.partition = topic, partition
        self.data = bytearray(DefaultRecordBatchBuilder.HEADER_STRUCT.size)
        self.sources: list[tuple[int, int]] = []
        """Physical offset and length of the value of each record."""
        self._first_ms = self._last_ms = first_timestamp_ms
        self._sent: Any = None

    def __len__(self) -> int:
        return len(self.sources)

    def add(self, record: KafkaRecord) -> None:
        """Append a record."""
        key, value, stamp = record.key, record.value, record.timestamp_ms
        rest = b"".join((
            b"\0", varint(stamp - self._first_ms), varint(len(self.sources)),
            varint(-1) if key is None else varint(len(key)), key or b"",
            varint(len(value)), value, varint(record.header_count), record.headers,
        ))  # fmt: skip
        self.data += varint(len(rest))
        self.data += rest
        self.sources.append((record.physical_offset, len(value)))
        self._last_ms = max(self._last_ms, stamp)

    def hand_over(self, producer: Any) -> None:
        """Append the batch to kafka-python's batches of the partition.

        This equals its ``RecordAccumulator.append``, except that the batch is already full.
        """
        from kafka import TopicPartition  # noqa: PLC0415
        from kafka.producer.producer_batch import ProducerBatch  # noqa: PLC0415
        from kafka.record.memory_records import MemoryRecordsBuilder  # noqa: PLC0415

        place = TopicPartition(self.topic, self.partition)
        records = MemoryRecordsBuilder(_MAGIC, _UNCOMPRESSED, len(self.data))
        builder = records._builder
        builder._buffer = self.data
        builder._first_timestamp, builder._max_timestamp = self._first_ms, self._last_ms
        builder._last_offset, builder._num_records = len(self) - 1, len(self)
        records._next_offset = len(self)
        self._sent = ProducerBatch(place, records)
        self._sent._record_futures = _LateFutures(self._sent, len(self))
        self.data = bytearray()
        producer._transaction_manager.maybe_add_partition_to_transaction(place)
        accumulator = producer._accumulator
        with accumulator._tp_lock(place):
            accumulator._batches[place].append(self._sent)
            accumulator._incomplete.add(self._sent)
        producer._sender.wakeup()

    def wait(self, seconds: float) -> None:
        """Wait until the batch is in Kafka.

        Raises kafka-python's error for one of its records, or its KafkaTimeoutError.
        """
        future = self._sent.produce_future
        future.wait(seconds)
        if future.is_done and future.value[2] is None:
            return
        for each in self._sent._record_futures:
            each.get(seconds)

    def failures(self) -> Iterator[tuple[BaseException, int, int]]:
        """(error, physical offset, length of the value) of each record that failed so far."""
        for future, (offset, size) in zip(self._sent._record_futures, self.sources, strict=True):
            if future.failed():
                yield future.exception, offset, size


class _LateFutures:
    """The futures of a batch's records, each created on first access.

    They are needed only after a failure: kafka-python binds them to the parts of a batch that it
    has to split. Without a failure the future of the batch covers all records.
    """

    def __init__(self, batch: Any, count: int) -> None:
        self._batch = batch
        self._made: list[Any] = [None] * count
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._made)

    def __getitem__(self, index: int) -> Any:
        from kafka.producer.future import FutureRecordMetadata  # noqa: PLC0415

        with self._lock:
            if self._made[index] is None:
                self._made[index] = FutureRecordMetadata(
                    self._batch.produce_future, index, None, None, -1, -1, -1
                )
            return self._made[index]
