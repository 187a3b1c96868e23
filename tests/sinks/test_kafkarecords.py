"""Kafka's records, held against what kafka-python writes of the same ones."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pyarrow as pa
from kafka.producer.future import FutureProduceResult
from kafka.record.default_records import DefaultRecordBatchBuilder
from kafka.structs import TopicPartition

from sinks.kafkarecords import (
    KafkaRecord,
    RecordBatch,
    _LateFutures,
    count_values,
    header,
    header_column,
    join_columns,
    join_lists,
    varint,
    with_lengths,
)

Headers = list[tuple[str, bytes]]


def random_text(source: random.Random, *, most: int) -> str:
    return "".join(source.choices("aZ0é中😀", k=source.randint(0, most)))


def encoded(headers: Headers) -> bytes:
    return b"".join(header(name, value.decode()) for name, value in headers)


def by_kafka(records: list[tuple[KafkaRecord, Headers]]) -> bytes:
    """The records of a batch, without the batch's header."""
    builder = DefaultRecordBatchBuilder(2, 0, False, -1, -1, -1, 1 << 30)
    for offset, (record, headers) in enumerate(records):
        builder.append(offset, record.timestamp_ms, record.key, record.value, headers)
    return bytes(builder.build()[DefaultRecordBatchBuilder.HEADER_STRUCT.size :])


def test_a_batch_has_the_bytes_of_kafka_pythons(seed: int) -> None:
    """Keys and values of all lengths, also none, times that go back, headers with any text."""
    source = random.Random(seed)
    records: list[tuple[KafkaRecord, Headers]] = []
    for _ in range(200):
        headers = [
            (random_text(source, most=9), random_text(source, most=99).encode())
            for _ in range(source.randint(0, 5))
        ]
        key = source.choice([None, b"", source.randbytes(source.choice([1, 63, 64, 9000]))])
        value = source.randbytes(source.choice([0, 1, 63, 64, 8191, 8192, 70_000]))
        stamp = source.choice([0, 1_700_000_000_000 + source.randint(-(10**7), 10**7), 1 << 45])
        record = KafkaRecord("topic", 0, key, value, encoded(headers), len(headers), stamp, 0)
        records.append((record, headers))
    batch = RecordBatch("topic", 0, records[0][0].timestamp_ms)
    for record, _ in records:
        batch.add(record)
    assert bytes(batch.data[DefaultRecordBatchBuilder.HEADER_STRUCT.size :]) == by_kafka(records)


def test_columns_give_the_headers_of_each_row(seed: int) -> None:
    """As one header at a time does; a null gives none."""
    source = random.Random(seed)
    rows = 100
    texts = [source.choice([None, random_text(source, most=300)]) for _ in range(rows)]
    numbers = [
        source.choice([None, source.randint(-(1 << 63), (1 << 63) - 1)]) for _ in range(rows)
    ]
    columns = [
        header_column("text", pa.array(texts, pa.string())),
        header_column("number", pa.array(numbers, pa.int64())),
    ]
    wanted = [
        [
            header(name, str(value))
            for name, value in (("text", text), ("number", number))
            if value is not None
        ]
        for text, number in zip(texts, numbers, strict=True)
    ]
    assert join_columns(columns).to_pylist() == [b"".join(row) for row in wanted]
    assert count_values(columns).to_pylist() == [len(row) for row in wanted]


def test_lists_are_joined_within_their_rows() -> None:
    """Empty ones too."""
    values = with_lengths(pa.array(["a", "", "é" * 40]))
    offsets = pa.array([0, 1, 1, 3], pa.int32())
    assert join_lists(offsets, values).to_pylist() == [
        b"\x02a", b"", b"\x00" + varint(80) + "é".encode() * 40,
    ]  # fmt: skip


def test_a_records_future_is_made_once_and_ends_with_its_batch() -> None:
    """kafka-python binds it to a part of the batch, if it splits that, and asks for it again."""
    batch = SimpleNamespace(produce_future=FutureProduceResult(TopicPartition("topic", 0)))
    futures = _LateFutures(batch, 3)
    assert len(futures) == 3
    assert futures[1] is futures[1]
    assert futures[1] is not futures[2]
    batch.produce_future.success((70, None, ValueError))
    assert [future.exception.args for future in (futures[1], futures[2])] == [(1,), (2,)]
    assert all(future.failed() for future in futures)
