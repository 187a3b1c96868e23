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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reput.sinks.consumequeueext import ExtUnits, OpenExt, cut_exts, open_ext
from reput.sinks.queuewriter import QueueWriter, unusable_reason
from reput.sinks.repeatedoffsets import RepeatedOffsets
from reput.store.config import OnQueueGap
from reput.store.errors import QueueGapError
from reput.store.queue.consumequeue import (
    CONSUME_QUEUE_DIRECTORY,
    CQ_STORE_UNIT_SIZE,
    PRE_BLANK,
    UNIT_DTYPE,
    ConsumeQueueFiles,
    QueueKey,
    open_queues,
    open_whole_queue,
)
from reput.store.queue.cut import cut_after
from reput.store.runs.dispatch import DispatchBatch, DispatchCounts, Run
from reput.store.state.ends import EntryEnd
from reput.store.state.ledger import (
    QUEUE_OFFSET_GAP,
    QUEUE_OFFSET_SEEN_BEFORE,
    Ledger,
    LedgerEntry,
    escaped,
)

logger = logging.getLogger("reput")

MAX_BLANK_UNITS = 1 << 24
LONG_RUN_UNITS = 1 << 12
MAX_QUEUE_OFFSET = ((1 << 63) - 1) // CQ_STORE_UNIT_SIZE - (1 << 32)
"""Positions stay below 2^63 bytes, a file's length included."""


