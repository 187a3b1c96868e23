"""The records that wait, against a plain reading of the whole log at each question."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import Any

import pytest

from reput.overlay.delivery.waiting import FailedCopy, WaitingRecords
from reput.overlay.records.sources import Source
from reput.store.log import properties
from reput.store.log.record import Record

DELAYS = (1000, 5000, 10_000)
SCHEDULE, TIMER = b"SCHEDULE_TOPIC_XXXX", b"rmq_sys_wheel_timer"
GROUPS = (b"one", b"two")
COPIES = (-53, -52, -51, 51, 52, 53)
"""Sources of what groups send back; no record that waits is there."""


class Log:
    """Records as they lie in a log, and what they say, read from the first to the last."""

    def __init__(self) -> None:
        self.records: list[Record] = []

    def append(self, topic: bytes, now: int, source: int, queue_id: int, **values: str) -> Record:
        """A record at the end; each has 100 bytes."""
        text = "".join(f"{name}\x01{value}\x02" for name, value in values.items()).encode()
        record = Record(
            topic=topic, properties=text, queue_id=queue_id, store_timestamp=now,
            physical_offset=100 * len(self.records), prepared_transaction_offset=source,
            property_map=properties.parse(text),
        )  # fmt: skip
        self.records.append(record)
        return record

    def waiting(self) -> list[Record]:
        """Return the records that no record names, and that no recall took away."""
        made = {record.prepared_transaction_offset - 1 for record in self.records}
        taken: set[int] = set()
        for number, record in enumerate(self.records):
            recalled = record.property_map.get(b"TIMER_DEL_UNIQKEY")
            if recalled is None:
                continue
            taken.add(record.physical_offset)
            names = recalled.decode().split("+")[-1], record.property_map[b"TIMER_OUT_MS"]
            taken |= {
                one.physical_offset
                for one in self.records[:number]
                if one.topic == TIMER
                and b"TIMER_DEL_UNIQKEY" not in one.property_map
                and (one.property_map[b"UNIQ_KEY"].decode(), one.property_map[b"TIMER_OUT_MS"])
                == names
            }
        return [
            record
            for record in self.records
            if record.topic in (SCHEDULE, TIMER) and record.physical_offset not in made | taken
        ]

    def due(self, now: int, before: set[int]) -> set[int]:
        """The places of records that are due: the head of a level keeps the rest waiting, and a
        timer that was due ``before`` stays so when the clock goes back."""
        found = set()
        for level, delay in enumerate(DELAYS):
            for record in self.waiting():
                if (record.topic, record.queue_id) == (SCHEDULE, level):
                    due = record.store_timestamp + delay
                    if now < due <= now + delay:
                        break
                    found.add(record.physical_offset)
        timers = (record for record in self.waiting() if record.topic == TIMER)
        return found | {
            record.physical_offset
            for record in timers
            if int(record.property_map[b"TIMER_OUT_MS"]) + 1000 <= now
            or record.physical_offset in before
        }

    def soon(self, until: int, due: set[int]) -> set[int]:
        """The places of records that are due until then, of timers without those in ``due``."""
        waiting = {record.physical_offset for record in self.waiting()}
        found = set()
        for record in self.records:
            out = int(record.property_map.get(b"TIMER_OUT_MS", b"0")) + 1000
            if record.topic == TIMER and out <= until and record.physical_offset not in due:
                found.add(record.physical_offset)
        for level, delay in enumerate(DELAYS):
            for record in self.records:
                is_of_level = (record.topic, record.queue_id) == (SCHEDULE, level)
                if not is_of_level or record.physical_offset not in waiting:
                    continue
                if record.store_timestamp + delay > until:
                    break
                found.add(record.physical_offset)
        return found & waiting

    def ended(self) -> set[tuple[bytes, int]]:
        """(group, source) of every copy whose successor waits or is dead."""
        found = {
            (record.property_map[b"REAL_TOPIC"].removeprefix(b"%RETRY%"), record.source)
            for record in map(Sourced, self.waiting())
            if record.source and record.property_map.get(b"REAL_TOPIC", b"").startswith(b"%RETRY%")
        }
        return found | {
            (record.topic.removeprefix(b"%DLQ%"), record.source)
            for record in map(Sourced, self.records)
            if record.topic.startswith(b"%DLQ%") and record.source
        }


class Sourced:
    """A record, with the field that names its source."""

    def __init__(self, record: Record) -> None:
        self.topic, self.property_map = record.topic, record.property_map
        self.source = record.prepared_transaction_offset


@pytest.mark.parametrize("case", range(30))
def test_what_waits_is_what_the_log_says(seed: int, case: int) -> None:
    """Failures, deliveries, dead letters, timers and recalls, a clock that goes back, and restarts,
    at which the log is read anew, or a snapshot."""
    rng, log, waiting = random.Random(f"{seed}:{case}"), Log(), WaitingRecords(DELAYS)
    now, before = 1_700_000_000_000, set[int]()
    for _ in range(120):
        now += rng.choice((0, 300, 300, 2000, -15_000))
        record = _step(rng, log, waiting, now)
        if record is not None:
            waiting.note(record)
        if rng.random() < 0.05:
            waiting, before = WaitingRecords(DELAYS), set()
            for one in log.records:
                waiting.note(one)
        elif rng.random() < 0.05:
            # a start from a snapshot
            state = json.loads(json.dumps(state_of(waiting)))
            waiting, before = WaitingRecords(DELAYS), set()
            waiting.restore(state)
            assert in_order(state_of(waiting)) == in_order(state)
        places = [source.physical_offset for source in waiting.due(now)]
        assert len(places) == len(set(places))
        assert set(places) == log.due(now, before)
        before = set(places)
        until = now + rng.choice((0, 500, 2500, 20_000))
        soon = [source.physical_offset for source in waiting.soon(until)]
        assert len(soon) == len(set(soon))
        assert set(soon) == log.soon(until, before)
        assert len(waiting) == len(log.waiting())
        ended = log.ended()
        for group in GROUPS:
            for place in COPIES:
                assert waiting.has_ended(_copy(group, place)) == ((group, place) in ended)
        assert waiting.next_due() is not None or not log.waiting()


def state_of(waiting: WaitingRecords) -> dict[str, Any]:
    """Return what a snapshot has of it."""
    make_state = waiting.frozen()
    assert make_state is not None
    return make_state()


def in_order(state: dict[str, Any]) -> dict[str, Any]:
    return {name: sorted(part) if isinstance(part, list) else part for name, part in state.items()}


def _step(rng: random.Random, log: Log, waiting: WaitingRecords, now: int) -> Record | None:
    """Something that happens, as a record; None where nothing can."""
    group, copy = rng.choice(GROUPS).decode(), rng.choice(COPIES)
    key, out = f"K{rng.randrange(3)}", now // 1000 * 1000 + rng.choice((0, 3000))
    kind = rng.choice(("level", "level", "timer", "recall", "dead", "deliver", "deliver", "other"))
    if kind == "level":
        level = rng.randrange(len(DELAYS))
        real = rng.choice((f"%RETRY%{group}", "Topic"))
        if real != "Topic" and waiting.has_ended(_copy(group.encode(), copy)):
            return None
        source = copy if real != "Topic" else 0
        return log.append(SCHEDULE, now, source, level, REAL_TOPIC=real, DELAY=str(level + 1))
    if kind == "timer":
        return log.append(TIMER, now, 0, 0, UNIQ_KEY=key, TIMER_OUT_MS=str(out), REAL_TOPIC="T")
    if kind == "recall":
        timers = [record for record in log.records if record.topic == TIMER]
        if not timers:
            return None
        values = rng.choice(timers).property_map
        key = values[b"UNIQ_KEY"].decode()
        recalled = rng.choice((key, f"Topic+{key}"))
        time = values[b"TIMER_OUT_MS"].decode()
        return log.append(
            TIMER, now, 0, 0, UNIQ_KEY=key, TIMER_OUT_MS=time, TIMER_DEL_UNIQKEY=recalled
        )
    if kind == "dead":
        if waiting.has_ended(_copy(group.encode(), copy)):
            return None
        return log.append(f"%DLQ%{group}".encode(), now, copy, 0)
    if kind == "deliver":
        due = waiting.due(now)
        if not due:
            return None
        source = rng.choice(due)
        (record,) = [one for one in log.records if one.physical_offset == source.physical_offset]
        delivered = replace(record, topic=b"delivered", prepared_transaction_offset=source.field)
        delivered = replace(delivered, physical_offset=100 * len(log.records), queue_id=0)
        log.records.append(delivered)
        return delivered
    return log.append(b"Topic", now, 0, 0)


def _copy(group: bytes, place: int) -> FailedCopy:
    return FailedCopy(group, Source(place < 0, abs(place) - 1))
