"""The part of a rebuild that runs on executors: one task writes whole queues (decision 0014).

A task gets all packed runs of its queues, sorted. It writes them with the writers of the driver
into a directory of its own, syncs, and answers with a manifest for each queue; rows that are no
runs pass through. Whatever becomes of a task, another attempt writes the same bytes elsewhere, and
the driver moves in what one successful attempt has answered.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from reput.store import fsops
from reput.store.errors import OutputError, StoreError
from reput.store.files import STATE_DIRECTORY
from reput.store.queue.consumequeue import QueueKey, topic_directory
from reput.store.runs.dispatch import DispatchBatch, DispatchCounts, IndexWriter, Run, ScannedRange
from reput.store.runs.manifest import QueueManifest, written_files
from reput.store.runs.packed import queue_row, unpack
from reput.store.runs.packedschema import RowKind
from reput.store.runs.scan import assemble
from reput.store.state.ledger import Ledger
from reput.streaming.indexes import Indexes

UNITS_PER_WRITE = 1 << 20
"""Units, about this many, that are joined for one write: 20 MiB."""
SORT_COLUMNS = ("topic", "queueId", "firstPhysicalOffset")
"""The order of a task's rows; the first two of them choose the task."""


@dataclass(frozen=True, slots=True)
class QueueTask:
    """The function that Spark calls in each task, with all rows of the task's queues."""

    indexes: Indexes
    epoch: Path
    """The directory of this rebuild, on a file system that all nodes share."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write the queues of ``batches`` durably; yield their manifests and the other rows.

        ``batches`` are of the packed form, sorted by SORT_COLUMNS. Raises StoreError, also where
        the epoch is over.
        """
        others: list[pa.RecordBatch] = []

        def runs() -> Iterator[Run]:
            for batch in batches:
                is_run = pc.equal(batch.column("kind"), int(RowKind.RUN))
                others.append(batch.filter(pc.invert(is_run)))
                yield from unpack([batch.filter(is_run)])  # type: ignore[misc]

        with ExitStack() as resources:
            attempt: _Attempt | None = None
            manifests = []
            for _, queue_runs in groupby(runs(), key=lambda run: (run.topic, run.queue_id)):
                if attempt is None:
                    attempt = _Attempt(self.indexes, self.epoch, resources)
                manifests.append(attempt.write(queue_runs))
            if attempt is not None:
                attempt.sync()
        yield from (rows for rows in others if len(rows))
        yield from map(queue_row, manifests)

    def batch_of(self, answers: Iterable[pa.RecordBatch]) -> DispatchBatch | None:
        """Return the answers of all tasks as one batch, on the driver; None where the parts of the
        log do not join, or there are none. Raises StoreError where a unit has no writer."""
        items = list(unpack(answers))
        batch = assemble(items)
        if batch is None:
            return None
        scanned = sum(item.unit_count for item in items if isinstance(item, ScannedRange))
        written = sum(queue.unit_count for queue in batch.queues)
        if written != scanned:
            raise StoreError(
                f"executors have scanned {scanned} units and written {written}: nothing is "
                "replaced; start again, and report it"
            )
        if batch.batch_topics != self.indexes.batch_topics:
            raise StoreError(
                f"{self.indexes.settings.root}/config/topics.json has other batch topics than when "
                "the rebuild began: nothing is replaced; start again"
            )
        return batch


class _Attempt:
    """One attempt of a task, and its directory."""

    def __init__(self, indexes: Indexes, epoch: Path, resources: ExitStack) -> None:
        """Create the directory, open the writers; ``resources`` closes them. Raises StoreError."""
        self._indexes = indexes
        self.directory = epoch / f"attempt-{uuid.uuid4().hex}"
        try:
            fsops.create_directories(self.directory, self.directory)
        except OutputError as error:
            raise StoreError(
                f"node {os.uname().nodename} cannot write queues: {error}; every node must see "
                "the output under the same path and may write there, and an epoch that is gone "
                "is over"
            ) from error
        log = indexes.settings.open_log()
        resources.callback(log.close)
        self._ledger = Ledger(self.directory / STATE_DIRECTORY)
        self._writers: Sequence[IndexWriter] = indexes.open_queue_writers(
            self.directory, self._ledger, None, log
        )
        for writer in self._writers:
            resources.callback(writer.close)

    def write(self, runs: Iterator[Run]) -> QueueManifest:
        """Write all runs of one queue, and return what will be durable after ``sync``."""
        counts, unit_count, first = DispatchCounts(), 0, -1
        for part in _parts(runs):
            last = part[-1]
            if first < 0:
                first = part[0].first_physical_offset
            end = int(last.units["offset"][-1]) + int(last.units["size"][-1])
            batch = DispatchBatch(
                part[0].first_physical_offset, end, part, (), 0, -1,
                batch_topics=self._indexes.batch_topics,
            )  # fmt: skip
            unit_count += sum(len(run) for run in part)
            for writer in self._writers:
                counts.add(writer.write(batch))
        topic = topic_directory(last.topic)
        files = written_files(self.directory, QueueKey(topic, last.queue_id)) if topic else ()
        return QueueManifest(
            topic=last.topic,
            queue_id=last.queue_id,
            attempt=str(self.directory),
            unit_count=unit_count,
            first_physical_offset=first,
            end_physical_offset=end,
            last_store_timestamp=last.last_store_timestamp,
            counts=replace(counts, unusual_topics=0),
            ledger=tuple(self._ledger.take_added()),
            files=tuple(files),
        )

    def sync(self) -> None:
        """Make everything that was written durable. Raises SyncError."""
        for writer in self._writers:
            writer.sync()


def _parts(runs: Iterator[Run]) -> Iterator[list[Run]]:
    """Divide a queue's runs into lists of about UNITS_PER_WRITE units."""
    part: list[Run] = []
    count = 0
    for run in runs:
        part.append(run)
        count += len(run)
        if count >= UNITS_PER_WRITE:
            yield part
            part, count = [], 0
    if part:
        yield part
