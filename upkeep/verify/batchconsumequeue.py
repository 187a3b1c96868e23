"""Compares batch consume queues: units stand one after the other, and no position follows from a
queue offset."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from reput.sinks.batchconsumequeue import BatchConsumeQueueWriter
from reput.store.queue.batchconsumequeue import (
    BATCH_CONSUME_QUEUE_DIRECTORY,
    BatchConsumeQueueFiles,
    checked_file_size,
)
from reput.store.queue.consumequeue import QueueFiles
from reput.store.runs.dispatch import Run
from reput.store.state.ledger import Ledger
from reput.upkeep.verify.difference import LogRange
from reput.upkeep.verify.queues import ComparedQueue, QueueVerifier


class ComparedBatchQueue(ComparedQueue, BatchConsumeQueueFiles):
    """The files of one batch queue as they are."""

    writable = BatchConsumeQueueFiles
    directory_name = BATCH_CONSUME_QUEUE_DIRECTORY

    def _find_first(self, first: NDArray[np.void]) -> int | None:
        """Find the first unit; where its file is gone, that is the one after the last message
        before the log."""
        found = super()._find_first(first)
        for start in reversed(self.starts if found is None and self._log.start else []):
            units = self._units(start)
            is_gone = (units["size"] > 0) & (units["offset"] + units["size"] <= self._log.start)
            if is_gone.any():
                return start + (int(np.flatnonzero(is_gone)[-1]) + 1) * self.unit_size
        return found

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

    def __init__(
        self,
        output: Path,
        file_size: int,
        ledger: Ledger,
        log: LogRange,
        topic_begins: Mapping[str, int] | None = None,
    ) -> None:
        """``ledger`` is only read; ``topic_begins`` as for the writer.

        Raises QueueFileError where no file has ``file_size`` bytes, UsageError where none can.
        """
        super().__init__(output, ComparedBatchQueue, checked_file_size(file_size), log)
        self._ledger = ledger
        self._topic_begins = topic_begins
        self._writer = self._new_writer()

    def _new_writer(self) -> BatchConsumeQueueWriter:
        return BatchConsumeQueueWriter(
            self._output,
            self._file_size,
            self._ledger,
            durable_end=None,
            count_units=lambda *_: None,
            topic_begins=self._topic_begins,
            open_files=self._take,
        )

    def _open(self, directory: Path, first: Run | None) -> ComparedBatchQueue:
        own = None
        if first is not None and first.details is not None:
            own = first.units[first.details["is_light"] == 0]
        return ComparedBatchQueue(directory, self._file_size, self._log, own)
