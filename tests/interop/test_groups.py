"""Lags of consumer groups beside a real broker's word, and beside a plain walk of its log."""

from __future__ import annotations

import random
import re
import shutil
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from reput.readers.consumer import ConsumeFromWhere, Consumer
from reput.readers.grouplag import CommittedOffsets, QueueLag, queue_lags
from reput.readers.messagestore import MessageStore
from reput.readers.offsetreset import Plan, change_offsets, clone, reset_to_time, skip
from reput.store.log.record import Record
from reput.store.state.consumeroffset import read_committed
from tests.interop.rocketmq import (
    OLD_CLIENT,
    ONE_RELEASE,
    Broker,
    GroupOffsets,
    commit,
    drain,
    mqadmin,
    require_maven,
    send,
)
from tests.readers.stores import SmallStore
from tests.support.golden import log_records
from tests.support.remoting import Client, heartbeat, served

TOPIC = "Trade"
QUEUES = 3
MESSAGES = 240
COMMITTED = {"front": {0: 7, 1: 33, 2: 1}, "one-queue": {1: 20}}
"""Messages that each group consumes, by queue."""
_PROGRESS = re.compile(rf"^{TOPIC} +\S+ +(\d+) +(\d+) +(\d+) +(-?\d+) ", re.M)
"""Queue, broker offset, consumer offset, diff."""


@dataclass
class Consumed:
    """A store, and what its broker said of the groups before it stopped."""

    store: Path
    stats: dict[str, dict[str, GroupOffsets]] = field(default_factory=dict)
    progress: dict[str, list[tuple[int, ...]]] = field(default_factory=dict)
    """(queue, broker offset, consumer offset, diff)."""


@pytest.fixture(scope="module")
def consumed(release: str, tmp_path_factory: pytest.TempPathFactory) -> Consumed:
    """A stopped broker's store with two groups, each of which read to another place."""
    found = Consumed(tmp_path_factory.mktemp(release))
    with Broker(found.store, {TOPIC: QUEUES}) as broker:
        sent = send(broker.namesrv, TOPIC, MESSAGES, 15)
        drain(broker.namesrv, TOPIC, at_least=sent["visible"])
        for group, counts in COMMITTED.items():
            found.stats[group] = commit(broker.namesrv, TOPIC, group, counts)
            printed = mqadmin(broker.namesrv, "consumerProgress", "-g", group, "-t", TOPIC)
            found.progress[group] = [tuple(map(int, row)) for row in _PROGRESS.findall(printed)]
    return found


@pytest.mark.extended
@ONE_RELEASE
def test_lags_of_a_brokers_groups(consumed: Consumed) -> None:
    """Offsets and differences as GET_CONSUME_STATS and mqadmin say, bytes and times as the log."""
    now_ms = time.time_ns() // 1_000_000
    records = log_records(consumed.store)
    with MessageStore(consumed.store) as store:
        found = list(queue_lags(store, CommittedOffsets.read(consumed.store), now_ms))
    for group, counts in COMMITTED.items():
        ours = [one for one in found if one.group == group and one.topic == TOPIC]
        assert {one.queue_id: one.committed for one in ours} == {
            queue_id: counts.get(queue_id) for queue_id in range(QUEUES)
        }
        expected = [(one.queue_id, one.max_offset, one.committed or 0, diff(one)) for one in ours]
        assert sorted(consumed.progress[group]) == expected
        for one in ours:
            offsets = consumed.stats[group][f"{TOPIC}:{one.queue_id}"]
            assert offsets == {"broker": one.max_offset, "committed": one.committed or 0}
            assert_is_of_the_log(one, records, now_ms)


