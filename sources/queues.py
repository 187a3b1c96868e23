"""The queues that a dispatcher or a broker has built: which exist, where they begin and end."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

from sources.selection import Selection
from store.config import StoreSettings
from store.errors import UsageError
from store.log.commitlog import CommitLog
from store.queue.batchconsumequeue import BATCH_CONSUME_QUEUE_DIRECTORY, BatchConsumeQueueFiles
from store.queue.consumequeue import (
    CONSUME_QUEUE_DIRECTORY,
    PRE_BLANK_SIZE,
    BoundaryType,
    ConsumeQueueFiles,
    QueueFiles,
    QueueKey,
    list_queues,
    open_whole_queue,
)
from store.state.watermark import STATE_DIRECTORY, Watermark, read_watermark

POLL_SHARE = 0.1
"""Share of its time that an idle query spends on finding the ends of queues without a watermark."""


class BuiltQueue:
    """One queue. Positions are queue offsets; units are counted from the queue's byte 0.

    Both are the same in a consume queue. In a batch consume queue a unit is a message or an inner
    batch, and its position is the queue offset of its first message.
    """

    def __init__(self, files: QueueFiles) -> None:
        self.files = files
        self._end = 0

    def follow(self, durable_end: int | None) -> None:
        """Find the end again; ``durable_end`` is the watermark, and None trusts every unit."""
        self._end = self.files.grown_end(self._end, durable_end)

    @property
    def is_batch(self) -> bool:
        """Whether it is a batch consume queue."""
        return isinstance(self.files, BatchConsumeQueueFiles)

    @property
    def first_unit(self) -> int:
        """Index of the first unit that the files cover."""
        return (self.files.starts[0] if self.files.starts else 0) // self.files.unit_size

    @property
    def end_unit(self) -> int:
        """Index after the last unit, exclusive."""
        return self._end // self.files.unit_size

    @property
    def max_offset(self) -> int:
        """Queue offset after the last message, exclusive."""
        if isinstance(self.files, BatchConsumeQueueFiles):
            return self.files.max_offset_in_queue(self._end)
        return self.end_unit

    def min_offset(self, log_min_offset: int) -> int:
        """Queue offset of the first message that is still in the log; the max offset if none is."""
        if isinstance(self.files, BatchConsumeQueueFiles):
            return self.files.min_offset_in_queue(self._end, log_min_offset)
        assert isinstance(self.files, ConsumeQueueFiles)
        return self.files.min_queue_offset(self._end, log_min_offset)

    def unit_from(self, offset: int) -> int:
        """Return the index of the first unit at or after a queue offset."""
        if isinstance(self.files, BatchConsumeQueueFiles):
            return self.files.first_unit_from(offset, self._end)
        return min(max(offset, self.first_unit), self.end_unit)

    def unit_start(self, offset: int) -> int:
        """Return ``offset``, or the queue offset of the inner batch that contains it."""
        if isinstance(self.files, BatchConsumeQueueFiles):
            holder = self.files.find_unit(offset, self._end)
            if holder is not None:
                unit = self.files.unit_at(holder)
                first = int(unit["msg_base_offset"])
                return first if offset < first + int(unit["batch_size"]) else offset
        return offset

    def is_gone(self, offset: int, log_min_offset: int) -> bool:
        """Return whether the message at ``offset`` was removed from the log, or its unit with its
        file."""
        index = self.unit_from(offset)
        if index >= self.end_unit:
            return False
        unit = self.files.read(index, 1)[0]
        if unit["size"] != PRE_BLANK_SIZE and unit["offset"] < log_min_offset:
            return True
        return index == self.first_unit > 0 and self._offset_of(unit, index) > offset

    def offset_by_time(self, log: CommitLog, timestamp: int) -> int | None:
        """Return the queue offset of the first message that is still in the log and was stored at
        ``timestamp`` (ms) or later; None without one. Store times are assumed to ascend.

        The result is RocketMQ's, except that RocketMQ's LOWER in a batch queue may skip messages of
        that time.
        """
        first = self.min_offset(log.min_offset)
        if isinstance(self.files, BatchConsumeQueueFiles):
            earlier, upper = timestamp - 1, BoundaryType.UPPER
            before = self.files.offset_in_queue_by_time(earlier, upper, self._end)
            index = self.files.first_unit_from(before + 1, self._end)
        else:
            assert isinstance(self.files, ConsumeQueueFiles)
            index = self.files.offset_in_queue_by_time(
                timestamp, BoundaryType.LOWER, self._end, first,
                # a record that is gone was stored before the remaining ones
                lambda offset, _size: max(log.store_time(offset), 0),
            )  # fmt: skip
        index = max(index, self.unit_from(first))
        if index >= self.end_unit:
            return None
        return self._offset_of(self.files.read(index, 1)[0], index)

    def _offset_of(self, unit: np.void, index: int) -> int:
        return int(unit["msg_base_offset"]) if self.is_batch else index


class BuiltQueues:
    """The queues of an output that a selection takes, followed as they grow.

    Only units at or below a dispatcher's watermark count. Queues that a broker built have no
    watermark: their own ends count.
    """

    def __init__(self, output: Path, settings: StoreSettings, selection: Selection) -> None:
        self._output, self._settings, self._selection = output, settings, selection
        self._opened: dict[QueueKey, BuiltQueue] = {}
        self.found: dict[QueueKey, BuiltQueue] = {}
        """The queues that hold a unit, sorted, as they were last seen."""
        self._seen: Watermark | None = None
        self._not_before = 0.0

    def poll(self) -> bool:
        """Call ``refresh`` if the watermark moved, or without one from time to time, so that idling
        costs little. Returns whether it did."""
        watermark = read_watermark(self._output / STATE_DIRECTORY)
        if watermark == self._seen and (watermark or time.monotonic() < self._not_before):
            return False
        self.refresh()
        return True

    def refresh(self) -> dict[QueueKey, BuiltQueue]:
        """Update ``found`` and return it.

        Raises QueueFileError for files of another size, UsageError for a queue of both kinds.
        """
        begun = time.monotonic()
        watermark = read_watermark(self._output / STATE_DIRECTORY)
        durable_end = None if watermark is None else watermark.end_offset
        opened = {}
        for key, is_batch in self._listed().items():
            queue = self._opened.get(key) or self.open(key, is_batch)
            queue.follow(durable_end)
            opened[key] = queue
        self._opened, self._seen = opened, watermark
        # a directory is created before its first unit, which may have any queue offset
        self.found = {
            key: queue for key, queue in opened.items() if queue.end_unit > queue.first_unit
        }
        now = time.monotonic()
        self._not_before = now + (now - begun) / POLL_SHARE
        return self.found

    def open(self, key: QueueKey, is_batch: bool) -> BuiltQueue:
        """Open one queue without looking for its end. Raises QueueFileError."""
        directory = self.root(is_batch) / key.relative_path
        if is_batch:
            size = self._settings.mapper_file_size_batch_consume_queue
            return BuiltQueue(BatchConsumeQueueFiles(directory, size))
        size = self._settings.mapped_file_size_consume_queue
        return BuiltQueue(open_whole_queue(directory, size))

    def root(self, is_batch: bool) -> Path:
        """The directory of one kind of queues."""
        name = BATCH_CONSUME_QUEUE_DIRECTORY if is_batch else CONSUME_QUEUE_DIRECTORY
        return self._output / name

    def _listed(self) -> dict[QueueKey, bool]:
        """Return the selected queues, sorted, with whether each is a batch queue."""
        found: dict[QueueKey, bool] = {}
        for is_batch in (False, True):
            for key in list_queues(self.root(is_batch)):
                if not self._selection.takes(key):
                    continue
                if key in found:
                    raise UsageError(
                        f"topic {key.topic} has queues of both kinds, in {self.root(False)} and "
                        f"{self.root(True)}; keep the one that config/topics.json declares"
                    )
                found[key] = is_batch
        return dict(sorted(found.items(), key=lambda item: (item[0].topic, item[0].queue_id)))
