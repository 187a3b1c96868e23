"""The writer of batch queues: RocketMQ's ``BatchConsumeQueue.putBatchMessagePositionInfo``.

Delivery: exactly once in the files, although calls may repeat, because a queue file itself shows
which messages already have units. Unit of work: one queue of one batch, written and counted as a
whole; queues are independent of each other.

Only messages of batch topics (``store.queue.queuetype``) come here, and none of them goes to the
consume queue. The output is byte-identical to RocketMQ's (formats.md §7); messages that RocketMQ
drops with a warning are listed in the ledger.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from reput.sinks.queuewriter import QueueWriter, unusable_reason
from reput.store.queue.batchconsumequeue import (
    BATCH_CONSUME_QUEUE_DIRECTORY,
    BATCH_UNIT_DTYPE,
    INVALID_POS,
    BatchConsumeQueueFiles,
    checked_file_size,
    open_batch_queues,
)
from reput.store.queue.consumequeue import QueueKey
from reput.store.queue.cut import cut_after
from reput.store.runs.dispatch import DispatchBatch, DispatchCounts, Run
from reput.store.state.ends import EntryEnd
from reput.store.state.ledger import Ledger, escaped


@dataclass(slots=True)
class _Queue:
    """One queue as its files show it; it advances only after a successful write."""

    files: BatchConsumeQueueFiles
    end: int
    """Byte position after the last unit."""
    max_msg_phy_offset: int
    """Physical offset of the last message with a unit; -1 without one."""
    last_size: int
    """Size of that message."""


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
        open_files: Callable[[Path, int], BatchConsumeQueueFiles] = BatchConsumeQueueFiles,
    ) -> None:
        """Set up the writer; no file is opened yet.

        ``file_size`` is the bytes of a queue file, a multiple of the unit size (else UsageError,
        once there is a queue). ``durable_end`` is the watermark; units of messages past it are
        rewritten, and None trusts every unit. ``count_units`` returns how many units of a queue
        the record at (physical offset, size) has (``store.queue.cut``). ``is_gone`` tells
        whether the log has lost all bytes before an offset. ``topic_begins`` maps a topic to the
        physical offset before which its messages get no units. ``open_files`` opens a queue's
        directory; ``upkeep.verify`` passes one that compares instead of writing.
        """
        super().__init__(output, BATCH_CONSUME_QUEUE_DIRECTORY, ledger, topic_begins)
        self._is_gone = is_gone
        self._file_size = file_size
        self._durable_end = durable_end
        self._count_units = count_units
        self._open_files = open_files
        self._batch: tuple[int, int] | None = None
        """[start, end) of the batch that is being written; a second try resumes it."""
        self._done: set[tuple[bytes, int]] = set()
        self._counts = DispatchCounts()

    def write(self, batch: DispatchBatch) -> DispatchCounts:
        """Write the units of a batch (``IndexWriter.write``).

        The runs of its batch topics must have details. Raises NoSpaceError and keeps what was
        written, so the same batch may be written again.
        """
        if self._batch != (batch.start, batch.end):
            self._batch = (batch.start, batch.end)
            self._done, self._counts = set(), DispatchCounts()
        for identity, runs in self._runs_by_queue(batch).items():
            if identity[0] in batch.batch_topics and identity not in self._done:
                self._counts.add(self._write_queue(*identity, _batch_units(runs)))
                self._done.add(identity)
        self._batch = None
        return self._counts

    def _write_queue(self, topic: bytes, queue_id: int, units: NDArray[np.void]) -> DispatchCounts:
        """Write, skip or list all messages of one queue in a batch, in log order."""
        counts = DispatchCounts(messages=len(units))
        queue = self._queue(topic, queue_id)
        if queue is None:
            self._quarantine(topic, queue_id, units, unusable_reason(queue_id), counts)
        else:
            out_of_range = (units["msg_base_offset"] < 0) | (units["batch_size"] < 0)
            sound = units[~out_of_range]
            # the idempotence rule: offset <= maxMsgPhyOffset already has a unit
            counts.duplicates = int(
                np.searchsorted(sound["offset"], queue.max_msg_phy_offset, side="right")
            )
            self._append(queue, sound[counts.duplicates :])
            refused = units[out_of_range]
            self._quarantine(topic, queue_id, refused, "batch_offset_out_of_range", counts)
        self._count_topic(topic, counts)
        return counts

    def _open(self, key: QueueKey) -> _Queue:
        file_size = checked_file_size(self._file_size)
        files = self._open_files(self.root / key.relative_path, file_size)
        end = files.find_end(self._durable_end)
        last = files.last_unit(end)
        return _Queue(files, end, *(last or (-1, 0)))

    def _end_of(self, queue: _Queue) -> EntryEnd | None:
        if queue.max_msg_phy_offset < 0:
            return None
        return EntryEnd(queue.end, queue.max_msg_phy_offset + queue.last_size)

    def _append(self, queue: _Queue, units: NDArray[np.void]) -> None:
        ends = units["msg_base_offset"] + units["batch_size"]
        steps_back = np.flatnonzero(units["msg_base_offset"][1:] < ends[:-1]) + 1
        for part in np.split(units, steps_back) if len(units) else ():
            if self._begins_again(queue, int(part["msg_base_offset"][0])):
                self.sync()
                queue.files.remove_all()
                queue.end, queue.max_msg_phy_offset = 0, -1
            data = part.view(np.uint8).data
            self._unsynced.add(queue.files.write(queue.end, data, self._output))
            queue.end += len(data)
            queue.max_msg_phy_offset = int(part["offset"][-1])
            queue.last_size = int(part["size"][-1])

    def _begins_again(self, queue: _Queue, base_offset: int) -> bool:
        """Whether the log has lost every message of a queue, and its offsets begin again: a broker
        has removed it (``ConsumeQueueStore.cleanExpired``)."""
        if queue.max_msg_phy_offset < 0 or not self._is_gone(queue.max_msg_phy_offset + 1):
            return False
        last = queue.files.read(queue.end // queue.files.unit_size - 1, 1)[0]
        return base_offset < int(last["msg_base_offset"]) + int(last["batch_size"])

    def _quarantine(
        self,
        topic: bytes,
        queue_id: int,
        units: NDArray[np.void],
        reason: str,
        counts: DispatchCounts,
    ) -> None:
        queue = (escaped(topic), queue_id)
        for unit in units:
            detail = f"batch of {unit['batch_size']}"
            self._list(unit, reason, queue, int(unit["msg_base_offset"]), counts, detail)

    def truncate(self, end_offset: int) -> None:
        """Cut every queue after the last message that ends at or before ``end_offset``."""
        for key, files in open_batch_queues(self._output, self._file_size):
            cut_after(files, end_offset, partial(self._count_units, key))
        self._queues.clear()


def _batch_units(runs: Sequence[Run]) -> NDArray[np.void]:
    """BATCH_UNIT_DTYPE[n]: the units of a queue's runs, without those of light queues."""
    parts = []
    for run in runs:
        if run.details is None:
            raise ValueError("runs of a batch topic must come with details")
        own = run.details["is_light"] == 0
        units, details = run.units[own], run.details[own]
        part = np.zeros(len(units), BATCH_UNIT_DTYPE)
        for field in ("offset", "size", "tags_code"):
            part[field] = units[field]
        part["store_time"] = details["store_timestamp"]
        part["msg_base_offset"] = details["base_offset"]
        part["batch_size"] = details["batch_size"]
        part["compacted_offset"] = INVALID_POS
        parts.append(part.view(np.uint8))
    # joined as bytes, because numpy's concatenate would convert the byte order
    return np.concatenate(parts).view(BATCH_UNIT_DTYPE)
