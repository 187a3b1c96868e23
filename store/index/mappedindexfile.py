"""One index file as its writer uses it: mapped, filled and rebuilt by kernels.

The layout and the contract are in ``store.index.indexfile``. This module is separate because
importing numba takes half a second, which readers avoid.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from reput.store import fsops
from reput.store.errors import OutputError
from reput.store.files import TEMPORARY_SUFFIX
from reput.store.index import indexkernel
from reput.store.index.indexfile import (
    HASH_SLOT_DTYPE,
    INDEX_ENTRY_DTYPE,
    INDEX_HEADER_SIZE,
    INDEX_SIZE,
    NEVER_WRITTEN,
    IndexEntry,
    IndexHeader,
    IndexLayout,
    slot_position,
)

ZEROS = bytes(1 << 20)
RESERVED_BYTES = 16 << 20
"""Space for entries is reserved in steps of this size: a file is 400 MB long and rarely full."""


@dataclass(frozen=True, slots=True)
class KeptEntries:
    """The leading entries of a file that stay."""

    index_count: int
    """Number of the next entry."""
    slots: NDArray[np.int32]
    """int32[maxHashSlotNum], built from these entries alone."""
    hash_slot_count: int


class MappedIndexFile:
    """A mapped file of full length, for one writer; not thread-safe."""

    def __init__(self, path: Path, layout: IndexLayout) -> None:
        """Open or create a file. Raises NoSpaceError if the disk has no room for its slots.

        Without room, a write to a mapped hole (RocketMQ's files have them) would raise SIGBUS.
        """
        self.path = path
        self._layout = layout
        self._fd = fsops.open_for_writing(path, layout.file_size)
        self._reserved = layout.entry_position(1)
        try:
            fsops.allocate(self._fd, 0, self._reserved, path)
            self._mapping = fsops.map_for_writing(self._fd, layout.file_size, path)
        except BaseException:
            os.close(self._fd)
            raise
        self._data: NDArray[np.uint8] = np.frombuffer(self._mapping, np.uint8)
        self._synced_count = 1
        """Number of the first entry that may not be durable."""

    @classmethod
    def create(
        cls, path: Path, layout: IndexLayout, previous: IndexHeader | None
    ) -> MappedIndexFile:
        """Durably create the file after the one with the header ``previous``.

        It appears with all its bytes, or not at all if the disk is full (NoSpaceError).
        """
        temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
        try:
            file = cls(temporary, layout)
            try:
                file._set_header(IndexHeader.of_follow_up(previous))
                file.sync()
                fsops.rename(temporary, path)
            except BaseException:
                file.close()
                raise
        except OutputError:
            fsops.unlink(temporary)
            raise
        file.path = path
        return file

    @property
    def header(self) -> IndexHeader:
        """The current header."""
        return IndexHeader.decode(self._mapping[:INDEX_HEADER_SIZE])

    def _set_header(self, header: IndexHeader) -> None:
        self._mapping[:INDEX_HEADER_SIZE] = header.encode()

    @property
    def is_full(self) -> bool:
        """Whether the next entry needs another file."""
        return self.header.index_count >= self._layout.max_index_num

    def first_lost_entry(self) -> int | None:
        """Return the number of the first entry that the header counts and nobody wrote, since a
        power cut may keep a file's first page without its last ones; None without one."""
        count = min(self.header.index_count, self._layout.max_index_num)
        start, end = map(self._layout.entry_position, (1, count))
        entries = self._data[start:end].view(INDEX_ENTRY_DTYPE)
        # the log's first message has offset 0 too; its first entry may be nothing but zeros
        numbers = (int(place) + 1 for place in np.flatnonzero(entries["offset"] == 0) if place)
        return next((number for number in numbers if self.entry(number) == NEVER_WRITTEN), None)

    def put(
        self,
        offsets: NDArray[np.int64],
        hashes: NDArray[np.int32],
        store_timestamps: NDArray[np.int64],
    ) -> int:
        """Add entries (``IndexEntries``) in order; return how many fit before the file was full.

        Raises NoSpaceError and then adds nothing.
        """
        count = min(self.header.index_count + len(offsets), self._layout.max_index_num)
        self._reserve(self._layout.entry_position(count))
        return int(
            indexkernel.put_keys(
                self._data, self._layout.max_hash_slot_num, self._layout.max_index_num,
                offsets, hashes, store_timestamps,
            )
        )  # fmt: skip

    def _reserve(self, end: int) -> None:
        if end > self._reserved:
            end = min(max(end, self._reserved + RESERVED_BYTES), self._layout.file_size)
            fsops.allocate(self._fd, self._reserved, end - self._reserved, self.path)
            self._reserved = end

    def entry(self, index: int) -> IndexEntry:
        """Decode entry ``index``."""
        return self._layout.entry(self._mapping, index)

    def sound_entries(self, end_offset: int, max_count: int | None = None) -> KeptEntries:
        """The leading entries that look valid and belong to messages before ``end_offset``.

        Nothing else in the file matters. Only numbers less than ``max_count`` are examined if
        given. Raises NoSpaceError if the disk has no room for these entries.
        """
        layout = self._layout
        slots = np.zeros(layout.max_hash_slot_num, np.int32)
        start, end = map(layout.entry_position, (1, max_count or layout.max_index_num))
        hole = os.lseek(self._fd, start, os.SEEK_HOLE)
        # a sparse copy has a hole where the zeros that end the last entry begin a page
        end = min(end, hole + (start - hole) % INDEX_SIZE)
        if end > hole:
            # a full tmpfs answers a read of a hole with SIGBUS, because it would have to map a page
            fsops.allocate(self._fd, hole, end - hole, self.path)
        entries = self._data[start:end]
        index_count, hash_slot_count, _ = indexkernel.rebuild_slots(
            entries, 1, 0, 0, end_offset, slots
        )
        return KeptEntries(int(index_count), slots, int(hash_slot_count))

    def restore(
        self,
        kept: KeptEntries,
        previous: IndexHeader | None,
        store_timestamp_at: Callable[[int], int | None],
    ) -> None:
        """Durably restore the file to the state in which ``kept`` were its entries.

        ``previous`` is the header of the previous file. ``store_timestamp_at`` reads the time of
        the record at a physical offset; if the record is gone (None), the header's begin time and
        the last entry's seconds are used instead, or the header's end time if it fits them.
        """
        header = IndexHeader.of_follow_up(previous)
        if kept.index_count > 1:
            header = self._header_of(kept, store_timestamp_at)
        entry_0, entry_1 = map(self._layout.entry_position, (0, 1))
        slots = self._data[slot_position(0) : entry_0].view(HASH_SLOT_DTYPE)["entry"]
        if not np.array_equal(slots, kept.slots):
            slots[:] = kept.slots
        self._data[entry_0:entry_1] = 0
        self._clear(self._layout.entry_position(kept.index_count))
        self._set_header(header)
        self.sync()

    def _header_of(
        self, kept: KeptEntries, store_timestamp_at: Callable[[int], int | None]
    ) -> IndexHeader:
        first, last = self.entry(1), self.entry(kept.index_count - 1)
        begin = store_timestamp_at(first.phy_offset)
        if begin is None:
            begin = self.header.begin_timestamp
        end = store_timestamp_at(last.phy_offset)
        if end is None and kept.index_count == 2:
            # timeDiff of a follow-up file's first entry counts from the previous file's end
            end = begin
        if end is None:
            before = self.header
            seconds = min(max((before.end_timestamp - begin) // 1000, 0), indexkernel.INTEGER_MAX)
            is_sound = (before.end_phy_offset, seconds) == (last.phy_offset, last.time_diff)
            end = before.end_timestamp if is_sound else begin + last.time_diff * 1000
        return IndexHeader(
            begin, end, first.phy_offset, last.phy_offset, kept.hash_slot_count, kept.index_count
        )

    def _clear(self, start: int) -> None:
        """Fill the bytes from ``start`` on with zeros; holes stay untouched."""
        while True:
            try:
                start = os.lseek(self._fd, start, os.SEEK_DATA)
            except OSError as error:
                if error.errno == errno.ENXIO:
                    return
                raise fsops.output_error(error, "search", self.path) from error
            end = min(os.lseek(self._fd, start, os.SEEK_HOLE), self._layout.file_size)
            while start < end:
                piece = ZEROS[: end - start]
                fsops.pwrite(self._fd, piece, start, self.path)
                start += len(piece)

    def sync_entries(self) -> None:
        """Make the entries durable; header and slots can be rebuilt. Raises SyncError."""
        count = self.header.index_count
        if count > self._synced_count:
            start, end = map(self._layout.entry_position, (self._synced_count, count))
            fsops.sync_mapping(self._mapping, start, end, self.path)
            self._synced_count = count

    def sync(self) -> None:
        """Make the whole file durable. Raises SyncError."""
        fsops.sync_mapping(self._mapping, 0, self._layout.file_size, self.path)
        self._synced_count = self.header.index_count

    def close(self) -> None:
        """Close the file as it is."""
        self._data = np.empty(0, np.uint8)
        # the frames of an error may still look at the mapping, which then goes with them
        with suppress(BufferError):
            self._mapping.close()
        os.close(self._fd)
