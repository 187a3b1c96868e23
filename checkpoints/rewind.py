"""Take an output back to an earlier place of its log; the next run dispatches from there.

A rewound output is what a run would have left that ended at that place: everything derived from
later messages is cut, the watermark falls, followers drop or repeat what comes later, and Spark's
checkpoint loses its later batches (decision 0011). This module finds the place and says what would
be cut; nothing here cuts an entry. Entries follow from the log, so a rewind is refused where the
log could not give one of them again. Positions do not: they are kept aside first (``keptstate``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from reput.checkpoints.agreement import BuiltOutput
from reput.checkpoints.history import History, read_history
from reput.checkpoints.reconcile import Plan, spark_position
from reput.store.errors import CommitLogError, StoreError, UsageError
from reput.store.files import STATE_DIRECTORY, is_mapped_file_name
from reput.store.log.commitlog import CommitLog
from reput.store.log.places import first_at_or_after, last_record_before, pass_over
from reput.store.log.record import Record
from reput.store.queue.batchconsumequeue import BatchConsumeQueueFiles
from reput.store.queue.consumequeue import QueueFiles, QueueKey
from reput.store.queue.cut import whole_end
from reput.store.queue.kinds import open_all_queues
from reput.store.queue.placement import count_units, queue_offsets
from reput.store.state.ledger import QUEUE_OFFSET_GAP, LedgerEntry, read_entries
from reput.store.state.output import fingerprint
from reput.store.state.watermark import Watermark


@dataclass(frozen=True, slots=True)
class Target:
    """The place to rewind to; one of the fields is given."""

    batch: int | None = None
    """The number of the batch of Spark's checkpoint that is to be dispatched again first."""
    offset: int | None = None
    """A physical offset."""
    file: str | None = None
    """The name of a file of the log, to whose first byte to rewind."""
    time_ms: int | None = None
    """A store time; the first message of this time or later is dispatched again first."""

    def find(self, log: CommitLog, end: int, history: History) -> int:
        """Return the physical offset that is meant; ``end`` is the watermark. Raises
        UsageError."""
        if self.batch is not None:
            return _start_of_batch(history, self.batch)
        if self.file is not None:
            return _start_of_file(log, self.file)
        if self.time_ms is not None:
            offset = first_at_or_after(log, self.time_ms, end)
            if offset is None:
                raise UsageError(
                    "no dispatched message was stored at that time or later: there is nothing to "
                    "rewind"
                )
            return offset
        if self.offset is None:
            raise ValueError("a target without a field")
        return self.offset


@dataclass(frozen=True, slots=True)
class Rewind:
    """A rewind from ``watermark`` to ``offset``, and what it cuts."""

    watermark: int
    offset: int
    """Start of the first record that is dispatched again."""
    asked_offset: int
    """The offset that was meant; it is beyond ``offset`` where that is inside a record, a BLANK or
    a damaged range."""
    messages: int
    """Number of sound records in [offset, watermark)."""
    queues: int
    """Number of queues that lose units."""
    units: int
    """Number of units of consume and batch queues that are cut."""
    ledger_lines: int
    plan: Plan


def plan_rewind(
    log: CommitLog,
    log_end: int,
    watermark: Watermark,
    spark_directory: Path,
    built: BuiltOutput,
    target: Target,
) -> Rewind:
    """Find the place and what lies beyond it; ``log`` is that of the output.

    Raises UsageError for a target that the dispatched log does not have, CommitLogError where the
    log could not give all entries again, and StoreError where a queue would lose its place.
    """
    end, state = watermark.end_offset, built.output / STATE_DIRECTORY
    asked = target.find(log, end, read_history(spark_directory, watermark.store_id))
    ledger = [entry for entry in read_entries(state) if entry is not None]
    offset = _round_down(log, asked, end, ledger)
    messages = _check_readable(log, offset, end, ledger)
    cut = _cut_queues(log, built, offset, end)
    last = last_record_before(log, offset)
    lowered = replace(
        watermark,
        end_offset=offset,
        last_record_offset=last,
        last_record_crc=fingerprint(log, last),
        last_store_timestamp=log.store_time(cut.last_kept) if cut.last_kept >= 0 else 0,
    )
    spark, note = spark_position(spark_directory, lowered, log, log_end)
    start = offset if spark is None else spark.offset
    notes = (f"{note} at {start}",) if note else ()
    return Rewind(
        watermark=end,
        offset=offset,
        asked_offset=asked,
        messages=messages,
        queues=cut.queues,
        units=cut.units,
        ledger_lines=sum(entry.physical_offset >= offset for entry in ledger),
        plan=Plan(lowered, start, spark, offset, None, notes),
    )


