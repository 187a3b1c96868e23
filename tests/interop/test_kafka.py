"""The mirror and the arrivals on a real Kafka: contents, order, exactly once, fencing."""

from __future__ import annotations

import hashlib
import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from kafka import KafkaAdminClient, KafkaProducer
from kafka.admin import ConfigResource
from kafka.errors import KafkaError
from kafka.producer.producer_batch import ProducerBatch

import reput.sinks.kafka.mirror
import reput.sinks.kafka.transactions
from reput.sinks.kafka.records import KafkaRecords
from reput.sinks.kafka.topics import TopicNames
from reput.sinks.kafka.transactions import KafkaSettings, KafkaTransactions
from reput.store.errors import OwnershipError, StoreError
from reput.store.log import properties
from reput.store.log.record import Record
from reput.workload.appender import Appender
from tests.interop.kafka import Kafka
from tests.interop.mirroring import (
    boundaries,
    follow,
    mirror,
    mirror_target,
    open_log,
    rows,
)
from tests.interop.plain_mirror import Message, wanted
from tests.interop.test_harness import ORDERS, ORDERS_SHA256
from tests.support.childruns import ChildRun
from tests.support.processes import module_command
from tests.support.settings import ANY_SETTINGS
from tests.support.wire import TWO_MESSAGES


@pytest.fixture
def identity(request: pytest.FixtureRequest) -> str:
    """A name on Kafka that no other test has."""
    return f"{request.node.originalname[5:40]}-{os.urandom(4).hex()}"


def mirrored(kafka: Kafka, identity: str, topics: set[str]) -> dict[tuple[str, int], list[Message]]:
    """The messages that Kafka holds; partitions without a message are left out."""
    names = TopicNames(f"{identity}.{{topic}}")
    return {
        (topic, partition): [
            (record.key, record.value, record.timestamp, tuple(record.headers))
            for record in records
        ]
        for topic in topics
        for partition, records in kafka.read(names.of(topic)).items()
        if records
    }


def assert_mirrored(kafka: Kafka, identity: str, store: Path) -> None:
    """Everything once, in the order of its queue, and nothing else."""
    expected = wanted(store)
    topics = {topic for topic, _ in expected}
    found = mirrored(kafka, identity, topics)
    assert found.keys() == expected.keys()
    for queue, messages in expected.items():
        assert found[queue] == messages, queue
    names = TopicNames(f"{identity}.{{topic}}")
    ours = {name for name in kafka.topics() if name.startswith(f"{identity}.")}
    assert ours == {names.of(topic) for topic in topics}


def make_store(root: Path, count: int, **changes: Any) -> Path:
    """A small store: ``count`` messages over two topics of three queues."""
    with Appender(root, file_size=1 << 16) as appender:
        for number in range(count):
            fields = {
                "topic": (b"Alpha", b"Beta")[number % 2],
                "queue_id": number // 2 % 3,
                "body": b"%06d" % number * 5,
                "properties": properties.format_block(
                    {b"KEYS": b"k%d" % number, b"TAGS": b"T%d" % (number % 3)}
                ),
                "born_timestamp": 1_700_000_000_000 + number,
                "store_timestamp": 1_700_000_001_000 + number,
            }
            appender.append(Record(**(fields | changes)))
    return root


@pytest.mark.parametrize("name", ["mixed", "wide", "plain", "batch"])
def test_a_mirror_of_a_golden_store_holds_its_messages(
    kafka: Kafka, golden: Callable[[str], Path], identity: str, name: str
) -> None:
    """Bodies (three codecs), properties, keys, times and order; no half or delayed messages; what
    is called an inner batch and is none stays as it is."""
    store = golden(name)
    mirror(mirror_target(kafka.bootstrap, identity), store, 500)
    assert_mirrored(kafka, identity, store)


def test_a_mirror_gives_what_rocketmqs_own_consumer_gets(
    kafka: Kafka, golden: Callable[[str], Path], identity: str
) -> None:
    """The digest that a client drained from the real broker."""
    mirror(mirror_target(kafka.bootstrap, identity, "Orders"), golden("broker"))
    lines = []
    for partition, records in kafka.read(f"{identity}.Orders").items():
        offsets = [int(dict(record.headers)["rocketmq.queueOffset"]) for record in records]
        assert offsets == list(range(len(records)))
        lines += [
            b"%03d-%012d" % (partition, offset) + record.value
            for offset, record in zip(offsets, records, strict=True)
        ]
    assert len(lines) == ORDERS
    assert hashlib.sha256(b"".join(sorted(lines))).hexdigest() == ORDERS_SHA256
    assert {name for name in kafka.topics() if name.startswith(identity)} == {f"{identity}.Orders"}


