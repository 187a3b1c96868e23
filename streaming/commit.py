"""Makes one batch after the other durable: entries, ledger, positions. It needs no Spark.

``Committer.commit`` writes in this order (ARCHITECTURE.md): each index's entries and their sync,
the ledger, the watermark; ``publish`` follows with RocketMQ's checkpoint file. A batch may come
again, in part or as a whole: the index writers recognise existing entries, and the watermark
decides what is done.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from reput.checkpoints.agreement import BuiltOutput, what_differs
from reput.checkpoints.presence import EndsFile
from reput.checkpoints.reconcile import Plan
from reput.checkpoints.watermark import WatermarkFile
from reput.store import fsops
from reput.store.config import OnQueueGap, StoreSettings
from reput.store.errors import CommitLogError, CorruptRecordError, StoreError
from reput.store.log.commitlog import CommitLog
from reput.store.log.cursor import BadRange
from reput.store.log.status import Status
from reput.store.queue.queuetype import check_queue_types
from reput.store.queue.retention import expired_files, remove_files
from reput.store.runs.dispatch import DispatchBatch, DispatchCounts, IndexWriter, Run
from reput.store.runs.spool import empty_spool
from reput.store.state.built import record_build
from reput.store.state.ledger import Ledger, LedgerEntry
from reput.store.state.movedpositions import moved_queues, warn_of_moved
from reput.store.state.output import fingerprint
from reput.store.state.storecheckpoint import (
    StoreCheckpoint,
    keeps_logics_physical_offset,
    lower_logics_physical_offset,
    may_start_record,
)
from reput.store.state.watermark import Watermark
from reput.streaming.config import DispatcherConfig
from reput.streaming.indexes import Indexes
from reput.streaming.measures import Measures

if TYPE_CHECKING:
    from reput.streaming.followers import Followers  # imports pyspark, which a commit does not need

STORE_CHECKPOINT_SECONDS = 1.0
RETENTION_SECONDS = 10.0
"""RocketMQ's cleanResourceInterval, in seconds."""
OnWatermark = Callable[[StoreSettings, Sequence[Run] | None], None]
"""Is told, in whatever thread, that the watermark of an output with these settings has moved, and
the runs that it now covers; None for any messages."""
_NO_DAMAGE = (Status.SEGMENT_DELETED, Status.BAD_MULTI_DISPATCH)

logger = logging.getLogger("reput")


