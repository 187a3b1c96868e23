"""Writes one batch after the other, and makes them durable: entries, ledger, positions. It needs no
Spark.

``Committer.commit`` writes each index's entries, then the visible end. ``make_durable`` follows for
one batch or many, in this order (ARCHITECTURE.md): the sync of each index, the ledger, the
watermark, RocketMQ's checkpoint file. A batch may come again, in part or as a whole: the index
writers recognise existing entries, and the positions decide what is done.
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
from reput.checkpoints.visible import VisibleFile
from reput.checkpoints.watermark import WatermarkFile
from reput.store import fsops
from reput.store.config import OnQueueGap, StoreSettings
from reput.store.errors import CommitLogError, CorruptRecordError, StoreError
from reput.store.log.commitlog import CommitLog
from reput.store.log.cursor import BadRange
from reput.store.log.logtail import LogTail
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
OnVisible = Callable[[StoreSettings, Sequence[Run] | None], None]
"""Is told, in whatever thread, that an output with these settings may be read further, and the runs
that came; None for any messages."""
OnDurable = Callable[[], None]
"""Is told that all that was committed has become durable."""
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
        on_visible: OnVisible = lambda *_: None,
        measures: Measures | None = None,
        on_durable: OnDurable = lambda *_: None,
    ) -> None:
        """Open the output. Raises OutputError."""
        self._config = config
        self._indexes = indexes
        self._log = log
        self._followers = followers
        self._on_visible, self._on_durable = on_visible, on_durable
        self._measures = measures or Measures()
        record_build(config.output, indexes.settings)
        self._ledger = Ledger(config.state_directory)
        self._watermark = WatermarkFile(config.state_directory)
        self._visible = VisibleFile(config.state_directory)
        self._written: Watermark | None = None
        """The position after the last batch that was written."""
        self._not_durable: list[int] = []
        """The store timestamps of the last messages of batches that were written since the last
        sync, in ms; 0 for a batch without messages, and for one that comes again."""
        self._committed_end = 0
        """End of the last one of these batches."""
        self._durable_due = 0.0
        self._durable_seconds = 0.0 if config.once else config.durable_latency_ms / 1000
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
        begin, clear_from, shown = self._beginning(plan)
        # where units are cleared, the log may have ended at a later offset than it does now
        self._store_checkpoint.take_over(plan, self._log, is_ours, may_be_ahead=clear_from is None)
        current = self._advance_to(begin, plan, clear_from, shown)
        self._written = current
        durable_end = queues_end = current.end_offset if is_ours else None
        if plan.lost is not None and shown is not None:
            # units that readers were shown before the log lost their messages are durable since the
            # sync above
            queues_end = plan.lost[1]
        self._writers = self._indexes.open_writers(
            self._config.output, self._ledger, durable_end, self._log, queues_end=queues_end
        )
        if clear_from is not None:
            for writer in self._writers:
                writer.truncate(clear_from)
        if plan.lost is not None:
            # only now that no unit of the lost range is left but those that readers were shown
            current = self._watermark.advance(replace(current, end_offset=plan.lost[1]))
            self._written = current
        self._ends.open(current, is_new=not is_ours, replays=plan.replays)
        if plan.truncate_to is not None:
            self._store_checkpoint.write(current, self._writers, is_cut=True)

    def _beginning(self, plan: Plan) -> tuple[Watermark, int | None, Watermark | None]:
        """Return the watermark to begin with, the offset from which no unit can be trusted (None if
        all can be), and the end beyond the watermark that readers keep. Nothing is changed."""
        end = plan.watermark.end_offset if plan.lost is None else plan.lost[0]
        clear_from, current, shown = plan.truncate_to, self._watermark.current, None
        if clear_from is None and current is not None:
            if self._config.abort_file.exists():
                # the last run wrote a batch in part: the log may have lost its messages and gone
                # on with others, and nothing else would remove their units from queues that get no
                # new ones
                shown = self._shown(current) if end == current.end_offset else None
                clear_from = end if shown is None else shown.end_offset
                logger.info("the last run was cut short: clearing what is beyond %d", clear_from)
            elif end < current.end_offset:
                clear_from = end
        epoch = plan.watermark.epoch + (1 if plan.truncate_to is None else 2)
        begin = self._index_begin(plan)
        watermark = replace(plan.watermark, end_offset=end, epoch=epoch, index_begin=begin)
        return watermark, clear_from, shown

    def _shown(self, durable: Watermark) -> Watermark | None:
        """Return the end that readers of this machine were shown beyond the watermark; None where
        there is none, or the log is not the one of which it was shown (``what_differs``: it may
        have lost no more than the BLANK before that end). Units before it stay, and
        are written again in place, equal in every byte. Ext units cannot stay: their files are cut
        where a queue is opened, which is at the watermark."""
        shown = self._visible.current
        if shown is None or shown.end_offset <= durable.end_offset:
            return None
        if self._indexes.settings.enable_consume_queue_ext:
            return None
        if self._log.segments.at(shown.last_record_offset) is None:
            return None
        return None if what_differs(self._log, LogTail(self._log).settled(), shown) else shown

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

    def _advance_to(
        self, begin: Watermark, plan: Plan, clear_from: int | None, shown: Watermark | None
    ) -> Watermark:
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
        # the slot of the old epoch stays until the watermark has the new one
        if shown is None:
            self._visible.forget()
        else:
            self._visible.show(replace(shown, epoch=begin.epoch))
        taken_over = self._watermark.take_over(begin)
        # only now: a rewind that is killed before leaves the ledger of the old watermark whole
        if plan.lost is None and clear_from is not None:
            self._ledger.truncate(clear_from if shown is None else begin.end_offset)
        return taken_over

    def commit(self, batch: DispatchBatch) -> DispatchCounts:
        """Write a batch and let readers see it; ``publish`` comes next.

        Raises StoreError where a topic has queues of the other kind, or the batch does not follow
        from what was written, and OwnershipError where another dispatcher has taken over; nothing
        is written then. After OutputError nothing has advanced, and the batch may come again.
        """
        if batch.batch_topics != self._indexes.batch_topics:
            root = self._indexes.settings.root
            check_queue_types(root, self._config.output, batch.batch_topics)
            self._indexes = replace(self._indexes, batch_topics=batch.batch_topics)
        self._check_log()
        current = self._written
        if current is None or batch.start > current.end_offset:
            raise StoreError(
                f"a batch begins at {batch.start}, beyond the watermark "
                f"{current and current.end_offset}, and would skip messages: nothing was written",
                physical_offset=batch.start,
            )
        self._check_shown(current)
        counts = DispatchCounts()
        for bad in batch.bad:
            done = bad.status is Status.SEGMENT_DELETED and bad.start < current.end_offset
            # a batch that comes again may find less of the log, which has been dispatched
            rest = replace(bad, start=min(current.end_offset, bad.end)) if done else bad
            if rest.start < rest.end:
                self._note_bad(rest, counts)
        for writer in self._writers:
            with self._measures.stage("write").measured():
                counts.add(writer.write(batch))
            self._watermark.check_owned()
        if counts.gaps:
            self._warn_of_moved()
        self._committed_end, stored = batch.end, 0
        if batch.end > current.end_offset:
            stored = batch.last_store_timestamp
            last = batch.last_record_offset
            last = last if last >= 0 else current.last_record_offset
            self._written = replace(
                current,
                end_offset=batch.end,
                last_record_offset=last,
                last_record_crc=fingerprint(self._log, last),
                last_store_timestamp=stored or current.last_store_timestamp,
            )
            self._visible.show(self._written)
            self._measures.note_visible(stored)
        self._not_durable.append(stored)
        if self._measures.queues is not None:
            self._measures.queues.note(batch.runs)
        return counts

    def publish(self, batch: DispatchBatch) -> None:
        """Tell readers in this process of a batch that is committed, and make it durable if that is
        due. Raises as ``make_durable``."""
        if self._written and batch.end == self._written.end_offset:
            self._on_visible(self._indexes.settings, batch.runs)
        if self.is_durable_due:
            self.make_durable()

    @property
    def is_durable_due(self) -> bool:
        """Whether what was committed is to be made durable now. Any thread may ask."""
        return bool(self._not_durable) and time.monotonic() >= self._durable_due

    def make_durable(self) -> None:
        """Make all that was committed durable, and tell of it: readers by their files, followers,
        RocketMQ by its checkpoint file; then remove expired files. After SyncError or OutputError
        nothing counts that was not durable before; after one of the telling, it is durable all the
        same. Raises OwnershipError where another dispatcher has taken over."""
        self._durable_due = time.monotonic() + self._durable_seconds
        written, durable = self._written, self._watermark.current
        if self._not_durable:
            stage = self._measures.stage
            self._watermark.check_owned()
            with stage("sync").measured():
                for writer in self._writers:
                    writer.sync()
            with stage("ledger").measured():
                self._ledger.sync()
            if written and durable and written.end_offset > durable.end_offset:
                with stage("watermark").measured():
                    durable = self._watermark.advance(written)
            for stored in self._not_durable:
                self._measures.note_durable(stored)
            self._not_durable.clear()
            self._on_durable()
            if durable and self._committed_end == durable.end_offset:
                if not self._indexes.on_executors:
                    self._ends.write(durable, self._writers, only_if_due=True)
                self._followers.advance(durable.end_offset)
        self._watermark.check_owned()
        self._store_checkpoint.write(durable, self._writers, only_if_due=True)
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
        """Raises CommitLogError where the last record that was dispatched has changed: the units
        that this run would write next do not follow from those that it has written."""
        self._watermark.check_owned()
        current = self._written
        self._log.refresh()
        if current and (noticed := what_differs(self._log, None, current)):
            raise CommitLogError(
                f"{noticed}: the broker has cut the log while the dispatcher ran; start it again, "
                "which cuts the queues where the log still agrees and goes on from there",
                physical_offset=current.end_offset,
            )

    def _check_shown(self, current: Watermark) -> None:
        """Raises CommitLogError where the log has lost messages since the start that readers were
        shown by a run that was killed: their units stand where this one would put later ones."""
        shown, first = self._visible.current, self._log.min_offset
        if shown and current.end_offset < min(first, shown.end_offset):
            raise CommitLogError(
                f"the log begins at {first} now, and has lost messages from {current.end_offset} on"
                " that a killed run has dispatched; start it again, which goes on from there",
                physical_offset=current.end_offset,
            )

    def tend(self) -> None:
        """Do what is due even while no batch comes: check that the log is still the same, make
        durable what was committed, and remove expired files. Raises CommitLogError, OutputError."""
        self._check_log()
        if self.is_durable_due:
            self.make_durable()
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
        self.make_durable()
        current, shown = self._watermark.current, self._visible.current
        self._store_checkpoint.write(current, self._writers)
        if current is not None and not self._indexes.on_executors:
            self._ends.write(current, self._writers)
        if current and shown and shown.end_offset > current.end_offset:
            # a killed run has shown readers more than this one has reached: its units wait still
            return
        fsops.unlink(self._config.abort_file)

    def close(self) -> None:
        """Close files. Raises SyncError."""
        with ExitStack() as resources:
            resources.callback(self._watermark.close)
            resources.callback(self._visible.close)
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
