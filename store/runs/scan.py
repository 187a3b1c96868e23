"""Scans log bytes into packed runs: the work of one source partition.

A row for each message would make Spark the bottleneck, so a kernel groups the messages of a chunk
by queue. Every byte of the range is in a record, in a BLANK, or in a listed range. A scan places
nothing in queues: only the driver knows their ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reput.store.log import record
from reput.store.log.commitlog import CommitLog
from reput.store.log.cursor import BadRange, Window, decode_windows
from reput.store.log.kernelbase import CRC_TABLES
from reput.store.log.segments import Segment
from reput.store.log.status import Status
from reput.store.queue.consumequeue import CQ_STORE_UNIT_SIZE, UNIT_DTYPE
from reput.store.runs import packkernel, scankernel
from reput.store.runs.dispatch import (
    DETAIL_DTYPE,
    UNITS_ONLY,
    BatchSettings,
    DispatchBatch,
    IndexEntries,
    Run,
    ScannedRange,
    Wanted,
)
from reput.store.runs.manifest import QueueManifest

Item = Run | BadRange | ScannedRange | IndexEntries | QueueManifest
"""One of the things that a task answers."""
CHUNK_RECORDS = 1 << 18
"""A chunk of this many records stays in the cache while it is packed."""
MAX_CHUNK_RECORDS = 1 << 22
"""With many queues, a larger chunk makes fewer and longer runs."""
RECORDS_PER_RUN = 256
CHUNK_RUNS = 1 << 18
_ARENA_BYTES = 16 << 20
_RECORD_NAMES = 1 << 16
"""The names of a record's queues are shorter: one is its topic, the others are properties."""
KEYS_PER_RECORD = 4
"""Room for this many index entries per record; a chunk that has more is packed early."""
MIN_LIST_ROOM = 1 << 16
"""More than one block of properties can list keys or light queues, so one record always fits."""
_UNUSABLE_ROOM = 1 << 10
READS_PER_CALL = 16
"""Buffers that a kernel reads by itself, before it is said how far the scan has come."""


@dataclass(frozen=True, slots=True)
class PackedChunk:
    """The runs of one chunk as columns: row r of every array is run r."""

    topic_arena: NDArray[np.uint8]
    """uint8[sum of topic lengths], topics concatenated in run order."""
    runs: NDArray[np.int64]
    """int64[run_count, scankernel.RUN_FIELDS]"""
    units: NDArray[np.uint8]
    """uint8[message_count * 20], run after run."""
    queue_offsets: NDArray[np.int64]
    """int64[message_count], run after run; empty if each run's are consecutive."""
    details: NDArray[np.void] | None
    """DETAIL_DTYPE[message_count], run after run; None if not requested."""
    index_entries: IndexEntries | None
    """None if not requested, or if the chunk has nothing for the index."""
    unusable: Sequence[BadRange]
    """Records that are in their own queue, but whose light queues are unreadable."""