class Committer:
    """Owns an output's entries and positions for one attempt of a run; not thread-safe."""

    def __init__(
        self,
        config: DispatcherConfig,
        indexes: Indexes,
        log: CommitLog,
        followers: Followers,
        on_watermark: OnWatermark = lambda *_: None,
        measures: Measures | None = None,
    ) -> None:
        """Open the output; ``on_watermark`` is called when a new watermark is durable. Raises
        OutputError."""
        self._config = config
        self._indexes = indexes
        self._log = log
        self._followers = followers
        self._on_watermark = on_watermark
        self._measures = measures or Measures()
        record_build(config.output, indexes.settings)
        self._ledger = Ledger(config.state_directory)
        self._watermark = WatermarkFile(config.state_directory)
        self._store_checkpoint = _StoreCheckpointFile(config.output, indexes.settings)
        self._ends = EndsFile(BuiltOutput(config.output, indexes.settings), log)
        self._writers: Sequence[IndexWriter] = ()
        """Opened by ``take_over``, because the position decides how they read their files."""
        self._moved: set[tuple[str | None, int | None]] = set()
        """Queues whose positions were said to have moved."""
        self._retention_due = 0.0
        self._retained_from = 0
        self._is_retention_held = False

    def take_over(self, plan: Plan) -> None:
        """Remove what an earlier run left unfinished, and begin with the plan's watermark. Raises
        OutputError, QueueFileError, IndexFileError."""
        is_ours = self._watermark.current is not None
        empty_spool(self._config.spool_directory, self._config.output)
        if not is_ours or self._config.abort_file.exists():
            # what a killed run wrote and named is there, but a power cut may still undo it
            fsops.sync_file_system_of(self._config.output)
        begin, clear_from = self._beginning(plan)
        # where units are cleared, the log may have ended at a later offset than it does now
        self._store_checkpoint.take_over(plan, self._log, is_ours, may_be_ahead=clear_from is None)
        current = self._advance_to(begin, plan, clear_from)
        durable_end = current.end_offset if is_ours else None
        self._writers = self._indexes.open_writers(
            self._config.output, self._ledger, durable_end, self._log
        )
        if clear_from is not None:
            for writer in self._writers:
                writer.truncate(clear_from)
        if plan.lost is not None:
            # only now that no unit of the lost range is left
            current = self._watermark.advance(replace(current, end_offset=plan.lost[1]))
        self._ends.open(current, is_new=not is_ours, replays=plan.replays)
        if plan.truncate_to is not None:
            self._store_checkpoint.write(current, self._writers, is_cut=True)

    def _beginning(self, plan: Plan) -> tuple[Watermark, int | None]:
        """Return the watermark to begin with, and the offset from which no unit can be trusted
        (None if all can be). Nothing is changed."""
        end = plan.watermark.end_offset if plan.lost is None else plan.lost[0]
        clear_from, current = plan.truncate_to, self._watermark.current
        if clear_from is None and current is not None:
            if self._config.abort_file.exists():
                # the last run wrote a batch in part: the log may have lost its messages and gone
                # on with others, and nothing else would remove their units from queues that get no
                # new ones
                clear_from = end
                logger.info("the last run was cut short: clearing what is beyond %d", end)
            elif end < current.end_offset:
                clear_from = end
        epoch = plan.watermark.epoch + (1 if plan.truncate_to is None else 2)
        begin = self._index_begin(plan)
        return replace(plan.watermark, end_offset=end, epoch=epoch, index_begin=begin), clear_from

    def _index_begin(self, plan: Plan) -> int:
        """Return the offset from which on the index is complete."""
        begin, cut = plan.watermark.index_begin, plan.truncate_to
        if not self._indexes.settings.builds_index:
            return begin
        first_indexed = self._indexes.first_indexed(self._config.output)
        if cut is not None:
            begin = min(begin, cut)
            first_indexed = None if (first_indexed or 0) >= cut else first_indexed
        first = plan.start if first_indexed is None else first_indexed
        # a known beginning stays, even where its files have disappeared since: their entries then
        # count as missing
        return first if begin < 0 or (first_indexed is None and first < begin) else begin

    def _advance_to(self, begin: Watermark, plan: Plan, clear_from: int | None) -> Watermark:
        """Make the beginning durable, and return it. No unit is removed before: after an
        interrupted removal the next start finds the abort file and clears from the same watermark,
        whereas a half-finished cut could make the log seem to agree with the remaining units."""
        current = self._watermark.current
        is_lowered = current is not None and begin.end_offset < current.end_offset
        if is_lowered or plan.truncate_to is not None:
            self._ends.forget()
        fsops.replace_file(self._config.abort_file, b"")
        if plan.truncate_to is not None:
            self._followers.truncate(plan.truncate_to)
        if plan.lost is not None:
            # an interrupted start may have listed a part of this range
            self._ledger.truncate(plan.lost[0])
            self._note_bad(BadRange(*plan.lost, Status.SEGMENT_DELETED), DispatchCounts())
            self._ledger.sync()
        taken_over = self._watermark.take_over(begin)
        # only now: a rewind that is killed before leaves the ledger of the old watermark whole
        if plan.lost is None and clear_from is not None:
            self._ledger.truncate(clear_from)
        return taken_over

    def commit(self, batch: DispatchBatch) -> DispatchCounts:
        """Write a batch and make it durable; ``publish`` comes next.

        Raises UsageError where a topic has queues of the other kind, StoreError where the batch
        does not follow from what was written, and OwnershipError where another dispatcher has
        taken over; nothing is written then. After OutputError nothing has advanced, and the batch
        may come again.
        """
        if batch.batch_topics != self._indexes.batch_topics:
            root = self._indexes.settings.root
            check_queue_types(root, self._config.output, batch.batch_topics)
            self._indexes = replace(self._indexes, batch_topics=batch.batch_topics)
        self._check_log()
        current = self._watermark.current
        if current is None or batch.start > current.end_offset:
            raise StoreError(
                f"a batch begins at {batch.start}, beyond the watermark "
                f"{current and current.end_offset}, and would skip messages: nothing was written",
                physical_offset=batch.start,
            )
        counts = DispatchCounts()
        for bad in batch.bad:
            done = bad.status is Status.SEGMENT_DELETED and bad.start < current.end_offset
            # a batch that comes again may find less of the log, which has been dispatched
            rest = replace(bad, start=min(current.end_offset, bad.end)) if done else bad
            if rest.start < rest.end:
                self._note_bad(rest, counts)
        stage = self._measures.stage
        for writer in self._writers:
            self._watermark.check_owned()
            with stage("write").measured():
                counts.add(writer.write(batch))
            with stage("sync").measured():
                writer.sync()
        if counts.gaps:
            self._warn_of_moved()
        with stage("ledger").measured():
            self._ledger.sync()
        if batch.end > current.end_offset:
            last = batch.last_record_offset
            last = last if last >= 0 else current.last_record_offset
            stored = batch.last_store_timestamp
            current = replace(
                current,
                end_offset=batch.end,
                last_record_offset=last,
                last_record_crc=fingerprint(self._log, last),
                last_store_timestamp=stored or current.last_store_timestamp,
            )
            with stage("watermark").measured():
                self._watermark.advance(current)
            self._measures.note_durable(stored)
        if self._measures.queues is not None:
            self._measures.queues.note(batch.runs)
        return counts

    def publish(self, batch: DispatchBatch) -> None:
        """Tell of a batch that is committed: readers by their files, followers, RocketMQ by its
        checkpoint file; then remove expired files. After OutputError the batch is durable all the
        same. Raises OwnershipError where another dispatcher has taken over."""
        current = self._watermark.current
        if current and batch.end == current.end_offset:
            if not self._indexes.on_executors:
                self._ends.write(current, self._writers, only_if_due=True)
            self._followers.advance(batch.end)
            self._on_watermark(self._indexes.settings, batch.runs)
        self._watermark.check_owned()
        self._store_checkpoint.write(current, self._writers, only_if_due=True)
        self._expire()

    def _warn_of_moved(self) -> None:
        """Say once in a run which queues' positions no longer equal queue offsets."""
        if self._indexes.settings.on_queue_gap is OnQueueGap.BLANK:
            return
        gaps = [
            entry
            for entry in self._ledger.added
            if (entry.topic, entry.queue_id) not in self._moved
        ]
        moved = moved_queues(gaps, (self._config.store, self._config.output))
        self._moved |= {(queue.topic, queue.queue_id) for queue in moved}
        warn_of_moved(moved)

    def _check_log(self) -> None:
        """Raises CommitLogError where the last record below the watermark has changed: the units
        that this run would write next do not follow from those that it has written."""
        self._watermark.check_owned()
        current = self._watermark.current
        self._log.refresh()
        if current and (noticed := what_differs(self._log, None, current)):
            raise CommitLogError(
                f"{noticed}: the broker has cut the log while the dispatcher ran; start it again, "
                "which cuts the queues where the log still agrees and goes on from there",
                physical_offset=current.end_offset,
            )

    def tend(self) -> None:
        """Do what is due even while no batch comes: check that the log is still the same, and
        remove expired files. Raises CommitLogError, OutputError."""
        self._check_log()
        self._expire()

    def _expire(self) -> None:
        """With retention, remove expired files where the log has lost files since; the writers'
        open queues end in files that stay."""
        now, current = time.monotonic(), self._watermark.current
        if not self._config.retention or now < self._retention_due or current is None:
            return
        self._retention_due = now + RETENTION_SECONDS
        first = self._log.min_offset
        if first > self._retained_from:
            try:
                self._log.segments.check_mounted("no queue files are removed")
            except CommitLogError as error:
                if not self._is_retention_held:
                    logger.warning("%s", error)
                self._is_retention_held = True
                return
            self._is_retention_held = False
            settings, end = self._indexes.settings, current.end_offset
            files = list(expired_files(self._config.output, settings, first, end))
            size = remove_files(files)
            self._retained_from = first
            logger.info("log begins at %d: removed files=%d bytes=%d", first, len(files), size)

    def _note_bad(self, bad: BadRange, counts: DispatchCounts) -> None:
        reason = bad.status.name.lower()
        if bad.status is Status.SEGMENT_DELETED:
            self._log.segments.check_mounted(f"nothing of [{bad.start}, {bad.end}) is skipped")
        if self._config.fail_on_corrupt and bad.status not in _NO_DAMAGE:
            segment = self._log.segments.at(bad.start)
            place = segment.path if segment else self._indexes.settings.root
            raise CorruptRecordError(str(place), bad.start, bad.end, bad.status.name)
        counts.quarantined_bytes += bad.end - bad.start
        if self._ledger.add(LedgerEntry(bad.start, bad.end, reason)):
            logger.warning(
                "quarantined: physical_offset=%d bytes=%d reason=%s",
                bad.start, bad.end - bad.start, reason,
            )  # fmt: skip

    def end(self) -> None:
        """End the run, after all its commits: one that found nothing new may not have removed
        expired files yet. Raises OwnershipError, OutputError."""
        self._watermark.check_owned()
        self._expire()
        current = self._watermark.current
        self._store_checkpoint.write(current, self._writers)
        if current is not None and not self._indexes.on_executors:
            self._ends.write(current, self._writers)
        fsops.unlink(self._config.abort_file)

    def close(self) -> None:
        """Close files. Raises SyncError."""
        with ExitStack() as resources:
            resources.callback(self._watermark.close)
            for writer in self._writers:
                resources.callback(writer.close)


