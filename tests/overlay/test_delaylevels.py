"""Deliveries of a broker that went on in an overlay, which the order of its levels tells."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from reput.overlay.delivery.waiting import WaitingRecords
from reput.store.log import properties
from reput.store.log.record import Record

DELAYS = (1000, 5000)
SCHEDULE, TIMER, RETRIES = b"SCHEDULE_TOPIC_XXXX", b"rmq_sys_wheel_timer", b"%RETRY%group"
NOW = 1_700_000_000_000
SIZE = 100
"""Bytes of each record."""


class Log:
    """A log as two kinds of writers append to it, and what of it is taken in."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.waiting = WaitingRecords(DELAYS)
        self.queues: dict[int, list[Record]] = {1: [], 2: []}
        """By level."""

    def append(self, record: Record) -> Record:
        placed = replace(record, physical_offset=SIZE * len(self.records))
        self.records.append(placed)
        self.waiting.note(placed)
        return placed

    def wait(self, level: int, key: str, now: int = NOW, topic: bytes = RETRIES) -> None:
        values = {b"REAL_TOPIC": topic, b"REAL_QID": b"0", b"DELAY": b"%d" % level}
        values[b"UNIQ_KEY"] = key.encode()
        queue = self.queues[level]
        record = Record(
            topic=SCHEDULE, queue_id=level - 1, queue_offset=len(queue), store_timestamp=now,
            properties=properties.format_block(values), property_map=values,
        )  # fmt: skip
        queue.append(self.append(record))

    def deliver(self, waiting: Record, now: int, *, by_broker: bool) -> None:
        """A delivery, which names its source unless it is a broker's."""
        self.append(
            replace(
                waiting, topic=waiting.property_map[b"REAL_TOPIC"], queue_id=0, queue_offset=0,
                store_timestamp=now,
                prepared_transaction_offset=0 if by_broker else waiting.physical_offset + 1,
            )
        )  # fmt: skip

    def left(self) -> set[int]:
        """The physical offsets of all that waits."""
        return {place.physical_offset for place in self.waiting.due(NOW * 2)}


@pytest.mark.parametrize("case", range(20))
def test_a_broker_and_an_overlay_take_turns(seed: int, case: int) -> None:
    """Each goes on with the next message of a level, and a broker that was killed repeats some."""
    rng, log, now = random.Random(f"{seed}:{case}"), Log(), NOW
    next_offsets, begins = {1: 0, 2: 0}, {1: 0, 2: 0}
    for number in range(150):
        level, is_brokers = rng.choice((1, 2)), rng.random() < 0.5
        now += rng.choice((0, 400, 6000))
        queue, position = log.queues[level], next_offsets[level]
        if rng.random() < 0.5:
            log.wait(level, f"K{number}", now, rng.choice((RETRIES, b"%RETRY%other")))
        elif position < len(queue) and queue[position].store_timestamp + DELAYS[level - 1] <= now:
            if is_brokers and rng.random() < 0.2:
                for again in queue[begins[level] : position]:
                    log.deliver(again, now, by_broker=True)
            log.deliver(queue[position], now, by_broker=is_brokers)
            begins[level] = position if is_brokers else position + 1
            next_offsets[level] += 1
        expected = {at: offset for at, offset in next_offsets.items() if log.queues[at]}
        if rng.random() < 0.3:
            assert log.waiting.next_offsets().levels == expected
        assert len(log.waiting) == sum(len(log.queues[at]) - next_offsets[at] for at in (1, 2))
    assert log.left() == {
        one.physical_offset for at, queue in log.queues.items() for one in queue[next_offsets[at] :]
    }


def test_what_a_broker_passed_over_is_over() -> None:
    """It delivers in the order of the queue, so that nothing before a delivery waits."""
    log = Log()
    for key in "abc":
        log.wait(1, key)
    log.deliver(log.queues[1][1], NOW + 1000, by_broker=True)
    assert log.left() == {log.queues[1][2].physical_offset}
    assert log.waiting.next_offsets().levels == {1: 2}


def test_equal_messages_are_told_apart() -> None:
    """Two groups failed the same message; of two equal retries the second is not due yet, and the
    first one's delivery is repeated."""
    log = Log()
    log.wait(1, "a", topic=b"%RETRY%other")
    log.wait(1, "a")
    log.wait(1, "a", NOW + 60_000)
    log.deliver(log.queues[1][0], NOW + 1000, by_broker=True)
    assert log.waiting.next_offsets().levels == {1: 1}
    for _ in range(2):
        log.deliver(log.queues[1][1], NOW + 1000, by_broker=True)
    assert log.waiting.next_offsets().levels == {1: 2}


def test_messages_of_clients_deliver_nothing() -> None:
    """A client sends what it has consumed once more, or anything with the same properties."""
    log = Log()
    log.wait(1, "a")
    (waiting,) = log.queues[1]
    values = dict(waiting.property_map)
    for changed in ({b"DELAY": b"0"}, {b"REAL_TOPIC": b"Topic"}, {b"UNIQ_KEY": b"b"}):
        log.append(
            replace(
                waiting, topic=RETRIES, store_timestamp=NOW + 1000,
                property_map={**values, **changed},
            )
        )  # fmt: skip
    assert len(log.waiting) == 1


def test_timer_messages_of_a_broker() -> None:
    """Each delivery takes one of two equal messages away."""
    log = Log()
    values = {b"REAL_TOPIC": RETRIES, b"UNIQ_KEY": b"k", b"TIMER_OUT_MS": b"%d" % NOW}
    assert log.waiting.next_offsets().timers is None
    for number in range(2):
        log.append(Record(topic=TIMER, property_map=values, queue_offset=number))
    for left in (1, 0, 0):
        assert log.waiting.next_offsets().timers == 2 - len(log.waiting)
        delivered = {**values, b"TIMER_DEQUEUE_MS": b"%d" % (NOW + 1000)}
        log.append(Record(topic=RETRIES, property_map=delivered))
        assert len(log.waiting) == left
