"""One micro-batch on the driver: it takes packed runs and leaves entries and a higher watermark.

It writes in this order (ARCHITECTURE.md): entries, their sync, the ledger, the watermark,
RocketMQ's checkpoint file. Spark may call a batch again: the index writers are idempotent, and the
watermark, not Spark's checkpoint, decides what is done. A batch therefore returns to Spark before
it is durable, and is written while the next one is scanned.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import replace

from pyspark.sql import DataFrame

from checkpoints.agreement import what_differs
from checkpoints.reconcile import Plan
from checkpoints.watermark import WatermarkFile
from sources.bitmaps import BitMaps
from store import fsops
from store.errors import CommitLogError, CorruptRecordError, OutputError, StoreError
from store.log.commitlog import CommitLog
from store.log.cursor import BadRange
from store.log.record import Status
from store.queue.queuetype import check_queue_types
from store.queue.retention import expired_files, remove_files
from store.runs.dispatch import CommitLogDispatcher, DispatchBatch, DispatchCounts, ScannedRange
from store.runs.packed import unpack
from store.runs.scan import assemble, scan_in_one_piece
from store.runs.spool import SpoolReader, clear_spool, empty_spool, remove_marks, scanned_bytes
from store.state.built import record_build
from store.state.ledger import Ledger, LedgerEntry
from store.state.output import fingerprint
from store.state.storecheckpoint import (
    StoreCheckpoint,
    keeps_logics_physical_offset,
    lower_logics_physical_offset,
    may_start_record,
)
from streaming.config import DispatcherConfig
from streaming.dispatchers import Derived
from streaming.followers import Followers
from streaming.progress import Progress

STORE_CHECKPOINT_SECONDS = 1.0
TEND_SECONDS = 1.0
RETENTION_SECONDS = 10.0
"""RocketMQ's cleanResourceInterval, in seconds."""
_NO_DAMAGE = (Status.SEGMENT_DELETED, Status.BAD_MULTI_DISPATCH)

logger = logging.getLogger("reput")


