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
    PullLimits,
    clamped_max_bytes,
    get_message,
    outside_queue,
)
from readers.messagefilter import MessageFilter
from readers.queues import LogView, QueueReader, UnitColumns
from store.log.commitlog import CommitLog
from store.log.record import MAX_RECORD_LENGTH, MIN_RECORD_LENGTH

JOINED_GAP_BYTES = 16 << 10
"""Records this close are read at once: copying so many bytes costs as much as another read."""

_Longs = NDArray[np.int64]


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
    queue: QueueReader,
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
    queue: QueueReader,
    view: LogView,
    offset: int,
    max_count: int,
    max_bytes: int,
    message_filter: MessageFilter | None,
    limits: PullLimits,
) -> tuple[int, _Longs, _Longs] | None:
    """The next queue offset, and offsets and sizes of the records to send; None if arrays cannot
    tell."""
    if message_filter is not None and (message_filter.selector or message_filter.consumer):
        return None
    tags = message_filter.tags if message_filter else None
    units_wanted = -(-max(limits.max_filter_message_size, max_count * queue.unit_size)
                     // queue.unit_size)  # fmt: skip
    if tags is None or tags.takes_all:
        # every unit counts, so that the limit of messages ends the pull
        units_wanted = min(units_wanted, max(max_count, 1) + 1)
    found = queue.columns_from(offset, units_wanted)
    if found is None or not _is_plain(found[0], offset, found[1]):
        return None
    units = found[0]
    offsets, sizes = units.physical_offsets, units.sizes.astype(np.int64)
    if not _is_in_log(view.log, offsets, sizes):
        return None
    wanted = np.ones(len(offsets), np.bool_)
    if tags is not None and not tags.takes_all:
        wanted = np.isin(units.tags_codes.astype(np.int32), list(tags.codes))
    wanted_sizes = np.where(wanted, sizes, 0)
    counts: _Longs = np.cumsum(wanted) - wanted
    bytes_with = np.cumsum(wanted_sizes) - wanted_sizes + sizes
    in_memory = view.end - offsets <= limits.in_memory_bytes
    most = np.where(
        in_memory, limits.max_transfer_bytes_in_memory, limits.max_transfer_bytes_on_disk
    )
    most_counted = np.where(
        in_memory, limits.max_transfer_count_in_memory, limits.max_transfer_count_on_disk
    )
    full = (counts > 0) & (
        (counts + 1 > max_count)
        | (bytes_with > np.minimum(most, clamped_max_bytes(max_bytes)))
        | (counts >= most_counted)
    )
    end = int(full.argmax()) if full.any() else len(offsets)
    taken = wanted[:end]
    return offset + end, offsets[:end][taken], sizes[:end][taken]


def _is_plain(units: UnitColumns, offset: int, next_offset: int) -> bool:
    """Whether each unit is one message's, and its position the only thing it holds besides tags."""
    count = len(units)
    return (
        units.ext is None
        and count > 0
        and count == next_offset - offset
        and int(units.queue_offsets[0]) == offset
    )


def _is_in_log(log: CommitLog, offsets: _Longs, sizes: _Longs) -> bool:
    """Whether all these ranges can be records in files that exist."""
    segments = log.segments
    if not segments:
        return False
    first, last = segments[0].start, segments[-1].start
    if last - first != (len(segments) - 1) * log.file_size:
        return False
    return bool(
        offsets.min() >= first
        and (offsets + sizes).max() <= last + log.file_size
        and sizes.min() >= MIN_RECORD_LENGTH
        and sizes.max() <= MAX_RECORD_LENGTH
    )


def read_records(log: CommitLog, offsets: _Longs, sizes: _Longs) -> bytes | None:
    """The bytes of records, one after another; None unless each is whole and of its size."""
    # numba takes half a second to import, which readers of single messages avoid
    from store.log.kernels import are_records  # noqa: PLC0415

    ends = offsets + sizes
    gaps = offsets[1:] - ends[:-1]
    splits = (gaps < 0) | (gaps > JOINED_GAP_BYTES)
    splits |= offsets[1:] // log.file_size != offsets[:-1] // log.file_size
    firsts = np.concatenate(([0], np.flatnonzero(splits) + 1))
    lasts = np.concatenate((firsts[1:], [len(offsets)])) - 1
    lengths = ends[lasts] - offsets[firsts]
    starts = np.cumsum(lengths) - lengths
    buffer = bytearray(int(lengths.sum()))
    view = memoryview(buffer)
    for first, start, length in zip(
        offsets[firsts].tolist(), starts.tolist(), lengths.tolist(), strict=True
    ):
        if log.read_into(first, view[start : start + length]) != length:
            return None
    runs = np.repeat(np.arange(len(firsts)), lasts - firsts + 1)
    positions = starts[runs] + offsets - offsets[firsts][runs]
    if not are_records(np.frombuffer(buffer, np.uint8), positions, offsets, sizes):
        return None
    if len(buffer) == int(sizes.sum()):
        return bytes(buffer)
    return b"".join(
        view[start : start + size]
        for start, size in zip(positions.tolist(), sizes.tolist(), strict=True)
    )
