"""Find the point up to which an output still agrees with its log.

A broker that loses the unsynced end of its log truncates the log there and appends other messages
in its place. Every entry of the output below that cut agrees with the log, and no entry beyond it
does. This module searches for the cut and changes nothing (decision 0009).

It compares three kinds of entries with the records that they point to, from the newest back: units
of consume queues (position, size, topic, queue, queue offset, tagsCode, and with an ext the store
time), units of batch queues (the store time as well), and entries of the index (hashes of keys).
In each file a binary search finds the first entry that disagrees, and the lowest of their physical
offsets bounds the part that agrees. The cut is the end of the last record below it that has a unit.

Entries that another writer built come without a watermark, and may have been copied at another
moment than their log (``find_foreign_entries``). Their units are compared in the same way, but only
a sound record in the place of a unit's message shows that the two disagree: a damaged one may have
been sound when it was dispatched.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from reput.store.config import StoreSettings
from reput.store.errors import CommitLogError
from reput.store.files import INDEX_DIRECTORY
from reput.store.index.indexfile import (
    NEVER_WRITTEN,
    IndexEntry,
    IndexFiles,
    index_key_hash,
    index_keys,
    read_entry,
)
from reput.store.log import record
from reput.store.log.commitlog import CommitLog
from reput.store.log.record import SCHEDULE_TOPIC, Record
from reput.store.log.status import Status
from reput.store.queue.batchconsumequeue import BatchConsumeQueueFiles
from reput.store.queue.consumequeue import PRE_BLANK_SIZE, QueueFiles, QueueKey
from reput.store.queue.consumequeueext import is_ext_addr
from reput.store.queue.cut import ends_by, whole_end
from reput.store.queue.kinds import open_all_queues, open_ext
from reput.store.queue.placement import (
    count_units,
    is_inside_a_record,
    queue_offsets_of_any_setting,
)
from reput.store.state.output import fingerprint, is_same_log
from reput.store.state.watermark import Watermark

SUFFICIENT_UNITS = 16
"""This many agreeing units are no accident, however many others disagree."""
UNITS_IN_A_ROW = 4
"""A unit counts as agreeing only where this many units before it in its queue agree too: a single
one may point to the start of another message of the same size."""


@dataclass(frozen=True, slots=True)
class BuiltOutput:
    """An output of which a run, or another writer, has built entries, and its settings."""

    output: Path
    settings: StoreSettings

    @property
    def index(self) -> bool:
        """Whether the index takes part in the comparison; an index that is no longer built may be
        older than the last cut."""
        return self.settings.builds_index


@dataclass(frozen=True, slots=True)
class Agreement:
    """The position up to which an output agrees with a log, and the units on both sides of it."""

    end: int
    """Physical offset (exclusive) at which a record of this log ends."""
    last_record_offset: int
    """Physical offset of the record that ends at ``end``; -1 where nothing was built."""
    last_record_crc: int
    last_store_timestamp: int
    """Store time of that record, in ms."""
    kept_units: int
    """Units up to ``end`` of messages that the log still has."""
    cut_units: int
    """Units from ``end`` up to the watermark; of foreign queues, all of them."""
    cut_index_entries: int = 0
    """Index entries from ``end`` on; counted of a foreign index alone."""


def what_differs(log: CommitLog, log_end: int | None, watermark: Watermark) -> str | None:
    """Return the sign that a log is not the one that the watermark was set for; None without one.

    ``log_end`` is the log's sealed end, if it is known. The last record below the watermark must be
    the one that was dispatched, unless retention removed it; and if a BLANK or damage followed it
    up to the watermark, no record may be in their place.
    """
    last, end = watermark.last_record_offset, watermark.end_offset
    if log_end is not None and end > log_end:
        return f"the log ends at {log_end}, before the watermark {end}"
    is_lost = last >= log.min_offset and not (log.segments.at(last) or log.segments.after(last))
    if is_same_log(log, watermark) and not is_lost:
        following = last + log.stated_size(last) if last >= log.min_offset else end
        if following >= end or not isinstance(log.record_starting_at(following), Record):
            return None
        return (
            f"a record is at physical offset {following}, below the watermark {end}, where none "
            "was when the log was dispatched"
        )
    return (
        f"the record at physical offset {last}, below the watermark {end}, is not the one that was "
        "dispatched"
    )


def find_agreement(
    log: CommitLog, log_end: int, watermark: Watermark, built: BuiltOutput, noticed: str
) -> Agreement:
    """Search for the cut; ``noticed`` is the text that ``what_differs`` returned.

    Raises CommitLogError where no units or too few agree, which means that this is another log, and
    where a part of the log may not be mounted.
    """
    log.segments.check_mounted(f"{noticed}, and nothing is cut")
    comparison = _Comparison(log, log_end, watermark, built, noticed)
    queues = comparison.queues()
    bounds = [queue.first_offset_that_differs() for queue in queues]
    if built.index:
        bounds.append(comparison.first_index_offset_that_differs())
    bound = min((offset for offset in bounds if offset is not None), default=log_end)
    return comparison.agreement(queues, bound)


def find_foreign_entries(log: CommitLog, log_end: int, built: BuiltOutput) -> Agreement | None:
    """Search what another writer built for entries of messages that the log does not have: those
    beyond its end, which a broker cuts at its start (``CommitLog.recoverNormally``,
    ``ConsumeQueue.truncateDirtyLogicFiles``), and those in whose place it has others.

    None where there is no such entry. Raises CommitLogError as ``find_agreement``.
    """
    noticed = "there are units of messages that the log does not have"
    comparison = _Comparison(log, log_end, Watermark("", log_end), built, noticed, is_foreign=True)
    queues = comparison.queues()
    bound = log_end
    for queue in queues:
        # a wrong unit costs a walk through its log file: only those of the first queue meet many
        differing_offset = queue.first_offset_that_differs(bound)
        bound = bound if differing_offset is None else min(bound, differing_offset)
    if built.index:
        differing_offset = comparison.first_index_offset_that_differs()
        bound = bound if differing_offset is None else min(bound, differing_offset)
    beyond = sum(queue.count_beyond() for queue in queues)
    agreement = Agreement(log_end, -1, 0, 0, sum(map(len, queues)), 0)
    if bound < log_end or (beyond and not agreement.kept_units):
        log.segments.check_mounted(f"{noticed}, and nothing is cut")
        agreement = comparison.agreement(queues, bound)
    index_entries = comparison.count_index_entries(agreement.end) if built.index else 0
    units = agreement.cut_units + beyond
    if not units and not index_entries:
        return None
    return replace(agreement, cut_units=units, cut_index_entries=index_entries)


def _first(low: int, high: int, holds: Callable[[int], bool]) -> int:
    """Return the first number in [low, high) for which ``holds`` is true, or ``high``; ``holds`` is
    false for all numbers before it."""
    return low + bisect_left(range(low, high), True, key=holds)


def _first_from_end(low: int, high: int, holds: Callable[[int], bool]) -> int:
    """Return the same as ``_first``, in few steps where the result is close to ``high``."""
    step = 1
    while high > low and holds(middle := max(high - step, low)):
        high, step = middle, step * 2
    return _first(max(high - step, low), high, holds)


def _first_entry(
    entry: Callable[[int], IndexEntry],
    high: int,
    holds: Callable[[IndexEntry], bool],
    search: Callable[[int, int, Callable[[int], bool]], int] = _first,
) -> int:
    """Return the number below ``high`` of the first entry for which ``holds`` is true."""
    return search(1, high, lambda number: holds(entry(number)))


@dataclass(frozen=True, slots=True)
class _Comparison:
    """A search for the cut between an output and a log."""

    log: CommitLog
    log_end: int
    watermark: Watermark
    built: BuiltOutput
    noticed: str
    """The sign that the two differ."""
    is_foreign: bool = False
    """Another writer built the output."""

    def queues(self) -> list[_Queue]:
        """Open every queue. Raises QueueFileError."""
        return [
            _Queue(self, key, files)
            for _, key, files in open_all_queues(self.built.output, self.built.settings)
        ]

    def agreement(self, queues: Sequence[_Queue], bound: int) -> Agreement:
        """Return the end of the last record with a unit below ``bound``, the log's first byte where
        no queue has a unit; raises CommitLogError."""
        log, watermark, noticed = self.log, self.watermark, self.noticed
        counts = [queue.count_before(bound) for queue in queues]
        kept = sum(counts)
        cut = sum(len(queue) for queue in queues) - kept
        if not kept and (cut or self.log_end >= watermark.end_offset):
            raise CommitLogError(
                f"{noticed}, and none of the {cut} units of the queues points to a record that the "
                "log has: this is another log, and nothing was cut; give the one that was "
                "dispatched, or a fresh `output=`",
                physical_offset=watermark.end_offset,
            )
        if not kept:
            # without a unit nothing tells how much of the log is as it was: all of it comes again
            return Agreement(log.min_offset, -1, 0, watermark.last_store_timestamp, 0, 0)
        last = max(queue.last_of(count) for queue, count in zip(queues, counts, strict=True))
        end = sum(last)
        if kept < min(SUFFICIENT_UNITS, cut):
            raise CommitLogError(
                f"{noticed}, and only {kept} of the {kept + cut} units of the queues point to "
                f"records that the log has, those up to {end}: too few to show that it is the same "
                "log, and nothing was cut; give the one that was dispatched, or a fresh `output=`",
                physical_offset=end,
            )
        for queue, count in zip(queues, counts, strict=True):
            queue.check_samples(count, f"{noticed}, {kept} of {kept + cut} units agree up to {end}")
        last_record = log.record_at(*last)
        timestamp = last_record.store_timestamp if isinstance(last_record, Record) else 0
        return Agreement(end, last[0], fingerprint(log, last[0]), timestamp, kept, cut)

    def _index_files(self) -> Iterator[Callable[[int], IndexEntry]]:
        """The files of the index, the newest first, each as what reads an entry of it."""
        layout = self.built.settings.index_layout
        files = IndexFiles(self.built.output / INDEX_DIRECTORY, layout)
        return (partial(read_entry, path, layout) for path in reversed(files.paths()))

    def count_index_entries(self, end_offset: int) -> int:
        """Count the entries of messages at and after ``end_offset``."""
        count, end_number = 0, self.built.settings.max_index_num
        for entry in self._index_files():
            end = _first_entry(entry, end_number, lambda each: each == NEVER_WRITTEN)
            first = _first_entry(entry, end, lambda each: each.phy_offset >= end_offset)
            count += end - first
            if first > 1:
                break
        return count

    def first_index_offset_that_differs(self) -> int | None:
        """Return the physical offset of the first message whose index entries do not match its
        keys; None without one. A unique key tells apart messages that are otherwise alike."""
        lowest, end_number = None, self.built.settings.max_index_num
        for entry in self._index_files():
            end = _first_entry(entry, end_number, self._is_beyond)
            first = _first_entry(entry, end, self._differs, _first_from_end)
            if first < end:
                lowest = entry(first).phy_offset
            if first > 1:
                break
        return lowest

    def _is_beyond(self, entry: IndexEntry) -> bool:
        return entry == NEVER_WRITTEN or entry.phy_offset >= self.watermark.end_offset

    def _differs(self, entry: IndexEntry) -> bool:
        offset = entry.phy_offset
        if offset < self.log.min_offset:
            return False
        message = self.log.record_starting_at(offset)
        if not isinstance(message, Record):
            return not self.is_foreign
        if offset + message.total_size > self.log_end:
            return True
        keys = index_keys(message, index_tags=True)
        return entry.key_hash not in map(index_key_hash, keys)


class _Queue:
    """The units of one queue that lie below the watermark and whose messages the log still has."""

    def __init__(self, comparison: _Comparison, key: QueueKey, files: QueueFiles) -> None:
        built, watermark = comparison.built, comparison.watermark
        self._key = key
        self._is_foreign = comparison.is_foreign
        self._files = files
        self._log = comparison.log
        self._log_end = comparison.log_end
        # this case has no keys to compare: the messages that a broker appends after the cut are
        # younger than all that it lost, unless its clock was set back
        self._newest = 0 if built.index else watermark.last_store_timestamp
        self._settings = built.settings
        self._ext = open_ext(built.output, key, built.settings)
        self._units_of = partial(count_units, self._log, key)
        self._end = self._end_of(watermark.end_offset)
        self._begin = files.starts[0] // files.unit_size if files.starts else 0
        if self._begin < self._end and not self._is_in_log(self._begin):
            self._begin = _first(self._begin, self._end, self._is_in_log)

    def __len__(self) -> int:
        return self._end - self._begin

    def _end_of(self, end_offset: int) -> int:
        return whole_end(self._files, end_offset, self._units_of) // self._files.unit_size

    def _is_in_log(self, index: int) -> bool:
        real = self._files.real_unit_up_to(index, self._begin)
        return real is not None and bool(real[1]["offset"] >= self._log.min_offset)

    def _differs(self, index: int) -> bool:
        for _ in range(UNITS_IN_A_ROW):
            real = self._files.real_unit_up_to(index, self._begin)
            if real is None:
                return False
            if not self._agrees(*real, self._newest):
                return True
            index = real[0] - 1
            if index < self._begin:
                return False
        return False

    def _agrees(self, index: int, unit: Any, newest: int = 0) -> bool:
        offset, size = int(unit["offset"]), int(unit["size"])
        if offset + size > self._log_end:
            return False
        message = self._log.record_at(offset, size)
        if not isinstance(message, Record):
            return self._is_foreign and self._may_be_damaged(offset)
        if newest and message.store_timestamp > newest:
            return False
        return self._tells_the_same(unit, message) and self._is_queued(message, index)

    def _may_be_damaged(self, offset: int) -> bool:
        """Whether the message at ``offset`` may have been there and be damaged now, or be in a file
        that is missing."""
        message = self._log.record_starting_at(offset)
        if isinstance(message, Record) or message.status is Status.BLANK:
            return False
        return not is_inside_a_record(self._log, offset)

    def _tells_the_same(self, unit: Any, message: Record) -> bool:
        if self._is_foreign and message.topic == SCHEDULE_TOPIC:
            return True  # its writer may have had another messageDelayLevel
        code, time = int(unit["tags_code"]), message.store_timestamp
        if isinstance(self._files, BatchConsumeQueueFiles):
            time = int(unit["store_time"])
        elif is_ext_addr(code):
            ext = self._ext.read(code)
            if ext is None:
                return True  # a unit whose file is gone shows nothing
            code, time = ext.tags_code, ext.msg_store_time
        right = record.tags_code(message, self._settings.message_delay_levels_ms)
        return (code, time) == (right, message.store_timestamp)

    def _is_queued(self, message: Record, index: int) -> bool:
        """Return whether a record goes into this queue, its own or one that its properties name,
        and may stand at this index: gaps in queue offsets are closed up, and offset 0 is appended
        anywhere."""
        without, with_lmq = queue_offsets_of_any_setting(message, self._key)
        if isinstance(self._files, BatchConsumeQueueFiles):
            return bool(without or with_lmq)
        return any(offset >= index or offset == 0 for offset in without + with_lmq)

    def first_offset_that_differs(self, bound: int | None = None) -> int | None:
        """Return the physical offset of the first unit that disagrees with the log; None without
        one among those of messages that end at or before ``bound``."""
        end = self._end if bound is None else max(min(self._end, self._end_of(bound)), self._begin)
        index = _first_from_end(self._begin, end, self._differs)
        if index == end:
            return None
        # the fields of a damaged unit may hold any value
        before = self._files.last_unit(index * self._files.unit_size) or (0, 0)
        return max(int(self._files.read(index, 1)[0]["offset"]), sum(before))

    def count_before(self, end_offset: int) -> int:
        """Return how many units belong to messages that end at or before ``end_offset``."""
        if sum(self.last_of(len(self))) <= end_offset:
            return len(self)
        return max(self._end_of(end_offset) - self._begin, 0)

    def count_beyond(self) -> int:
        """Return how many units there are beyond the end, as a broker counts them that starts."""
        if ends_by(self._files, self._log_end, self._units_of):
            return 0
        count = self._files.find_end(None) // self._files.unit_size - self._end
        units = self._files.read(self._end, max(count, 0))
        return int((units["size"] != PRE_BLANK_SIZE).sum())

    def last_of(self, count: int) -> tuple[int, int]:
        """Return (physical offset, size) of the last message of the first ``count`` units; (-1, 0)
        without one."""
        last = self._files.last_unit((self._begin + count) * self._files.unit_size)
        return last if count and last else (-1, 0)

    def check_samples(self, count: int, noticed: str) -> None:
        """Check sampled units, from the last of the first ``count`` back to the oldest. Raises
        CommitLogError where one disagrees."""
        step = min(count, 1)
        while step:
            real = self._files.real_unit_up_to(self._begin + count - step, self._begin)
            if real is not None and not self._agrees(*real):
                raise CommitLogError(
                    f"{noticed}, but the record at physical offset {real[1]['offset']} is not the "
                    f"one that topic {self._key.topic} queue {self._key.queue_id} was built from: "
                    "this is another log, or a damaged one, and nothing was cut; give the one that "
                    "was dispatched, or a fresh `output=`",
                    physical_offset=int(real[1]["offset"]),
                )
            step = min(step * 4, count) if step < count else 0
