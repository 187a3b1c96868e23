"""Compares batch consume queues: units stand one after the other, and no position follows from a
queue offset."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from reput.store.config import StoreSettings
from reput.store.files import BATCH_CONSUME_QUEUE_DIRECTORY
from reput.store.queue.batchconsumequeue import BatchConsumeQueueFiles, checked_file_size
from reput.store.queue.consumequeue import QueueFiles
from reput.store.runs.batchplacing import (
    BatchesDropped,
    BatchesPlaced,
    BatchQueueEnd,
    batch_units,
    place_batches,
)
from reput.store.runs.dispatch import Run
from reput.store.runs.placing import unusable_reason
from reput.store.state.ledger import Ledger
from reput.upkeep.verify.comparedqueue import ComparedQueue
from reput.upkeep.verify.difference import LogRange
from reput.upkeep.verify.queues import QueueVerifier


class ComparedBatchQueue(ComparedQueue, BatchConsumeQueueFiles):
    """The files of one batch queue as they are."""

    writable = BatchConsumeQueueFiles
    directory_name = BATCH_CONSUME_QUEUE_DIRECTORY

    def __init__(
        self, directory: Path, file_size: int, log: LogRange, first: NDArray[np.void] | None
    ) -> None:
        super().__init__(directory, file_size, log, first)
        self.queue_end = BatchQueueEnd(self.anchor or 0)
        """Where the next message belongs."""

    def _go_on(self, position: int, physical_offset: int, size: int) -> None:
        self.queue_end = BatchQueueEnd(position, physical_offset, size)

    def _find_first(self, first: NDArray[np.void]) -> int | None:
        """Find the first unit; where its file is gone, that is the one after the last message
        before the log."""
        position = super()._find_first(first)
        for start in reversed(self.starts if position is None and self._log.start else []):
            units = self._units(start)
            is_gone = (units["size"] > 0) & (units["offset"] + units["size"] <= self._log.start)
            if is_gone.any():
                return start + (int(np.flatnonzero(is_gone)[-1]) + 1) * self.unit_size
        return position

    def _gone_unit(self, files: QueueFiles, index: int) -> NDArray[np.void]:
        """Return a unit with a count of one: recovery stops at a batch of no messages, and queue
        offsets must not fall."""
        gone = super()._gone_unit(files, index)
        before = files.read(max(index - 1, 0), 1)
        last = int(before[0]["msg_base_offset"]) if index and len(before) else 0
        gone["msg_base_offset"], gone["batch_size"] = max(last, 0), 1
        return gone


class BatchConsumeQueueVerifier(QueueVerifier[ComparedBatchQueue]):
    """Compares every batch queue of an output."""

    is_of_batch_topics = True

    def __init__(
        self, output: Path, settings: StoreSettings, log: LogRange, ledger: Ledger
    ) -> None:
        """Raises QueueFileError where no file has the settings' size, UsageError where none can."""
        file_size = checked_file_size(settings.mapper_file_size_batch_consume_queue)
        super().__init__(output, settings, log, ledger, ComparedBatchQueue, file_size)

    def _open(self, directory: Path, first: Run | None) -> ComparedBatchQueue:
        own = None
        if first is not None and first.details is not None:
            own = first.units[first.details["is_light"] == 0]
        return ComparedBatchQueue(directory, self._file_size, self._log, own)

    def _compare_queue(self, queue: ComparedBatchQueue | None, runs: list[Run]) -> None:
        units, place = batch_units(runs), (runs[0].topic, runs[0].queue_id)
        if queue is None:
            refused = BatchesDropped(units, BatchQueueEnd(), unusable_reason(runs[0].queue_id))
            self._list(refused.entries(*place))
            return
        # no queue begins anew: what the log has lost is not compared
        for step in place_batches(queue.queue_end, units, lambda _: False, lambda: 0):
            if isinstance(step, BatchesPlaced):
                queue.compare_at(step.position, step.units.view(np.uint8).data)
            if isinstance(step, BatchesDropped):
                self._list(step.entries(*place))
            queue.queue_end = step.after