class _Chunk:
    """Arrays that ``scan_records`` fills; reused for every chunk of a partition."""

    def __init__(self, size: int, extras: Wanted) -> None:
        """``size`` is the bytes of the range; memory is touched only as records come."""
        record_count = min(size // record.MIN_RECORD_LENGTH + 1, MAX_CHUNK_RECORDS)
        self.capacity = min(record_count, CHUNK_RECORDS)
        if extras.multi_dispatch:
            self.capacity = max(self.capacity, MIN_LIST_ROOM)
            record_count = max(record_count, self.capacity)
        run_count = min(record_count, CHUNK_RUNS)
        self.offsets = np.empty(record_count, np.int64)
        self.sizes = np.empty(record_count, np.int32)
        self.tags = np.empty(record_count, np.int64)
        self.queue_offsets = np.empty(record_count, np.int64)
        self.run_ids = np.empty(record_count, np.int32)
        self.runs = np.empty((run_count, scankernel.RUN_FIELDS), np.int64)
        # memory that one step of many touches and frees is cleared by the kernel each time
        self.arena = np.empty(min(size + _RECORD_NAMES, _ARENA_BYTES), np.uint8)
        self.slots = np.empty(2 * run_count, np.int32)
        self.slots.fill(-1)
        self.details = self.keys = self.unusable = None
        if extras.details:
            self.details = (
                np.empty(record_count, np.int64),
                np.empty(record_count, np.int64),
                np.empty(record_count, np.int16),
                np.empty(record_count, np.uint8),
            )
        if extras.index:
            keys = max(KEYS_PER_RECORD * self.capacity, MIN_LIST_ROOM)
            self.keys = (
                np.empty(keys, np.int64), np.empty(keys, np.int32), np.empty(keys, np.int64)
            )  # fmt: skip
        if extras.multi_dispatch:
            self.unusable = np.empty((_UNUSABLE_ROOM, 2), np.int64)
        self.unit_count = 0
        """Units of all chunks that were packed, those in light queues too."""
        self.state = np.zeros(scankernel.STATE_FIELDS, np.int64)
        self.state[scankernel.STATE_LAST_RECORD] = -1
        self.state[scankernel.STATE_FIRST_INDEXED] = -1

    def out(self) -> tuple[NDArray[Any], ...]:
        """The arrays that ``scan_records`` fills, cut to their permitted length."""
        return (
            self.offsets[: self.capacity], self.sizes, self.tags, self.queue_offsets,
            self.run_ids, self.runs, self.arena, self.slots,
        )  # fmt: skip

    def grow(self) -> bool:
        """Make room if the runs of a full chunk are short; False if it must be packed."""
        count, runs = self.state[scankernel.STATE_COUNT], self.state[scankernel.STATE_RUNS]
        if count < self.capacity or runs * RECORDS_PER_RUN < count:
            return False
        before = self.capacity
        self.capacity = min(2 * before, len(self.offsets))
        return self.capacity > before

    @property
    def message_count(self) -> int:
        """Messages of all chunks that were packed; units in light queues do not count."""
        other = self.state[scankernel.STATE_SKIPPED] - self.state[scankernel.STATE_LIGHT]
        return self.unit_count + int(other)

    def pack(self) -> PackedChunk | None:
        """Group the parsed records and start over; None if there are none."""
        state = self.state
        count = int(state[scankernel.STATE_COUNT])
        if not count and state[scankernel.STATE_FIRST_INDEXED] < 0:
            return None
        self.unit_count += count
        runs = self.runs[: state[scankernel.STATE_RUNS]].copy()
        cursors, details = np.empty(len(runs), np.int64), self._grouped_details(count, runs)
        units, grouped = np.empty(count * CQ_STORE_UNIT_SIZE, np.uint8), np.empty(count, np.int64)
        grouped_count = packkernel.pack_units(
            count, self.offsets, self.sizes, self.tags, self.queue_offsets, self.run_ids,
            runs, cursors, units, grouped,
        )  # fmt: skip
        arena = self.arena[: state[scankernel.STATE_ARENA]].copy()
        noted = (
            self.unusable[: state[scankernel.STATE_UNUSABLE]] if self.unusable is not None else ()
        )
        unusable = [BadRange(int(a), int(b), Status.BAD_MULTI_DISPATCH) for a, b in noted]
        queue_offsets, entries = grouped[:grouped_count], self._index_entries()
        packed = PackedChunk(arena, runs, units, queue_offsets, details, entries, unusable)
        self.slots.fill(-1)
        for field in (
            scankernel.STATE_COUNT, scankernel.STATE_RUNS, scankernel.STATE_ARENA,
            scankernel.STATE_KEYS, scankernel.STATE_UNUSABLE,
        ):  # fmt: skip
            state[field] = 0
        state[scankernel.STATE_FIRST_INDEXED] = -1
        return packed

    def _grouped_details(self, count: int, runs: NDArray[np.int64]) -> NDArray[np.void] | None:
        if self.details is None:
            return None
        order, cursors = np.empty(count, np.int64), np.empty(len(runs), np.int64)
        packkernel.group_order(count, self.run_ids, runs, cursors, order)
        details = np.empty(count, DETAIL_DTYPE)
        timestamps, base_offsets, batch_sizes, are_light = self.details
        details["store_timestamp"] = timestamps[order]
        details["base_offset"] = base_offsets[order]
        details["batch_size"] = batch_sizes[order]
        details["is_light"] = are_light[order]
        return details

    def _index_entries(self) -> IndexEntries | None:
        first = int(self.state[scankernel.STATE_FIRST_INDEXED])
        if first < 0 or self.keys is None:
            return None
        count = self.state[scankernel.STATE_KEYS]
        offsets, hashes, timestamps = self.keys
        return IndexEntries(
            first, offsets[:count].copy(), hashes[:count].copy(), timestamps[:count].copy()
        )


def scan(
    log: CommitLog,
    start: int,
    end: int,
    *,
    delay_levels_ms: tuple[int, ...] = record.DEFAULT_DELAY_LEVELS_MS,
    verify_crc: bool = False,
    fail_on_data_loss: bool = True,
    extras: Wanted = UNITS_ONLY,
    reached: Callable[[int], None] = lambda _: None,
) -> Iterator[PackedChunk | BadRange | ScannedRange]:
    """Parse [start, end) of the log; both bounds are record or file starts.

    Items come in the order of the log. The last one is the ScannedRange; its ``end`` is beyond the
    requested ``end`` if a record crosses it, which shows that ``end`` was no record start.
    ``reached`` is called often, with the offset up to which the log is scanned. A missing file
    raises CommitLogDataLossError, or gives a BadRange without ``fail_on_data_loss``.
    """
    levels = np.array(delay_levels_ms, np.int64)
    batch_topics = _joined(extras.batch_topics)
    chunk = _Chunk(end - start, extras)
    offset = start

    def decode(window: Window, segment: Segment, pos: int, stop: int) -> tuple[int, int]:
        # held, since another thread may refresh the log, and another file take the number
        file = log.segments.open(segment)
        status, pos, window.base, window.length = scankernel.scan_file(
            file.fd, segment.start, READS_PER_CALL, window.data, window.length,
            window.base, segment.start + log.file_size, pos, stop, verify_crc, CRC_TABLES, levels,
            chunk.out(), chunk.state, chunk.details, chunk.keys, extras.index_tags or None,
            chunk.unusable, extras.lmq, batch_topics,
        )  # fmt: skip
        return status, pos

    for offset, outcome in decode_windows(log, start, end, decode, fail_on_data_loss):
        reached(offset)
        if isinstance(outcome, BadRange):
            if (packed := chunk.pack()) is not None:
                yield packed
            yield outcome
        elif outcome is Status.FULL and not chunk.grow():
            packed = chunk.pack()
            if packed is None:
                raise AssertionError("one record does not fit into an empty chunk")
            yield packed
    packed = chunk.pack()
    if packed is not None:
        yield packed
    last_record_offset = int(chunk.state[scankernel.STATE_LAST_RECORD])
    settings = BatchSettings(extras.batch_topics, delay_levels_ms)
    yield ScannedRange(
        start, offset, end, chunk.message_count, last_record_offset, settings, chunk.unit_count
    )


@lru_cache(1)
def _joined(topics: frozenset[bytes]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Concatenated names, and the start of each with the end of the last one."""
    names = sorted(topics)
    bounds = np.cumsum([0, *map(len, names)], dtype=np.int64)
    return np.frombuffer(b"".join(names), np.uint8), bounds


def runs_of(chunk: PackedChunk) -> Iterator[Run]:
    """The runs of a chunk as objects, in order of their first record."""
    units = chunk.units.view(UNIT_DTYPE)
    position = 0
    topics = chunk.topic_arena.tobytes()
    for row in chunk.runs.tolist():
        count, topic_start = row[scankernel.RUN_COUNT], row[scankernel.RUN_TOPIC_START]
        is_contiguous = row[scankernel.RUN_CONTIGUOUS]
        yield Run(
            topic=topics[topic_start : topic_start + row[scankernel.RUN_TOPIC_LENGTH]],
            queue_id=row[scankernel.RUN_QUEUE_ID],
            first_physical_offset=row[scankernel.RUN_FIRST_OFFSET],
            first_queue_offset=row[scankernel.RUN_FIRST_QUEUE_OFFSET],
            queue_offsets=None
            if is_contiguous
            else chunk.queue_offsets[position : position + count],
            units=units[position : position + count],
            last_store_timestamp=row[scankernel.RUN_LAST_STORE_TIMESTAMP],
            details=None if chunk.details is None else chunk.details[position : position + count],
        )
        position += count


def assemble(
    items: Iterable[Item],
) -> DispatchBatch | None:
    """Join the results of a range's partitions, in any order; None if they do not join.

    That happens if a split fell on a record forged inside a body: the walk from the left then
    passes it. The caller scans again in one piece.
    """
    runs: list[Run] = []
    bad: list[BadRange] = []
    scanned: list[ScannedRange] = []
    index_entries: list[IndexEntries] = []
    queues: list[QueueManifest] = []
    for item in items:
        if isinstance(item, Run):
            runs.append(item)
        elif isinstance(item, IndexEntries):
            index_entries.append(item)
        elif isinstance(item, QueueManifest):
            queues.append(item)
        elif isinstance(item, BadRange):
            bad.append(item)
        else:
            scanned.append(item)
    scanned.sort(key=lambda part: part.start)
    for part, following in pairwise(scanned):
        if part.end != following.start:
            return None
    if not scanned or any(part.end != part.planned_end for part in scanned):
        return None
    return DispatchBatch(
        start=scanned[0].start,
        end=scanned[-1].end,
        runs=sorted(runs, key=lambda run: run.first_physical_offset),
        bad=sorted(bad, key=lambda loss: loss.start),
        message_count=sum(part.message_count for part in scanned),
        last_record_offset=max(part.last_record_offset for part in scanned),
        index_entries=sorted(index_entries, key=lambda entries: entries.first_physical_offset),
        batch_topics=scanned[0].settings.batch_topics,
        queues=sorted(queues, key=lambda queue: queue.first_physical_offset),
    )


def scan_in_one_piece(
    log: CommitLog,
    start: int,
    end: int,
    *,
    delay_levels_ms: tuple[int, ...],
    verify_crc: bool,
    extras: Wanted = UNITS_ONLY,
) -> DispatchBatch | None:
    """Scan the batch [start, end) here without splits; missing files give bad ranges."""

    def items() -> Iterator[Run | BadRange | ScannedRange | IndexEntries]:
        for item in scan(
            log, start, end,
            delay_levels_ms=delay_levels_ms, verify_crc=verify_crc, fail_on_data_loss=False,
            extras=extras,
        ):  # fmt: skip
            if isinstance(item, PackedChunk):
                yield from runs_of(item)
                yield from item.unusable
                if item.index_entries is not None:
                    yield item.index_entries
            else:
                yield item

    return assemble(items())
