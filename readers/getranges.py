"""Pulling records as they are in the log, for a server to send, by the rules of ``get_message``.

Most pulls ask for whole records of a queue without gaps. A kernel chooses, reads and checks them
without decoding. Every other pull (an SQL92 filter, ext units, inner batches, blanks, a missing
file, a damaged record) is left to ``get_message``, whose records' bytes are then fetched, so that
the rules stand once.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from reput.readers.getmessage import (
    GetMessageResult,
    GetMessageStatus,
    LogView,
    PullLimits,
    clamped_max_bytes,
    get_message,
    outside_queue,
)
from reput.readers.messagefilter import MessageFilter
from reput.store.errors import CommitLogError
from reput.store.log.segments import OpenFile, Segment
from reput.store.queue.consumequeue import CQ_STORE_UNIT_SIZE
from reput.store.queue.view import ConsumeQueueView, QueueView

FIRST_ROOM_BYTES = 64 << 10

_Longs = NDArray[np.int64]
_NO_CODES = np.empty(0, np.int64)
_NO_CODE = 1 << 40
"""More than any hash."""


@dataclass(slots=True)
class GetRangesResult:
    """The result of a pull of records as stored."""

    status: GetMessageStatus
    next_begin_offset: int
    """Queue offset to continue at."""
    min_offset: int
    max_offset: int
    data: bytes | memoryview = b""
    """The records' bytes, one after another."""
    damaged: tuple[int, ...] = ()
    """See ``GetMessageResult``."""


class RangeReader:
    """Pulls from all queues of one log, whose files it keeps open and mapped. Not thread-safe."""

    def __init__(self, limits: PullLimits) -> None:
        """Load the kernel, and compile it unless the cache has it."""
        # numba takes half a second to import, which readers of single messages avoid
        from reput.store.queue import pullkernel  # noqa: PLC0415

        self._limits = limits
        self._kernel = pullkernel
        self._view: LogView | None = None
        self._segments: list[Segment] = []
        self._is_whole = False
        """Whether the log has every file from its first to its last."""
        self._bounds, self._files = np.zeros(8, np.int64), np.empty((0, 2), np.int64)
        self._open_files: list[OpenFile] = []
        """The open files of ``_files``, which close when nothing refers to them."""
        self._room = FIRST_ROOM_BYTES
        """Bytes of the buffer for the next pull; it grows with what pulls need."""
        self._pull(np.frombuffer(bytes(CQ_STORE_UNIT_SIZE), np.uint8), 0, 0, _NO_CODES, 0, 0)

    def get_ranges(
        self,
        queue: QueueView,
        view: LogView,
        offset: int,
        max_count: int,
        *,
        max_bytes: int,
        message_filter: MessageFilter | None,
    ) -> GetRangesResult:
        """Pull from queue offset ``offset`` on; ``QueueReader.get_ranges`` has the parameters."""
        low, high = queue.stated_min_offset, queue.max_offset
        outside = outside_queue(offset, low, high)
        if outside is not None:
            return GetRangesResult(*outside, low, high)
        if view is not self._view or view.log.segments.listed is not self._segments:
            self._follow(view)
        if self._is_whole and isinstance(queue, ConsumeQueueView):
            result = self._plain(queue, offset, max_count, max_bytes, message_filter)
            if result is not None:
                record_count, next_offset, data = result
                status = (
                    GetMessageStatus.FOUND if record_count else GetMessageStatus.NO_MATCHED_MESSAGE
                )
                return GetRangesResult(status, next_offset, low, high, data)
        pulled = get_message(
            queue, view, offset, max_count, max_bytes=max_bytes, message_filter=message_filter,
            limits=self._limits, max_body_bytes=0,
        )  # fmt: skip
        return _fetched(view, pulled)

    def _follow(self, view: LogView) -> None:
        """Adopt the log's files and end as they are now."""
        log, segments, limits = view.log, view.log.segments.listed, self._limits
        if segments is not self._segments:
            self._files = np.full((len(segments), 2), -1, np.int64)
            self._open_files.clear()
        self._view, self._segments = view, segments
        first, last = (segments[0].start, segments[-1].start) if segments else (0, 0)
        self._is_whole = bool(segments) and last - first == (len(segments) - 1) * log.file_size
        self._bounds[:] = (
            first,
            min(view.end, last + log.file_size),
            log.file_size,
            view.end - limits.in_memory_bytes,
            limits.max_transfer_bytes_in_memory,
            limits.max_transfer_count_in_memory,
            limits.max_transfer_bytes_on_disk,
            limits.max_transfer_count_on_disk,
        )

    def _plain(
        self,
        queue: ConsumeQueueView,
        offset: int,
        max_count: int,
        max_bytes: int,
        message_filter: MessageFilter | None,
    ) -> tuple[int, int, memoryview] | None:
        """Return (number of records, next queue offset, bytes); None for a pull that the kernel
        leaves to ``get_message``."""
        codes, count = _NO_CODES, max(max_count, 1)
        if message_filter is not None:
            if message_filter.selector or message_filter.consumer:
                return None
            tags = message_filter.tags
            if tags is not None and not tags.takes_all:
                codes = _sorted_codes(tags.codes)
                count = self._limits.max_units(max_count, queue.unit_size)
        units = queue.stored_units(offset, count)
        if units is None:
            return None
        result = self._pull(*units, codes, max_count, clamped_max_bytes(max_bytes))
        return None if result is None else (result[1], offset + result[0], result[2])

    def _pull(
        self,
        units: NDArray[np.uint8],
        first: int,
        count: int,
        codes: _Longs,
        max_count: int,
        max_bytes: int,
    ) -> tuple[int, int, memoryview] | None:
        """Return (units looked at, number of records, their bytes); None for a pull that the kernel
        leaves to ``get_message``."""
        kernel = self._kernel
        while True:
            out = np.empty(self._room, np.uint8)
            looked_at, number, end = kernel.pull_records(
                units, first, count, codes, max_count, max_bytes, self._bounds, self._files, out
            )  # fmt: skip
            if looked_at >= 0:
                return looked_at, number, out.data[:end]
            if looked_at == kernel.UNUSUAL:
                return None
            if looked_at == kernel.NO_ROOM:
                self._room = max(2 * self._room, end)
            elif self._view is not None:
                self._open(self._view, number)

    def _open(self, view: LogView, number: int) -> None:
        """Open and map a file of the log. Raises CommitLogError."""
        segment, log = self._segments[number], view.log
        try:
            file = log.segments.open(segment)
        except OSError as error:
            raise CommitLogError(
                f"cannot open commitlog file {segment.path}: {error.strerror}", path=segment.path
            ) from error
        self._open_files.append(file)
        self._files[number] = file.fd, file.address(log.file_size)


@lru_cache(256)
def _sorted_codes(codes: frozenset[int]) -> _Longs:
    return np.array(sorted(codes) or [_NO_CODE], np.int64)


def _fetched(view: LogView, pulled: GetMessageResult) -> GetRangesResult:
    return GetRangesResult(
        pulled.status,
        pulled.next_begin_offset,
        pulled.min_offset,
        pulled.max_offset,
        b"".join(view.log.read(message.physical_offset, message.size) for message in pulled.found),
        pulled.damaged,
    )
