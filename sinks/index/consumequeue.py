"""The writer of consume queues: RocketMQ's ``ConsumeQueue.putMessagePositionInfo``, in batches.

Delivery: exactly once in the files, although calls may repeat. A unit's position and content
depend only on the log and on the queue file's existing content; a unit is placed by position, never
appended blindly. Unit of work: one queue; queues are independent of each other.

The output is byte-identical to RocketMQ's (formats.md §5), except for two of its faults:
maxPhysicOffset advances only after a successful write, and messages that RocketMQ drops silently
are listed in the ledger.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from reput.sinks.index.consumequeueext import QueueExt, cut_exts
from reput.sinks.index.queuewriter import QueueWriter
from reput.sinks.index.repeatedoffsets import RepeatedOffsets
from reput.store.config import OnQueueGap
from reput.store.files import CONSUME_QUEUE_DIRECTORY
from reput.store.names import escaped
from reput.store.queue.consumequeue import (
    CQ_STORE_UNIT_SIZE,
    ConsumeQueueFiles,
    QueueKey,
    open_whole_queue,
)
from reput.store.queue.cut import cut_after
from reput.store.runs.dispatch import DispatchBatch, DispatchCounts, Run
from reput.store.runs.placing import (
    BegunAnew,
    Built,
    Dropped,
    Placed,
    PlacingRules,
    QueueEnd,
    Step,
    joined,
    place,
    queue_offset_of,
    unusable_reason,
)
from reput.store.state.ends import EntryEnd
from reput.store.state.ledger import QUEUE_OFFSET_SEEN_BEFORE, Ledger

logger = logging.getLogger("reput")


@dataclass(slots=True)
class _Queue:
    """One queue as its files show it; it advances only after a successful write."""

    key: QueueKey
    files: ConsumeQueueFiles
    end: QueueEnd
    ext: QueueExt | None


@dataclass(slots=True)
class _Progress:
    """Progress within a batch, so that a second try counts nothing twice."""

    start: int
    end: int
    done: set[tuple[bytes, int]] = field(default_factory=set)
    current: tuple[bytes, int] | None = None
    """The queue that is being written."""
    handled: int = 0
    """Messages of that queue that are written, already built, or listed in the ledger."""
    counts: DispatchCounts = field(default_factory=DispatchCounts)
    repeats: RepeatedOffsets = field(default_factory=RepeatedOffsets)


class ConsumeQueueWriter(QueueWriter[_Queue]):
    """Appends units per queue."""

    name = "consumequeue"

    def __init__(
        self,
        output: Path,
        file_size: int,
        ledger: Ledger,
        *,
        durable_end: int | None,
        queue_offset_at: Callable[[QueueKey, int, int], int | None],
        count_units: Callable[[QueueKey, int, int], int | None],
        on_queue_gap: OnQueueGap = OnQueueGap.ROCKETMQ,
        ext_file_size: int | None = None,
        is_gone: Callable[[int], bool] = lambda _: False,
        topic_begins: Mapping[str, int] | None = None,
    ) -> None:
        """Set up the writer; no file is opened yet.

        ``file_size`` is the bytes of a queue file, a multiple of the unit size. ``durable_end`` is
        the watermark; units of messages beyond it are rewritten, and None trusts every unit.
        ``queue_offset_at`` reads the offset in a queue of the record at (physical offset, size).
        ``count_units`` returns how many units of a queue that record has (``store.queue.cut``).
        ``ext_file_size`` is the bytes of an ext file; with None no ext is built, otherwise runs
        need details. ``is_gone`` tells whether the log has lost all bytes before an offset.
        ``topic_begins`` maps a topic to the physical offset before which its messages get no units.
        """
        super().__init__(output, CONSUME_QUEUE_DIRECTORY, ledger)
        self._topic_begins = topic_begins
        self._file_size = file_size
        self._durable_end = durable_end
        self._queue_offset_at = queue_offset_at
        self._count_units = count_units
        self._rules = PlacingRules(file_size, on_queue_gap, is_gone)
        self._ext_file_size = ext_file_size
        self._progress = _Progress(-1, -1)

    def write(self, batch: DispatchBatch) -> DispatchCounts:
        """Write the units of a batch (``IndexWriter.write``).

        Raises NoSpaceError and keeps what was written, so the same batch may be written again.
        """
        if (self._progress.start, self._progress.end) != (batch.start, batch.end):
            self._progress = _Progress(batch.start, batch.end)
        progress = self._progress
        for identity, runs in batch.runs_by_queue(self._topic_begins).items():
            if identity[0] not in batch.batch_topics and identity not in progress.done:
                self._write_queue(identity, runs, progress)
                progress.done.add(identity)
        self._progress = _Progress(-1, -1)
        progress.repeats.warn()
        return progress.counts

    def _write_queue(
        self, identity: tuple[bytes, int], runs: list[Run], progress: _Progress
    ) -> None:
        topic, queue_id = identity
        counts = progress.counts
        if progress.current != identity:
            progress.current, progress.handled = identity, 0
            counts.messages += sum(len(run) for run in runs)
            self._count_topic(topic, counts)
        queue = self._queue(topic, queue_id)
        skip = progress.handled
        for run in joined(runs):
            first, skip = min(skip, len(run)), max(0, skip - len(run))
            if queue is None:
                reason = unusable_reason(queue_id)
                refused = Dropped(run, first, len(run), QueueEnd(), reason)
                self._list(refused.entries(), counts)
                progress.handled += len(run) - first
                continue
            next_queue_offset = partial(self._next_queue_offset, queue)
            for step in place(queue.end, run, first, self._rules, next_queue_offset):
                self._apply(queue, step, progress)
                queue.end = step.after
                progress.handled += step.last - step.first

    def _open(self, key: QueueKey) -> _Queue:
        files = open_whole_queue(self.root / key.relative_path, self._file_size)
        end = files.find_end(self._durable_end)
        ext = self._open_ext(key, files, end)
        return _Queue(key, files, QueueEnd(end, files.max_physic_offset(end)), ext)

    def _open_ext(self, key: QueueKey, files: ConsumeQueueFiles, end: int) -> QueueExt | None:
        if self._ext_file_size is None:
            return None
        return QueueExt(self._output, key, self._ext_file_size, files, end)

    def _end_of(self, queue: _Queue) -> EntryEnd | None:
        if queue.end.max_physic_offset < 0:
            return None
        return EntryEnd(queue.end.position, queue.end.max_physic_offset)

    def _next_queue_offset(self, queue: _Queue) -> int | None:
        """Queue offset after the queue's last message, read from its record after a restart."""
        last = queue.files.last_unit(queue.end.position)
        queue_offset = self._queue_offset_at(queue.key, *last) if last else None
        return None if queue_offset is None else queue_offset + 1

    def _apply(self, queue: _Queue, step: Step, progress: _Progress) -> None:
        """Write what a step says, and list and count it."""
        counts, count = progress.counts, step.last - step.first
        match step:
            case Placed():
                if queue.end.max_physic_offset >= 0 and queue_offset_of(step.run, step.first) == 0:
                    progress.repeats.note_begin(queue.key, int(step.units[0]["offset"]))
                if step.gap is not None:
                    self._ledger.add(step.gap)
                self._write(queue, step)
                counts.gaps += step.gap is not None
            case Built():
                counts.duplicates += count
            case BegunAnew():
                self._begin_anew(queue, step)
            case Dropped():
                if step.reason == QUEUE_OFFSET_SEEN_BEFORE:
                    progress.repeats.note(queue.key, self._begin_of(queue, step), count)
                if queue.ext is not None:
                    # RocketMQ writes ext units before it checks
                    queue.ext.put(step.run, step.first, step.last, self._unsynced)
                    queue.ext.advance()
                self._list(step.entries(), counts)

    def _begin_of(self, queue: _Queue, step: Dropped) -> int:
        """Return where the messages begin of which some are dropped: at the one with queue offset
        0, where that is the queue's last unit."""
        last = queue.files.last_unit(queue.end.position)
        if last is not None and self._queue_offset_at(queue.key, *last) == 0:
            return last[0]
        return int(step.units[0]["offset"])

    def _begin_anew(self, queue: _Queue, step: BegunAnew) -> None:
        """Remove the units of a queue whose messages are all gone, as a broker has done."""
        logger.info(
            "queue offsets begin again: topic=%s queue=%d queue_offset=%d, and the log has none of "
            "the %d messages before; their units are removed",
            escaped(queue.key.topic.encode()), queue.key.queue_id,
            queue_offset_of(step.run, step.first), queue.end.position // CQ_STORE_UNIT_SIZE,
        )  # fmt: skip
        # what this batch has written may get other files of the same names
        self.sync()
        queue.files.remove_all()
        queue.ext = self._open_ext(queue.key, queue.files, 0)

    def _write(self, queue: _Queue, step: Placed) -> None:
        units = step.units
        if queue.ext is not None:
            units = queue.ext.put(step.run, step.first, step.last, self._unsynced)
        queue.files.write(step.position, step.data(units), self._output, self._unsynced)
        if queue.ext is not None:
            queue.ext.advance()

    def _cut(self, end_offset: int) -> None:
        for key, files in ConsumeQueueFiles.each(self.root, self._file_size):
            # without a message left, all goes: the queue may start elsewhere
            cut_after(files, end_offset, partial(self._count_units, key))
        if self._ext_file_size is not None:
            cut_exts(self._output, self._ext_file_size, self._file_size, end_offset)
