"""Kafka's records, held against what kafka-python and a plain encoder write of the same ones."""

from __future__ import annotations

import itertools
import random
import struct
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import numpy as np
import pyarrow as pa
import pytest
from kafka import errors
from kafka.producer.future import FutureProduceResult
from kafka.record.default_records import DefaultRecordBatchBuilder
from kafka.structs import TopicPartition

from reput.sinks.kafka import mirror
from reput.sinks.kafka import transactions as to_kafka
from reput.sinks.kafka.records import Arena, Headers, KafkaRecords, RecordBatch, _LateFutures
from reput.sinks.kafka.topics import TopicNames, TopicSelection
from reput.sinks.kafka.transactions import KafkaSettings, KafkaTransactions
from reput.store.errors import StoreError, UsageError
from reput.store.rows.rowschema import ROWS_SCHEMA

Pairs = list[tuple[str, bytes]]
HEADER_BYTES: int = DefaultRecordBatchBuilder.HEADER_STRUCT.size
RESERVED, ESCAPE = "own.", "own.property."


class Message(NamedTuple):
    """One record."""

    place: int
    key: bytes | None
    value: bytes
    headers: Pairs
    stamp: int


def varint(value: int) -> bytes:
    """Zigzag form, seven bits per byte, the least significant first."""
    left = value << 1 if value >= 0 else (-value << 1) - 1
    encoded = bytearray()
    while left > 0x7F:
        encoded.append(left & 0x7F | 0x80)
        left >>= 7
    encoded.append(left)
    return bytes(encoded)


def sized(data: bytes) -> bytes:
    return varint(len(data)) + data


def encoded(headers: Pairs) -> bytes:
    return b"".join(sized(name.encode()) + sized(value) for name, value in headers)


def plain_batches(messages: list[Message], limit: int) -> Iterator[bytes]:
    """The records of the batches of one partition, one record at a time."""
    batch, count, first = b"", 0, 0
    for message in messages:
        headers = encoded(message.headers)
        size = len(message.key or b"") + len(message.value) + len(headers)
        if count and HEADER_BYTES + len(batch) + size > limit:
            yield batch
            batch, count = b"", 0
        if not count:
            first = message.stamp
        key = varint(-1) if message.key is None else sized(message.key)
        batch += sized(
            b"\0" + varint(message.stamp - first) + varint(count) + key + sized(message.value)
            + varint(len(message.headers)) + headers
        )  # fmt: skip
        count += 1
    yield batch


def by_kafka(messages: list[Message]) -> bytes:
    """One batch."""
    builder = DefaultRecordBatchBuilder(2, 0, False, -1, -1, -1, 1 << 30)
    for offset, message in enumerate(messages):
        builder.append(offset, message.stamp, message.key, message.value, message.headers)
    return bytes(builder.build())


def columns(messages: list[Message], places: int = 1) -> KafkaRecords:
    """The messages as columns that are slices, as those of a batch of rows are."""
    keys = pa.array([b"before", *(message.key for message in messages)], pa.binary())
    values = pa.array([b"before", *(message.value for message in messages)], pa.binary())
    headers = pa.array([encoded(message.headers) for message in messages], pa.binary())
    counts = np.array([len(message.headers) for message in messages], np.int32)
    return KafkaRecords.of(
        [("topic", partition) for partition in range(places)],
        np.array([message.place for message in messages]),
        keys.slice(1),
        values.slice(1),
        np.array([message.stamp for message in messages], np.int64),
        1000 + np.arange(len(messages)),
        Headers(Arena.of(headers), counts),
    )


def random_text(source: random.Random, *, most: int) -> str:
    return "".join(source.choices("aZ0é中😀", k=source.randint(0, most)))


def random_messages(source: random.Random, count: int, places: int = 1) -> list[Message]:
    """Keys and values of all lengths, also none, times that go back, headers with any text."""
    sizes = [0, 1, 63, 64, 8191, 8192, 70_000]
    return [
        Message(
            source.randrange(places),
            source.choice([None, b"", source.randbytes(source.choice([1, 63, 64, 9000]))]),
            source.randbytes(source.choice(sizes)),
            [
                (random_text(source, most=9), random_text(source, most=99).encode())
                for _ in range(source.randint(0, 5))
            ],
            source.choice([0, 1_700_000_000_000 + source.randint(-(10**7), 10**7), 1 << 45]),
        )
        for _ in range(count)
    ]


