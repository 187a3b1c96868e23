"""Positions on a real Kafka that other programs hide, remove or replace: no message comes twice."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from kafka import IsolationLevel, KafkaAdminClient, KafkaProducer, TopicPartition
from kafka.admin import ConfigResource, OffsetSpec

from reput.checkpoints.followers import follower_file
from reput.sinks.kafka import transactions
from reput.sinks.kafka.topics import TopicNames
from reput.sinks.kafka.transactions import KafkaSettings, KafkaTransactions
from reput.store.errors import OwnershipError, StoreError
from reput.streaming import followers
from tests.interop.kafka import Kafka
from tests.interop.mirroring import boundaries, mirror_target, rows
from tests.interop.test_kafka import assert_mirrored, grown_topic, make_store
from tests.support.following import follow
from tests.support.processes import became
from tests.support.settings import ANY_SETTINGS

POSITION = b"position"
LONGEST_SECONDS = 60.0


@pytest.fixture
def identity() -> str:
    """A name on Kafka that no other test has."""
    return f"positions-{os.urandom(4).hex()}"


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A follower tries again at once."""
    monkeypatch.setattr(followers, "FIRST_RETRY_SECONDS", 0.0)


@pytest.fixture
def admin(kafka: Kafka) -> Iterator[KafkaAdminClient]:
    """A client that may do anything."""
    with closing(KafkaAdminClient(bootstrap_servers=kafka.bootstrap)) as opened:
        yield opened


def opened(kafka: Kafka, identity: str) -> KafkaTransactions:
    """Transactions of a process that has just started."""
    return KafkaTransactions(KafkaSettings(kafka.bootstrap, identity), "", "test")


def commit(kafka: Kafka, identity: str, *ends: int) -> str:
    """Commit positions, and end; the topic of the positions."""
    with closing(opened(kafka, identity)) as ours:
        ours.recover()
        for end in ends:
            ours.commit(end)
        return ours.position_topic


def recovered(kafka: Kafka, identity: str) -> int | None:
    """The position that a process finds when it starts."""
    with closing(opened(kafka, identity)) as ours:
        return ours.recover()


@contextmanager
def foreign_transaction(kafka: Kafka, topic: str) -> Iterator[KafkaProducer]:
    """One of another program, open in a topic."""
    settings = {"bootstrap_servers": kafka.bootstrap, "transactional_id": f"foreign-{topic}"}
    with closing(KafkaProducer(**settings)) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, key=b"foreign", value=b"?").get()
        yield producer


@pytest.mark.parametrize("first", [True, False])
def test_a_position_that_an_open_transaction_hides_is_waited_for(
    kafka: Kafka, identity: str, first: bool
) -> None:
    """The newest, or all of them; it is found as soon as that transaction has ended."""
    with closing(opened(kafka, identity)) as ours:
        ours.recover()
        topic = ours.position_topic
        if not first:
            ours.commit(4711)
        with foreign_transaction(kafka, topic) as foreign:
            ours.commit(4712)
            with pytest.raises(StoreError, match=f"transaction is open in topic {topic} on Kafka"):
                recovered(kafka, identity)
            foreign.abort_transaction()
    assert recovered(kafka, identity) == 4712


def test_an_open_transaction_that_hides_no_position_yet_is_waited_for(
    kafka: Kafka, identity: str
) -> None:
    """It would hide the first position that is written after its only record."""
    with closing(opened(kafka, identity)) as ours:
        ours.recover()
        ours.commit(4711)
        topic = ours.position_topic
    with foreign_transaction(kafka, topic) as foreign:
        with pytest.raises(StoreError, match=f"transaction is open in topic {topic} on Kafka"):
            recovered(kafka, identity)
        foreign.abort_transaction()
    assert recovered(kafka, identity) == 4711


def remove_records(admin: KafkaAdminClient, topic: str) -> None:
    """As a retention would."""
    configs = ConfigResource("topic", topic, {"cleanup.policy": "compact,delete"})
    admin.alter_configs([configs])
    admin.delete_records({TopicPartition(topic, 0): -1})


def test_a_position_that_was_removed_is_refused(
    kafka: Kafka, identity: str, admin: KafkaAdminClient
) -> None:
    """Its topic had records, and has none; once deleted on purpose, it begins anew."""
    topic = commit(kafka, identity, 4711)
    remove_records(admin, topic)
    for _ in range(2):
        with pytest.raises(StoreError, match=f"the position is gone from topic {topic}"):
            recovered(kafka, identity)
    admin.delete_topics([topic])
    assert recovered(kafka, identity) is None


@pytest.mark.parametrize("value", [None, b"", b"4711"])
def test_what_another_program_wrote_is_no_position(
    kafka: Kafka, identity: str, value: bytes | None
) -> None:
    """One is a record that compaction takes for a deletion."""
    topic = commit(kafka, identity, 4711)
    with closing(KafkaProducer(bootstrap_servers=kafka.bootstrap)) as producer:
        producer.send(topic, key=POSITION, value=value).get()
    with pytest.raises(StoreError, match=f"the last record of topic {topic} on Kafka is no posit"):
        recovered(kafka, identity)


def test_a_running_writer_that_lost_its_topic_was_not_replaced(
    kafka: Kafka, identity: str, admin: KafkaAdminClient
) -> None:
    """It finds that there is no position, and blames no other process."""
    with closing(opened(kafka, identity)) as ours:
        assert ours.recover() is None
        ours.commit(4711)
        admin.delete_topics([ours.position_topic])
        assert ours.recover() is None


