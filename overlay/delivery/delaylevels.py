"""The queues of the delay levels in an overlay, as the broker sees them that goes on there.

A broker knows of each level only the queue offset of the next message (``config/delayOffset.json``)
and delivers in the order of the queue. Its deliveries name no source, so that what it has delivered
follows from the order: a message is found by the values that it has in common with its delivery,
and everything before it in its queue has been delivered, or passed over, as well.

Source: RocketMQ 5.3.3 ``ScheduleMessageService``.
"""

from __future__ import annotations

import hashlib
import heapq
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from reput.overlay.records import properties as names
from reput.store.log import properties
from reput.store.log.record import Record

MARGIN_MS = 20_000
"""Time that the clock of a broker may be late, in ms."""
IsWaiting = Callable[[int], bool]
"""Whether the record at a physical offset has not been delivered."""


class Delayed(NamedTuple):
    """A message in the queue of a level."""

    physical_offset: int
    queue_offset: int
    due: int
    """ms since the epoch."""
    key: int
    """A digest of what its delivery has as well."""


class DelayLevels:
    """The messages in the queues of all levels from the first one on that waits; not
    thread-safe."""

    def __init__(self) -> None:
        self._queues: dict[int, deque[Delayed]] = {}
        """By level, which is the queue id and 1."""
        self._ends: dict[int, int] = {}
        """By level: the queue offset after the last message."""

    def wait(self, record: Record, due: int) -> None:
        """Take the next record of a queue in; it is ``due`` then, in ms."""
        level = record.queue_id + 1
        key = _key(record.property_map.get(names.REAL_TOPIC, b""), record)
        message = Delayed(record.physical_offset, record.queue_offset, due, key)
        self._queues.setdefault(level, deque()).append(message)
        self._ends[level] = record.queue_offset + 1

    def next_offsets(self, is_waiting: IsWaiting) -> dict[int, int]:
        """Return the queue offset of the first message that waits, or else the queue's end, by
        level."""
        for queue in self._queues.values():
            while queue and not is_waiting(queue[0].physical_offset):
                queue.popleft()
        return {
            level: self._queues[level][0].queue_offset if self._queues[level] else end
            for level, end in sorted(self._ends.items())
        }

    def delivered(self, level: int, record: Record, is_waiting: IsWaiting) -> list[int]:
        """Return the physical offsets of all messages of a level that wait no more because a broker
        wrote ``record``; empty where it delivers nothing that waits: a broker that was killed
        repeats its last deliveries."""
        key, now = _key(record.topic, record), record.store_timestamp
        passed = []
        for message in self._queues.get(level, ()):
            if not is_waiting(message.physical_offset):
                continue
            if message.due > now + MARGIN_MS:
                break
            passed.append(message.physical_offset)
            if message.key == key:
                return passed
        return []

    def copy(self) -> DelayLevels:
        """Return one that changes no more."""
        copy = DelayLevels()
        copy._queues = {level: queue.copy() for level, queue in self._queues.items()}
        copy._ends = dict(self._ends)
        return copy

    def state(self, is_waiting: IsWaiting) -> dict[str, Any]:
        """Return what ``restore`` needs, as JSON has it."""
        return {
            str(level): [
                end,
                [list(one) for one in self._queues[level] if is_waiting(one.physical_offset)],
            ]
            for level, end in self._ends.items()
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Become what ``state`` was made of."""
        for name, (end, messages) in state.items():
            self._ends[int(name)] = end
            self._queues[int(name)] = deque(Delayed(*message) for message in messages)

    def __iter__(self) -> Iterator[tuple[int, Delayed]]:
        """Level and message of each, in the order of the log."""
        queues = ([(level, one) for one in queue] for level, queue in self._queues.items())
        return heapq.merge(*queues, key=lambda found: found[1].physical_offset)


def _key(topic: bytes, record: Record) -> int:
    unique_key = record.property_map.get(properties.UNIQ_KEY, b"")
    numbers = (record.born_timestamp, record.reconsume_times, record.body_crc)
    text = b"%b\0%b\0%d %d %d" % (topic, unique_key, *numbers)
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest())
