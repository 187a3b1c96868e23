"""Spark's side of a batch: foreachBatch runs the job that scans it, a thread commits what it finds.

With a spool, parts are committed while the job runs (``streaming.parts``). A batch returns to Spark
before it is durable, and its end is written while Spark scans the next one: the watermark, not
Spark's checkpoint, decides what is done.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from pyspark.sql import DataFrame

from reput.store import fsops
from reput.store.errors import OutputError, StoreError
from reput.store.log.commitlog import CommitLog
from reput.store.runs.dispatch import BatchSettings, DispatchBatch, ScannedRange
from reput.store.runs.packed import unpack
from reput.store.runs.scan import Item, assemble
from reput.store.runs.spool import close_spool, remove_claims, scanned_bytes
from reput.streaming.batchevent import COLLECT, COMMIT, BatchEvent
from reput.streaming.commit import Committer
from reput.streaming.indexes import Indexes
from reput.streaming.logcontext import store_name
from reput.streaming.measures import Measures
from reput.streaming.parts import Parts
from reput.streaming.progress import Progress
from reput.streaming.spark.frames import collected
from reput.streaming.tail import Planned, Tail, is_small

TEND_SECONDS = 1.0

logger = logging.getLogger("reput")


class BatchFunction:
    """The function that Spark calls for each batch, and the thread in which batches are committed.

    Only one thread at a time reads the log or writes: the callback works on them after ``finish``.
    """

    def __init__(
        self,
        spool: Path | None,
        start: int,
        indexes: Indexes,
        log: CommitLog,
        committer: Committer,
        progress: Progress,
        tail: Tail | None = None,
        measures: Measures | None = None,
    ) -> None:
        """``spool`` is where tasks on this machine leave their parts, and ``start`` where the query
        begins; ``tail`` is for a query that follows the log."""
        self.spool = spool
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
        self._collected_end = start
        self._has_collected = False

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Collect a batch, hand it over, and wait until the next one is due. Spark calls this on
        the driver, in a thread of its own, and may repeat it."""
        store_name.set(self._store_name)
        planned = self._tail.planned(batch_id) if self._tail else None
        start = self._collected_end
        with self._busy:
            self._refuse_if(self._stopping.is_set())
            end = planned.end if planned else None
            event = BatchEvent(self._measures, batch_id, start, end)
            try:
                batch = self._scan(planned, event)
                if batch is None and self.spool is not None:
                    self._take_parts(frame, self.spool, planned, event)
                else:
                    batch = batch or self._without_spool(frame, event)
                    self._collected_end = batch.end
                    self.finish()
                    self._pending = self._thread.submit(self._commit_batch, batch, planned, event)
                self._has_collected = True
            except BaseException as error:
                if not self.has_refused:
                    self._note_failure(event, error)
                raise
        if self._tail and planned:
            self._tail.pause(planned, self._collected_end - start, self._stopping)

    def _refuse_if(self, stopping: bool) -> None:
        if stopping:
            self.has_refused = True
            raise StoreError("the dispatcher is stopping; the next start repeats this batch")

    def _commit_batch(
        self, batch: DispatchBatch, planned: Planned | None, event: BatchEvent
    ) -> None:
        self._commit((batch,), planned, event)
        event.log_durable()

    def _commit(
        self, batches: Iterable[DispatchBatch], planned: Planned | None, event: BatchEvent
    ) -> None:
        try:
            for batch in batches:
                with event.step(COMMIT):
                    counts = self._committer.commit(batch)
                    # counted before what may fail now: the batch is not written again
                    self.progress.advance(batch.end, counts)
                    event.note_durable(batch.start, batch.end, counts)
                    self._committer.publish(batch)
        except BaseException as error:
            self._note_failure(event, error)
            raise
        if self._tail and planned:
            self._tail.note_durable(planned)

    def _note_failure(self, event: BatchEvent, error: BaseException) -> None:
        """Log a batch as failed, but not one that only finds the error of the batch before it."""
        if error is not self.failure:
            self.failure = error
            event.log_failed(error)

    def _scan(self, planned: Planned | None, event: BatchEvent) -> DispatchBatch | None:
        """Return a small batch that follows what was collected; None where Spark's tasks have to
        scan it."""
        if not (self._tail and planned and self._has_collected):
            return None  # Spark may begin at an offset before ours
        if not is_small(self._collected_end, planned.end):
            return None
        self.finish()
        with event.step(COLLECT):
            return self._tail.scan(self._collected_end, planned.end)

    def stop(self) -> None:
        """Let the running batch end, after the parts that tasks have begun, and accept no other. A
        batch that begins now is refused, which ends the query: Spark could not interrupt it if it
        waited here."""
        self._stopping.set()
        if self.spool is not None:
            close_spool(self.spool)
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
        ahead = self._collected_end - self.progress.position
        if self.spool is not None and self._busy.locked():
            ahead += scanned_bytes(self.spool)
        # of the parts that are scanned, those that are durable lie before the position
        self.progress.ahead_bytes = max(0, ahead)

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

    def _take_parts(
        self, frame: DataFrame, spool: Path, planned: Planned | None, event: BatchEvent
    ) -> None:
        """Run a batch's job while the thread commits its parts."""
        before = self._pending
        parts = Parts(spool, self._collected_end, self._scan_to_file_end)
        self._pending = self._thread.submit(self._commit_parts, before, parts, planned, event)
        whole = None
        try:
            with event.step(COLLECT):
                whole = _whole(self._collect(frame))
        finally:
            parts.end(whole)
        remove_claims(spool)
        self._collected_end = whole.end
        if before is not None:
            before.result()
        if self._stopping.is_set():
            self.finish()
            self._refuse_if(not parts.are_whole)

    def _commit_parts(
        self,
        before: Future[None] | None,
        parts: Parts,
        planned: Planned | None,
        event: BatchEvent,
    ) -> None:
        try:
            if before is not None:
                before.result()  # it has ended; after a failure nothing may follow
            self._commit(parts.commits(), planned, event)
        except BaseException:
            parts.stop()
            raise
        if not parts.have_failed:
            event.log_durable()

    def _collect(self, frame: DataFrame) -> list[Item]:
        if self.progress.first_batch is None:
            self.progress.first_batch = time.monotonic()
        return list(unpack(collected(frame)))

    def _without_spool(self, frame: DataFrame, event: BatchEvent) -> DispatchBatch:
        with event.step(COLLECT):
            items = self._collect(frame)
            batch = assemble(items)
        whole = _whole(items)
        if batch is None:
            logger.warning(
                "parts of a batch do not join, scanning again: start=%d end=%d",
                whole.start, whole.end,
            )  # fmt: skip
            self.finish()
            batch = self._scanned(whole.start, whole.end, whole.settings)
        return batch

    def _scan_to_file_end(self, start: int, whole: ScannedRange) -> DispatchBatch:
        segment = self._log.segment_at(start) or self._log.segment_after(start)
        file_end = segment.start + self._log.file_size if segment else whole.end
        return self._scanned(start, min(file_end, whole.end), whole.settings)

    def _scanned(self, start: int, end: int, settings: BatchSettings) -> DispatchBatch:
        self._log.refresh()
        batch = self._indexes.scan(self._log, start, end, settings)
        if batch is None:
            raise StoreError(f"the log between {start} and {end} changed while it was read")
        return batch

    def close(self) -> None:
        """Wait for a commit in progress, and release what is held of its batch."""
        self._thread.shutdown()
        self._pending = self.failure = None
        if self.spool is not None:
            with suppress(OutputError):
                fsops.remove_tree(self.spool)


def _whole(items: list[Item]) -> ScannedRange:
    """Return the range of a batch, by what its tasks returned."""
    scanned = [item for item in items if isinstance(item, ScannedRange)]
    if not scanned:
        raise StoreError("a batch came without its range: nothing was written; start the run again")
    end = max(part.planned_end for part in scanned)
    return replace(scanned[0], start=min(part.start for part in scanned), end=end, planned_end=end)
