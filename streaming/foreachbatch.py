"""Spark's side of a batch: foreachBatch collects packed runs, which are committed in a thread.

A batch returns to Spark before it is durable and is written while Spark scans the next one: the
watermark, not Spark's checkpoint, decides what is done.
"""

from __future__ import annotations

import logging
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from pyspark.sql import DataFrame

from store.errors import OutputError, StoreError
from store.log.commitlog import CommitLog
from store.runs.dispatch import DispatchBatch, ScannedRange
from store.runs.packed import unpack
from store.runs.scan import assemble
from store.runs.spool import SpoolReader, clear_spool, remove_marks, scanned_bytes
from streaming.commit import Committer
from streaming.indexes import Indexes
from streaming.logcontext import store_name
from streaming.measures import Measures
from streaming.progress import Progress
from streaming.tail import Planned, Tail

TEND_SECONDS = 1.0

logger = logging.getLogger("reput")


class BatchFunction:
    """The function that Spark calls for each batch, and the thread in which batches are committed.

    Only one thread at a time reads the log or writes: the callback works on them after ``finish``.
    """

    def __init__(
        self,
        spool: Path,
        indexes: Indexes,
        log: CommitLog,
        committer: Committer,
        progress: Progress,
        tail: Tail | None = None,
        measures: Measures | None = None,
    ) -> None:
        """``spool`` is where tasks on this machine leave their units; ``tail`` is for a query that
        follows the log."""
        self._spool = spool
        self._indexes = indexes
        self._log = log
        self._committer = committer
        self.progress = progress
        self._tail = tail
        self._measures = measures or Measures()
        self._busy = threading.Lock()
        self._stopping = threading.Event()
        self.failure: BaseException | None = None
        self.has_refused = False
        """A batch was refused because the run is being stopped; ``failure`` is then None."""
        self._tend_due = 0.0
        self._store_name = store_name.get()
        self._thread = ThreadPoolExecutor(1, "reput-commit", store_name.set, (self._store_name,))
        self._pending: Future[None] | None = None
        self._collected_end = progress.position
        self._has_collected = False

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Collect a batch, hand it over, and wait until the next one is due. Spark calls this on
        the driver, in a thread of its own, and may repeat it."""
        store_name.set(self._store_name)
        planned = self._tail.planned(batch_id) if self._tail else None
        with self._busy:
            if self._stopping.is_set():
                self.has_refused = True
                raise StoreError("the dispatcher is stopping; the next start repeats this batch")
            try:
                with self._measures.stage("collect").measured():
                    batch = self._scan(planned) or self._collect(frame)
                self._collected_end = batch.end
                self._has_collected = True
                remove_marks(self._spool)
                self.finish()
                self._pending = self._thread.submit(self._commit, batch, planned)
            except BaseException as error:
                self.failure = error
                raise
        if self._tail and planned:
            self._tail.pause(planned, batch.end - batch.start, self._stopping)

    def _commit(self, batch: DispatchBatch, planned: Planned | None) -> None:
        with self._measures.stage("commit").measured():
            counts = self._committer.commit(batch)
        self.progress.advance(batch.end, counts)
        if self._tail and planned:
            self._tail.note_durable(planned)

    def _scan(self, planned: Planned | None) -> DispatchBatch | None:
        """Return a small batch that follows what was collected; None where Spark's tasks have to
        scan it."""
        if not (self._tail and planned and self._has_collected):
            return None  # Spark may begin at an offset before ours
        self.finish()
        return self._tail.scan(self._collected_end, planned.end)

    def stop(self) -> None:
        """Let the running batch end and accept no other. A batch that begins now is refused, which
        ends the query: Spark could not interrupt it if it waited here."""
        self._stopping.set()
        with self._busy:
            pass

    def finish(self) -> None:
        """Wait until the batch in progress is durable. Raises the error of its commit."""
        if self._pending is not None:
            self._pending.result()

    def check(self) -> None:
        """Raises the error of the last commit if it has ended; does not wait."""
        if self._pending is not None and self._pending.done():
            self._pending.result()

    def note_progress(self) -> None:
        """Record how far the tasks of the batch in progress have come."""
        ahead = max(0, self._collected_end - self.progress.position)
        if self._busy.locked():
            ahead += scanned_bytes(self._spool)
        self.progress.ahead_bytes = ahead

    def tend(self) -> None:
        """Begin ``Committer.tend`` if it is due and no batch is in progress."""
        if time.monotonic() >= self._tend_due and self._busy.acquire(blocking=False):
            # no batch begins meanwhile, and the next one waits for the work that begins here
            try:
                if self._pending is None or self._pending.done():
                    self.finish()
                    self._tend_due = time.monotonic() + TEND_SECONDS
                    self._pending = self._thread.submit(self._committer.tend)
            finally:
                self._busy.release()

    def _collect(self, frame: DataFrame) -> DispatchBatch:
        if self.progress.first_batch is None:
            self.progress.first_batch = time.monotonic()
        # the further work of toArrow with the schema and settings is a tenth of a small batch's
        # time
        arrow = frame._collect_as_arrow()  # type: ignore[operator]
        items = list(unpack(arrow, SpoolReader(self._spool)))
        batch = assemble(items)
        if batch is not None:
            return batch
        scanned = [item for item in items if isinstance(item, ScannedRange)]
        if not scanned:
            raise StoreError(
                "a batch came without its range: nothing was written; start the run again"
            )
        start = min(part.start for part in scanned)
        end = max(part.planned_end for part in scanned)
        logger.warning("parts of a batch do not join, scanning again: start=%d end=%d", start, end)
        self.finish()
        self._log.refresh()
        batch = self._indexes.scan(self._log, start, end, scanned[0].settings)
        if batch is None:
            raise StoreError(f"the log between {start} and {end} changed while it was read")
        return batch

    def close(self) -> None:
        """Wait for a commit in progress, and release what is held of its batch."""
        self._thread.shutdown()
        self._pending = self.failure = None
        with suppress(OutputError):
            clear_spool(self._spool)