def test_a_batch_has_the_bytes_of_kafka_pythons(seed: int) -> None:
    """However many records are added at a time; also those of the plain encoder."""
    source = random.Random(seed)
    messages = [*random_messages(source, 200), Message(0, None, b"older", [], 0)]
    records = columns(messages)
    batch = RecordBatch("topic", 0, messages[0].stamp)
    start = 0
    while start < len(messages):
        end = min(start + source.randint(1, 60), len(messages))
        assert batch.add(records, np.arange(start, end), 1 << 30) == end - start
        start = end
    expected = by_kafka(messages)
    assert bytes(batch.data[HEADER_BYTES:]) == expected[HEADER_BYTES:]
    # the header has the first record's time and the newest (Kafka's DefaultRecordBatch)
    assert (batch._first_ms, batch._last_ms) == struct.unpack_from(">qq", expected, 27)
    assert [bytes(batch.data[HEADER_BYTES:])] == list(plain_batches(messages, 1 << 30))


@pytest.mark.parametrize("size", [100, 101, 70_000])
def test_a_record_of_the_limit_or_beyond_it_is_a_batch_of_its_own(size: int) -> None:
    """The batch has room for it, and for nothing after it."""
    message = Message(0, None, b"v" * size, [], 7)
    batch = RecordBatch("topic", 0, 7)
    assert batch.add(columns([message] * 3), np.arange(3), HEADER_BYTES + 100) == 1
    assert bytes(batch.data[HEADER_BYTES:]) == by_kafka([message])[HEADER_BYTES:]


@pytest.mark.parametrize("properties", [[], [(RESERVED, "")] * 9])
def test_headers_have_room_without_other_bytes(properties: list[tuple[str, str]]) -> None:
    """Where all of them are fields, or all are properties with a long word before their names."""
    rows, escape = 200, "e" * 60
    fields = {name: pa.array([1] * rows) for name in ("" if properties else "abcdefghi")}
    fields |= {"": pa.nulls(rows, pa.string())}
    blocks = pa.array([properties] * rows, pa.map_(pa.string(), pa.string()))
    found = Headers.of(blocks, fields, RESERVED, escape).encoded
    wanted = [(escape + name, value.encode()) for name, value in properties] or [
        (name, b"1") for name in "abcdefghi"
    ]
    assert found.data[: found.bounds[-1]].tobytes() == encoded(wanted) * rows


class Sent:
    """Stands in for kafka-python's producer; keeps what was handed over."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.batches: dict[int, list[bytes]] = {}

        def hand_over(batch: RecordBatch, _producer: Any) -> None:
            data = bytes(batch.data[HEADER_BYTES:])
            self.batches.setdefault(batch.partition, []).append(data)

        monkeypatch.setattr(RecordBatch, "hand_over", hand_over)

    def begin_transaction(self) -> None:
        """Nothing is begun."""

    def partitions_for(self, topic: str) -> set[int]:
        """Any topic is known."""
        return {len(topic)}


def transactions(producer: Sent, max_message_bytes: int = 1 << 20) -> KafkaTransactions:
    settings = KafkaSettings("127.0.0.1:9", "test", max_message_bytes)
    opened = KafkaTransactions(settings, "", "test")
    opened._producer = producer
    return opened


def test_messages_go_in_order_into_the_batches_of_their_partitions(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches end where the plain encoder ends them, however the messages are cut into slices."""
    monkeypatch.setattr(to_kafka, "_BATCH_BYTES", 100_000)
    source = random.Random(seed)
    messages = random_messages(source, 400, places=5)
    producer = Sent(monkeypatch)
    to = transactions(producer)
    start = 0
    while start < len(messages):
        part = messages[start : start + source.randint(1, 150)]
        to.send(columns(part, places=5))
        start += len(part)
    assert to._transaction is not None
    assert to._transaction.messages == len(messages)
    for batch in list(to._transaction.filling.values()):
        to._hand_over(batch)
    expected = {
        place: list(plain_batches([one for one in messages if one.place == place], 100_000))
        for place in range(5)
    }
    # pytest would explain for minutes where batches differ
    is_equal = producer.batches == expected
    assert is_equal


def test_the_first_message_that_is_too_large_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """With its key and headers, of which 100 bytes remain for a batch's own; none is added."""
    fits = Message(0, b"k" * 100, b"v" * 700, [("h", b"x" * 96)], 0)
    large = fits._replace(place=1, value=b"v" * 701)
    to = transactions(Sent(monkeypatch), 1000)
    with pytest.raises(
        StoreError,
        match=r"physical offset 1002 for topic topic, 701 bytes: .* it has 901 bytes",
    ):
        to.send(columns([fits, fits, large, fits, large], places=2))
    assert to._transaction is not None
    assert to._transaction.filling == {}
    to.send(columns([fits]))


