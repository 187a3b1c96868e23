"""A store of which the queues are numbers that grow; the body of a pull's answer names them."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace

from reput.readers.getmessage import GetMessageStatus
from reput.readers.getranges import GetRangesResult

QueueName = tuple[str, int]


class Queues:
    """The queues, as a dispatcher has written them."""

    def __init__(self, names: Iterable[QueueName]) -> None:
        self.bounds: dict[QueueName, tuple[int, int]] = dict.fromkeys(names, (0, 0))
        """The least and the greatest offset of each, the latter exclusive."""

    def grow(self, queue: QueueName, count: int) -> None:
        """Append messages."""
        low, high = self.bounds[queue]
        self.bounds[queue] = low, high + count

    def expire(self, queue: QueueName, count: int) -> None:
        """Remove the oldest messages."""
        low, high = self.bounds[queue]
        self.bounds[queue] = min(low + count, high), high


def body_of(topic: str, queue_id: int, offset: int) -> bytes:
    """A message."""
    return f"{topic}:{queue_id}:{offset:09};".encode()


class SimulatedStore:
    """A broker's view of the queues, as of the last ``refresh``; in place of ``MessageStore``."""

    def __init__(self, queues: Queues) -> None:
        self._queues = queues
        self.log = SimpleNamespace(end=0, is_dispatched_whole=lambda: True, earliest_time=lambda: 0)
        self.refresh()

    def refresh(self) -> None:
        """See what was written since."""
        self.bounds = dict(self._queues.bounds)
        self.log.end = sum(high for _, high in self.bounds.values())

    def load_kernels(self) -> None:
        """There are none."""

    def close(self) -> None:
        """Nothing is open."""

    def topics(self) -> list[str]:
        """Names, sorted."""
        return sorted({topic for topic, _ in self.bounds})

    def queue_ids(self, name: str) -> list[int]:
        """The queues of a topic."""
        return sorted(number for topic, number in self.bounds if topic == name)

    def queue(self, topic: str, queue_id: int) -> SimulatedQueue:
        """One queue."""
        return SimulatedQueue(self, (topic, queue_id))


class SimulatedQueue:
    """In place of ``QueueReader``."""

    def __init__(self, store: SimulatedStore, name: QueueName) -> None:
        self._store, self._name = store, name

    def bounds(self) -> tuple[int, int]:
        """As of the last refresh."""
        return self._store.bounds.get(self._name, (0, 0))

    def min_offset(self) -> int:
        """The first message's offset."""
        return self.bounds()[0]

    def max_offset(self) -> int:
        """The next message's offset."""
        return self.bounds()[1]

    def store_time(self, _offset: int) -> int:
        """No message has one."""
        return 0

    def begins_in_memory(self) -> bool:
        """Groups begin where they ask to."""
        return False

    def get_ranges(self, offset: int, max_count: int, **_limits: object) -> GetRangesResult:
        """A pull, by RocketMQ's rules."""
        low, high = self.bounds()
        status, following, data = GetMessageStatus.FOUND, offset, b""
        if high == 0:
            status, following = GetMessageStatus.NO_MESSAGE_IN_QUEUE, 0
        elif offset < low:
            status, following = GetMessageStatus.OFFSET_TOO_SMALL, low
        elif offset == high:
            status = GetMessageStatus.OFFSET_OVERFLOW_ONE
        elif offset > high:
            status, following = GetMessageStatus.OFFSET_OVERFLOW_BADLY, high
        else:
            following = min(offset + max_count, high)
            data = b"".join(body_of(*self._name, number) for number in range(offset, following))
        return GetRangesResult(status, following, low, high, data)
