"""The debts of a base at rest: its delayed and timed messages that no broker has delivered.

The base's own log says what was delivered, since a delivery is a record of it. What the broker
notes beside the log, ``delayOffset.json`` and ``timercheck``, lags after a crash, may be torn or
gone, and is ahead of a log whose end a power cut took. So it only tells where to begin: what was
due within MARGIN_MS of the log's end, or later, is compared with the log whatever the files say.

A log of any size is read from the first time on at which the first of these messages can have been
delivered: after a clean stop for its last seconds, after a crash for those that the files lag. The
messages themselves are found by their queues. Only where a file is missing is the log read from the
time on at which the first message was due that its queue still holds.

Source of the rules: RocketMQ 5.3.3 ``ScheduleMessageService``, ``TimerMessageStore``,
``TimerCheckpoint``; delivered and waiting records of golden stores.
"""

from __future__ import annotations

import re
import struct
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from reput.overlay.records import properties as names
from reput.overlay.records.drafts import HALF_TOPIC, TIMER_TOPIC
from reput.readers.messagestore import MessageStore
from reput.readers.queuereader import QueueReader
from reput.store import configjson
from reput.store.config import StoreSettings, read_properties
from reput.store.errors import StoreError
from reput.store.files import DELAY_OFFSET_FILE, TIMER_CHECKPOINT_FILE
from reput.store.log import java, kernels, properties
from reput.store.log import record as records
from reput.store.log.commitlog import CommitLog
from reput.store.log.cursor import NO_LIMIT, Window, decode_windows
from reput.store.log.places import first_at_or_after, last_record_before
from reput.store.log.record import SCHEDULE_TOPIC, Record
from reput.store.log.segments import Segment
from reput.store.log.status import Outcome, Status

MARGIN_MS = 20_000
"""Twice ``flushDelayOffsetInterval``, in ms."""
MAX_TIMER_DELAY_SECONDS = 3 * 24 * 3600
"""``timerMaxDelaySec`` by default: the longest time between the store time of a timer message and
the one it asks for."""
UNITS_AT_ONCE = 1024
_REAL_TOPIC = re.compile(names.REAL_TOPIC + b"\x01")
_TIMER_CHECKPOINT = struct.Struct(">qqq")


class _Key(NamedTuple):
    """The values that a waiting record and its delivery have in common."""

    unique_key: bytes
    born_timestamp: int
    reconsume_times: int
    body_crc: int


class _Delayed(NamedTuple):
    """A record that waits in the queue of a level."""

    physical_offset: int
    due: int
    """ms since the epoch."""


class _Slot(NamedTuple):
    """How a delivery, a recall or a later copy names a timer message."""

    unique_key: bytes
    time: int
    """TIMER_OUT_MS."""


@dataclass(frozen=True, slots=True)
class Debts:
    """The records that wait in a base's log and were never delivered from it."""

    places: tuple[int, ...] = ()
    """Their physical offsets: level by level in the order of the queues, timer messages last."""
    topics: frozenset[bytes] = frozenset()
    """The topics to which they belong."""
    level_ends: Mapping[int, int] = field(default_factory=dict)
    """By level: the queue offset after its last message."""
    scanned_bytes: int = 0
    """Bytes of the log that were read for deliveries."""


