"""The arrivals on a real Kafka, beside what RocketMQ tells its message-arriving listener."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from reput.sinks.kafka.mirror import KafkaArrivalsTarget
from reput.sinks.kafka.topics import TopicNames, TopicSelection
from reput.sinks.kafka.transactions import KafkaSettings
from reput.store.log import java, properties
from reput.store.log.record import Record
from reput.store.log.systemtopics import is_system_topic
from reput.streaming.config import DispatcherConfig
from reput.streaming.dispatcher import run_dispatcher
from tests.interop.kafka import Kafka
from tests.interop.mirroring import found_in, mirror_target
from tests.interop.rocketmq import NEWEST, PARITY, ask_store
from tests.interop.test_kafka import identity, mirrored, wanted

__all__ = ["identity"]


def notices(kafka: Kafka, topic: str) -> dict[str, list[dict[str, object]]]:
    """The notices in the topic of arrivals, by key."""
    found: dict[str, list[dict[str, object]]] = {}
    for records in kafka.read(topic).values():
        for record in records:
            found.setdefault(record.key.decode(), []).append(json.loads(record.value))
    return found


def expected_notices(store: Path, theirs: Path) -> dict[str, list[dict[str, object]]]:
    """The notices that RocketMQ's store gives its listener as it dispatches the same log, by key.

    It tells of prepared and rolled back messages too, which are in no queue: those are left out.
    """
    for part in ("commitlog", "config"):
        shutil.copytree(store / part, theirs / part)
    shutil.copy(store / "broker.conf", theirs)
    (answer,), _ = ask_store(theirs, ["arrivals"])
    in_no_queue = []
    for item in found_in(store):
        if isinstance(item, Record) and not item.dispatched_to_queue:
            lists = (
                item.property_map.get(name, b"").split(b",")
                for name in (properties.INNER_MULTI_DISPATCH, properties.INNER_MULTI_QUEUE_OFFSET)
            )
            light = [(name, 0, int(at)) for name, at in zip(*lists, strict=True) if name]
            for topic, queue_id, at in [(item.topic, item.queue_id, item.queue_offset), *light]:
                in_no_queue.append((java.decode(topic), queue_id, at + 1, item.store_timestamp))
    found: dict[str, list[dict[str, object]]] = {}
    for notice in json.loads(answer):
        names = ("topic", "queueId", "maxOffset", "storeTimestamp")
        place = tuple(notice[name] for name in names)
        if place in in_no_queue:
            in_no_queue.remove(place)
        elif not is_system_topic(notice["topic"]):
            found.setdefault(f"{notice['topic']}-{notice['queueId']}", []).append(notice)
    return found


@pytest.mark.extended
@pytest.mark.usefixtures("spark", "release")
@pytest.mark.parametrize(
    ("release", "name"),
    [(PARITY, "mixed"), (PARITY, "lmq"), (NEWEST, "queues-5.5.1")],
    indirect=["release"],
    scope="module",
)
def test_arrivals_and_a_mirror_follow_the_dispatcher(
    kafka: Kafka, golden: Callable[[str], Path], tmp_path: Path, identity: str, name: str
) -> None:
    """One run feeds both; the notices say what RocketMQ's listener gets, in each queue's order;
    a second run adds nothing. Messages of ``lmq`` are in light queues as well."""
    store, topic = golden(name), f"{identity}.arrivals"
    settings = KafkaSettings(kafka.bootstrap, identity)
    followers = (
        mirror_target(kafka.bootstrap, identity),
        KafkaArrivalsTarget(settings, TopicSelection(), topic),
    )
    config = DispatcherConfig(store, tmp_path / "output", once=True, followers=followers)
    for _ in range(2):
        run_dispatcher(config, threading.Event())
    assert notices(kafka, topic) == expected_notices(store, tmp_path / "theirs")
    names = TopicNames(f"{identity}.{{topic}}")
    topics = {name for name, _ in wanted(store)}
    assert mirrored(kafka, identity, topics) == wanted(store)
    assert all(names.of(name) in kafka.topics() for name in topics)