def _start_of_batch(history: History, number: int) -> int:
    batch = history.batch(number)
    if batch is not None and batch.start is not None:
        return batch.start
    ids = [batch.batch_id for batch in history.batches if batch.start is not None]
    if not ids:
        raise UsageError(
            "spark's checkpoint lists no batch; give the `checkpoint=` of reput run, or rewind to "
            "an offset, a file or a time"
        )
    raise UsageError(
        f"the start of batch {number} is not known: spark's checkpoint has batches {min(ids)} to "
        f"{max(ids)}; rewind to an offset, a file or a time instead"
    )


def _start_of_file(log: CommitLog, name: str) -> int:
    start = int(name) if is_mapped_file_name(name) else -1
    if not any(segment.start == start for segment in log.segments.listed):
        names = [segment.path.name for segment in log.segments.listed]
        has = f"has {names[0]} to {names[-1]}" if names else "has no file"
        raise UsageError(f"the log has no file {name!r}; it {has}")
    return start


def _round_down(log: CommitLog, asked: int, end: int, ledger: list[LedgerEntry]) -> int:
    if asked == end:
        return end
    segment = log.segments.at(asked)
    if asked > end or segment is None:
        raise UsageError(
            f"cannot rewind to {asked}: the dispatched log is [{log.min_offset}, {end})"
        )
    offset = pass_over(log, segment.start, asked).end
    for entry in ledger:
        # a range that was listed as a whole is dispatched again as a whole
        is_inside = entry.physical_offset < offset < entry.end_physical_offset
        if is_inside and entry.reason != QUEUE_OFFSET_GAP:
            offset = entry.physical_offset
    if offset < log.min_offset:
        raise UsageError(
            f"cannot rewind to {asked}: it is in a range without a record that begins at {offset}, "
            f"before the log's beginning {log.min_offset}; rewind to a later place"
        )
    return offset


def _check_readable(log: CommitLog, offset: int, end: int, ledger: list[LedgerEntry]) -> int:
    """Return the number of messages that can be dispatched again. Raises CommitLogError where one
    that has an entry cannot."""
    log.segments.check_mounted("nothing is cut")
    passed = pass_over(log, offset, end)
    for bad in passed.bad:
        listed = (
            entry.physical_offset <= bad.start and bad.end <= entry.end_physical_offset
            for entry in ledger
            if entry.is_damage
        )
        if not any(listed):
            raise CommitLogError(
                f"the log at [{bad.start}, {bad.end}) is damaged ({bad.status.name.lower()}) and "
                "was sound when it was dispatched: its entries could not be built again; restore "
                f"it from a copy, or rewind to {bad.end} or later",
                physical_offset=bad.start,
            )
    if passed.end != end:
        raise CommitLogError(
            f"no record ends at the watermark {end}, the last place before it is {passed.end}: the "
            "log is damaged there; reput verify says more",
            physical_offset=passed.end,
        )
    return passed.messages


@dataclass(slots=True)
class _Cut:
    """The units that a cut of all queues takes, and the last message that it leaves."""

    queues: int = 0
    """Number of queues that lose units."""
    units: int = 0
    last_kept: int = -1
    """Physical offset of the last message that keeps its unit; -1 if none does."""


def _cut_queues(log: CommitLog, built: BuiltOutput, offset: int, end: int) -> _Cut:
    """Look at the units on both sides of ``offset``, up to ``end``.

    Raises StoreError where a queue whose oldest files are gone would lose all its units: the last
    one says where the next one stands, and without it the message's own queue offset would count,
    which differs after a gap.
    """
    cut, lost, possible = _Cut(), "", offset
    for _, key, files in open_all_queues(built.output, built.settings):
        units_of = partial(count_units, log, key)
        kept, last = (whole_end(files, position, units_of) for position in (offset, end))
        is_emptied = last > kept == files.starts[0]
        first = files.first_real_unit(last) if is_emptied else None
        # blank units before the first message of a queue are not counted
        begin = kept // files.unit_size if first is None else first[0]
        units = last // files.unit_size - begin
        cut.queues += bool(units)
        cut.units += units
        cut.last_kept = max(cut.last_kept, (files.last_unit(kept) or (-1, 0))[0])
        if first and files.starts[0] and not _stands_by_itself(log, key, files, *first):
            possible = max(possible, int(first[1]["offset"]) + int(first[1]["size"]))
            lost = f"topic {key.topic} queue {key.queue_id}"
    if lost:
        raise StoreError(
            f"cannot rewind to {offset}: {lost} would lose all units that retention left, and its "
            f"messages would get other queue offsets; rewind to {possible} or later"
        )
    return cut


def _stands_by_itself(
    log: CommitLog, key: QueueKey, files: QueueFiles, index: int, unit: Any
) -> bool:
    """Return whether the message's own queue offset is the unit's place in the queue."""
    message = log.record_at(int(unit["offset"]), int(unit["size"]))
    if isinstance(files, BatchConsumeQueueFiles) or not isinstance(message, Record):
        return False
    return index in queue_offsets(message, key, enable_lmq=True)