@dataclass(slots=True)
class _Level:
    """The end of one level's queue, of which a beginning was delivered."""

    delay: int
    """ms."""
    queue_end: int = 0
    waiting: list[_Delayed] = field(default_factory=list)
    numbers: dict[_Key, list[int]] = field(default_factory=dict)
    """By key: positions in ``waiting``, ascending."""
    next: int = 0
    """Position after the last one that was delivered: deliveries keep the order of the queue."""

    def wait(self, record: Record) -> None:
        """Take the next record of the queue in."""
        self.numbers.setdefault(_key(record), []).append(len(self.waiting))
        due = record.store_timestamp + self.delay
        self.waiting.append(_Delayed(record.physical_offset, due))

    def deliver(self, record: Record) -> None:
        """Take a delivery in; one of a record before the queue's known part is none of it."""
        found = self.numbers.get(_key(record), [])
        for number in found[bisect_left(found, self.next) :]:
            if self._may_become(self.waiting[number], record):
                self.next = number + 1
                return

    def _may_become(self, waiting: _Delayed, record: Record) -> bool:
        now = record.store_timestamp
        # a broker delivers at once what is due later than its level allows: the clock was set back
        is_due = waiting.due <= now + MARGIN_MS or waiting.due > now + self.delay
        return waiting.physical_offset < record.physical_offset and is_due


@dataclass(slots=True)
class _Timers:
    """The timer messages of which some may wait."""

    queue_end: int = 0
    waiting: dict[_Slot, list[tuple[int, int]]] = field(default_factory=dict)
    """Physical offset, and how often the wheel took the message up again."""
    recalled: set[_Slot] = field(default_factory=set)

    def wait(self, record: Record) -> None:
        """Take the next record of the queue in."""
        slot, values = _slot(record), record.property_map
        deleted = values.get(names.TIMER_DELETED_KEY)
        if deleted is not None:
            # 5.3.3 has the topic before the key, 5.5.1 has not
            self.recalled.add(_Slot(deleted.rpartition(b"+")[2], slot.time))
            return
        rolls = java.parse_integer(values.get(names.TIMER_ROLL_TIMES, b""), 32) or 0
        same = self.waiting.setdefault(slot, [])
        earlier = next((one for one in same if one[1] < rolls), None)
        if earlier is not None:
            same.remove(earlier)
        same.append((record.physical_offset, rolls))

    def deliver(self, record: Record) -> None:
        """Take a delivery in."""
        same = self.waiting.get(_slot(record), [])
        if same and same[0][0] < record.physical_offset:
            same.pop(0)

    def owed(self) -> list[int]:
        """The physical offsets of those that wait, ascending."""
        return sorted(
            place
            for slot, same in self.waiting.items()
            if slot not in self.recalled
            for place, _ in same
        )


def find_debts(base: StoreSettings, output: Path) -> Debts:
    """Find what a base owes, whose broker is at rest, by its log and the queues of an output.

    Raises UsageError, StoreError.
    """
    with MessageStore(base.root, output=output, settings=base) as store:
        return _Search(store, base).run()