def test_stopped_and_started_again_nothing_comes_twice(
    kafka: Kafka, tmp_path: Path, identity: str
) -> None:
    """A new instance for every part; the last finds nothing to do."""
    store = make_store(tmp_path / "store", 300)
    target = mirror_target(kafka.bootstrap, identity)
    for part in range(2):
        with closing(target.open("", ANY_SETTINGS)) as follower:
            steps = follow(follower, store, 70)
            assert [next(steps), next(steps)] == boundaries(store)[part * 140 + 70 :: 70][:2]
            assert follower.position() == boundaries(store)[part * 140 + 140]
            assert follower.counts() == {"messages": 140}
    mirror(target, store)
    with closing(target.open("", ANY_SETTINGS)) as follower:
        assert follower.position() == boundaries(store)[-1]
        assert list(follow(follower, store)) == []
    assert_mirrored(kafka, identity, store)


@pytest.mark.parametrize("changes", [{}, {"sys_flag": 0xC0, "body": TWO_MESSAGES * 5}])
def test_a_write_in_many_transactions_stays_exactly_once(
    kafka: Kafka,
    tmp_path: Path,
    identity: str,
    monkeypatch: pytest.MonkeyPatch,
    changes: dict[str, Any],
) -> None:
    """It fails in the middle: what was committed is not sent again, the rest is. Also with inner
    batches, in which no transaction ends."""
    monkeypatch.setattr(reput.sinks.kafka.transactions, "TRANSACTION_BYTES", 5000)
    monkeypatch.setattr(reput.sinks.kafka.mirror, "SLICE_ROWS", 3)
    store = make_store(tmp_path / "store", 200, **changes)
    starts = boundaries(store)

    def failing() -> Iterator[pa.RecordBatch]:
        yield from rows(store, 0, starts[150])
        raise OSError("the log went away")

    with closing(mirror_target(kafka.bootstrap, identity).open("", ANY_SETTINGS)) as follower:
        assert follower.position() is None
        with pytest.raises(OSError, match="the log went away"):
            follower.write(0, starts[-1], failing())
        reached = follower.position()
        assert reached in starts[100:150]
        follower.write(reached, starts[-1], rows(store, reached, starts[-1]))
    assert_mirrored(kafka, identity, store)


def test_one_that_was_replaced_adds_nothing_and_does_not_come_back(
    kafka: Kafka, tmp_path: Path, identity: str
) -> None:
    """It is replaced within a transaction: what it had sent stays invisible, and it is told."""
    store = make_store(tmp_path / "store", 200)
    starts = boundaries(store)
    target = mirror_target(kafka.bootstrap, identity)
    old, new = (target.open("", ANY_SETTINGS) for _ in range(2))
    with closing(old), closing(new):
        assert old.position() is None
        old.write(0, starts[50], rows(store, 0, starts[50]))

        def overtaken() -> Iterator[pa.RecordBatch]:
            yield from rows(store, starts[50], starts[120])
            assert new.position() == starts[50]
            yield from rows(store, starts[120], starts[150])

        with pytest.raises(KafkaError):
            old.write(starts[50], starts[150], overtaken())
        for _ in range(2):
            with pytest.raises(OwnershipError, match="another process has begun to write to Kafka"):
                old.position()
        new.write(starts[50], starts[-1], rows(store, starts[50], starts[-1]))
        assert new.position() == starts[-1]
    assert_mirrored(kafka, identity, store)


def test_the_position_is_found_after_an_aborted_transaction(kafka: Kafka, identity: str) -> None:
    """However much of the position's topic it fills."""
    settings = KafkaSettings(kafka.bootstrap, identity)
    with closing(KafkaTransactions(settings, "", "test")) as first:
        assert first.recover() is None
        first.commit(4711)
        count = 1000
        positions = KafkaRecords.of(
            [(first.position_topic, 0)],
            np.zeros(count, np.int64),
            pa.array([b"position"] * count),
            pa.array([b'{"end": 1}'] * count),
            np.arange(count),
            np.zeros(count, np.int64),
        )
        first.send(positions)
        first.flush()
    with closing(KafkaTransactions(settings, "", "test")) as second:
        assert second.recover() == 4711
    with closing(KafkaAdminClient(bootstrap_servers=kafka.bootstrap)) as admin:
        assert topic_config(admin, second.position_topic, "cleanup.policy") == "compact"


