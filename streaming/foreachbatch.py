"""Spark's side of a batch: foreachBatch runs the job that scans it, a thread commits what it finds.

With a spool, parts are committed while the job runs (``streaming.parts``). A batch returns to Spark
before it is committed, and its end is written while Spark scans the next one: the watermark, not
Spark's checkpoint, decides what is done.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
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
from reput.streaming.following import Following
from reput.streaming.indexes import Indexes
from reput.streaming.logcontext import store_name
from reput.streaming.measures import Measures
from reput.streaming.parts import Parts
from reput.streaming.progress import Progress
from reput.streaming.spark.frames import collected

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
        following: Following | None = None,
        measures: Measures | None = None,
    ) -> None:
        """``spool`` is where tasks on this machine leave their parts, and ``start`` where the query
        begins; ``following`` is for a query that follows the log."""
        self.spool = spool
        self._indexes = indexes
        self._log = log
        self._committer = committer
        self.progress = progress
        self._following = following
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
        """Where Spark's next batch begins; while the log is followed, more may be dispatched."""

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Collect a batch, hand it over, and wait until the next one is due. Spark calls this on
        the driver, in a thread of its own, and may repeat it."""
        store_name.set(self._store_name)
        following = self._following
        planned_end = following.planned_end(batch_id) if following else None
        with self._busy:
            if not self._is_dispatched(planned_end):
                self._refuse_if(self._stopping.is_set())
                self._collect_batch(frame, batch_id, planned_end)
        if following is not None:
            end = self._collected_end
            if not following.is_backlog(end, self.progress.log_end or end):
                self.follow()
                following.hold(end)

    def follow(self) -> None:
        """Have the thread follow the log, where a query does that, after the work that it has."""
        following = self._following
        with self._busy:
            if following is not None and not following.runs and not self._stopping.is_set():
                following.begin()
                self.commits.begin(partial(self._follow_log, following))

    def _follow_log(self, following: Following) -> None:
        try:
            following.run(self._commit_step, self._tend_if_due)
        except BaseException as error:
            start = self.progress.position
            self._note_failure(BatchEvent(self._measures, None, start, None), error)
            raise

    def _is_dispatched(self, planned_end: int | None) -> bool:
        """Whether a batch is small enough to be dispatched step by step; waits until it is."""
        following = self._following
        if following is None or planned_end is None or not following.runs:
            return False
        if following.is_backlog(self.progress.position, planned_end):
            return False
        if not following.wait_for(planned_end):
            return False
        self._collected_end = planned_end
        return True

    def _collect_batch(self, frame: DataFrame, batch_id: int, planned_end: int | None) -> None:
        """Have Spark's tasks scan a batch. Raises the error of the work before it."""
        if self._following is not None:
            self._following.let_go()
        event = BatchEvent(self._measures, batch_id, self._collected_end, planned_end)
        try:
            if self.spool is not None:
                self._take_parts(frame, self.spool, event)
            else:
                batch = self._without_spool(frame, event)
                self._collected_end = batch.end
                self.commits.wait()
                self.commits.begin(partial(self._commit, (batch,), event))
        except BaseException as error:
            if not self.has_refused:
                self._note_failure(event, error)
            raise

    def _refuse_if(self, stopping: bool) -> None:
        if stopping:
            self.has_refused = True
            raise StoreError("the dispatcher is stopping; the next start repeats this batch")

    def _commit(
        self,
        pieces: Iterable[DispatchBatch],
        event: BatchEvent,
        parts: Parts | None = None,
    ) -> None:
        """Commit a batch in pieces, those of ``parts`` or one, in the thread for that."""
        try:
            for piece in self._not_dispatched(pieces):
                with event.step(COMMIT):
                    counts = self._committer.commit(piece)
                    self.progress.advance(piece.end, counts)
                    event.note_committed(piece.start, piece.end, counts)
                    self._committer.publish(piece)
        except BaseException as error:
            self._note_failure(event, error)
            raise
        if parts is None or not parts.have_failed:
            self.progress.note_stages(event.stages)
            event.log_committed()

    def _commit_step(self, step: DispatchBatch) -> None:
        self._note_begun()
        self._commit((step,), BatchEvent(self._measures, None, step.start, step.end))

    def _not_dispatched(self, pieces: Iterable[DispatchBatch]) -> Iterator[DispatchBatch]:
        """Leave out what was dispatched step by step while Spark planned."""
        for piece in pieces:
            position = self.progress.position
            if piece.start >= position or self._following is None:
                yield piece
            elif piece.end > position:
                yield self._following.scan(position, piece.end)

    def _note_failure(self, event: BatchEvent, error: BaseException) -> None:
        """Let tasks claim no further part, and log a batch as failed, but not one that only finds
        the error of the batch before it."""
        if self.spool is not None:
            close_spool(self.spool)
        if error is not self.failure:
            self.failure = error
            event.log_failed(error)

    def stop(self) -> None:
        """Let the running batch or step end, after the parts that tasks have begun, and accept no
        other. A batch that begins now is refused, which ends the query: Spark could not interrupt
        it if it waited here."""
        self._stopping.set()
        if self._following is not None:
            self._following.let_go()
        if self.spool is not None:
            close_spool(self.spool)
        with self._busy:
            # a batch that ended meanwhile may have had the log followed again
            if self._following is not None:
                self._following.let_go()

    def note_progress(self) -> None:
        """Record how far the tasks of the batch in progress have come."""
        ahead = self._collected_end - self.progress.position
        if self.spool is not None and self._busy.locked():
            ahead += scanned_bytes(self.spool)
        # of the parts that are scanned, those that are committed lie before the position
        self.progress.ahead_bytes = max(0, ahead)

    def tend(self) -> None:
        """Begin ``Committer.tend`` if it is due and no batch is in progress."""
        if self._is_tend_due and self._busy.acquire(blocking=False):
            # no batch begins meanwhile, and the next one waits for the work that begins here
            try:
                if self.commits.is_idle:
                    self.commits.begin(self._tend_if_due)
            finally:
                self._busy.release()

    @property
    def _is_tend_due(self) -> bool:
        return time.monotonic() >= self._tend_due or self._committer.is_durable_due

    def _tend_if_due(self) -> None:
        if self._is_tend_due:
            self._tend_due = time.monotonic() + TEND_SECONDS
            self._committer.tend()

    def _take_parts(self, frame: DataFrame, spool: Path, event: BatchEvent) -> None:
        """Run a batch's job while the thread commits its parts."""
        parts = Parts(spool, self._collected_end, self._scan_to_file_end)
        work = partial(self._commit, parts.commits(), event, parts)
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

    def _note_begun(self) -> None:
        if self.progress.first_batch is None:
            self.progress.first_batch = time.monotonic()

    def _collect(self, frame: DataFrame) -> list[Item]:
        self._note_begun()
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
        """End what follows the log, wait for a commit in progress, and release what is held of its
        batch."""
        self.stop()
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