class _Search:
    """One search for what a base owes."""

    def __init__(self, store: MessageStore, base: StoreSettings) -> None:
        self._store = store
        self._root = base.root
        self._delays = base.message_delay_levels_ms
        stated = read_properties(base.root, base.property_file).number("timerMaxDelaySec")
        self._max_timer_delay = (stated or MAX_TIMER_DELAY_SECONDS) * 1000
        """ms."""
        self._log: CommitLog = store.log.view.log
        self._reach, self._end = reach_and_end(store)
        last = last_record_before(self._log, self._end)
        self._last_time = self._log.store_time(last) if last >= 0 else 0
        self._set_back = self._end
        """Physical offset of the first message of a level that is later than the log's end: the
        clock was set back after it, and it may have been delivered at any time."""
        self._levels: dict[int, _Level] = {}
        self._timers = _Timers()
        self._first_time: int | None = None
        """When the first of what may wait can have been delivered, in ms."""

    def run(self) -> Debts:
        """Return what is owed."""
        offsets = read_delay_offsets(self._root)
        for queue_id in self._store.queue_ids(SCHEDULE_TOPIC.decode()):
            self._take_level(queue_id, offsets.get(queue_id + 1))
        self._take_timers()
        start = min(self._reach, self._set_back, self._first_delivery())
        for found in records_of_elsewhere(self._log, start, self._end):
            self._take(found)
        places = [
            waiting.physical_offset
            for _, level in sorted(self._levels.items())
            for waiting in level.waiting[level.next :]
        ]
        places += self._timers.owed()
        ends = {queue_id + 1: level.queue_end for queue_id, level in sorted(self._levels.items())}
        return Debts(tuple(places), frozenset(self._topics(places)), ends, self._end - start)

    def _level(self, queue_id: int) -> _Level:
        delay = self._delays[min(queue_id, len(self._delays) - 1)]
        return self._levels.setdefault(queue_id, _Level(delay))

    def _take_level(self, queue_id: int, offset: int | None) -> None:
        """Take the part of a level's queue in that may wait: from the offset that the broker noted
        on, or from what was due near the log's end, whatever is less."""
        level, queue = self._level(queue_id), self._store.queue(SCHEDULE_TOPIC.decode(), queue_id)
        low, high = queue.bounds()
        if offset is None:
            start = low
        else:
            near_end = queue.first_from_time(self._last_time - MARGIN_MS - level.delay)
            start = max(low, min(offset, near_end))
        for record in records_of_queue(self._log, queue, start, high):
            level.wait(record)
            if record.store_timestamp > self._last_time:
                self._set_back = min(self._set_back, record.physical_offset)
        level.queue_end = high
        if level.waiting:
            self._may_be_delivered(level.waiting[0].due)

    def _take_timers(self) -> None:
        """Take the timer messages in that may wait: those of the wheel's next second on, those of
        the log's end, and those that the wheel had not taken up."""
        queue = self._store.queue(TIMER_TOPIC.decode(), 0)
        low, high = queue.bounds()
        noted = read_timer_checkpoint(self._root)
        bound, enqueued, start = 0, low, low
        if noted is not None:
            bound = min(noted.next_time, self._last_time) - MARGIN_MS
            enqueued = noted.enqueued
            start = max(low, min(queue.first_from_time(bound - self._max_timer_delay), enqueued))
        for record in records_of_queue(self._log, queue, start, high):
            time = _slot(record).time
            if time >= bound or record.queue_offset >= enqueued:
                self._timers.wait(record)
                self._may_be_delivered(max(time, record.store_timestamp))
        self._timers.queue_end = high

    def _may_be_delivered(self, time: int) -> None:
        self._first_time = time if self._first_time is None else min(self._first_time, time)

    def _first_delivery(self) -> int:
        """The physical offset from which on deliveries may lie."""
        if self._first_time is None:
            return self._end
        found = first_at_or_after(self._log, self._first_time - MARGIN_MS, self._end)
        return self._end if found is None else found

    def _take(self, record: Record) -> None:
        """Take a record of the log's end in: a delivery, or one that is in no queue yet."""
        values = record.property_map
        if record.topic == SCHEDULE_TOPIC:
            level = self._level(record.queue_id)
            if record.queue_offset >= level.queue_end:
                level.queue_end = record.queue_offset + 1
                level.wait(record)
        elif record.topic == TIMER_TOPIC:
            if record.queue_offset >= self._timers.queue_end:
                self._timers.queue_end = record.queue_offset + 1
                self._timers.wait(record)
        elif values.get(names.REAL_TOPIC) == record.topic:
            delay = java.parse_integer(values.get(properties.DELAY, b""), 32) or 0
            if delay <= 0:
                if names.TIMER_DEQUEUE_MS in values:
                    self._timers.deliver(record)
            elif values.get(names.REAL_QUEUE_ID) == b"%d" % record.queue_id:
                self._level(delay - 1).deliver(record)

    def _topics(self, places: list[int]) -> Iterator[bytes]:
        for record in waiting_records(self._log, places):
            topic = record.property_map.get(names.REAL_TOPIC)
            if topic not in (None, HALF_TOPIC):
                yield topic


def waiting_records(log: CommitLog, places: list[int] | tuple[int, ...]) -> Iterator[Record]:
    """The records of a base's log at physical offsets, but for those that cannot be read."""
    for place in places:
        found = log.record_starting_at(place)
        if isinstance(found, Record):
            yield found