@pytest.mark.extended
def test_the_brokers_going_away_and_coming_back(
    kafka: Kafka, tmp_path: Path, identity: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed within a transaction: errors while it is away, then everything arrives once."""
    monkeypatch.setattr(reput.sinks.kafka.transactions, "WAIT_SECONDS", 3.0)
    monkeypatch.setattr(reput.sinks.kafka.transactions, "_REQUEST_MS", 1000)
    store = make_store(tmp_path / "store", 200)
    starts = boundaries(store)

    def interrupted() -> Iterator[pa.RecordBatch]:
        yield from rows(store, starts[50], starts[100])
        kafka.kill()
        yield from rows(store, starts[100], starts[150])

    with closing(mirror_target(kafka.bootstrap, identity).open("", ANY_SETTINGS)) as follower:
        try:
            follower.position()
            follower.write(0, starts[50], rows(store, 0, starts[50]))
            with pytest.raises(KafkaError):
                follower.write(starts[50], starts[150], interrupted())
            with pytest.raises(KafkaError):
                follower.position()
        finally:
            kafka.kill()
            kafka.start()
        monkeypatch.undo()
        assert follower.position() == starts[50]
        follower.write(starts[50], starts[-1], rows(store, starts[50], starts[-1]))
    assert_mirrored(kafka, identity, store)


def test_a_message_that_is_too_large_stops_the_mirror_before_it(
    kafka: Kafka, tmp_path: Path, identity: str
) -> None:
    """By the option, and by a topic that has a limit of its own; with room it arrives."""
    store = tmp_path / "store"
    make_store(store, 10)
    make_store(store, 1, body=random.Random(1).randbytes(20_000))
    make_store(store, 10)
    starts = boundaries(store)
    place = f"physical offset {starts[10]} for topic {identity}.Alpha, 20000 bytes"
    small = mirror_target(kafka.bootstrap, identity, max_message_bytes=15_000)
    with closing(small.open("", ANY_SETTINGS)) as follower:
        follower.position()
        with pytest.raises(
            StoreError, match=rf"{place}.*`KafkaSettings.max_message_bytes=` .15000"
        ):
            follower.write(0, starts[-1], rows(store, 0, starts[-1]))
    with closing(mirror_target(kafka.bootstrap, identity).open("", ANY_SETTINGS)) as follower:
        assert follower.position() is None
        with pytest.raises(StoreError, match=f"{place}.*max.message.bytes of the topic"):
            follower.write(0, starts[-1], rows(store, 0, starts[-1]))
        with closing(KafkaAdminClient(bootstrap_servers=kafka.bootstrap)) as admin:
            assert topic_config(admin, f"{identity}.Alpha", "max.message.bytes") == "15000"
            changed = {"max.message.bytes": "100000"}
            admin.alter_configs([ConfigResource("topic", f"{identity}.Alpha", changed)])
        assert list(follow(follower, store)) == starts[-1:]
    assert_mirrored(kafka, identity, store)


def test_batches_that_a_topic_does_not_take_are_split(
    kafka: Kafka, tmp_path: Path, identity: str
) -> None:
    """Again and again, down to a few messages; each still arrives once, in its place."""
    store = make_store(tmp_path / "store", 300)
    mirror(mirror_target(kafka.bootstrap, identity, max_message_bytes=2000), store)
    assert_mirrored(kafka, identity, store)


def test_queues_that_come_later_and_damaged_bytes(
    kafka: Kafka, tmp_path: Path, identity: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Partitions are added; an absurd queue id shares one; a damaged range is left out."""
    monkeypatch.setattr(reput.sinks.kafka.mirror, "MAX_PARTITIONS", 8)
    store = make_store(tmp_path / "store", 30)
    make_store(store, 4, queue_id=7)
    make_store(store, 2, queue_id=1 << 30)
    log, _ = open_log(store)
    with closing(log):
        damaged = boundaries(store)[11]
        segment = log.segments.at(damaged)
        assert segment is not None
        with segment.path.open("r+b") as file:
            file.seek(damaged - segment.start + 4)
            file.write(b"XXXX")
    mirror(mirror_target(kafka.bootstrap, identity), store, 3)
    expected = wanted(store)
    assert sum(map(len, expected.values())) == 30 + 4 + 2 - 1
    for topic in ("Alpha", "Beta"):
        expected[topic, 0] += expected.pop((topic, 1 << 30))
    found = mirrored(kafka, identity, {"Alpha", "Beta"})
    assert found == expected
    assert len(kafka.read(f"{identity}.Alpha")) == 8


def grown_topic(below: Path) -> tuple[Path, list[int]]:
    """A store whose topic has further queues from its 21st message on, and where messages begin."""
    store = make_store(below / "store", 20)
    make_store(store, 6, queue_id=5)
    return store, boundaries(store)


def two_batches(store: Path, starts: list[int]) -> Iterator[pa.RecordBatch]:
    """The rows of that store; those with the further queues come in the second batch."""
    yield from rows(store, 0, starts[20])
    yield from rows(store, starts[20], starts[-1])


def test_a_topic_that_grows_within_a_transaction_loses_nothing(
    kafka: Kafka, tmp_path: Path, identity: str
) -> None:
    """One write, of rows in two batches, whose second has further queues: what was sent before is
    committed first, because a producer has to be made anew for them."""
    store, starts = grown_topic(tmp_path)
    with closing(mirror_target(kafka.bootstrap, identity).open("", ANY_SETTINGS)) as follower:
        assert follower.position() is None
        follower.write(0, starts[-1], two_batches(store, starts))
        assert follower.position() == starts[-1]
    assert_mirrored(kafka, identity, store)


def test_a_write_that_fails_after_a_topic_grew_leaves_nothing_out(
    kafka: Kafka, tmp_path: Path, identity: str
) -> None:
    """The position is before the rows for which the topic grew, as long as they are not sent."""
    store, starts = grown_topic(tmp_path)

    def failing() -> Iterator[pa.RecordBatch]:
        yield from two_batches(store, starts)
        raise OSError("the log went away")

    with closing(mirror_target(kafka.bootstrap, identity).open("", ANY_SETTINGS)) as follower:
        assert follower.position() is None
        with pytest.raises(OSError, match="the log went away"):
            follower.write(0, starts[-1], failing())
        assert follower.position() == starts[20]
        follower.write(starts[20], starts[-1], rows(store, starts[20], starts[-1]))
    assert_mirrored(kafka, identity, store)


def test_a_batch_that_expired_is_not_committed(
    kafka: Kafka, tmp_path: Path, identity: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """kafka-python gives up a batch after its delivery timeout and would commit the others."""
    store = make_store(tmp_path / "store", 20)
    end = boundaries(store)[-1]

    def is_late(batch: ProducerBatch, *_arguments: Any, **_more: Any) -> bool:
        return bool(batch.topic_partition.topic == f"{identity}.Alpha")

    with closing(mirror_target(kafka.bootstrap, identity).open("", ANY_SETTINGS)) as follower:
        assert follower.position() is None
        with monkeypatch.context() as patch:
            patch.setattr(ProducerBatch, "has_reached_delivery_timeout", is_late)
            with pytest.raises(KafkaError, match="Expiring"):
                follower.write(0, end, rows(store, 0, end))
        assert follower.position() is None
        follower.write(0, end, rows(store, 0, end))
    assert_mirrored(kafka, identity, store)


def test_a_position_that_another_program_wrote(kafka: Kafka, identity: str) -> None:
    """It is no position, and nothing goes to Kafka; under another name it does."""
    for number, value in enumerate((b"[" * 100_000, b"7", b'{"end": "7"}', b'{"offset": 7}')):
        name = f"{identity}-{number}"
        with closing(KafkaTransactions(KafkaSettings(kafka.bootstrap, name), "", "test")) as ours:
            assert ours.recover() is None
            topic = ours.position_topic
        with closing(KafkaProducer(bootstrap_servers=kafka.bootstrap)) as producer:
            producer.send(topic, value, b"key").get(60)
        settings = KafkaSettings(kafka.bootstrap, name)
        with (
            closing(KafkaTransactions(settings, "", "test")) as refused,
            pytest.raises(StoreError, match=f"topic {topic} on Kafka is no position: .*store_id="),
        ):
            refused.recover()
        settings = KafkaSettings(kafka.bootstrap, f"{name}-other")
        with closing(KafkaTransactions(settings, "", "test")) as other:
            assert other.recover() is None


def test_the_position_is_read_when_nobody_else_can_move_it(
    kafka: Kafka, identity: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The older writer commits once more while the newer one starts, before it is fenced."""
    settings = KafkaSettings(kafka.bootstrap, identity)
    with (
        closing(KafkaTransactions(settings, "", "test")) as older,
        closing(KafkaTransactions(settings, "", "test")) as newer,
    ):
        assert older.recover() is None
        older.commit(100)
        start = newer._start_producer

        def late() -> None:
            older.commit(200)
            start()

        monkeypatch.setattr(newer, "_start_producer", late)
        assert newer.recover() == 200
        with pytest.raises(KafkaError):
            older.commit(300)


def test_odd_properties_and_times_become_headers_and_timestamps(
    kafka: Kafka, tmp_path: Path, identity: str
) -> None:
    """A name of ours in a property, no key, an empty body, times that Kafka does not take."""
    block = properties.format_block({b"rocketmq.queueId": b"9", "ü".encode(): "中".encode()})
    store = make_store(tmp_path / "store", 1, properties=block, body=b"")
    make_store(store, 1, store_timestamp=-5)
    make_store(store, 1, store_timestamp=4_000_000_000_000)
    mirror(mirror_target(kafka.bootstrap, identity), store)
    plain, past, future = kafka.read(f"{identity}.Alpha")[0]
    assert (plain.key, plain.value) == (None, b"")
    headers = dict(plain.headers)
    assert headers["rocketmq.queueId"] == b"0"
    assert headers["rocketmq.property.rocketmq.queueId"] == b"9"
    assert headers["ü"] == "中".encode()
    assert (past.timestamp, dict(past.headers)["rocketmq.storeTimestamp"]) == (0, b"-5")
    assert future.timestamp == 4_000_000_000_000


def test_a_cut_log_moves_the_position_back(kafka: Kafka, tmp_path: Path, identity: str) -> None:
    """To the cut, and never forward."""
    store = make_store(tmp_path / "store", 20)
    starts = boundaries(store)
    with closing(mirror_target(kafka.bootstrap, identity).open("", ANY_SETTINGS)) as follower:
        assert list(follow(follower, store)) == starts[-1:]
        follower.truncate(starts[15])
        assert follower.position() == starts[15]
        follower.truncate(starts[18])
        assert follower.position() == starts[15]


def kill_rounds(kafka: Kafka, store: Path, identity: str, rounds: int, seed: int) -> None:
    """kill -9 at random moments; whenever a mirror is complete, it is checked and begun anew."""
    rng = random.Random(seed)
    generation = 0
    for _ in range(rounds):
        name = f"{identity}-{generation}"
        command = [*module_command("tests.interop.mirroring"), store, kafka.bootstrap]
        writes = rng.randint(0, 4)
        with ChildRun(store.with_name("log"), [*command, name, 40]) as child:
            child.wait_until(lambda: child.stdout.count("\n") >= writes or not child.is_alive)  # noqa: B023
            longest = 0.1 if writes else 1.0
            time.sleep(rng.random() * longest)  # the moment is random, not an event
        if "end" in child.stdout.splitlines():
            assert_mirrored(kafka, name, store)
            generation += 1
    name = f"{identity}-{generation}"
    mirror(mirror_target(kafka.bootstrap, name), store)
    assert_mirrored(kafka, name, store)


def test_killed_mirrors_end_with_every_message_once(
    kafka: Kafka, tmp_path: Path, identity: str, seed: int
) -> None:
    """Three rounds."""
    kill_rounds(kafka, make_store(tmp_path / "store", 600), identity, 3, seed)


@pytest.mark.slow
def test_a_hundred_killed_mirrors_end_with_every_message_once(
    kafka: Kafka, tmp_path: Path, identity: str, seed: int
) -> None:
    """A hundred."""
    kill_rounds(kafka, make_store(tmp_path / "store", 3000), identity, 100, seed)


def topic_config(admin: KafkaAdminClient, topic: str, name: str) -> str:
    """A setting of a topic."""
    found = admin.describe_configs([ConfigResource("topic", topic)])
    return str(found["topic"][topic][name]["value"])
