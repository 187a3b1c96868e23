"""The consume queue dispatcher: RocketMQ's ``ConsumeQueue.putMessagePositionInfo``, in batches.

Delivery: exactly once in the files, under at-least-once calls. Where a unit goes and what it holds
is a function of the log and of what the queue file holds already; a unit is placed by position,
never appended blindly. Unit of work: one queue; queues are independent of each other.

RocketMQ's rules are kept byte for byte (format.md §5), two of its faults are not: maxPhysicOffset
moves only after a successful write, and what RocketMQ drops without a word goes to the ledger.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from store import fsops
from store.consumequeue import (
    CONSUME_QUEUE_DIRECTORY,
    CQ_STORE_UNIT_SIZE,
    PRE_BLANK,
    ConsumeQueueFiles,
    QueueKey,
    is_usual_topic,
    list_queues,
    topic_directory,
)
from store.dispatch import DispatchBatch, DispatchCounts, Run
from store.errors import QueueGapError
from store.ledger import Ledger, LedgerEntry, escaped

MAX_OPEN_FILES = 256
MAX_BLANK_UNITS = 1 << 24
MAX_QUEUE_OFFSET = ((1 << 63) - 1) // CQ_STORE_UNIT_SIZE - (1 << 32)
"""Positions stay below 2^63 bytes, a file's length included."""


class OnQueueGap(StrEnum):
    """What to do where queue offsets jump forward."""

    ROCKETMQ = "rocketmq"
    """Append at the end, as RocketMQ does; positions and queue offsets differ from there on."""
    BLANK = "blank"
    """Fill the gap with blank units, so that positions stay queue offsets."""
    FAIL = "fail"
    """Stop with the position."""


@dataclass(slots=True)
class _Queue:
    """One queue as its files say; moves only after a successful write."""

    files: ConsumeQueueFiles
    end: int
    """Byte position behind the last unit; where there is none, nothing is known yet."""
    max_physic_offset: int
    """End of the last message with a unit; -1 without one."""
    skew: int | None = 0
    """How far queue offsets run ahead of positions after gaps, in units; None: not known yet."""


@dataclass(slots=True)
class _Progress:
    """How far a batch got, so that a second try counts nothing twice."""

    start: int
    end: int
    done: set[tuple[bytes, int]] = field(default_factory=set)
    counts: DispatchCounts = field(default_factory=DispatchCounts)