def reach_and_end(store: MessageStore) -> tuple[int, int]:
    """The physical offset from which on messages may be in no queue, since a power cut takes the
    ends of a broker's queues too, and the log's end."""
    coverage = store.coverage()
    missing = coverage.missing.first
    reach = coverage.reach if missing is None else min(missing, coverage.reach)
    return reach, coverage.log_end


def records_of_queue(log: CommitLog, queue: QueueReader, start: int, end: int) -> Iterator[Record]:
    """The records of a part of a queue; one that cannot be read is passed over, as a broker
    does."""
    while start < end:
        units = queue.units(start, min(end - start, UNITS_AT_ONCE))
        if not units:
            return
        for unit in units:
            found = log.record_at(unit.physical_offset, unit.size)
            if isinstance(found, Record):
                yield found
        start = units[-1].queue_offset + 1


def records_of_elsewhere(
    log: CommitLog, start: int, end: int, mark: re.Pattern[bytes] = _REAL_TOPIC
) -> Iterator[Record]:
    """The records of [start, end) of a log in which a mark may stand, by default the property
    REAL_TOPIC; both bounds are record or file starts. What cannot be read is passed over. The
    others, most of a log, are not decoded, which would take twenty times as long."""
    found: list[Record] = []

    def decode(window: Window, segment: Segment, position: int, stop: int) -> tuple[int, int]:
        file_end, buffer = segment.start + log.file_size, window.data.data
        while True:
            match = mark.search(buffer, position, window.length)
            found_at = window.base + match.start() if match else stop
            # the walk ends at the record with the mark, which ends beyond it
            status, position, _, _ = kernels.hop_records(
                window.data, window.length, window.base, file_end, position, min(found_at, stop),
                NO_LIMIT, NO_LIMIT,
            )  # fmt: skip
            if status != Status.OK or found_at >= stop:
                return status, position
            result = records.decode(
                buffer[position : window.length], window.base + position, file_end
            )
            if isinstance(result, Outcome):
                return result.status, position
            found.append(result)
            position += result.total_size

    for _ in decode_windows(log, start, end, decode, fail_on_data_loss=False):
        yield from found
        found.clear()


def read_delay_offsets(root: Path) -> dict[int, int]:
    """The next queue offset of each delay level, as a broker noted it; without a level where the
    file does not tell."""
    try:
        document = configjson.read(root / DELAY_OFFSET_FILE)
    except StoreError:
        return {}
    table = document.get("offsetTable") if isinstance(document, dict) else None
    return {
        int(level): offset
        for level, offset in (table.items() if isinstance(table, dict) else ())
        if level.isdecimal() and type(offset) is int
    }


class TimerCheckpoint(NamedTuple):
    """How far the timer wheel of a broker was, as it noted that."""

    next_time: int
    """The first second whose messages it had not delivered, in ms."""
    enqueued: int
    """Queue offset of the first message that it had not taken up."""


def read_timer_checkpoint(root: Path) -> TimerCheckpoint | None:
    """Return what ``timercheck`` tells; None where it is missing, or was never written whole."""
    try:
        data = (root / TIMER_CHECKPOINT_FILE).read_bytes()
    except OSError:
        return None
    if len(data) < _TIMER_CHECKPOINT.size:
        return None
    next_time, _, enqueued = _TIMER_CHECKPOINT.unpack_from(data)
    return TimerCheckpoint(next_time, enqueued) if next_time > 0 else None


def _key(record: Record) -> _Key:
    unique_key = record.property_map.get(properties.UNIQ_KEY, b"")
    return _Key(unique_key, record.born_timestamp, record.reconsume_times, record.body_crc)


def _slot(record: Record) -> _Slot:
    values = record.property_map
    time = java.parse_integer(values.get(names.TIMER_OUT_MS, b""), 64)
    return _Slot(values.get(properties.UNIQ_KEY, b""), time or 0)
