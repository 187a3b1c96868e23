"""Spark's side of a batch: foreachBatch runs the job that scans it, a thread commits what it finds.

With a spool, parts are committed while the job runs (``streaming.parts``). A batch returns to Spark
before it is committed, and its end is written while Spark scans the next one: the watermark, not
Spark's checkpoint, decides what is done.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from pyspark.sql import DataFrame

from reput.store import fsops
from reput.store.errors import OutputError, StoreError
from reput.store.log.commitlog import CommitLog
from reput.store.runs.dispatch import DispatchBatch, ScannedRange
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

_NOTHING = Future[None]()
_NOTHING.set_result(None)

logger = logging.getLogger("reput")


class CommitThread:
    """Does what it is given, in order. After an error it does nothing more, and whoever waits gets
    the error."""

    def __init__(self) -> None:
        """The thread works for the store of this one (``logcontext``)."""
        initial = (store_name.get(),)
        self._executor = ThreadPoolExecutor(1, "reput-commit", store_name.set, initial)
        self._last = _NOTHING

    def begin(self, work: Callable[[], object]) -> Future[None]:
        """Have a work done next; return that of the work before it."""
        before = self._last
        self._last = self._executor.submit(_follow, before, work)
        return before

    @property
    def is_idle(self) -> bool:
        """Whether all work has ended."""
        return self._last.done()

    def wait(self) -> None:
        """Wait until all work has ended. Raises its error."""
        self._last.result()

    def check(self) -> None:
        """Raises the error of the work if it has ended; does not wait."""
        if self.is_idle:
            self.wait()

    def close(self) -> None:
        """End the thread after its work, and release what an error holds of it."""
        self._executor.shutdown()
        self._last = _NOTHING


def _follow(before: Future[None], work: Callable[[], object]) -> None:
    before.result()  # it has ended; after a failure nothing may follow
    work()


class BatchFunction:
    """The function that Spark calls for each batch.

    It hands batches to a thread that commits them. Only one of the two at a time reads the log or
    writes: the function does so once the thread is idle.
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
        self.commits = CommitThread()
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
                    self.commits.wait()
                    self.commits.begin(partial(self._commit, (batch,), planned, event))
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

    def _commit(
        self,
        pieces: Iterable[DispatchBatch],
        planned: Planned | None,
        event: BatchEvent,
        parts: Parts | None = None,
    ) -> None:
        """Commit a batch in pieces, those of ``parts`` or one, in the thread for that."""
        try:
            for piece in pieces:
                with event.step(COMMIT):
                    counts = self._committer.commit(piece)
                    self.progress.advance(piece.end, counts)
                    event.note_committed(piece.start, piece.end, counts)
                    if self._tail and planned and piece.end == planned.end:
                        self._tail.note_visible(planned)
                    self._committer.publish(piece)
        except BaseException as error:
            self._note_failure(event, error)
            raise
        if parts is None or not parts.have_failed:
            self.progress.note_stages(event.stages)
            event.log_committed()

    def _note_failure(self, event: BatchEvent, error: BaseException) -> None:
        """Let tasks claim no further part, and log a batch as failed, but not one that only finds
        the error of the batch before it."""
        if self.spool is not None:
            close_spool(self.spool)
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
        self.commits.wait()
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

    def note_progress(self) -> None:
        """Record how far the tasks of the batch in progress have come."""
        ahead = self._collected_end - self.progress.position
        if self.spool is not None and self._busy.locked():
            ahead += scanned_bytes(self.spool)
        # of the parts that are scanned, those that are committed lie before the position
        self.progress.ahead_bytes = max(0, ahead)

    def tend(self) -> None:
        """Begin ``Committer.tend`` if it is due and no batch is in progress."""
        is_due = time.monotonic() >= self._tend_due or self._committer.is_durable_due
        if is_due and self._busy.acquire(blocking=False):
            # no batch begins meanwhile, and the next one waits for the work that begins here
            try:
                if self.commits.is_idle:
                    self._tend_due = time.monotonic() + TEND_SECONDS
                    self.commits.begin(self._committer.tend)
            finally:
                self._busy.release()

    def _take_parts(
        self, frame: DataFrame, spool: Path, planned: Planned | None, event: BatchEvent
    ) -> None:
        """Run a batch's job while the thread commits its parts."""
        parts = Parts(spool, self._collected_end, self._scan_to_file_end)
        work = partial(self._commit, parts.commits(), planned, event, parts)
        before = self.commits.begin(work)
        whole = None
        try:
            with event.step(COLLECT):
                whole = _whole(self._collect(frame))
        finally:
            parts.end(whole)
        remove_claims(spool)
        self._collected_end = whole.end
        before.result()
        if self._stopping.is_set():
            self.commits.wait()
            self._refuse_if(not parts.are_whole)

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
            self.commits.wait()
            batch = self._indexes.scan_unchanged(self._log, whole.start, whole.end, whole.settings)
        return batch

    def _scan_to_file_end(self, start: int, whole: ScannedRange) -> DispatchBatch:
        segment = self._log.segments.at(start) or self._log.segments.after(start)
        file_end = segment.start + self._log.file_size if segment else whole.end
        end = min(file_end, whole.end)
        return self._indexes.scan_unchanged(self._log, start, end, whole.settings)

    def close(self) -> None:
        """Wait for a commit in progress, and release what is held of its batch."""
        self.commits.close()
        self.failure = None
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
