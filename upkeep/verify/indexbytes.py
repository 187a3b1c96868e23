"""Reads index files as they are, whatever is in them: for verifying, and for sealing."""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from reput.store.index import indexkernel
from reput.store.index.indexfile import (
    END_TIMESTAMP_POSITION,
    INDEX_ENTRY_DTYPE,
    INDEX_HEADER_SIZE,
    IndexHeader,
    IndexLayout,
)
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


class Image:
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
