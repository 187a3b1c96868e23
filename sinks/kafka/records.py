"""Kafka's records as a producer writes them (record batch, version 2), encoded by columns.

kafka-python unpacks a record and each of its headers four times on the way into a batch, which
takes nearly all of its time. Here kernels write the columns of many messages into batches at once,
which kafka-python is given whole; it still sends them and keeps sequence numbers and transactions.

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

import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from reput.sinks.kafka.kernel import (
    MAX_FIELD_BYTES,
    MAX_VARINT_BYTES,
    encode_headers,
    encode_records,
)

_MAGIC = 2
_UNCOMPRESSED = 0


class Arena(NamedTuple):
    """Texts or bytes as kernels read them; both arrays are read-only."""

    data: np.ndarray
    bounds: np.ndarray
    """Value i is ``data[bounds[i]:bounds[i + 1]]``."""

    @classmethod
    def of(cls, values: pa.Array) -> Arena:
        """The values of a string or binary array, not copied; a null has no bytes."""
        _, bounds, data = values.buffers()
        if not len(values):
            bounds = data = None
        start, count = values.offset, len(values) + 1
        return cls(
            _constant(np.frombuffer(data or b"", np.uint8)),
            _constant(
                np.zeros(1, np.int32)
                if bounds is None
                else np.frombuffer(bounds, np.int32, count, start * np.int32().itemsize)
            ),
        )

    @property
    def lengths(self) -> np.ndarray:
        """Number of bytes of each value."""
        return np.diff(self.bounds)

    @property
    def size(self) -> int:
        """Number of bytes of all values."""
        return int(self.bounds[-1]) - int(self.bounds[0])


def _constant(array: np.ndarray) -> np.ndarray:
    """Arrow's memory may be writable or not, and a kernel would be compiled for each case."""
    array.flags.writeable = False
    return array


class Headers(NamedTuple):
    """Encoded headers of messages."""

    encoded: Arena
    """The headers of each message, concatenated."""
    counts: np.ndarray
    """int32."""

    @classmethod
    def of(
        cls, properties: pa.MapArray, fields: Mapping[str, pa.Array], reserved: str, escape: str
    ) -> Headers:
        """The properties of each message, then those of its fields that are not null, as text.

        A property whose name begins with ``reserved`` gets ``escape`` before it.
        """
        rows = len(properties)
        pairs = np.array(properties.offsets)
        names, items = Arena.of(properties.keys), Arena.of(properties.items)
        labels = Arena.of(pa.array(list(fields), pa.string()))
        texts = pa.concat_arrays([column.cast(pa.string()) for column in fields.values()])
        values = Arena.of(texts)
        low, high = int(pairs[0]), int(pairs[-1])
        varints = 2 * MAX_VARINT_BYTES
        room = (
            int(names.bounds[high]) - int(names.bounds[low])
            + int(items.bounds[high]) - int(items.bounds[low])
            + (high - low) * (varints + len(escape))
            + values.size + rows * (labels.size + len(fields) * varints)
        )  # fmt: skip
        out, bounds = np.empty(room, np.uint8), np.zeros(rows + 1, np.int32)
        counts = np.empty(rows, np.int32)
        encode_headers(
            pairs, *names, *items, _bytes(reserved), _bytes(escape),
            *labels, *values, _present(texts), out, bounds, counts,
        )  # fmt: skip
        return cls(Arena(_constant(out), _constant(bounds)), counts)


def _bytes(text: str) -> np.ndarray:
    return np.frombuffer(text.encode(), np.uint8)


def _present(values: pa.Array) -> np.ndarray:
    return np.array(values.is_valid().to_numpy(zero_copy_only=False))


@dataclass(frozen=True, slots=True)
class KafkaRecords:
    """Some messages to be sent, by columns."""

    places: list[tuple[str, int]]
    """Topics and partitions."""
    codes: np.ndarray
    """Number of each message's place in ``places``."""
    keys: Arena
    has_key: np.ndarray
    values: Arena
    headers: Headers
    timestamps_ms: np.ndarray
    physical_offsets: np.ndarray
    """Offsets in the commit log."""
    value_sizes: np.ndarray
    sizes: np.ndarray
    """Bytes of key, value and headers of each message."""

    @classmethod
    def of(
        cls,
        places: list[tuple[str, int]],
        codes: np.ndarray,
        keys: pa.Array,
        values: pa.Array,
        timestamps_ms: np.ndarray,
        physical_offsets: np.ndarray,
        headers: Headers | None = None,
    ) -> KafkaRecords:
        """Records of Arrow's keys (null for none) and values; their headers, or None."""
        if headers is None:
            nothing = Arena.of(pa.nulls(len(keys), pa.binary()))
            headers = Headers(nothing, np.zeros(len(keys), np.int32))
        key_arena, value_arena = Arena.of(keys), Arena.of(values)
        value_sizes = value_arena.lengths
        return cls(
            places=places,
            codes=codes,
            keys=key_arena,
            has_key=_present(keys),
            values=value_arena,
            headers=headers,
            timestamps_ms=timestamps_ms,
            physical_offsets=physical_offsets,
            value_sizes=value_sizes,
            sizes=key_arena.lengths + value_sizes + headers.encoded.lengths,
        )

    def __len__(self) -> int:
        return len(self.codes)


class RecordBatch:
    """Records of one partition, before and after they are handed to kafka-python."""

    def __init__(self, topic: str, partition: int, first_timestamp_ms: int) -> None:
        from kafka.record.default_records import DefaultRecordBatchBuilder  # noqa: PLC0415

        self.topic, self.partition = topic, partition
        self.data = bytearray(DefaultRecordBatchBuilder.HEADER_STRUCT.size)
        self._sources: list[tuple[np.ndarray, np.ndarray]] = []
        """Physical offsets and lengths of the values of the records, added together each."""
        self._count = 0
        self._first_ms = self._last_ms = first_timestamp_ms
        self._sent: Any = None

    def add(self, records: KafkaRecords, rows: np.ndarray, limit: int) -> int:
        """Append the records of these rows up to ``limit`` bytes, but a first one of any size;
        return how many."""
        at = len(self.data)
        sizes = records.sizes[rows]
        room = min(int(sizes.sum()), max(limit - at, int(sizes[0])))
        self.data += bytes(room + MAX_FIELD_BYTES * len(rows))
        count, end, self._last_ms = encode_records(
            *records.keys, records.has_key, *records.values, *records.headers.encoded,
            records.headers.counts, records.timestamps_ms, rows, self._first_ms, self._last_ms,
            self._count, limit, np.frombuffer(self.data, np.uint8), at,
        )  # fmt: skip
        del self.data[end:]
        self._count += count
        added = rows[:count]
        self._sources.append((records.physical_offsets[added], records.value_sizes[added]))
        return int(count)

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
        builder._last_offset, builder._num_records = self._count - 1, self._count
        records._next_offset = self._count
        self._sent = ProducerBatch(place, records)
        self._sent._record_futures = _LateFutures(self._sent, self._count)
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
        offsets, sizes = (np.concatenate(columns) for columns in zip(*self._sources, strict=True))
        for future, offset, size in zip(
            self._sent._record_futures, offsets.tolist(), sizes.tolist(), strict=True
        ):
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