def test_columns_give_the_headers_of_each_row(seed: int) -> None:
    """Properties, then fields without nulls, as one header at a time does; also of a slice."""
    source = random.Random(seed)
    rows = 100
    blocks = [
        [
            (source.choice(["", RESERVED, RESERVED[:-1]]) + random_text(source, most=70), value)
            for value in (random_text(source, most=200) for _ in range(source.randint(0, 4)))
        ]
        for _ in range(rows)
    ]
    texts = [source.choice([None, random_text(source, most=300)]) for _ in range(rows)]
    numbers = [
        source.choice([None, source.randint(-(1 << 63), (1 << 63) - 1)]) for _ in range(rows)
    ]
    fields = {"text": pa.array(texts, pa.string()), "number": pa.array(numbers, pa.int64())}
    properties = pa.array(blocks, pa.map_(pa.string(), pa.string()))
    wanted: list[Pairs] = [
        [
            *((ESCAPE * name.startswith(RESERVED) + name, value.encode()) for name, value in block),
            *((name, str(value).encode()) for name, value in own if value is not None),
        ]
        for block, *own in (
            (block, ("text", text), ("number", number))
            for block, text, number in zip(blocks, texts, numbers, strict=True)
        )
    ]
    for start, count in ((0, rows), (17, 50), (rows, 0)):
        sliced = {name: column.slice(start, count) for name, column in fields.items()}
        found = Headers.of(properties.slice(start, count), sliced, RESERVED, ESCAPE)
        part = wanted[start : start + count]
        data, bounds = found.encoded
        assert found.counts.tolist() == [len(row) for row in part]
        assert [data[low:high].tobytes() for low, high in itertools.pairwise(bounds)] == [
            encoded(row) for row in part
        ]


def test_times_that_kafka_does_not_have_are_its_first() -> None:
    """Records without a time, and those from before 1970, in the mirror and as arrivals."""
    times = (None, -1, 0, 1, 1_700_000_000_000)
    rows = [
        {
            "topic": "T", "queueId": 0, "queueOffset": number, "physicalOffset": number,
            "storeSize": 1, "sysFlag": 0, "body": b"",
            "storeTimestamp": None if time_ms is None else 1000 * time_ms,
        }
        for number, time_ms in enumerate(times)
    ]  # fmt: skip
    batch = pa.RecordBatch.from_pylist(rows, schema=ROWS_SCHEMA)
    brokers, chosen = (
        cast(KafkaTransactions, SimpleNamespace(partition_for=lambda *_: 0)),
        TopicSelection(),
    )
    for follower in (
        mirror.KafkaMirror(brokers, chosen, TopicNames()),
        mirror.KafkaArrivals(brokers, chosen, "arrivals", enable_lmq=None),
    ):
        (records,) = follower._records(batch)
        assert records.timestamps_ms.tolist() == [0, 0, 0, 1, 1_700_000_000_000]


def cut(sizes: Sequence[int]) -> list[list[int]]:
    """The slices that a mirror sends of rows with values of these sizes."""
    rows = [
        {"physicalOffset": number, "storeSize": 1, "body": b"p" * size}
        for number, size in enumerate(sizes)
    ]
    parts = list(mirror._slices(pa.RecordBatch.from_pylist(rows, schema=ROWS_SCHEMA)))
    assert [at for part in parts for at in part["physicalOffset"].to_pylist()] == [
        *range(len(rows))
    ]
    return [[len(value) for value in part["body"].to_pylist()] for part in parts]


