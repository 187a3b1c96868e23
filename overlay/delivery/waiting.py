"""The records that wait in an overlay's log, until when, and what each was made from.

There is no other note of it. A record that was made from another names it as its source
(``overlay.records.sources``), so that one append is both the effect and the note of it: what
waited is delivered as soon as a record names it. The records of the log, given to ``note`` in
their order, make the same state after a kill as before it. Only a broker that went on in the
overlay for a time has delivered without naming sources (``overlay.delivery.delaylevels``).

Source of the rules: RocketMQ 5.3.3 ``ScheduleMessageService`` (the head of a level keeps the rest
of the level waiting; a record that is due later than its level allows is due now, since the clock
was set back), ``TimerMessageStore`` (formats.md §11).
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from reput.overlay.delivery.delaylevels import DelayLevels
from reput.overlay.records import properties as names
from reput.overlay.records.drafts import TIMER_PRECISION_MS, TIMER_TOPIC
from reput.overlay.records.sources import Source, source_of
from reput.store.log import java
from reput.store.log.properties import DELAY, UNIQ_KEY
from reput.store.log.record import (
    DLQ_GROUP_TOPIC_PREFIX,
    RETRY_GROUP_TOPIC_PREFIX,
    SCHEDULE_TOPIC,
    Record,
)


class FailedCopy(NamedTuple):
    """A copy of a message that a group could not consume."""

    group: bytes
    source: Source


class _Waiting(NamedTuple):
    due: int
    """ms since the epoch."""
    place: Source


class NextOffsets(NamedTuple):
    """Queue offsets of the next messages to deliver, of an overlay's own queues."""

    levels: dict[int, int]
    """By delay level; without one that has no queue."""
    timers: int | None
    """The first timer message that waits; None without a queue."""


class _RecallKey(NamedTuple):
    """How a recall names a timer message."""

    unique_key: bytes
    time: int
    """TIMER_OUT_MS."""