def delete(admin: KafkaAdminClient, topic: str) -> None:
    """Delete a topic."""
    admin.delete_topics([topic])


def make_anew(admin: KafkaAdminClient, topic: str) -> None:
    """Delete a topic, and create an empty one."""
    admin.delete_topics([topic])
    admin.create_topics({topic: {"num_partitions": 1}})


@pytest.mark.parametrize("lose", [delete, make_anew])
def test_a_topic_of_positions_that_was_deleted_is_refused(
    kafka: Kafka,
    tmp_path: Path,
    identity: str,
    admin: KafkaAdminClient,
    lose: Callable[[KafkaAdminClient, str], None],
) -> None:
    """Nothing is sent; with the mirrored topics and the follower's file gone, all comes anew."""
    store, output = make_store(tmp_path / "store", 20), tmp_path / "output"
    target, end = mirror_target(kafka.bootstrap, identity), boundaries(store)[-1]
    follow(store, output, target, [end])
    topic = f"reput-position-kafka-{identity}"
    assert topic in kafka.topics()
    lose(admin, topic)
    for _ in range(2):
        with pytest.raises(StoreError, match=f"held messages up to physical offset {end}"):
            follow(store, output, target, [end])
        assert_mirrored(kafka, identity, store)
    names = TopicNames(f"{identity}.{{topic}}")
    admin.delete_topics([topic, *(names.of(name) for name in ("Alpha", "Beta"))])
    follower_file(output / "reput", target.name).unlink()
    follow(store, output, target, [end])
    assert_mirrored(kafka, identity, store)


def test_a_mirrored_topic_that_was_deleted_is_made_anew(
    kafka: Kafka,
    tmp_path: Path,
    identity: str,
    admin: KafkaAdminClient,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While the mirror runs: what was deleted stays away, all that follows comes once."""
    monkeypatch.setattr(transactions, "WAIT_SECONDS", 2.0)
    monkeypatch.setattr(transactions, "_REQUEST_MS", 1000)
    store, output = make_store(tmp_path / "store", 20), tmp_path / "output"
    ends = boundaries(store)
    deleted = TopicNames(f"{identity}.{{topic}}").of("Alpha")
    target = mirror_target(kafka.bootstrap, identity)
    follow(store, output, target, [ends[10]])
    admin.delete_topics([deleted])
    follow(store, output, target, [ends[10], ends[-1]])
    numbers = sorted(
        int(record.value[:6]) for records in kafka.read(deleted).values() for record in records
    )
    assert numbers == list(range(10, 20, 2))


REPLACED = "another process has begun to write to Kafka"


def test_one_that_was_replaced_does_not_come_back_where_a_topic_grew(
    kafka: Kafka, tmp_path: Path, identity: str
) -> None:
    """It needs another producer for further queues; the newer one goes on as if nothing were."""
    store, starts = grown_topic(tmp_path)
    target = mirror_target(kafka.bootstrap, identity)
    older, newer = (target.open("", ANY_SETTINGS) for _ in range(2))
    with closing(older), closing(newer):
        assert older.position() is None
        older.write(0, starts[20], rows(store, 0, starts[20]))
        assert newer.position() == starts[20]
        newer.write(starts[20], starts[23], rows(store, starts[20], starts[23]))
        with pytest.raises(OwnershipError, match=REPLACED):
            older.write(starts[20], starts[-1], rows(store, starts[20], starts[-1]))
        newer.write(starts[23], starts[-1], rows(store, starts[23], starts[-1]))
    assert_mirrored(kafka, identity, store)


def test_one_that_is_replaced_while_a_topic_grows_adds_nothing(
    kafka: Kafka, identity: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newer one begins right before the older one has its other producer."""
    topic = f"{identity}-grown"
    with closing(opened(kafka, identity)) as older, closing(opened(kafka, identity)) as newer:
        assert older.recover() is None
        older.add_partitions({topic: 1})
        start = older._start_producer

        def late() -> None:
            assert newer.recover() is None
            newer.commit(200)
            start()

        monkeypatch.setattr(older, "_start_producer", late)
        with pytest.raises(OwnershipError, match=REPLACED):
            older.add_partitions({topic: 2})
        assert newer.recover() == 200


@pytest.mark.slow
def test_the_position_is_found_after_compaction(
    kafka: Kafka, identity: str, admin: KafkaAdminClient
) -> None:
    """Compaction takes all committed positions but the last, and all aborted ones."""
    topic = commit(kafka, identity, 1)
    settings = {
        "segment.ms": 100, "min.cleanable.dirty.ratio": 0.0, "delete.retention.ms": 0,
        "max.compaction.lag.ms": 1,
    }  # fmt: skip
    admin.alter_configs([ConfigResource("topic", topic, settings)])
    count = 0

    def compacted() -> bool:
        nonlocal count
        count += 1
        commit(kafka, identity, *range(10 * count, 10 * count + 9))
        assert recovered(kafka, identity) == 10 * count + 8
        found = next(iter(kafka.read(topic).values()))
        return len(found) < 10 * count

    assert became(compacted, LONGEST_SECONDS)
    place = TopicPartition(topic, 0)
    end = admin.list_partition_offsets({place: OffsetSpec.LATEST}, IsolationLevel.READ_COMMITTED)
    assert end[place].offset > 10 * count