def test_rows_are_sent_in_slices_of_limited_bytes_and_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A slice ends with the value that fills it."""
    monkeypatch.setattr(mirror, "SLICE_BYTES", 1000)
    monkeypatch.setattr(mirror, "SLICE_ROWS", 4)
    assert cut((400, 599, 1, 999, 5000)) == [[400, 599, 1], [999, 5000]]
    assert [len(part) for part in cut([0] * 9)] == [4, 4, 1]
    assert cut([]) == []


def test_a_refused_record_is_named_by_its_message() -> None:
    """A batch may have taken only a part of the rows that it was offered."""
    messages = [Message(0, None, b"x" * size, [], 0) for size in (10, 20, 500, 30)]
    records, batch = columns(messages), RecordBatch("topic", 0, 0)
    limit = HEADER_BYTES + 100
    assert batch.add(records, np.arange(4), limit) == 2
    assert batch.add(records, np.array([3]), limit) == 1
    future = FutureProduceResult(TopicPartition("topic", 0))
    batch._sent = SimpleNamespace(produce_future=future)
    batch._sent._record_futures = _LateFutures(batch._sent, 3)
    future.success((70, None, ValueError))
    assert [found for _, *found in batch.failures()] == [[1000, 10], [1001, 20], [1003, 30]]


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


@pytest.mark.parametrize(
    ("most_bytes", "most_seconds", "is_due"),
    [(999, 1e9, False), (998, 1e9, True), (1 << 40, 0.0, True)],
)
def test_a_transaction_is_due_by_its_size_or_its_age(
    monkeypatch: pytest.MonkeyPatch, most_bytes: int, most_seconds: float, is_due: bool
) -> None:
    """All of its messages count; one that is not open is never due."""
    monkeypatch.setattr(to_kafka, "TRANSACTION_BYTES", most_bytes)
    monkeypatch.setattr(to_kafka, "TRANSACTION_SECONDS", most_seconds)
    to = transactions(Sent(monkeypatch))
    assert not to.commit_is_due
    for size in (900, 98):
        to.send(columns([Message(0, None, b"v" * size, [], 0)]))
    assert to.commit_is_due is is_due


def test_settings_of_kafkas_clients() -> None:
    """Each broker's address, and the user's own settings, which go before ours."""
    client = {"request_timeout_ms": 7, "security_protocol": "SSL"}
    settings = KafkaSettings("a:1,b:2", "i" * 100, client=client)
    found = KafkaTransactions(settings, "", "test")._client()
    assert found["bootstrap_servers"] == ["a:1", "b:2"]
    assert client.items() <= found.items()
    for store_id in ("i" * 101, "", "a.b"):
        with pytest.raises(UsageError, match="1 to 100 letters"):
            KafkaSettings("a:1", store_id)


def test_the_key_is_keys_or_the_unique_one() -> None:
    """KEYS that are empty are none."""
    given = [("k", "u"), ("k", None), ("", "u"), ("", None), (None, "u"), (None, None)]
    rows = [
        {
            "physicalOffset": 0, "storeSize": 1, "keys": keys,
            "properties": [] if unique is None else [("UNIQ_KEY", unique), ("UNIQ_KEY", "v")],
        }
        for keys, unique in given
    ]  # fmt: skip
    batch = pa.RecordBatch.from_pylist(rows, schema=ROWS_SCHEMA)
    assert mirror._keys(batch).to_pylist() == ["k", "k", "u", None, "u", None]
    assert mirror._keys(batch.slice(0, 2)).to_pylist() == ["k", "k"]


class Admin:
    """Stands in for kafka-python's client, whose answers a test gives."""

    def __init__(self, *topics: tuple[str, int, list[int]]) -> None:
        """Names, error codes and the leaders of partitions."""
        self.topics = topics

    def describe_topics(self, _names: list[str]) -> list[dict[str, Any]]:
        """As Kafka's metadata."""
        return [
            {
                "name": name,
                "error_code": code,
                "partitions": [{"leader_id": one} for one in leaders],
            }
            for name, code, leaders in self.topics
        ]


def test_partitions_without_a_leader_are_not_there_yet() -> None:
    """Nor is a topic with an error; what another process made meanwhile is no error."""
    admin = Admin(("a", 0, [0, -1, 2]), ("b", 3, []), ("c", 5, [1]))
    assert to_kafka._leaders(admin, {"a": 3, "b": 1, "c": 1}) == {"a": [True, False, True]}
    fine = {"name": "a", "error_code": 0, "error_message": None}
    to_kafka._check_done([fine, {**fine, "error_code": 36}])
    for code, text, said in ((37, None, "InvalidPartitionsError"), (29, "no rights", "no rights")):
        with pytest.raises(StoreError, match=f"create or extend the topic b: {said}"):
            to_kafka._check_done([fine, {"name": "b", "error_code": code, "error_message": text}])


@pytest.mark.parametrize(
    "refusal",
    [
        errors.MessageSizeTooLargeError, errors.RecordListTooLargeError,
        errors.InvalidTimestampError, errors.InvalidRecordError,
    ],
)  # fmt: skip
def test_the_message_that_kafka_refuses_is_the_cause(
    monkeypatch: pytest.MonkeyPatch, refusal: type[Exception]
) -> None:
    """The first that fails with it is named; what may pass by itself is no refusal."""
    to, error = transactions(Sent(monkeypatch)), errors.KafkaTimeoutError()
    assert to.explained(error) is error
    to.send(columns([Message(0, None, b"x" * size, [], 0) for size in (10, 20)]))
    assert to._transaction is not None
    (batch,) = to._transaction.filling.values()
    to._hand_over(batch)
    for kind in (errors.NotEnoughReplicasError, refusal):
        future = FutureProduceResult(TopicPartition("topic", 0))
        batch._sent = SimpleNamespace(produce_future=future)
        batch._sent._record_futures = _LateFutures(batch._sent, 2)
        future.success((70, None, kind))
        found = to.explained(error)
        if kind is not refusal:
            assert found is error
            continue
        assert isinstance(found, StoreError)
        assert found.physical_offset == 1000
        assert "physical offset 1000 for topic topic, 10 bytes" in str(found)
