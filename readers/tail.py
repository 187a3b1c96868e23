"""A topic's messages in store order, its queues merged: the last ones, those since a time, and
those that arrive later."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import pyarrow as pa

from reput.readers.getmessage import delivered
from reput.readers.iteration import iterate
from reput.readers.messagefilter import MessageFilter
from reput.readers.messages import Message
from reput.readers.messagestore import MessageStore
from reput.store.rows.rowschema import ROWS_SCHEMA

_PLACE = pa.schema([ROWS_SCHEMA.field(name) for name in ("physicalOffset", "queueOffset")])
_FIRST_STEP = 1 << 10
_LONGEST_STEP = 1 << 20


class QueueMessage(NamedTuple):
    """A message and its position in a queue."""

    physical_offset: int
    queue_id: int
    queue_offset: int
    """Offset in the queue."""
    message: Message | None
    """None if the record is lost or damaged, which is in the store's ``losses`` as well."""


class TopicTail:
    """Follows one topic of a store that may be written meanwhile. Not thread-safe.

    Each method's iterator must be exhausted before the next call.
    """

    def __init__(
        self, store: MessageStore, topic: str, message_filter: MessageFilter | None = None
    ) -> None:
        self._store = store
        self._topic = topic
        self._filter = message_filter
        self._next_offsets: dict[int, int] = {}
        """The next queue offset to return, by queue."""

    def last(self, count: int) -> Iterator[QueueMessage]:
        """The last messages, up to ``count``."""
        places: list[tuple[int, int, int]] = []
        for queue_id in self._store.queue_ids(self._topic):
            self._next_offsets[queue_id] = self._store.queue(self._topic, queue_id).max_offset()
            places += self._last_places(queue_id, count)
        yield from deque(self._messages(deque(sorted(places), count)), count)

    def since(self, time_ms: int) -> Iterator[QueueMessage]:
        """Messages stored at or after a time, ms since the epoch."""
        for queue_id in self._store.queue_ids(self._topic):
            offset = self._store.queue(self._topic, queue_id).first_from_time(time_ms)
            self._next_offsets[queue_id] = offset
        return self._go_on()

    def new(self) -> Iterator[QueueMessage]:
        """Messages since the previous call, including those of new queues."""
        self._store.refresh()
        return self._go_on()

    def _go_on(self) -> Iterator[QueueMessage]:
        queues = []
        for queue_id in self._store.queue_ids(self._topic):
            start = self._next_offsets.get(queue_id, 0)
            end = self._store.queue(self._topic, queue_id).max_offset()
            if start < end:
                self._next_offsets[queue_id] = end
                queues.append(self._places(queue_id, start, end))
        return self._messages(heapq.merge(*queues))

    def _last_places(self, queue_id: int, count: int) -> list[tuple[int, int, int]]:
        places: list[tuple[int, int, int]] = []
        first = self._store.queue(self._topic, queue_id).min_offset()
        end = self._next_offsets[queue_id]
        step = _FIRST_STEP
        while first < end and len(places) < count:
            start = max(first, end - step)
            places = [*self._places(queue_id, start, end), *places]
            end, step = start, min(4 * step, _LONGEST_STEP)
        return places

    def _places(self, queue_id: int, start: int, end: int) -> Iterator[tuple[int, int, int]]:
        """(physical offset, queue id, queue offset) tuples, which sort in store order."""
        for batch in iterate(
            self._store, self._topic, queue_id, start, end, schema=_PLACE,
            message_filter=self._filter,
        ):  # fmt: skip
            for physical_offset, queue_offset in zip(*batch.to_pydict().values(), strict=True):
                yield physical_offset, queue_id, queue_offset

    def _messages(self, places: Iterable[tuple[int, int, int]]) -> Iterator[QueueMessage]:
        for place in places:
            outer = self._store.log.message_at(place[0])
            if outer is None:
                self._store.log.note_loss(place[0])
                yield QueueMessage(*place, None)
                continue
            for message in delivered([outer], self._filter):
                inner = message.queue_offset - outer.queue_offset
                yield QueueMessage(*place[:2], place[2] + inner, message)