class BatchWriter:
    """Handles each batch on the driver and owns the output's positions."""

    def __init__(
        self,
        config: DispatcherConfig,
        derived: Derived,
        log: CommitLog,
        plan: Plan,
        followers: Followers,
        progress: Progress,
    ) -> None:
        """Open the output. Raises OutputError, QueueFileError, IndexFileError."""
        self._config = config
        self._derived = derived
        self._settings = derived.settings
        self._batch_topics = derived.batch_topics
        self._log = log
        self._followers = followers
        self._stopping = threading.Event()
        self._busy = threading.Lock()
        self.failure: BaseException | None = None
        self.refused_batch = False
        record_build(config.output, derived.settings)
        self.progress = progress
        self.position = plan.start
        """End of the last batch that this writer has made durable."""
        self._ledger = Ledger(config.state_directory)
        self._watermark = WatermarkFile(config.state_directory)
        self._built_by_us = self._watermark.current is not None
        self.dispatchers: Sequence[CommitLogDispatcher] = ()
        """The index writers, which ``take_over`` opens because the position decides how they read
        the files."""
        self._store_checkpoint_due = 0.0
        self._keeps_logics_physical_offset = False
        self._checkpoint_may_be_ahead = True
        """A broker may have written RocketMQ's checkpoint for messages that are dispatched only
        now."""
        self._tend_due = 0.0
        self._retention_due = 0.0
        self._retained_from = 0
        self._is_retention_held = False
        self._thread = ThreadPoolExecutor(1, "reput-batch-writer")
        self._pending: Future[None] | None = None
        self._collected_end = plan.start

    def take_over(self, plan: Plan) -> None:
        """Remove what an earlier run left unfinished, and begin with the plan's watermark."""
        empty_spool(self._config.spool_directory, self._config.output)
        self._take_over_store_checkpoint(plan)
        clear_from = self._advance_to(plan)
        durable_end = plan.watermark.end_offset if self._built_by_us else None
        self.dispatchers = self._derived.dispatchers(
            self._config, self._ledger, durable_end, self._log
        )
        if clear_from is not None:
            # the log may have ended at a later offset than it does now
            self._checkpoint_may_be_ahead = False
            for dispatcher in self.dispatchers:
                dispatcher.truncate(clear_from)
        if plan.truncate_to is not None:
            self.write_store_checkpoint(final=True)

    def _take_over_store_checkpoint(self, plan: Plan) -> None:
        """Before any unit goes, or the watermark that tells of it: have RocketMQ's checkpoint claim
        none that may."""
        output, root = self._config.output, self._settings.root
        found = StoreCheckpoint.read(output) or StoreCheckpoint()
        covered, last = found.logics_physical_offset, plan.watermark.last_record_offset
        # what a broker or an earlier run wrote, not damage; a log that was cut need not have it
        is_cut = plan.truncate_to is not None
        is_kept = covered > 0 and (is_cut or may_start_record(self._log, covered))
        self._keeps_logics_physical_offset = is_kept or keeps_logics_physical_offset(
            self._settings, {root} - {output}
        )
        if self._built_by_us:
            lower_logics_physical_offset(output, last if last >= 0 else plan.watermark.end_offset)

    def _advance_to(self, plan: Plan) -> int | None:
        """Make the plan's position durable; return the offset from which no unit can be trusted.

        A cut is recorded here, before any unit is removed: if the removal is interrupted, the next
        start finds the abort file and clears from the same watermark. Without that, a half-finished
        cut could make the log seem to agree with the remaining units.
        """
        position, epoch, clear_from = plan.watermark, plan.watermark.epoch + 1, plan.truncate_to
        if clear_from is None and self._watermark.current and self._config.abort_file.exists():
            # the last run wrote a batch in part: the log may have lost its messages and gone on
            # with others, and nothing else would remove their units from queues that get no new
            # ones
            clear_from = position.end_offset
            logger.info("the last run was cut short: clearing what is beyond %d", clear_from)
        fsops.replace_file(self._config.abort_file, b"")
        index_begin = position.index_begin
        if plan.truncate_to is not None:
            epoch += 1
            self._ledger.truncate(plan.truncate_to)
            self._followers.truncate(plan.truncate_to)
            if self._derived.index:
                index_begin = min(index_begin, plan.truncate_to)
        if plan.lost is not None:
            self._note_bad(BadRange(*plan.lost, Status.SEGMENT_DELETED), DispatchCounts())
            self._ledger.sync()
        if self._derived.index:
            # a known beginning stays, even where its files have disappeared since: their entries
            # then count as missing
            first_indexed = self._derived.first_indexed(self._config)
            first = plan.start if first_indexed is None else first_indexed
            if index_begin < 0 or (first_indexed is None and first < index_begin):
                index_begin = first
        self._watermark.advance(replace(position, epoch=epoch, index_begin=index_begin))
        return clear_from

    def __call__(self, frame: DataFrame, _batch_id: int) -> None:
        """The foreachBatch callback: Spark calls it on the driver, and may repeat the same
        batch."""
        with self._busy:
            if self._stopping.is_set():
                self.refused_batch = True
                raise StoreError("the dispatcher is stopping; the next start repeats this batch")
            try:
                batch = self._collect(frame)
                self._collected_end = batch.end
                remove_marks(self._config.spool_directory)
                self.finish()
                self._check_queue_types(batch)
                self._pending = self._thread.submit(self._write, batch)
            except BaseException as error:
                self.failure = error
                raise

    def stop(self) -> None:
        """Let the running batch end and accept no other. A batch that begins now is refused, which
        ends the query: Spark could not interrupt it if it waited here."""
        self._stopping.set()
        with self._busy:
            pass

    def finish(self) -> None:
        """Wait until the batch in progress is durable. Raises the error of its write."""
        if self._pending is not None:
            self._pending.result()

    def check(self) -> None:
        """Raises the error of the last batch's write if it has ended; does not wait."""
        if self._pending is not None and self._pending.done():
            self._pending.result()

    def note_progress(self) -> None:
        """Record how far the tasks of the batch in progress have come."""
        ahead = self._collected_end - self.progress.position
        self.progress.ahead_bytes = max(0, ahead) + scanned_bytes(self._config.spool_directory)

    def tend(self) -> None:
        """Begin work that is due even while no batch comes: check that the log is still the same,
        and remove expired files."""
        if time.monotonic() >= self._tend_due and self._busy.acquire(blocking=False):
            # no batch begins meanwhile, and the next one waits for the work that begins here
            try:
                if self._pending is None or self._pending.done():
                    self.finish()
                    self._tend_due = time.monotonic() + TEND_SECONDS
                    self._pending = self._thread.submit(self._tend)
            finally:
                self._busy.release()

    def _tend(self) -> None:
        self._check_log()
        if self._config.retention:
            self._expire()

    def _check_log(self) -> None:
        """Raises CommitLogError where the last record below the watermark has changed: the units
        that this run would write next do not follow from those that it has written."""
        current = self._watermark.current
        self._log.refresh()
        noticed = what_differs(self._log, None, current) if current else None
        if noticed:
            raise CommitLogError(
                f"{noticed}: the broker has cut the log while the dispatcher ran; start it again, "
                "which cuts the queues where the log still agrees and goes on from there"
            )

    def _collect(self, frame: DataFrame) -> DispatchBatch:
        if self.progress.first_batch is None:
            self.progress.first_batch = time.monotonic()
        # the further work of toArrow with the schema and settings is a tenth of a small batch's
        # time
        arrow = frame._collect_as_arrow()  # type: ignore[operator]
        items = list(unpack(arrow, SpoolReader(self._config.spool_directory)))
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
        self.finish()  # one thread at a time may read the log, which happens below
        logger.warning("parts of a batch do not join, scanning again: start=%d end=%d", start, end)
        self._log.refresh()
        batch = scan_in_one_piece(
            self._log, start, end,
            delay_levels_ms=scanned[0].settings.delay_levels_ms,
            verify_crc=self._settings.verify_crc,
            wanted=self._derived.wanted.with_batch_topics(scanned[0].settings.batch_topics),
        )  # fmt: skip
        if batch is None:
            raise StoreError(f"the log between {start} and {end} changed while it was read")
        if self._derived.wanted.bit_maps:
            runs = BitMaps(self._log, self._settings).added_to(batch.runs)
            batch = replace(batch, runs=runs)
        return batch

    def _check_queue_types(self, batch: DispatchBatch) -> None:
        """Check topics that have become batch topics or ceased to be: where their queues exist as
        the other kind, nothing of the batch is written."""
        if batch.batch_topics != self._batch_topics:
            check_queue_types(self._settings.root, self._config.output, batch.batch_topics)
            self._batch_topics = batch.batch_topics

    def _write(self, batch: DispatchBatch) -> None:
        self._check_log()
        current = self._watermark.current
        if current is None or batch.start > current.end_offset:
            raise StoreError(
                f"a batch begins at {batch.start}, beyond the watermark "
                f"{current and current.end_offset}, and would skip messages: nothing was written"
            )
        counts = DispatchCounts()
        for bad in batch.bad:
            self._note_bad(bad, counts)
        for dispatcher in self.dispatchers:
            counts.add(dispatcher.dispatch(batch))
            dispatcher.sync()
        self._ledger.sync()
        if batch.end > current.end_offset:
            last = batch.last_record_offset
            if last < 0:
                last = current.last_record_offset
            advanced = replace(
                current,
                end_offset=batch.end,
                last_record_offset=last,
                last_record_crc=fingerprint(self._log, last),
                last_store_timestamp=batch.last_store_timestamp or current.last_store_timestamp,
            )
            self._watermark.advance(advanced)
            self._followers.advance(batch.end)
        self.write_store_checkpoint(final=False)
        if self._config.retention:
            self._expire()
        self.position = batch.end
        self.progress.advance(batch.end, counts)
        logger.debug("batch: end=%d messages=%d", batch.end, counts.messages)

    def _expire(self) -> None:
        """Remove expired files between batches, where the log has lost files since; the writers'
        open queues end in files that stay."""
        now = time.monotonic()
        if now < self._retention_due or self._watermark.current is None:
            return
        self._retention_due = now + RETENTION_SECONDS
        first = self._log.min_offset
        if first > self._retained_from:
            try:
                self._log.check_mounted("no queue files are removed")
            except CommitLogError as error:
                if not self._is_retention_held:
                    logger.warning("%s", error)
                self._is_retention_held = True
                return
            self._is_retention_held = False
            end = self._watermark.current.end_offset
            files = list(expired_files(self._config.output, self._settings, first, end))
            size = remove_files(files)
            self._retained_from = first
            logger.info("log begins at %d: removed files=%d bytes=%d", first, len(files), size)

    def _note_bad(self, bad: BadRange, counts: DispatchCounts) -> None:
        reason = bad.status.name.lower()
        if bad.status is Status.SEGMENT_DELETED:
            self._log.check_mounted(f"nothing of [{bad.start}, {bad.end}) is skipped")
        if self._config.fail_on_corrupt and bad.status not in _NO_DAMAGE:
            segment = self._log.segment_at(bad.start)
            place = str(segment.path) if segment else str(self._settings.root)
            raise CorruptRecordError(place, bad.start, bad.end, bad.status.name)
        counts.quarantined_bytes += bad.end - bad.start
        if self._ledger.add(LedgerEntry(bad.start, bad.end, reason)):
            logger.warning(
                "quarantined: physical_offset=%d bytes=%d reason=%s",
                bad.start, bad.end - bad.start, reason,
            )  # fmt: skip

    def end(self) -> None:
        """End the run, after all its writes are durable."""
        self.write_store_checkpoint(final=True)
        fsops.unlink(self._config.abort_file)

    def write_store_checkpoint(self, final: bool) -> None:
        """Write RocketMQ's checkpoint file, up to once a second, as a broker does."""
        now, current = time.monotonic(), self._watermark.current
        if current is None or not current.last_store_timestamp:
            return
        if not final and now < self._store_checkpoint_due:
            return
        self._store_checkpoint_due = now + STORE_CHECKPOINT_SECONDS
        timestamp, last = current.last_store_timestamp, current.last_record_offset
        before = StoreCheckpoint.read(self._config.output) or StoreCheckpoint()
        index_msg_timestamp = max(item.index_msg_timestamp for item in self.dispatchers)
        if not index_msg_timestamp and (self._checkpoint_may_be_ahead or not self._derived.index):
            index_msg_timestamp = before.index_msg_timestamp
        # without a last record the watermark was lowered, and the checkpoint with it
        covered = last if last >= 0 else before.logics_physical_offset
        StoreCheckpoint(
            physic_msg_timestamp=max(
                timestamp, before.physic_msg_timestamp if self._checkpoint_may_be_ahead else 0
            ),
            logics_msg_timestamp=timestamp,
            index_msg_timestamp=index_msg_timestamp,
            master_flushed_offset=before.master_flushed_offset,
            confirm_phy_offset=max(last, 0),
            logics_physical_offset=covered if self._keeps_logics_physical_offset else 0,
        ).write(self._config.output)

    def close(self) -> None:
        """Close files; a batch in progress ends first, and resources held for others are
        released."""
        self._thread.shutdown()
        self._pending = self.failure = None
        with ExitStack() as held, suppress(OutputError):
            held.callback(self._watermark.close)
            for dispatcher in self.dispatchers:
                held.callback(dispatcher.close)
            clear_spool(self._config.spool_directory)