@dataclass(slots=True)
class _Queue:
    """One queue as its files show it; it advances only after a successful write."""

    key: QueueKey
    files: ConsumeQueueFiles
    end: int
    """Byte position after the last unit; if there is none, nothing is known yet."""
    max_physic_offset: int
    """End of the last message with a unit; -1 without one."""
    ext: ExtUnits | None
    next_queue_offset: int | None = None
    """Queue offset after that of the last message with a unit; None if not known yet."""


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
        open_files: Callable[[Path, int], ConsumeQueueFiles] = open_whole_queue,
        open_ext: OpenExt = open_ext,
    ) -> None:
        """Set up the writer; no file is opened yet.

        ``file_size`` is the bytes of a queue file, a multiple of the unit size. ``durable_end`` is
        the watermark; units of messages past it are rewritten, and None trusts every unit.
        ``queue_offset_at`` reads the offset in a queue of the record at (physical offset, size).
        ``count_units`` returns how many units of a queue that record has (``store.queue.cut``).
        ``ext_file_size`` is the bytes of an ext file; with None no ext is built, otherwise runs
        need details. ``is_gone`` tells whether the log has lost all bytes before an offset.
        ``topic_begins`` maps a topic to the physical offset before which its messages get no units.
        ``open_files`` opens a queue's directory and ``open_ext`` its ext, raising QueueFileError;
        ``upkeep.verify`` passes ones that compare instead of writing.
        """
        super().__init__(output, CONSUME_QUEUE_DIRECTORY, ledger, topic_begins)
        self._file_size = file_size
        self._durable_end = durable_end
        self._queue_offset_at = queue_offset_at
        self._count_units = count_units
        self._on_queue_gap = on_queue_gap
        self._ext_file_size = ext_file_size
        self._is_gone = is_gone
        self._open_files = open_files
        self._open_ext = open_ext
        self._progress = _Progress(-1, -1)

    def write(self, batch: DispatchBatch) -> DispatchCounts:
        """Write the units of a batch (``IndexWriter.write``).

        Raises NoSpaceError and keeps what was written, so the same batch may be written again.
        """
        if (self._progress.start, self._progress.end) != (batch.start, batch.end):
            self._progress = _Progress(batch.start, batch.end)
        progress = self._progress
        for identity, runs in self._runs_by_queue(batch).items():
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
        for run in _joined(runs):
            first, skip = min(skip, len(run)), max(0, skip - len(run))
            if queue is None:
                self._quarantine(run, first, len(run), unusable_reason(queue_id), progress)
                continue
            # the idempotence rule: offset + size <= maxPhysicOffset already has a unit
            built = _count_built(run.units, queue.max_physic_offset)
            if built > first:
                counts.duplicates += built - first
                progress.handled += built - first
                first = built
            for low, high in _stretches(run, first):
                self._place(queue, run, low, high, progress)

    def _open(self, key: QueueKey) -> _Queue:
        files = self._open_files(self.root / key.relative_path, self._file_size)
        end = files.find_end(self._durable_end)
        last = files.last_unit(end)
        ext = self._open_ext(self._output, key, self._ext_file_size, files, end)
        return _Queue(key, files, end, last[0] + last[1] if last else -1, ext)

    def _end_of(self, queue: _Queue) -> EntryEnd | None:
        if queue.max_physic_offset < 0:
            return None
        return EntryEnd(queue.end, queue.max_physic_offset)

    def _place(self, queue: _Queue, run: Run, first: int, last: int, progress: _Progress) -> None:
        """Place units [first, last) of a run, whose queue offsets increase by one.

        Cases, in RocketMQ's order: an empty queue starts at the first queue offset; offset 0 is
        appended unchecked; a message whose position is taken is dropped; a jump leaves a gap. Where
        the log has lost every message of the queue, one that does not go on at its end begins it
        anew: a broker has removed such a queue (``ConsumeQueueStore.cleanExpired``).
        """
        while first < last:
            queue_offset = _queue_offset(run, first)
            if not 0 <= queue_offset <= MAX_QUEUE_OFFSET - (last - first):
                self._drop(queue, run, first, first + 1, "queue_offset_out_of_range", progress)
                first += 1
                continue
            expected = queue_offset * CQ_STORE_UNIT_SIZE
            blanks, stop, is_gap = 0, last, False
            last_end = queue.max_physic_offset
            if last_end >= 0 and expected != queue.end and self._is_gone(last_end):
                self._begin_anew(queue, queue_offset)
            if queue.max_physic_offset < 0:
                blanks = expected % self._file_size // CQ_STORE_UNIT_SIZE
                queue.end = expected - blanks * CQ_STORE_UNIT_SIZE
            elif queue_offset == 0:
                stop = first + 1
                progress.repeats.note_begin(queue.key, int(run.units[first]["offset"]))
            elif expected < queue.end:
                stop = min(last, first + (queue.end - expected) // CQ_STORE_UNIT_SIZE)
                progress.repeats.note(queue.key, int(run.units[first]["offset"]), stop - first)
                self._drop(queue, run, first, stop, QUEUE_OFFSET_SEEN_BEFORE, progress)
                first = stop
                continue
            elif expected > queue.end and queue_offset != self._next_queue_offset(queue):
                blanks, is_gap = self._gap(queue, run, first, queue_offset), True
            self._write(queue, run, first, stop, blanks)
            queue.next_queue_offset = _queue_offset(run, stop - 1) + 1
            progress.counts.gaps += is_gap
            progress.handled += stop - first
            first = stop

    def _begin_anew(self, queue: _Queue, queue_offset: int) -> None:
        """Remove the units of a queue whose messages are all gone, as a broker has done."""
        logger.info(
            "queue offsets begin again: topic=%s queue=%d queue_offset=%d, and the log has none of "
            "the %d messages before; their units are removed",
            escaped(queue.key.topic.encode()), queue.key.queue_id, queue_offset,
            queue.end // CQ_STORE_UNIT_SIZE,
        )  # fmt: skip
        # what this batch has written may get other files of the same names
        self.sync()
        queue.files.remove_all()
        queue.end, queue.max_physic_offset, queue.next_queue_offset = 0, -1, None
        queue.ext = self._open_ext(self._output, queue.key, self._ext_file_size, queue.files, 0)

    def _gap(self, queue: _Queue, run: Run, index: int, queue_offset: int) -> int:
        """List a jump of queue offsets; return the number of blank units to insert."""
        position = queue.end // CQ_STORE_UNIT_SIZE
        missing = queue_offset - position
        offset, size = int(run.units[index]["offset"]), int(run.units[index]["size"])
        topic = escaped(run.topic)
        detail = f"queue offset {queue_offset} at position {position}"
        place = f"in topic {topic} queue {run.queue_id}: {detail}, physical offset {offset}"
        if self._on_queue_gap is OnQueueGap.FAIL:
            raise QueueGapError(
                f"queue offsets jump {place}; set --on-queue-gap to rocketmq or blank to go on"
            )
        if self._on_queue_gap is OnQueueGap.BLANK and missing > MAX_BLANK_UNITS:
            raise QueueGapError(
                f"a gap of {missing} units is too large to blank out {place}; "
                "set --on-queue-gap to rocketmq"
            )
        self._ledger.add(
            LedgerEntry(
                offset, offset + size, QUEUE_OFFSET_GAP,
                topic, run.queue_id, queue_offset, detail,
            )
        )  # fmt: skip
        return missing if self._on_queue_gap is OnQueueGap.BLANK else 0

    def _next_queue_offset(self, queue: _Queue) -> int | None:
        """Queue offset after the queue's last message, read from its record after a restart."""
        if queue.next_queue_offset is None:
            last = queue.files.last_unit(queue.end)
            queue_offset = self._queue_offset_at(queue.key, *last) if last else None
            queue.next_queue_offset = None if queue_offset is None else queue_offset + 1
        return queue.next_queue_offset

    def _write(self, queue: _Queue, run: Run, first: int, last: int, blanks: int) -> None:
        units = run.units[first:last]
        if queue.ext is not None:
            units = queue.ext.put(run, first, last, self._unsynced)
        data: bytes | memoryview = units.view(np.uint8).data
        if blanks:
            data = PRE_BLANK.tobytes() * blanks + data
        self._unsynced.add(queue.files.write(queue.end, data, self._output))
        queue.end += len(data)
        queue.max_physic_offset = int(units["offset"][-1]) + int(units["size"][-1])
        if queue.ext is not None:
            queue.ext.advance()

    def _drop(
        self, queue: _Queue, run: Run, first: int, last: int, reason: str, progress: _Progress
    ) -> None:
        """List messages that get no unit; RocketMQ writes their ext units before it checks."""
        if queue.ext is not None:
            queue.ext.put(run, first, last, self._unsynced)
            queue.ext.advance()
        self._quarantine(run, first, last, reason, progress)

    def _quarantine(
        self, run: Run, first: int, last: int, reason: str, progress: _Progress
    ) -> None:
        queue = (escaped(run.topic), run.queue_id)
        for index in range(first, last):
            queue_offset = _queue_offset(run, index)
            self._list(run.units[index], reason, queue, queue_offset, progress.counts)
        progress.handled += last - first

    def truncate(self, end_offset: int) -> None:
        """Cut every queue after the last message that ends at or before ``end_offset``."""
        for key, files in open_queues(self._output, self._file_size):
            # without a message left, all goes: the queue may start elsewhere
            cut_after(files, end_offset, partial(self._count_units, key))
        self._queues.clear()
        if self._ext_file_size is not None:
            cut_exts(self._output, self._ext_file_size, self._file_size, end_offset)


def _queue_offset(run: Run, index: int) -> int:
    if run.queue_offsets is None:
        return run.first_queue_offset + index
    return int(run.queue_offsets[index])


def _count_built(units: NDArray[np.void], max_physic_offset: int) -> int:
    """Count a run's first units that end at or before ``max_physic_offset``."""
    if int(units[0]["offset"]) + int(units[0]["size"]) > max_physic_offset:
        return 0
    ends = units["offset"] + units["size"]
    return int(np.searchsorted(ends, max_physic_offset, side="right"))


def _joined(runs: list[Run]) -> list[Run]:
    """Join a queue's short runs if their queue offsets are consecutive, for one write; a copy of
    long ones would take longer than their writes."""
    if sum(map(len, runs)) >= LONG_RUN_UNITS * len(runs):
        return runs
    for before, after in pairwise(runs):
        follows = before.first_queue_offset + len(before) == after.first_queue_offset
        if before.queue_offsets is not None or after.queue_offsets is not None or not follows:
            return runs
        if _bit_map_size(before) != _bit_map_size(after):
            return runs
    if len(runs) == 1:
        return runs
    # joined as bytes, because numpy's concatenate would convert the byte order
    joined = np.frombuffer(b"".join([run.units.view(np.uint8).data for run in runs]), UNIT_DTYPE)
    return [
        replace(
            runs[0],
            units=joined,
            last_store_timestamp=runs[-1].last_store_timestamp,
            details=_stacked([run.details for run in runs]),
            bit_maps=_stacked([run.bit_maps for run in runs]),
        )
    ]


def _bit_map_size(run: Run) -> int:
    return 0 if run.bit_maps is None else run.bit_maps.shape[1]


def _stacked(arrays: Sequence[NDArray[Any] | None]) -> NDArray[Any] | None:
    found = [array for array in arrays if array is not None]
    return np.concatenate(found) if len(found) == len(arrays) else None


def _stretches(run: Run, first: int) -> Iterator[tuple[int, int]]:
    """[first, last) pairs from unit ``first`` on, each with consecutive queue offsets."""
    if run.queue_offsets is None:
        if first < len(run):
            yield first, len(run)
        return
    breaks = np.flatnonzero(np.diff(run.queue_offsets[first:]) != 1) + first + 1
    bounds = [first, *(int(at) for at in breaks), len(run)]
    yield from ((low, high) for low, high in pairwise(bounds) if low < high)
