"""Reads index files as they are, whatever is in them: for verifying, and for sealing. A repair
removes some of them."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from reput.store import fsops
from reput.store.files import INDEX_DIRECTORY
from reput.store.index import indexkernel
from reput.store.index.indexfile import (
    END_TIMESTAMP_POSITION,
    INDEX_ENTRY_DTYPE,
    INDEX_HEADER_SIZE,
    INDEX_SIZE,
    IndexFiles,
    IndexHeader,
    IndexLayout,
)
from reput.store.runs.dispatch import IndexEntries
from reput.upkeep.verify.difference import Extent

BLOCK_ENTRIES = 1 << 16
"""Entries that are read at once."""


def taken_extents(path: str, layout: IndexLayout, count: int, *, is_full: bool) -> Sequence[Extent]:
    """Return the bytes of a file's entries before number ``count``, and those of its header that
    only the file knows; all bytes of a full file that another one follows."""
    if is_full:
        return ((path, 0, layout.file_size),)
    end = layout.entry_position(count)
    return (path, 0, END_TIMESTAMP_POSITION), (path, layout.entry_position(0), end)


def read_gone(
    path: Path, layout: IndexLayout, end: int, slots: NDArray[np.int32]
) -> tuple[int, int, int]:
    """Return indexCount, hashSlotCount and last offset of the sound leading entries of messages
    before ``end``, whose ``slots`` (int32[maxHashSlotNum], zeros) it sets."""
    count, used, last = 1, 0, 0
    while count < layout.max_index_num:
        stop = min(count + BLOCK_ENTRIES, layout.max_index_num)
        block = read_entries(path, layout, count, stop).view(np.uint8)
        count, used, last = map(
            int, indexkernel.rebuild_slots(block, count, used, last, end, slots)
        )
        if count < stop:
            break
    return count, used, last


def read_bytes(path: Path | None, start: int, size: int) -> NDArray[np.uint8]:
    """Return uint8[size]; zeros beyond the file's end, and where there is no file."""
    data = np.zeros(size, np.uint8)
    if path is None:
        return data
    done = 0
    with path.open("rb", buffering=0) as file:
        while done < size and (got := os.preadv(file.fileno(), [data[done:].data], start + done)):
            done += got
    return data


def read_header(path: Path | None) -> IndexHeader:
    """Return the header of a file."""
    return IndexHeader.decode(read_bytes(path, 0, INDEX_HEADER_SIZE).tobytes())


def data_ranges(path: Path, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the parts of a file's bytes [start, end) that are not holes."""
    with path.open("rb", buffering=0) as file:
        while start < end:
            try:
                start = os.lseek(file.fileno(), start, os.SEEK_DATA)
            except OSError as error:
                if error.errno != errno.ENXIO:
                    raise
                return
            hole = os.lseek(file.fileno(), start, os.SEEK_HOLE)
            yield start, min(hole, end)
            start = hole


def read_entries(path: Path | None, layout: IndexLayout, first: int, last: int) -> NDArray[np.void]:
    """Return INDEX_ENTRY_DTYPE[last - first]."""
    start, end = map(layout.entry_position, (first, last))
    return read_bytes(path, start, end - start).view(INDEX_ENTRY_DTYPE)


class FoundIndex:
    """Index files by number, the oldest first, whatever their sizes; zeros past a file's end."""

    def __init__(self, output: Path, layout: IndexLayout, *, is_built: bool) -> None:
        """Where no index is built, there are no files. Raises IndexFileError where no file has the
        layout's size, which is not damage."""
        self.layout = layout
        self._files = IndexFiles(output / INDEX_DIRECTORY, layout)
        self.paths: list[Path | None] = [*self._files.named_paths()] if is_built else []
        """Paths of the files; None for a file that is missing and must exist."""
        if self.paths and not any(map(self._has_layout, range(len(self.paths)))):
            self._files.paths()

    def _has_layout(self, number: int) -> bool:
        """Return whether the settings may fit a file, which may have been cut or extended since."""
        size = self.size(number) or 0
        is_too_short = size < self.layout.entry_position(2)
        return size == self.layout.file_size or is_too_short or self.begins_at(number) is not None

    def begins_at(self, number: int) -> int | None:
        """Return the offset of the message with which a file begins, by its header and its first
        entry; None where they differ."""
        begin = self.header(number).begin_phy_offset
        return begin if int(self.entries(number, 1, 2)["offset"][0]) == begin else None

    def first_phy_offset(self) -> int | None:
        """Return the physical offset of the first message in the first file; None without one."""
        return self._files.first_phy_offset() if self.paths else None

    def path(self, number: int) -> Path | None:
        """Return the path of a file; None where there is none."""
        return self.paths[number] if number < len(self.paths) else None

    def size(self, number: int) -> int | None:
        """Return the bytes of a file; None where there is none."""
        path = self.path(number)
        return None if path is None else path.stat().st_size

    def name(self, number: int) -> str:
        """Return the path below the output; the name of a missing file is a time, which is
        lost."""
        if path := self.path(number):
            return f"{INDEX_DIRECTORY}/{path.name}"
        before, after = self.paths[:number], self.paths[number:]
        for relation, paths in (("before", after), ("after", before[::-1])):
            for path in filter(None, paths):
                return f"{INDEX_DIRECTORY}/(a file {relation} {path.name})"
        return f"{INDEX_DIRECTORY}/(its only file)"

    def header(self, number: int) -> IndexHeader:
        """Return the header of a file."""
        return read_header(self.path(number))

    def entries(self, number: int, first: int, last: int) -> NDArray[np.void]:
        """Return INDEX_ENTRY_DTYPE[last - first] of a file."""
        return read_entries(self.path(number), self.layout, first, last)

    def next_entries(self, number: int, first: int, count: int) -> NDArray[np.void]:
        """Return INDEX_ENTRY_DTYPE[count] from an entry on, across files; zeros after their end."""
        parts = []
        while count and number < len(self.paths):
            some = min(count, self.layout.max_index_num - first)
            parts.append(self.entries(number, first, first + some).view(np.uint8))
            number, first, count = number + 1, 1, count - some
        parts.append(np.zeros(count * INDEX_SIZE, np.uint8))
        # the concatenation is of bytes: numpy's concatenate would swap the values' byte order
        return np.concatenate(parts).view(INDEX_ENTRY_DTYPE)

    def messages(self, number: int, rows: NDArray[np.void]) -> IndexEntries:
        """Return what was put into a file for these entries of it; it tells times in seconds, but
        for those of its first and last message."""
        header = self.header(number)
        offsets = rows["offset"].astype(np.int64)
        times = header.begin_timestamp + rows["time_diff"].astype(np.int64) * 1000
        times[offsets == header.end_phy_offset] = header.end_timestamp
        times[offsets == header.begin_phy_offset] = header.begin_timestamp
        return IndexEntries(-1, offsets, rows["key_hash"].astype(np.int32), times)

    def remove_from(self, first: int) -> None:
        """Remove the files from a number on. Raises OutputError, SyncError."""
        if first < len(self.paths):
            for path in filter(None, reversed(self.paths[first:])):
                fsops.unlink(path)
            fsops.sync_directory(self._files.directory)