class ConsumeQueueDispatcher:
    """Appends units per queue; not thread-safe, one per output."""

    name = "consumequeue"

    def __init__(
        self,
        output: Path,
        file_size: int,
        ledger: Ledger,
        *,
        durable_end: int | None,
        queue_offset_at: Callable[[int], int | None],
        on_queue_gap: OnQueueGap = OnQueueGap.ROCKETMQ,
    ) -> None:
        """``file_size``: bytes of a queue file, whole units. ``durable_end``: the watermark; units
        of messages behind it are written anew, None trusts every unit. ``queue_offset_at`` reads
        the queue offset of the record at a physical offset."""
        self.root = output / CONSUME_QUEUE_DIRECTORY
        self._output = output
        self._file_size = file_size
        self._ledger = ledger
        self._durable_end = durable_end
        self._queue_offset_at = queue_offset_at
        self._on_queue_gap = on_queue_gap
        self._queues: dict[tuple[bytes, int], _Queue | None] = {}
        self._topics: dict[bytes, bool] = {}
        self._unsynced: list[tuple[int, Path]] = []
        self._progress = _Progress(-1, -1)

    def dispatch(self, batch: DispatchBatch) -> DispatchCounts:
        """Write the units of a batch (``CommitLogDispatcher.dispatch``).

        Raises NoSpaceError with what was written kept: the same batch may be given again.
        """
        if (self._progress.start, self._progress.end) != (batch.start, batch.end):
            self._progress = _Progress(batch.start, batch.end)
        done, counts = self._progress.done, self._progress.counts
        by_queue: dict[tuple[bytes, int], list[Run]] = {}
        for run in batch.runs:
            by_queue.setdefault((run.topic, run.queue_id), []).append(run)
        for identity, runs in by_queue.items():
            if identity not in done:
                # counts of a queue are added when all of it is written
                counts.add(self._dispatch_queue(identity, runs))
                done.add(identity)
        self._progress = _Progress(-1, -1)
        return counts

    def _dispatch_queue(self, identity: tuple[bytes, int], runs: list[Run]) -> DispatchCounts:
        counts = DispatchCounts(messages=sum(len(run) for run in runs))
        topic, queue_id = identity
        if topic not in self._topics:
            self._topics[topic] = True
            counts.unusual_topics += not is_usual_topic(topic)
        queue = self._queue(topic, queue_id)
        for run in runs:
            if queue is None:
                reason = "queue_id" if queue_id < 0 else "topic_name"
                self._quarantine(run, 0, len(run), reason, counts)
                continue
            ends = run.units["offset"] + run.units["size"]
            # the idempotence rule: offset + size <= maxPhysicOffset is built already
            built = int(np.searchsorted(ends, queue.max_physic_offset, side="right"))
            counts.duplicates += built
            for first, last in _stretches(run, built):
                self._place(queue, run, first, last, counts)
        return counts

    def _queue(self, topic: bytes, queue_id: int) -> _Queue | None:
        """The queue as its files say, read at first use; None where its name is unusable."""
        identity = (topic, queue_id)
        if identity not in self._queues:
            name = topic_directory(topic)
            queue = None
            if name is not None and queue_id >= 0:
                path = self.root / QueueKey(name, queue_id).relative_path
                files = ConsumeQueueFiles(path, self._file_size)
                end = files.find_end(self._durable_end)
                last = files.last_unit(end)
                queue = _Queue(files, end, last[0] + last[1] if last else -1, None if last else 0)
            self._queues[identity] = queue
        return self._queues[identity]

    def _place(
        self, queue: _Queue, run: Run, first: int, last: int, counts: DispatchCounts
    ) -> None:
        """Units [first, last) of a run, whose queue offsets count up by one.

        Cases, in RocketMQ's order: an empty queue starts where the first offset says; offset 0 is
        appended unchecked; a position that is taken drops the message; a jump is a gap.
        """
        while first < last:
            queue_offset = _queue_offset(run, first)
            if not 0 <= queue_offset <= MAX_QUEUE_OFFSET - (last - first):
                self._quarantine(run, first, first + 1, "queue_offset_out_of_range", counts)
                first += 1
                continue
            expected = queue_offset * CQ_STORE_UNIT_SIZE
            blanks, stop = 0, last
            if queue.max_physic_offset < 0:
                blanks = expected % self._file_size // CQ_STORE_UNIT_SIZE
                queue.end = expected - blanks * CQ_STORE_UNIT_SIZE
            elif queue_offset == 0:
                stop = first + 1
            elif expected < queue.end:
                stop = min(last, first + (queue.end - expected) // CQ_STORE_UNIT_SIZE)
                self._quarantine(run, first, stop, "queue_offset_seen_before", counts)
                first = stop
                continue
            elif expected > queue.end:
                blanks = self._gap(queue, run, first, expected, counts)
            self._write(queue, run.units[first:stop], blanks)
            first = stop

    def _gap(
        self, queue: _Queue, run: Run, index: int, expected: int, counts: DispatchCounts
    ) -> int:
        """Count and list a jump of queue offsets; the number of blank units to put in."""
        missing = (expected - queue.end) // CQ_STORE_UNIT_SIZE
        if queue.skew is None:
            queue.skew = self._skew_of(queue)
        if missing == queue.skew:
            return 0
        unit = run.units[index]
        offset, topic = int(unit["offset"]), escaped(run.topic)
        queue_offset, position = expected // CQ_STORE_UNIT_SIZE, queue.end // CQ_STORE_UNIT_SIZE
        detail = f"queue offset {queue_offset} at position {position}"
        if self._on_queue_gap is OnQueueGap.FAIL:
            raise QueueGapError(
                f"queue offsets jump in topic {topic} queue {run.queue_id}: {detail}, physical "
                f"offset {offset}; set --on-queue-gap to rocketmq or blank to go on"
            )
        counts.gaps += 1
        self._ledger.add(
            LedgerEntry(
                offset, offset + int(unit["size"]), "queue_offset_gap",
                topic, run.queue_id, queue_offset, detail,
            )
        )  # fmt: skip
        if self._on_queue_gap is OnQueueGap.BLANK:
            if missing > MAX_BLANK_UNITS:
                raise QueueGapError(
                    f"a gap of {missing} units is too large to blank out: topic {topic} queue "
                    f"{run.queue_id}, {detail}; set --on-queue-gap to rocketmq"
                )
            return missing
        queue.skew = missing
        return 0

    def _skew_of(self, queue: _Queue) -> int | None:
        """How far the queue's last unit stood before its queue offset, from its record."""
        last = queue.files.last_unit(queue.end)
        queue_offset = self._queue_offset_at(last[0]) if last else None
        if queue_offset is None:
            return None
        return queue_offset + 1 - queue.end // CQ_STORE_UNIT_SIZE

    def _write(self, queue: _Queue, units: NDArray[np.void], blanks: int) -> None:
        data = units.tobytes()
        if blanks:
            data = PRE_BLANK.tobytes() * blanks + data
        try:
            descriptors = queue.files.write(queue.end, data, self._output)
        except OSError as error:
            raise fsops.output_error(error, "write", queue.files.directory) from error
        self._unsynced.extend((fd, queue.files.directory) for fd in descriptors)
        queue.end += len(data)
        queue.max_physic_offset = int(units["offset"][-1]) + int(units["size"][-1])
        if len(self._unsynced) >= MAX_OPEN_FILES:
            self.sync()

    def _quarantine(
        self, run: Run, first: int, last: int, reason: str, counts: DispatchCounts
    ) -> None:
        topic = escaped(run.topic)
        for index in range(first, last):
            unit = run.units[index]
            offset, size = int(unit["offset"]), int(unit["size"])
            queue_offset = _queue_offset(run, index)
            self._ledger.add(
                LedgerEntry(offset, offset + size, reason, topic, run.queue_id, queue_offset)
            )
            counts.quarantined_messages += 1
            counts.quarantined_bytes += size

    def sync(self) -> None:
        """Make every written unit durable. Raises SyncError."""
        while self._unsynced:
            fd, path = self._unsynced[-1]
            fsops.sync(fd, path)
            self._unsynced.pop()
            os.close(fd)

    def truncate(self, end_offset: int) -> None:
        """Cut every queue behind the last message that ends at or before ``end_offset``."""
        for key in list_queues(self.root):
            files = ConsumeQueueFiles(self.root / key.relative_path, self._file_size)
            files.clear_from(files.find_end(end_offset))
        self._queues.clear()


def _queue_offset(run: Run, index: int) -> int:
    if run.queue_offsets is None:
        return run.first_queue_offset + index
    return int(run.queue_offsets[index])


def _stretches(run: Run, first: int) -> Iterator[tuple[int, int]]:
    """[first, last) pairs from unit ``first`` on; within each, queue offsets count up by one."""
    if run.queue_offsets is None:
        if first < len(run):
            yield first, len(run)
        return
    breaks = np.flatnonzero(np.diff(run.queue_offsets[first:]) != 1) + first + 1
    bounds = [first, *(int(at) for at in breaks), len(run)]
    yield from ((low, high) for low, high in pairwise(bounds) if low < high)
