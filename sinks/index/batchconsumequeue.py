"""The writer of batch queues: RocketMQ's ``BatchConsumeQueue.putBatchMessagePositionInfo``.

Delivery: exactly once in the files, although calls may repeat, because a queue file itself shows
which messages already have units. Unit of work: one queue of one batch, written and counted as a
whole; queues are independent of each other.

Only messages of batch topics (``store.queue.queuetype``) come here, and none of them goes to the
consume queue. The output is byte-identical to RocketMQ's (formats.md §7); messages that RocketMQ
drops with a warning are listed in the ledger.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from reput.sinks.index.queuewriter import QueueWriter
from reput.store.files import BATCH_CONSUME_QUEUE_DIRECTORY
from reput.store.queue.batchconsumequeue import BatchConsumeQueueFiles, checked_file_size
from reput.store.queue.consumequeue import QueueKey
from reput.store.queue.cut import cut_after
from reput.store.runs.batchplacing import (
    BatchesBegunAnew,
    BatchesBuilt,
    BatchesDropped,
    BatchesPlaced,
    BatchQueueEnd,
    batch_units,
    place_batches,
)
from reput.store.runs.dispatch import DispatchBatch, DispatchCounts
from reput.store.runs.placing import unusable_reason
from reput.store.state.ends import EntryEnd
from reput.store.state.ledger import Ledger


@dataclass(slots=True)
class _Queue:
    """One queue as its files show it; it advances only after a successful write."""

    files: BatchConsumeQueueFiles
    end: BatchQueueEnd


class BatchConsumeQueueWriter(QueueWriter[_Queue]):
    """Appends batch units per queue."""

    name = "batchconsumequeue"

    def __init__(
        self,
        output: Path,
        file_size: int,
        ledger: Ledger,
        *,
        durable_end: int | None,
        count_units: Callable[[QueueKey, int, int], int | None],
        is_gone: Callable[[int], bool] = lambda _: False,
        topic_begins: Mapping[str, int] | None = None,
    ) -> None:
        """Set up the writer; no file is opened yet.

        ``file_size`` is the bytes of a queue file, a multiple of the unit size (else UsageError,
        once there is a queue). ``durable_end`` is the watermark; units of messages beyond it are
        rewritten, and None trusts every unit. ``count_units`` returns how many units of a queue
        the record at (physical offset, size) has (``store.queue.cut``). ``is_gone`` tells
        whether the log has lost all bytes before an offset. ``topic_begins`` maps a topic to the
        physical offset before which its messages get no units.
        """
        super().__init__(output, BATCH_CONSUME_QUEUE_DIRECTORY, ledger)
        self._topic_begins = topic_begins
        self._is_gone = is_gone
        self._file_size = file_size
        self._durable_end = durable_end
        self._count_units = count_units
        self._batch: tuple[int, int] | None = None
        """[start, end) of the batch that is being written; a second try resumes it."""
        self._done: set[tuple[bytes, int]] = set()
        self._placed = 0
        """Messages of the queue that is being written that got their units in this batch."""
        self._counts = DispatchCounts()

    def write(self, batch: DispatchBatch) -> DispatchCounts:
        """Write the units of a batch (``IndexWriter.write``).

        The runs of its batch topics must have details. Raises NoSpaceError and keeps what was
        written, so the same batch may be written again.
        """
        if self._batch != (batch.start, batch.end):
            self._batch = (batch.start, batch.end)
            self._done, self._placed, self._counts = set(), 0, DispatchCounts()
        queue_runs = batch.runs_by_queue(self._topic_begins) if batch.batch_topics else {}
        for identity, runs in queue_runs.items():
            if identity[0] in batch.batch_topics and identity not in self._done:
                self._counts.add(self._write_queue(*identity, batch_units(runs)))
                self._done.add(identity)
                self._placed = 0
        self._batch = None
        return self._counts

    def _write_queue(self, topic: bytes, queue_id: int, units: NDArray[np.void]) -> DispatchCounts:
        """Write, skip or list all messages of one queue in a batch, in log order."""
        counts = DispatchCounts(messages=len(units))
        queue = self._queue(topic, queue_id)
        if queue is None:
            refused = BatchesDropped(units, BatchQueueEnd(), unusable_reason(queue_id))
            self._list(refused.entries(topic, queue_id), counts)
        else:
            next_queue_offset = partial(_next_queue_offset, queue)
            for step in place_batches(queue.end, units, self._is_gone, next_queue_offset):
                match step:
                    case BatchesBuilt():
                        counts.duplicates += len(step.units) - self._placed
                    case BatchesBegunAnew():
                        self.sync()
                        queue.files.remove_all()
                    case BatchesPlaced():
                        data = step.units.view(np.uint8).data
                        queue.files.write(step.position, data, self._output, self._unsynced)
                        self._placed += len(step.units)
                    case BatchesDropped():
                        self._list(step.entries(topic, queue_id), counts)
                queue.end = step.after
        self._count_topic(topic, counts)
        return counts

    def _open(self, key: QueueKey) -> _Queue:
        file_size = checked_file_size(self._file_size)
        files = BatchConsumeQueueFiles(self.root / key.relative_path, file_size)
        end = files.find_end(self._durable_end)
        return _Queue(files, BatchQueueEnd(end, *(files.last_unit(end) or (-1, 0))))

    def _end_of(self, queue: _Queue) -> EntryEnd | None:
        end = queue.end
        if end.max_msg_phy_offset < 0:
            return None
        return EntryEnd(end.position, end.max_msg_phy_offset + end.last_size)

    def _cut(self, end_offset: int) -> None:
        for key, files in BatchConsumeQueueFiles.each(self.root, self._file_size):
            cut_after(files, end_offset, partial(self._count_units, key))


def _next_queue_offset(queue: _Queue) -> int:
    """Queue offset after the queue's last unit."""
    last = queue.files.read(queue.end.position // queue.files.unit_size - 1, 1)[0]
    return int(last["msg_base_offset"]) + int(last["batch_size"])
