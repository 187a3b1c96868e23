"""One queue of a store as its consumers see it: bounds, pulls, units and positions by time.

Source: RocketMQ 5.3.3 ``DefaultMessageStore``, ``ConsumeQueueStore``; formats.md §10.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from reput.readers.getmessage import (
    DEFAULT_MAX_MSG_NUMS,
    MAX_PULL_MSG_SIZE,
    GetMessageResult,
    GetMessageStatus,
    LogView,
    PullLimits,
    get_message,
)
from reput.readers.getranges import GetRangesResult, RangeReader
from reput.readers.logreader import LogReader
from reput.readers.messagefilter import MessageFilter
from reput.store.config import StoreSettings
from reput.store.log.commitlog import NO_TIME
from reput.store.queue.consumequeue import BoundaryType, QueueKey, list_queue_ids, topic_directory
from reput.store.queue.kinds import QueueKind, kind_of
from reput.store.queue.queuetype import BATCH_CQ, read_queue_types
from reput.store.queue.view import CqUnit, QueueView, UnitColumns, open_view

_T = TypeVar("_T")
_NO_QUEUE = GetMessageResult(GetMessageStatus.NO_MATCHED_LOGIC_QUEUE, 0, 0, 0)
_NO_RANGES = GetRangesResult(GetMessageStatus.NO_MATCHED_LOGIC_QUEUE, 0, 0, 0)


class OpenQueues:
    """The queues of an output that were asked for, each up to the end that the log's view has."""

    def __init__(
        self,
        root: Path,
        output: Path,
        settings: StoreSettings,
        limits: PullLimits,
        log: LogReader,
    ) -> None:
        self.log = log
        self.limits = limits
        self._output = output
        self._settings = settings
        self._types = read_queue_types(root)
        self._views: dict[tuple[str, int], tuple[QueueView, LogView]] = {}
        """By topic and id, each with the part of the log that it has seen."""

    @cached_property
    def range_reader(self) -> RangeReader:
        """Reads the records of all queues; its first use loads compiled code."""
        return RangeReader(self.limits)

    def ids(self, topic: str) -> list[int]:
        """A topic's queues, sorted."""
        if (name := topic_directory(topic.encode())) is None:
            return []
        return list_queue_ids(self._output / self._kind(name) / name)

    def clear(self) -> None:
        """Open all queues again when they are asked for: their files may be others."""
        self._views.clear()

    def reopen(self) -> None:
        """Do so, and list the log's files again: some of both are gone."""
        self.log.view.log.refresh()
        self.clear()

    def view(self, topic: str, queue_id: int) -> QueueView | None:
        """A queue as of now; None if no store can have such a queue."""
        entry = self._views.get((topic, queue_id))
        if entry is not None and entry[1] is self.log.view:
            return entry[0]
        name = topic_directory(topic.encode())
        if name is None or queue_id < 0:
            return None
        queue = entry[0] if entry else open_view(
            self._output, QueueKey(name, queue_id), self._settings, self.log.view.log,
            self._kind(name),
        )  # fmt: skip
        queue.follow(self.log.end)
        if entry and not queue.files.starts and queue.kind is not self._kind(name):
            # somebody asked for it before the topic was there, or the topic is another one now
            del self._views[topic, queue_id]
            return self.view(topic, queue_id)
        self._views[topic, queue_id] = queue, self.log.view
        return queue

    def _kind(self, topic: str) -> QueueKind:
        """The kind of a topic's queues, as found on disk or else as the broker declares."""
        is_declared = self._types.get(topic.encode()) == BATCH_CQ
        return QueueKind.BATCH if is_declared else kind_of(self._output, topic)