class WaitingRecords:
    """The records of an overlay that nobody has delivered yet; not thread-safe."""

    def __init__(self, delay_levels_ms: tuple[int, ...]) -> None:
        """``delay_levels_ms`` are the delays of the levels from 1 on."""
        self._delays = delay_levels_ms
        self._levels: dict[int, deque[_Waiting]] = {}
        """By level, in the order of its queue."""
        self._own_levels, self._own_timers = DelayLevels(), DelayLevels()
        """The second has the queue of timer messages, as if that were a level."""
        self._timers: list[_Waiting] = []
        """A heap of those that are not due yet."""
        self._due_timers: dict[Source, None] = {}
        self._recallable: dict[_RecallKey, set[Source]] = {}
        """Timer messages that wait; a producer that tried again sent several of one key."""
        self._undelivered: dict[Source, FailedCopy | None] = {}
        """By place: the copy that each record was made from, if a group sent it back."""
        self._ended: set[FailedCopy] = set()
        """Copies that wait or are dead letters: sending one of them back once more has no
        effect."""
        self._paid: set[int] = set()
        """Physical offsets of the base's records that were delivered."""
        self._is_whole = True
        """Whether nothing of the overlay's own was given up."""

    def __len__(self) -> int:
        return len(self._undelivered)

    @property
    def owed_count(self) -> int:
        """How many of them wait in the base."""
        return sum(place.is_base for place in self._undelivered)

    def has_ended(self, copy: FailedCopy) -> bool:
        """Whether a successor of this copy waits, or is a dead letter."""
        return copy in self._ended

    def note(self, record: Record) -> None:
        """Take the next record of the overlay's log in."""
        source = source_of(record)
        if record.topic in (SCHEDULE_TOPIC, TIMER_TOPIC):
            place = Source(is_base=False, physical_offset=record.physical_offset)
            self._wait(place, record, _failed_copy(record, source))
        elif source is None:
            self._note_of_broker(record)
        elif source in self._undelivered:
            self._deliver(source, record)
        elif record.topic.startswith(DLQ_GROUP_TOPIC_PREFIX):
            self._ended.add(FailedCopy(record.topic.removeprefix(DLQ_GROUP_TOPIC_PREFIX), source))
        elif source.is_base:
            self._paid.add(source.physical_offset)

    def _deliver(self, place: Source, record: Record) -> None:
        self._forget_recallable(_recall_key(record), place)
        copy = self._undelivered.pop(place)
        if copy is not None:
            self._ended.discard(copy)
        if place.is_base:
            self._paid.add(place.physical_offset)

    def _note_of_broker(self, record: Record) -> None:
        """Take in what a broker may have delivered that went on in the overlay: what a client sent
        is no delivery, since it would wait itself with such properties."""
        values = record.property_map
        if values.get(names.REAL_TOPIC) != record.topic:
            return
        level = java.parse_integer(values.get(DELAY, b""), 32) or 0
        if level > 0:
            for offset in self._own_levels.delivered(level, record, self._is_waiting):
                self._deliver(Source(is_base=False, physical_offset=offset), record)
        elif names.TIMER_DEQUEUE_MS in values:
            same = self._recallable.get(_recall_key(record), ())
            for place in sorted(place for place in same if not place.is_base)[:1]:
                self._deliver(place, record)

    def _is_waiting(self, physical_offset: int) -> bool:
        return Source(is_base=False, physical_offset=physical_offset) in self._undelivered

    def next_offsets(self) -> NextOffsets:
        """Return where a broker would go on in the overlay."""
        timers = self._own_timers.next_offsets(self._is_waiting).values()
        return NextOffsets(
            self._own_levels.next_offsets(self._is_waiting), next(iter(timers), None)
        )

    def owe(self, record: Record) -> None:
        """Take a record in that waits in the base's log, in the order of its queue."""
        self._wait(Source(is_base=True, physical_offset=record.physical_offset), record, None)

    def disown(self) -> None:
        """Forget what waits in the base's log, until the next start."""
        for place in [place for place in self._undelivered if place.is_base]:
            self.give_up(place)

    def give_up(self, place: Source) -> None:
        """Forget a record that cannot be delivered, until the next start."""
        self._undelivered.pop(place, None)
        self._is_whole = self._is_whole and place.is_base

    def frozen(self) -> Callable[[], dict[str, Any]] | None:
        """Return a function that makes what ``restore`` needs, as of now (``overlay.snapshot``);
        None once something was given up, which the next start tries again."""
        if not self._is_whole:
            return None
        copy = WaitingRecords(self._delays)
        copy._own_levels, copy._own_timers = self._own_levels.copy(), self._own_timers.copy()
        copy._recallable = {key: set(places) for key, places in self._recallable.items()}
        copy._undelivered = dict(self._undelivered)
        copy._ended, copy._paid = set(self._ended), set(self._paid)
        return copy._state

    def _state(self) -> dict[str, Any]:
        own = ((one.physical_offset, copy) for one, copy in self._undelivered.items() if copy)
        copies = [[offset, copy.group.decode("latin-1"), *copy.source] for offset, copy in own]
        waiting = {copy for copy in self._undelivered.values() if copy}
        return {
            "levels": self._own_levels.state(self._is_waiting),
            "timer_queue": self._own_timers.state(self._is_waiting),
            "timers": [
                [place.physical_offset, key.unique_key.decode("latin-1"), key.time]
                for key, places in self._recallable.items()
                for place in sorted(places)
                if not place.is_base and place in self._undelivered
            ],
            "copies": copies,
            "dead": [[one.group.decode("latin-1"), *one.source] for one in self._ended - waiting],
            "paid": sorted(self._paid),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Become what a snapshot was made of; what the base owes was taken in before."""
        self._paid = set(state["paid"])
        for place in [Source(is_base=True, physical_offset=offset) for offset in self._paid]:
            self._undelivered.pop(place, None)
        self._own_levels.restore(state["levels"])
        for level, message in self._own_levels:
            place = Source(is_base=False, physical_offset=message.physical_offset)
            self._undelivered[place] = None
            queue = self._levels.setdefault(min(level, len(self._delays)), deque())
            queue.append(_Waiting(message.due, place))
        self._own_timers.restore(state["timer_queue"])
        for offset, unique_key, time in state["timers"]:
            place = Source(is_base=False, physical_offset=offset)
            self._undelivered[place] = None
            self._wait_until(_RecallKey(unique_key.encode("latin-1"), time), place)
        for offset, *copy in state["copies"]:
            failed = _copy_of(*copy)
            self._undelivered[Source(is_base=False, physical_offset=offset)] = failed
            self._ended.add(failed)
        self._ended.update(_copy_of(*copy) for copy in state["dead"])

    def _wait(self, place: Source, record: Record, copy: FailedCopy | None) -> None:
        self._undelivered[place] = copy
        if copy is not None:
            self._ended.add(copy)
        if record.topic == SCHEDULE_TOPIC:
            level = min(record.queue_id + 1, len(self._delays))
            due = record.store_timestamp + self._delays[level - 1]
            self._levels.setdefault(level, deque()).append(_Waiting(due, place))
            if not place.is_base:
                self._own_levels.wait(record, due)
            return
        if not place.is_base:
            self._own_timers.wait(record, 0)
        self._wait_for_time(place, record)

    def _wait_for_time(self, place: Source, record: Record) -> None:
        key = _recall_key(record)
        recalled = record.property_map.get(names.TIMER_DELETED_KEY)
        if recalled is None:
            self._wait_until(key, place)
            return
        # it deletes, and is no message itself; 5.3.3 has the topic before the key, 5.5.1 has not
        del self._undelivered[place]
        target = _RecallKey(recalled.rpartition(b"+")[2], key.time)
        for waiting in self._recallable.pop(target, ()):
            self._undelivered.pop(waiting, None)

    def _wait_until(self, key: _RecallKey, place: Source) -> None:
        heapq.heappush(self._timers, _Waiting(key.time + TIMER_PRECISION_MS, place))
        self._recallable.setdefault(key, set()).add(place)

    def _forget_recallable(self, key: _RecallKey, place: Source) -> None:
        places = self._recallable.get(key, set())
        places.discard(place)
        if not places:
            self._recallable.pop(key, None)

    def due(self, now: int) -> list[Source]:
        """Return the places of all records that are due at ``now``, in ms: each level's in the
        order of its queue, the timer's by their times. They are due until ``note`` is given what
        was made of them."""
        due = [
            waiting.place
            for level, queue in sorted(self._levels.items())
            for waiting in self._due_of(queue, now, self._delays[level - 1])
        ]
        while self._timers and self._timers[0].due <= now:
            self._due_timers[heapq.heappop(self._timers).place] = None
        self._due_timers = {place: None for place in self._due_timers if place in self._undelivered}
        return [*due, *self._due_timers]

    def _due_of(self, queue: deque[_Waiting], now: int, delay: int) -> Iterator[_Waiting]:
        while queue and queue[0].place not in self._undelivered:
            queue.popleft()
        for waiting in queue:
            if waiting.place not in self._undelivered:
                continue
            if not (waiting.due <= now or waiting.due > now + delay):
                return
            yield waiting

    def soon(self, until: int) -> Iterator[Source]:
        """The places of records that are due at ``until``, in ms, in no order; without timer
        messages that ``due`` has returned."""
        for queue in self._levels.values():
            left = (one for one in queue if one.place in self._undelivered)
            for waiting in itertools.takewhile(lambda one: one.due <= until, left):
                yield waiting.place
        numbers = [0]
        while numbers:
            number = numbers.pop()
            if number < len(self._timers) and self._timers[number].due <= until:
                if self._timers[number].place in self._undelivered:
                    yield self._timers[number].place
                numbers += (2 * number + 1, 2 * number + 2)

    def next_due(self) -> int | None:
        """Return when the next record is due, in ms; None without one."""
        heads = [queue[0].due for queue in self._levels.values() if queue]
        heads += [waiting.due for waiting in self._timers[:1]]
        return 0 if self._due_timers else min(heads, default=None)


def _failed_copy(record: Record, source: Source | None) -> FailedCopy | None:
    topic = record.property_map.get(names.REAL_TOPIC, b"")
    if source is None or not topic.startswith(RETRY_GROUP_TOPIC_PREFIX):
        return None
    return FailedCopy(topic.removeprefix(RETRY_GROUP_TOPIC_PREFIX), source)


def _copy_of(group: str, is_base: bool, physical_offset: int) -> FailedCopy:
    return FailedCopy(group.encode("latin-1"), Source(is_base, physical_offset))


def _recall_key(record: Record) -> _RecallKey:
    properties = record.property_map
    time = java.parse_integer(properties.get(names.TIMER_OUT_MS, b""), 64)
    return _RecallKey(properties.get(UNIQ_KEY, b""), time or 0)
