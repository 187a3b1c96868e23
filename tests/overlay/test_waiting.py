"""``WaitingRecords`` is held against a plain model that reads the whole log anew each time.

The model knows RocketMQ's rules for levels, timers and recalls, and nothing of the product's
tables: every answer comes from the list of records alone.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

import pytest

from reput.overlay.sources import Source
from reput.overlay.waiting import FailedCopy, WaitingRecords
from reput.store.log import properties
from reput.store.log.record import Record

LEVELS_MS = (1000, 5000, 30_000)
WAITS, TIMES = b"SCHEDULE_TOPIC_XXXX", b"rmq_sys_wheel_timer"
GROUPS = (b"one", b"two")
HISTORIES, STEPS = 60, 120
START_MS = 1_800_000_000_000


def source_field(place: Source) -> int:
    return -(place.physical_offset + 1) if place.is_base else place.physical_offset + 1


@dataclass
class Model:
    """The log of an overlay, what its base owes, and what was given up since the start."""

    log: list[Record] = field(default_factory=list)
    owed: list[Record] = field(default_factory=list)
    given_up: set[Source] = field(default_factory=set)
    come: set[Source] = field(default_factory=set)
    """Messages whose time has come since the start."""

    def _taken(self) -> set[int]:
        """The sources of all that was made from something that waited."""
        return {r.prepared_transaction_offset for r in self.log if r.topic not in (WAITS, TIMES)}

    def _recalled(self) -> set[Source]:
        """The timer messages that a later recall of the same time names."""
        found = set()
        for at, one in enumerate(self.log):
            key = one.property_map.get(b"TIMER_DEL_UNIQKEY")
            if key is None:
                continue
            named = [
                r for r in self.log[:at]
                if r.topic == TIMES and b"TIMER_DEL_UNIQKEY" not in r.property_map
                and r.property_map[b"UNIQ_KEY"] == key.split(b"+")[-1]
                and r.property_map[b"TIMER_OUT_MS"] == one.property_map[b"TIMER_OUT_MS"]
            ]  # fmt: skip
            found |= {Source(False, r.physical_offset) for r in named}
        return found

    def waiting(self) -> list[tuple[Source, Record]]:
        """All that waits and can be delivered."""
        return [(place, r) for place, r in self.undelivered() if place not in self.given_up]

    def undelivered(self) -> list[tuple[Source, Record]]:
        """All that waits, in the order of the logs."""
        taken, recalled = self._taken(), self._recalled()
        both = [(Source(True, r.physical_offset), r) for r in self.owed]
        both += [(Source(False, r.physical_offset), r) for r in self.log]
        return [
            (place, r)
            for place, r in both
            if r.topic in (WAITS, TIMES)
            and b"TIMER_DEL_UNIQKEY" not in r.property_map
            and source_field(place) not in taken
            and place not in recalled
        ]

    def due(self, now: int) -> list[Source]:
        """The overlay's level by level, and then the base's, each up to its first that is not due;
        then those with a time of their own."""
        found = []
        waiting = self.waiting()
        for is_base in (False, True):
            for level, delay in enumerate(LEVELS_MS, 1):
                for place, one in waiting:
                    if place.is_base != is_base or one.topic != WAITS or one.queue_id + 1 != level:
                        continue
                    wanted = one.store_timestamp + delay
                    if now < wanted <= now + delay:
                        break
                    found.append(place)
        return found + [place for place in self.timers_due(now) if place not in self.given_up]

    def timers_due(self, now: int) -> list[Source]:
        """Timer messages are due once their time has come, even if the clock is set back then."""
        timers = {place: one for place, one in self.undelivered() if one.topic == TIMES}
        self.come |= {place for place, one in timers.items() if time_of(one) <= now}
        return [place for place in timers if place in self.come]

    def ended(self) -> set[FailedCopy]:
        """The copies whose successors wait or are dead."""
        found = set()
        for place, one in self.undelivered():
            real = one.property_map.get(b"REAL_TOPIC", b"")
            at = one.prepared_transaction_offset
            if at and real.startswith(b"%RETRY%") and not place.is_base:
                found.add(FailedCopy(real[7:], Source(at < 0, abs(at) - 1)))
        sources = {source_field(Source(False, r.physical_offset)) for r in self.log
                   if r.topic in (WAITS, TIMES)}  # fmt: skip
        owed = {source_field(Source(True, r.physical_offset)) for r in self.owed}
        for one in self.log:
            at = one.prepared_transaction_offset
            if one.topic.startswith(b"%DLQ%") and at and at not in sources | owed:
                found.add(FailedCopy(one.topic[5:], Source(at < 0, abs(at) - 1)))
        return found


def time_of(record: Record) -> int:
    return int(record.property_map[b"TIMER_OUT_MS"]) + 1000


def text_of(values: dict[bytes, bytes]) -> bytes:
    return b"".join(name + b"\x01" + value + b"\x02" for name, value in values.items())


def record(topic: bytes, at: int, now: int, queue_id: int = 0, **values: bytes) -> Record:
    text = text_of({name.encode(): value for name, value in values.items()})
    return Record(
        topic, b"body", text, queue_id=queue_id, physical_offset=at, store_timestamp=now,
        property_map=properties.parse(text),
    )  # fmt: skip


@dataclass
class History:
    """A random history of one overlay."""

    rng: random.Random
    model: Model = field(default_factory=Model)
    now: int = START_MS
    end: int = 0
    """Where the next record begins."""

    def __post_init__(self) -> None:
        for number in range(self.rng.randrange(6)):
            level = self.rng.randrange(len(LEVELS_MS))
            stored = self.now - 40_000 + 1000 * number
            waiting = record(WAITS, 100 * number, stored, level, REAL_TOPIC=b"Topic")
            self.model.owed.append(waiting)
        self.ours = self.rebuilt()

    def rebuilt(self) -> WaitingRecords:
        """Read the logs, as a start does."""
        self.model.given_up.clear()
        self.model.come.clear()
        ours = WaitingRecords(LEVELS_MS)
        for one in self.model.owed:
            ours.owe(one)
        for one in self.model.log:
            ours.note(one)
        return ours

    def append(self, made: Record) -> None:
        stored = replace(made, physical_offset=self.end)
        self.end += 100
        self.model.log.append(stored)
        self.ours.note(stored)

    def send_back(self) -> None:
        """A group sends a copy back, unless that has no effect."""
        copy = Source(self.rng.random() < 0.5, 100 * self.rng.randrange(1000, 1010))
        group = self.rng.choice(GROUPS)
        if self.ours.has_ended(FailedCopy(group, copy)):
            return
        level = self.rng.randrange(-1, len(LEVELS_MS))
        topic = WAITS if level >= 0 else b"%DLQ%" + group
        made = record(topic, 0, self.now, max(level, 0), REAL_TOPIC=b"%RETRY%" + group)
        self.append(replace(made, prepared_transaction_offset=source_field(copy)))

    def send(self) -> None:
        """A client sends to a retry topic."""
        group, level = self.rng.choice(GROUPS), self.rng.randrange(len(LEVELS_MS))
        self.append(record(WAITS, 0, self.now, level, REAL_TOPIC=b"%RETRY%" + group))

    def send_for_a_time(self) -> None:
        """Keys are few, so that several messages have one, for the same time too."""
        key, seconds = b"K%d" % self.rng.randrange(3), self.rng.randrange(1, 5)
        out = b"%d" % ((self.now // 1000 + seconds) * 1000)
        self.append(record(TIMES, 0, self.now, UNIQ_KEY=key, TIMER_OUT_MS=out, REAL_TOPIC=b"Topic"))

    def recall(self) -> None:
        """A recall of either form, of a message that waits or of none."""
        timed = [one for _, one in self.model.waiting() if one.topic == TIMES]
        if timed and self.rng.random() < 0.8:
            values = self.rng.choice(timed).property_map
            key, out = values[b"UNIQ_KEY"], values[b"TIMER_OUT_MS"]
        else:
            key, out = b"unknown", b"%d" % (self.now // 1000 * 1000)
        named = self.rng.choice((b"", b"Topic+")) + key
        self.append(
            record(
                TIMES, 0, self.now, UNIQ_KEY=key, TIMER_OUT_MS=out, TIMER_DEL_UNIQKEY=named,
                REAL_TOPIC=b"Topic",
            )
        )  # fmt: skip

    def deliver(self) -> None:
        """Some of what is due, from the front, as after a commit that the end of a process cut."""
        due = self.ours.due(self.now)
        waiting = dict(self.model.waiting())
        for place in due[: self.rng.randrange(len(due) + 1)]:
            topic = waiting[place].property_map[b"REAL_TOPIC"]
            values = {name.decode(): v for name, v in waiting[place].property_map.items()}
            made = record(topic, 0, self.now, **values)
            self.append(replace(made, prepared_transaction_offset=source_field(place)))

    def give_up(self) -> None:
        """A record cannot be delivered; it is there again after the next start."""
        due = self.ours.due(self.now)
        if due and self.rng.random() < 0.3:
            place = self.rng.choice(due)
            self.ours.give_up(place)
            self.model.given_up.add(place)

    def pass_time(self) -> None:
        """Mostly forward; once in a while the clock is set back."""
        steps = (1, 500, 1000, 5000, 40_000, -1500, -100_000)
        self.now += self.rng.choice(steps)

    def kill(self) -> None:
        """All that is left is the log."""
        self.ours = self.rebuilt()

    def check(self) -> None:
        expected = self.model.due(self.now)
        due = self.ours.due(self.now)
        levels = {place for place, one in self.model.waiting() if one.topic == WAITS}
        assert [p for p in due if p in levels] == [p for p in expected if p in levels]
        assert set(due) == set(expected) and len(due) == len(expected)
        assert len(self.ours) == len(self.model.waiting())
        copies = {
            FailedCopy(group, Source(is_base, 100 * number))
            for group in GROUPS
            for is_base in (False, True)
            for number in range(1000, 1010)
        }
        assert {copy for copy in copies if self.ours.has_ended(copy)} == self.model.ended()
        following = self.ours.next_due()
        if due:
            assert following is not None
            return
        # nobody looks again at once, nor sleeps past what is due
        assert following is None or following > self.now
        until = float("inf") if following is None else following
        for _, one in self.model.waiting():
            is_timer = one.topic == TIMES
            at = time_of(one) if is_timer else one.store_timestamp + LEVELS_MS[one.queue_id]
            assert is_timer or not self.now < at < until or self.model.due(at) == []
            assert not is_timer or at >= until


@pytest.mark.parametrize("number", range(4))
def test_random_histories(seed: int, number: int) -> None:
    """After each step all answers are those of a reading of the whole log."""
    for turn in range(HISTORIES // 4):
        history = History(random.Random(f"{seed}/{number}/{turn}"))
        print(f"history {seed}/{number}/{turn}")
        steps = (
            history.send_back, history.send_back, history.send, history.send_for_a_time,
            history.recall, history.deliver, history.deliver, history.give_up,
            history.pass_time, history.pass_time, history.kill,
        )  # fmt: skip
        for _ in range(STEPS):
            step = history.rng.choice(steps)
            step()
            history.check()