class QueueReader:
    """One queue, absent ones too: upper bounds are exclusive, times are ms."""

    def __init__(self, queues: OpenQueues, topic: str, queue_id: int) -> None:
        self._queues = queues
        self._key = topic, queue_id

    @property
    def directory(self) -> Path | None:
        """The directory of its files; None if no store can have such a queue."""
        return self._ask(lambda queue: queue.files.directory, None)

    def min_offset(self) -> int:
        """Offset of the first message that is still in the log; the max offset if there is none."""
        return self._ask(lambda queue: queue.min_offset, 0)

    def max_offset(self) -> int:
        """Offset after the last message; 0 without one."""
        return self._ask(lambda queue: queue.max_offset, 0)

    def bounds(self) -> tuple[int, int]:
        """The min and the max offset."""
        return self._ask(lambda queue: (queue.min_offset, queue.max_offset), (0, 0))

    def get_message(
        self,
        offset: int,
        max_count: int = DEFAULT_MAX_MSG_NUMS,
        *,
        max_bytes: int = MAX_PULL_MSG_SIZE,
        message_filter: MessageFilter | None = None,
    ) -> GetMessageResult:
        """Pull from ``offset`` on up to ``max_count`` messages of up to ``max_bytes`` in all.

        The first message is returned whatever its size. The number of units read is limited too, so
        a filter that matches none of them gives NO_MATCHED_MESSAGE and the next offset.
        """
        log, limits = self._queues.log, self._queues.limits
        return self._ask(lambda queue: get_message(
            queue, log.view, offset, max_count, max_bytes=max_bytes,
            message_filter=message_filter, limits=limits, max_body_bytes=log.max_body_bytes,
        ), _NO_QUEUE)  # fmt: skip

    def get_ranges(
        self,
        offset: int,
        max_count: int = DEFAULT_MAX_MSG_NUMS,
        *,
        max_bytes: int = MAX_PULL_MSG_SIZE,
        message_filter: MessageFilter | None = None,
    ) -> GetRangesResult:
        """The records that ``get_message`` finds, as the log holds them."""
        log, reader = self._queues.log, self._queues.range_reader
        return self._ask(lambda queue: reader.get_ranges(
            queue, log.view, offset, max_count, max_bytes=max_bytes, message_filter=message_filter
        ), _NO_RANGES)  # fmt: skip

    def unit_columns(self, offset: int, count: int) -> tuple[UnitColumns, int] | None:
        """Up to ``count`` units from ``offset`` on, and the offset after them; None if no file of
        the queue holds ``offset``."""
        return self._ask(lambda queue: queue.columns_from(offset, count), None)

    def units(self, offset: int, count: int) -> list[CqUnit]:
        """Up to ``count`` units from ``offset`` on, within one file; none if no file holds it."""
        return self._ask(lambda queue: list(queue.units_from(offset, count) or ()), [])

    def offset_by_time(self, timestamp_ms: int, boundary: BoundaryType = BoundaryType.LOWER) -> int:
        """Offset by store time, within the queue's bounds (``ConsumeQueueFiles``)."""
        log = self._queues.log
        offset = self._ask(
            lambda queue: queue.offset_by_time(timestamp_ms, boundary, log.view.store_time), 0
        )
        low, high = self.bounds()
        return min(max(offset, low), high)

    def first_from_time(self, timestamp_ms: int) -> int:
        """Offset of the first message stored at a time or later, or the max offset.

        Unlike ``offset_by_time`` it takes a lost record for one stored with the next that is there.
        """
        offset = self._ask(lambda queue: queue.first_from_time(timestamp_ms), None)
        return self.max_offset() if offset is None else offset

    def store_time(self, offset: int) -> int:
        """Store time of the message at ``offset``; -1 without one."""
        for unit in self.units(offset, 1):
            return self._queues.log.view.store_time(unit.physical_offset, unit.size)
        return NO_TIME

    def earliest_time(self) -> int:
        """Store time of the first message; -1 without one."""
        return self.store_time(self.min_offset())

    def begins_in_memory(self) -> bool:
        """Whether the queue begins at offset 0 with a message so near the log's end that a broker
        takes it for cached (``checkInMemByConsumeOffset``)."""
        units = [] if self.min_offset() else self.units(0, 1)
        limit = self._queues.limits.in_memory_bytes
        return any(self._queues.log.end - unit.physical_offset <= limit for unit in units)

    def _ask(self, question: Callable[[QueueView], _T], without: _T) -> _T:
        """The queue's answer as of now, or ``without`` if no store can have such a queue."""
        try:
            queue = self._queues.view(*self._key)
            return without if queue is None else question(queue)
        except FileNotFoundError:
            # the queue and its messages were removed since it was opened
            self._queues.reopen()
            queue = self._queues.view(*self._key)
            return without if queue is None else question(queue)
