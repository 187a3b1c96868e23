"""The spool: where scanned units wait for the driver, beside Spark instead of through it.

Megabytes of units through a task's result cost the JVM more than the scan itself (about ten
copies); so a task writes them into a file of its own in the spool directory, and its row says
where. A spool is a place both sides see: the output's own directory on one machine.

One file a task attempt, under a random name. Nothing in it is durable or needed after a crash: the
owner of the output empties the directory when it starts. The reader unlinks a file as soon as it
is mapped, so that no batch leaves one in it.

A task that takes long also says there, in a file named by its partition's start, how far it is:
``ScanMark`` writes what ``scanned_bytes`` adds up.
"""

from __future__ import annotations

import mmap
import os
import time
import uuid
from pathlib import Path

from store import fsops
from store.errors import OutputError, StoreError

MIN_SPOOLED_BYTES = 1 << 16
"""Fewer go through Spark: that is faster than a file."""

MARK_SECONDS = 0.25
"""A task of a shorter time leaves no mark."""
_MARK_SUFFIX = ".at"
_MARK_BYTES = 8


class ScanMark:
    """How many bytes of its partition a task has scanned, for whoever shows progress: a file of one
    long. A task that is tried again goes on in its file; nothing depends on what is in it."""

    def __init__(self, directory: Path, start: int) -> None:
        self._path = directory / f"{start}{_MARK_SUFFIX}"
        self._start = start
        self._due = time.monotonic() + MARK_SECONDS
        self._fd = -1

    def __call__(self, offset: int) -> None:
        """The scan has reached ``offset``."""
        now = time.monotonic()
        if now < self._due:
            return
        self._due = now + MARK_SECONDS
        try:
            if self._fd < 0:
                self._fd = fsops.open_for_writing(self._path)
            mark = (offset - self._start).to_bytes(_MARK_BYTES, "big")
            fsops.pwrite(self._fd, mark, 0, self._path)
        except OutputError:
            return

    def close(self) -> None:
        """Close the file; it is removed with ``remove_marks``."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def scanned_bytes(directory: Path) -> int:
    """What the tasks of the batch under way have scanned, as far as they have said so."""
    total = 0
    for path in directory.glob(f"*{_MARK_SUFFIX}"):
        try:
            total += int.from_bytes(path.read_bytes()[:_MARK_BYTES], "big")
        except OSError:
            continue
    return total


def remove_marks(directory: Path) -> None:
    """The tasks that made them have ended."""
    for path in directory.glob(f"*{_MARK_SUFFIX}"):
        fsops.unlink(path)


class SpoolWriter:
    """The file of one task attempt, made when it is first needed."""

    def __init__(self, directory: Path | None) -> None:
        """``directory`` None: nothing is spooled."""
        self._path = directory and directory / uuid.uuid4().hex
        self._fd = -1
        self._size = 0

    @property
    def name(self) -> str:
        """The file's name in the spool directory."""
        return self._path.name if self._path else ""

    def write(self, data: memoryview) -> int | None:
        """Byte position of ``data`` in the file; None where it has to go through Spark instead:
        it is little, there is no spool, or the spool cannot take it."""
        if self._path is None or len(data) < MIN_SPOOLED_BYTES:
            return None
        try:
            if self._fd < 0:
                self._fd = fsops.open_for_writing(self._path)
            fsops.pwrite(self._fd, data, self._size, self._path)
        except OutputError:
            if not self._size:
                # no row names the file, so that nobody would remove it and the space is needed
                self.close()
                fsops.unlink(self._path)
            return None
        position = self._size
        self._size += len(data)
        return position

    def close(self) -> None:
        """Close the file; it is the reader's now."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class SpoolReader:
    """Takes the files of one batch out of the spool."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._taken: dict[str, memoryview] = {}

    def take(self, name: str, position: int, size: int) -> memoryview:
        """``size`` bytes of a file at ``position``; valid for as long as they are referred to.

        Raises StoreError where the file is gone or too short.
        """
        view = self._taken.get(name)
        if view is None:
            view = self._taken[name] = self._map(self._directory / name)
        if position + size > len(view):
            raise StoreError(
                f"spool file {self._directory / name} is too short; nothing was written"
            )
        return view[position : position + size]

    def _map(self, path: Path) -> memoryview:
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                mapped = mmap.mmap(fd, 0, prot=mmap.PROT_READ, flags=mmap.MAP_SHARED)
            finally:
                os.close(fd)
        except (OSError, ValueError) as error:
            raise StoreError(
                f"cannot read spool file {path}: {error}; nothing was written"
            ) from error
        fsops.unlink(path)
        return memoryview(mapped)


def empty_spool(directory: Path, root: Path) -> None:
    """Make the directory below ``root``, or remove what an earlier owner's tasks left in it."""
    fsops.make_directories(directory, root)
    clear_spool(directory)


def clear_spool(directory: Path) -> None:
    """Remove what tasks have left in the directory, if it is there."""
    for path in directory.iterdir() if directory.is_dir() else ():
        fsops.unlink(path)