class _StoreCheckpointFile:
    """RocketMQ's checkpoint file in the output, written up to once a second, as a broker does."""

    def __init__(self, output: Path, settings: StoreSettings) -> None:
        self._output = output
        self._settings = settings
        self._keeps_logics_physical_offset = False
        self._may_be_ahead = True
        self._due = 0.0

    def take_over(self, plan: Plan, log: CommitLog, is_ours: bool, *, may_be_ahead: bool) -> None:
        """Make the file claim no message whose unit may be removed, before a unit or the watermark
        is. With ``may_be_ahead`` a broker may have written it for messages that are dispatched only
        now."""
        self._may_be_ahead = may_be_ahead
        checkpoint = StoreCheckpoint.read(self._output) or StoreCheckpoint()
        covered, last = checkpoint.logics_physical_offset, plan.watermark.last_record_offset
        # what a broker or an earlier run wrote, not damage; a log that was cut need not have it
        is_cut = plan.truncate_to is not None
        is_kept = covered > 0 and (is_cut or may_start_record(log, covered))
        self._keeps_logics_physical_offset = is_kept or keeps_logics_physical_offset(
            self._settings, {self._settings.root} - {self._output}
        )
        if is_ours:
            end = last if last >= 0 else plan.watermark.end_offset
            lower_logics_physical_offset(self._output, end)

    def write(
        self,
        durable: Watermark | None,
        writers: Sequence[IndexWriter],
        *,
        only_if_due: bool = False,
        is_cut: bool = False,
    ) -> None:
        """Write the positions of the watermark and of index files. Before the first message there
        is no file, but after a cut to there an existing one must not claim what is gone."""
        now = time.monotonic()
        if durable is None or (only_if_due and now < self._due):
            return
        if not durable.last_store_timestamp and not (is_cut and StoreCheckpoint.read(self._output)):
            return
        self._due = now + STORE_CHECKPOINT_SECONDS
        before = StoreCheckpoint.read(self._output) or StoreCheckpoint()
        timestamp, last = durable.last_store_timestamp, durable.last_record_offset
        ahead = self._may_be_ahead
        index_msg_timestamp = max(writer.index_msg_timestamp for writer in writers)
        if not index_msg_timestamp and (ahead or not self._settings.builds_index):
            index_msg_timestamp = before.index_msg_timestamp
        # without a last record the watermark was lowered, and the checkpoint with it
        covered = last if last >= 0 else before.logics_physical_offset
        StoreCheckpoint(
            physic_msg_timestamp=max(timestamp, before.physic_msg_timestamp if ahead else 0),
            logics_msg_timestamp=timestamp,
            index_msg_timestamp=index_msg_timestamp,
            master_flushed_offset=before.master_flushed_offset,
            confirm_phy_offset=max(last, 0),
            logics_physical_offset=covered if self._keeps_logics_physical_offset else 0,
        ).write(self._output)