@ONE_RELEASE
def test_offsets_are_moved_as_mqadmin_moves_them(consumed: Consumed, tmp_path: Path) -> None:
    """By time and past everything; and a broker goes on from what we wrote for a cloned group, and
    from where a member in Python was."""
    store = tmp_path / "theirs"
    shutil.copytree(consumed.store, store)
    times = sorted(record.store_timestamp for record in log_records(store))
    middle = times[len(times) // 2]
    ours = tmp_path / "ours"
    with Consumer(
        store, "member", {TOPIC: None}, from_where=ConsumeFromWhere.FIRST_OFFSET
    ) as member:
        member.poll(max_count=50)
        member.commit()
        positions = {f"{TOPIC}:{queue.queue_id}": n for queue, n in member.positions.items()}
    assert sum(positions.values()) == 50
    with MessageStore(store) as opened:
        change_offsets(store, None, lambda o: clone(o, "front", "ours", None), apply=True)
        shutil.copytree(store, ours)
        plans: list[Plan] = [
            lambda o: reset_to_time(opened, o, "front", TOPIC, middle),
            lambda o: skip(opened, o, "one-queue", [TOPIC]),
        ]
        for plan in plans:
            change_offsets(ours, None, plan, apply=True)
    with Broker(store) as broker:
        stats = commit(broker.namesrv, TOPIC, "member", {})
        assert {key: offsets["committed"] for key, offsets in stats.items()} == positions
        stats = commit(broker.namesrv, TOPIC, "ours", {})
        assert {key: offsets["committed"] for key, offsets in stats.items()} == {
            f"{TOPIC}:{queue_id}": offset for queue_id, offset in COMMITTED["front"].items()
        }
        for command in (
            ("resetOffsetByTime", "-g", "front", "-s", str(middle)),
            ("skipAccumulatedMessage", "-g", "one-queue"),
        ):
            mqadmin(broker.namesrv, *command, "-t", TOPIC)
    assert in_trade(ours) == in_trade(store)
    assert set(in_trade(ours)) == {"front", "one-queue", "ours", "member"}


def in_trade(root: Path) -> dict[str, dict[int, int]]:
    """Offsets by group."""
    offsets = read_committed(root) or {}
    return {key.group: found for key, found in offsets.items() if key.topic == TOPIC}


def diff(one: QueueLag) -> int:
    """mqadmin's; it takes a group that has committed nothing for one that begins at 0."""
    return one.max_offset - (one.committed or 0)


def assert_is_of_the_log(one: QueueLag, records: list[Record], now_ms: int) -> None:
    """Every record of the queue from the committed offset on, found by a walk of the log."""
    if one.committed is None:
        assert (one.lag.messages, one.lag.bytes, one.lag.seconds) == (None, None, None)
        return
    queue = defaultdict[int, list[Record]](list)
    for record in records:
        if record.topic.decode() == one.topic and record.queue_id == one.queue_id:
            queue[record.queue_offset].append(record)
    # prepared and rolled back messages are in no queue and have no offset of their own
    waiting = [found[-1] for offset, found in sorted(queue.items()) if offset >= one.committed]
    assert one.lag.messages == len(waiting) > 0
    assert one.lag.bytes == sum(record.total_size for record in waiting)
    assert one.lag.first_store_timestamp == waiting[0].store_timestamp
    assert one.lag.seconds == pytest.approx((now_ms - waiting[0].store_timestamp) / 1000)


def test_mqadmin_lists_the_groups_of_a_store_without_retry_topics(
    tmp_path: Path, seed: int
) -> None:
    """A group that is known by its offsets alone, and one that has only a member: mqadmin looks for
    their retry topics among all topics."""
    require_maven()
    small = SmallStore(tmp_path / "store")
    count = random.Random(seed).randrange(5, 20)
    for _ in range(count):
        small.append()
    place = {"consumerGroup": "committing", "topic": "Topic", "queueId": 0, "commitOffset": 3}
    with served(small.write()) as port, Client(port) as client:
        assert client.ask(15, place).code == 0
        assert client.ask(34, {}, heartbeat("a", "waiting", "Topic")).code == 0
        for release in ("", OLD_CLIENT):
            printed = mqadmin(f"127.0.0.1:{port}", "consumerProgress", client=release)
            rows = {row[0]: row[1:] for row in map(str.split, printed.splitlines()) if row}
            # its members, and what it has still to consume, at the end
            assert (rows["committing"][0], rows["committing"][-1]) == ("0", str(count - 3)), printed
            assert rows["waiting"][0] == "1", printed
