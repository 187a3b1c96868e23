"""Compares one index file after the other with what follows from the log: each is filled in memory
by the writer's own kernel.

Memory holds one file's slots and those of its entries that were not compared yet.
"""

from __future__ import annotations

import mmap

import numpy as np
from numpy.typing import NDArray

from reput.store.files import INDEX_DIRECTORY
from reput.store.index import indexkernel
from reput.store.index.indexfile import (
    HASH_SLOT_DTYPE,
    INDEX_ENTRY_DTYPE,
    INDEX_HEADER_SIZE,
    INDEX_SIZE,
    IndexHeader,
    header_fields,
)
from reput.store.runs.dispatch import IndexEntries
from reput.upkeep.verify.difference import Damage, Difference, Differences, LogRange, stretches
from reput.upkeep.verify.indexbytes import BLOCK_ENTRIES, FoundIndex, data_ranges, read_bytes

_BLOCK_SIZE = INDEX_SIZE * BLOCK_ENTRIES


class _Image:
    """Zeros for all bytes of a file; they take memory only where they are overwritten."""

    def __init__(self, size: int) -> None:
        # one more byte, because an empty mapping is an error
        self._mapping = mmap.mmap(-1, size + 1, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.data: NDArray[np.uint8] = np.frombuffer(self._mapping, np.uint8, size)

    def forget(self, start: int, end: int) -> None:
        """Turn the whole pages of bytes [start, end) back into zeros that take no memory."""
        first, last = start + -start % mmap.PAGESIZE, end - end % mmap.PAGESIZE
        if first < last:
            self._mapping.madvise(mmap.MADV_DONTNEED, first, last - first)


class ComparedIndex:
    """The current file as it follows from the log, beside the one that is there."""

    def __init__(self, files: FoundIndex, log: LogRange) -> None:
        self._files = files
        self._layout = files.layout
        self._log = log
        self.differences = Differences()
        self.damaged: set[int] = set()
        """Numbers of damaged files."""
        self.number = 0
        """Number of the current file."""
        self._image = _Image(0)
        """The file in memory; empty where none is begun."""
        self.compared_count = 0
        """Number of its entries that were compared, with number 0 among them."""

    @property
    def is_begun(self) -> bool:
        """Whether there is a current file."""
        return len(self._image.data) > 0

    @property
    def header(self) -> IndexHeader:
        """The header that follows from the entries so far."""
        return IndexHeader.decode(self._image.data[:INDEX_HEADER_SIZE].tobytes())

    def begin(self, header: IndexHeader, slots: NDArray[np.int32] | None) -> None:
        """Begin a file; where its first entries are taken as they are, ``header`` and ``slots``
        follow from them."""
        self._image = _Image(self._layout.file_size)
        self.compared_count = 0
        self.compare_entries()
        if slots is not None:
            part = self._image.data[INDEX_HEADER_SIZE : self._layout.entry_position(0)]
            part.view(HASH_SLOT_DTYPE)["entry"][:] = slots
        self.compared_count = header.index_count
        self._image.data[:INDEX_HEADER_SIZE] = np.frombuffer(header.encode(), np.uint8)

    def put(self, entries: IndexEntries, first: int) -> int:
        """Put entries from ``first`` on into the file; return how many had room."""
        rest = slice(first, None)
        return int(
            indexkernel.put_keys(
                self._image.data, self._layout.max_hash_slot_num, self._layout.max_index_num,
                entries.offsets[rest], entries.hashes[rest], entries.store_timestamps[rest],
            )
        )  # fmt: skip

    def compare_entries(self) -> None:
        """Compare the entries that were put since the last time, and forget them."""
        first, end = self.compared_count, self.header.index_count
        start, stop = map(self._layout.entry_position, (first, end))
        if self._files.size(self.number) == self._layout.file_size:
            self._compare_records(start, stop, Damage.ENTRY)
        self._image.forget(self._layout.entry_position(0), stop)
        self.compared_count = end

    def end(self, first: int | None, *, is_last: bool) -> None:
        """Compare the rest of the file and end it; ``first`` is the first message in the log with
        an entry in it."""
        size, right_size = self._files.size(self.number), (self._layout.file_size,)
        if size is None:
            # an empty file comes with the next message
            if self.header.index_count > 1 or self._log.is_whole():
                self._note(Damage.MISSING, first, expected=right_size)
        elif size != self._layout.file_size:
            self._note(Damage.FILE_SIZE, first, found=(size,), expected=right_size)
        elif is_last:
            self._compare_last_file()
        else:
            self._compare_file()
        self.number += 1
        self._image = _Image(0)

    def end_rest(self) -> None:
        """Note the files after the last one that belongs."""
        while (size := self._files.size(self.number)) is not None:
            if self._log.is_whole():
                self._note(Damage.FILE, found=(size,))
            elif size != self._layout.file_size:
                self._note(Damage.FILE_SIZE, found=(size,), expected=(self._layout.file_size,))
            self.number += 1

    def _compare_file(self) -> None:
        """Compare slots and header, which follow from the entries, where the entries are right."""
        header, entries = self.header, self._layout.entry_position(0)
        self._check_tail(self._layout.entry_position(header.index_count))
        if self.number in self.damaged:
            return
        actual = self._files.header(self.number)
        if actual != header:
            begin = header.begin_phy_offset if header.index_count > 1 else None
            found, expected = header_fields(actual), header_fields(header)
            self._note(Damage.HEADER, begin, found=found, expected=expected)
        self._compare_records(INDEX_HEADER_SIZE, entries, Damage.SLOT)

    def _compare_last_file(self) -> None:
        """Compare a file as ``_compare_file`` does, unless there are messages beyond the watermark:
        then only its entries are durable, and a start rebuilds the rest."""
        if not self._log.is_whole():
            return
        was_damaged, before = self.number in self.damaged, len(self.differences.items)
        self._compare_file()
        if not self._log.is_whole():
            # a dispatcher has gone on meanwhile
            del self.differences.items[before:]
            if not was_damaged:
                self.damaged.discard(self.number)

    def _compare_records(self, start: int, end: int, damage: Damage) -> None:
        """Compare entries, or slots, in the bytes [start, end)."""
        is_slot, path = damage is Damage.SLOT, self._files.path(self.number)
        dtype = HASH_SLOT_DTYPE["entry"] if is_slot else INDEX_ENTRY_DTYPE
        origin = INDEX_HEADER_SIZE if is_slot else self._layout.entry_position(0)
        for at in range(start, end, _BLOCK_SIZE):
            actual = read_bytes(path, at, min(_BLOCK_SIZE, end - at))
            expected = self._image.data[at : at + len(actual)]
            if np.array_equal(expected, actual):
                continue
            actual_rows, expected_rows = actual.view(dtype), expected.view(dtype)
            wrong = (actual != expected).reshape(-1, dtype.itemsize).any(axis=1)
            for first, last in stretches(np.flatnonzero(wrong)):
                position = at + first * dtype.itemsize
                number = (position - origin) // dtype.itemsize
                entry, message = number, expected_rows[first]
                if is_slot:
                    # slots are compared only where their entries are right
                    entry = int(expected_rows[first])
                    message = self._files.entries(self.number, entry, entry + 1)[0]
                self._note(
                    damage, int(message["offset"]) if entry else None, position, number,
                    count=last - first,
                    found=_values(actual_rows[first]), expected=_values(expected_rows[first]),
                )  # fmt: skip

    def _check_tail(self, start: int) -> None:
        """Check that only zeros follow the last entry; holes are not read."""
        path = self._files.path(self.number)
        if path is None:
            return
        for low, high in data_ranges(path, start, self._layout.file_size):
            for at in range(low, high, _BLOCK_SIZE):
                used = np.flatnonzero(read_bytes(path, at, min(_BLOCK_SIZE, high - at)))
                if len(used):
                    number = (at + int(used[0]) - self._layout.entry_position(0)) // INDEX_SIZE
                    self._note(Damage.STRAY, None, self._layout.entry_position(number), number)
                    return

    def _note(
        self,
        damage: Damage,
        physical_offset: int | None = None,
        position: int = 0,
        entry: int = 0,
        *,
        count: int = 0,
        found: tuple[int, ...] | None = None,
        expected: tuple[int, ...] | None = None,
    ) -> None:
        self.damaged.add(self.number)
        self.differences.add(
            Difference(
                INDEX_DIRECTORY, damage, self._files.name(self.number), position, None, None,
                entry, count, physical_offset, expected, found,
            )
        )  # fmt: skip


def _values(row: np.void | np.int32) -> tuple[int, ...]:
    """Return the fields of an entry, or the value of a slot."""
    fields = row.item()
    return fields if isinstance(fields, tuple) else (fields,)
