"""Pulling records as they are in the log: what a server sends, with the rules of ``get_message``.

Most pulls concern whole records of a queue without gaps. Those are chosen with arrays, read in a
few pieces and checked by a kernel, but not decoded. Every other pull (an SQL92 filter, ext units,
inner batches, blanks, a missing file, a damaged record) is ``get_message``'s, and only its records'
bytes are fetched here; so there is one set of rules.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from readers.getmessage import (
    GetMessageResult,
    GetMessageStatus,
    LogView,
    PullLimits,
    clamped_max_bytes,
    get_message,
    outside_queue,
)
from readers.messagefilter import MessageFilter
from store.log.commitlog import CommitLog
from store.queue.view import QueueView

JOINED_GAP_BYTES = 16 << 10
"""Records this close are read at once: copying so many bytes costs as much as another read."""

_Longs = NDArray[np.int64]
_NO_CODES = np.empty(0, np.int64)
_NO_CODE = 1 << 40
"""More than any hash."""


@dataclass(frozen=True, slots=True)
class GetRangesResult:
    """The result of a pull of records as stored."""

    status: GetMessageStatus
    next_begin_offset: int
    """Queue offset to continue at."""
    min_offset: int
    max_offset: int
    ranges: tuple[tuple[int, int], ...] = ()
    """(physical offset, size) of each record that is sent."""
    data: bytes = b""
    """The records' bytes, one after another."""
    damaged: tuple[int, ...] = ()
    """Physical offsets of units whose record in the log is missing or damaged."""


def get_ranges(
    queue: QueueView,
    view: LogView,
    offset: int,
    max_count: int,
    *,
    max_bytes: int,
    message_filter: MessageFilter | None,
    limits: PullLimits,
) -> GetRangesResult:
    """Pull from queue offset ``offset`` on; ``MessageStore.get_ranges`` has the parameters."""
    low, high = queue.min_offset, queue.max_offset
    outside = outside_queue(offset, low, high)
    if outside is not None:
        return GetRangesResult(*outside, low, high)
    chosen = _choose(queue, view, offset, max_count, max_bytes, message_filter, limits)
    if chosen is not None:
        next_offset, offsets, sizes = chosen
        if not len(offsets):
            status = GetMessageStatus.NO_MATCHED_MESSAGE
            return GetRangesResult(status, next_offset, low, high)
        data = read_records(view.log, offsets, sizes)
        if data is not None:
            ranges = tuple(zip(offsets.tolist(), sizes.tolist(), strict=True))
            return GetRangesResult(GetMessageStatus.FOUND, next_offset, low, high, ranges, data)
    return _fetched(
        view,
        get_message(
            queue, view, offset, max_count, max_bytes=max_bytes, message_filter=message_filter,
            limits=limits, max_body_bytes=0,
        ),
    )  # fmt: skip


def load_kernels() -> None:
    """Load what the first pull would load, or compile: a server must not stand still for it."""
    from store.log.pullkernel import are_records, choose_records, plan_reads  # noqa: PLC0415

    longs, sizes = np.zeros(1, np.int64), np.zeros(1, np.int32)
    choose_records(longs, sizes, longs, _NO_CODES, 0, 0, 1, 1, 0, 1, 1, 1, 1, longs, longs)
    plan_reads(longs, longs, 1, 0, longs.copy(), longs.copy(), longs.copy())
    are_records(np.frombuffer(bytearray(8), np.uint8), longs, longs, longs)


def _fetched(view: LogView, pulled: GetMessageResult) -> GetRangesResult:
    ranges = tuple((message.physical_offset, message.size) for message in pulled.found)
    data = b"".join(view.log.read(offset, size) for offset, size in ranges)
    return GetRangesResult(
        pulled.status,
        pulled.next_begin_offset,
        pulled.min_offset,
        pulled.max_offset,
        ranges,
        data,
        pulled.damaged,
    )


def _choose(
    queue: QueueView,
    view: LogView,
    offset: int,
    max_count: int,
    max_bytes: int,
    message_filter: MessageFilter | None,
    limits: PullLimits,
) -> tuple[int, _Longs, _Longs] | None:
    """The next queue offset, and offsets and sizes of the records to send; None if arrays cannot
    tell."""
    # numba takes half a second to import, which readers of single messages avoid
    from store.log.pullkernel import choose_records  # noqa: PLC0415

    if message_filter is not None and (message_filter.selector or message_filter.consumer):
        return None
    log, tags = view.log, message_filter.tags if message_filter else None
    files = _whole_files(log)
    if files is None:
        return None
    size = queue.unit_size
    count = -(-max(limits.max_filter_message_size, max_count * size) // size)
    codes = _NO_CODES
    if tags is None or tags.takes_all:
        # every unit counts, so that the limit of messages ends the pull
        count = min(count, max(max_count, 1) + 1)
    else:
        codes = np.array(sorted(tags.codes) or [_NO_CODE], np.int64)
    found = queue.columns_from(offset, count)
    if found is None:
        return None
    units, next_offset = found
    count = len(units)
    # each unit must be one message's, with no other address than its tags' hash
    is_plain = units.ext is None and count and count == next_offset - offset
    if not is_plain or int(units.queue_offsets[0]) != offset:
        return None
    offsets, sizes = np.empty(count, np.int64), np.empty(count, np.int64)
    looked_at, taken = choose_records(
        units.physical_offsets, units.sizes, units.tags_codes, codes, *files,
        max_count, clamped_max_bytes(max_bytes), view.end - limits.in_memory_bytes,
        limits.max_transfer_bytes_in_memory, limits.max_transfer_count_in_memory,
        limits.max_transfer_bytes_on_disk, limits.max_transfer_count_on_disk,
        offsets, sizes,
    )  # fmt: skip
    if looked_at < 0:
        return None
    return offset + looked_at, offsets[:taken], sizes[:taken]


def _whole_files(log: CommitLog) -> tuple[int, int] | None:
    """Start and end of the log's files; None if one is missing in between, or all are."""
    segments = log.segments
    if not segments:
        return None
    first, last = segments[0].start, segments[-1].start
    if last - first != (len(segments) - 1) * log.file_size:
        return None
    return first, last + log.file_size


def read_records(log: CommitLog, offsets: _Longs, sizes: _Longs) -> bytes | None:
    """The bytes of records, one after another; None unless each is whole and of its size."""
    from store.log.pullkernel import are_records, plan_reads  # noqa: PLC0415

    count = len(offsets)
    run_offsets, run_lengths = np.empty(count, np.int64), np.empty(count, np.int64)
    positions = np.empty(count, np.int64)
    runs = plan_reads(
        offsets, sizes, log.file_size, JOINED_GAP_BYTES, run_offsets, run_lengths, positions
    )
    lengths = run_lengths[:runs].tolist()
    buffer = bytearray(sum(lengths))
    view, start = memoryview(buffer), 0
    for first, length in zip(run_offsets[:runs].tolist(), lengths, strict=True):
        if log.read_into(first, view[start : start + length]) != length:
            return None
        start += length
    if not are_records(np.frombuffer(buffer, np.uint8), positions, offsets, sizes):
        return None
    if len(buffer) == int(sizes.sum()):
        return bytes(buffer)
    pieces = zip(positions.tolist(), sizes.tolist(), strict=True)
    return b"".join([view[start : start + size] for start, size in pieces])
