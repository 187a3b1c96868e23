"""The spool: files in which scanned units wait for the driver, instead of passing through Spark.

Megabytes of units in a task's result cost the JVM more than the scan itself (about ten copies). So
a task writes them into its own file in the spool directory, and its row holds the position. Both
sides must see the directory: it is the output's own one on one machine.

Each task attempt has one file with a random name. Nothing in it is durable or needed after a crash:
the owner of the output empties the directory when it starts. The reader unlinks a file as soon as
it is mapped, so no batch leaves one there.

A long task also records its progress there, in a file named by its partition's start: ``ScanMark``
writes the numbers that ``scanned_bytes`` adds up.
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
"""Smaller data goes through Spark, which is faster than a file."""

MARK_SECONDS = 0.25
"""A task that ends sooner leaves no mark."""
_MARK_SUFFIX = ".at"
_MARK_BYTES = 8


class ScanMark:
    """Records, for progress displays, the bytes of its partition that a task has scanned.

    It is a file of one long. A retried task reuses its file; nothing depends on the content.
    """

    def __init__(self, directory: Path, start: int) -> None:
        self._path = directory / f"{start}{_MARK_SUFFIX}"
        self._start = start
        self._due = time.monotonic() + MARK_SECONDS
        self._fd = -1

    def __call__(self, offset: int) -> None:
        """Record that the scan has reached ``offset``."""
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
    """Sum of the bytes that tasks of the current batch have recorded as scanned."""
    total = 0
    for path in directory.glob(f"*{_MARK_SUFFIX}"):
        try:
            total += int.from_bytes(path.read_bytes()[:_MARK_BYTES], "big")
        except OSError:
            continue
    return total


def remove_marks(directory: Path) -> None:
    """Remove the marks of tasks that have ended."""
    for path in directory.glob(f"*{_MARK_SUFFIX}"):
        fsops.unlink(path)


class SpoolWriter:
    """The file of one task attempt, created on first use."""

    def __init__(self, directory: Path | None, *, is_durable: bool = False) -> None:
        """With ``directory`` None nothing is spooled; with ``is_durable`` what was spooled outlives
        this machine once the file is closed."""
        self._path = directory and directory / uuid.uuid4().hex
        self._is_durable = is_durable
        self._fd = -1
        self._size = 0

    @property
    def name(self) -> str:
        """The file's name in the spool directory."""
        return self._path.name if self._path else ""

    def write(self, data: memoryview) -> int | None:
        """Write ``data`` and return its byte position in the file.

        None means that it must go through Spark: it is small, there is no spool, or the spool
        cannot take it.
        """
        if self._path is None or len(data) < MIN_SPOOLED_BYTES:
            return None
        try:
            if self._fd < 0:
                self._fd = fsops.open_for_writing(self._path)
            fsops.pwrite(self._fd, data, self._size, self._path)
        except OutputError:
            if not self._size:
                # no row names the file, so nobody else would remove it, and the space is needed
                self.close()
                fsops.unlink(self._path)
            return None
        position = self._size
        self._size += len(data)
        return position

    def close(self) -> None:
        """Close the file; from now on the reader owns it. Raises SyncError."""
        if self._path is not None and self._fd >= 0:
            try:
                if self._is_durable:
                    fsops.sync(self._fd, self._path)
            finally:
                os.close(self._fd)
                self._fd = -1


class SpoolReader:
    """Takes the files of one batch out of the spool."""

    def __init__(self, directory: Path, *, keeps_files: bool = False) -> None:
        """With ``keeps_files`` the files stay for other readers."""
        self._directory = directory
        self._keeps_files = keeps_files
        self._taken: dict[str, memoryview] = {}

    def take(self, name: str, position: int, size: int) -> memoryview:
        """``size`` bytes of a file at ``position``, valid while they are referenced.

        Raises StoreError if the file is gone or too short.
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
        if not self._keeps_files:
            fsops.unlink(path)
        return memoryview(mapped)


def empty_spool(directory: Path, root: Path) -> None:
    """Create the directory below ``root``, or empty it of an earlier owner's files."""
    fsops.make_directories(directory, root)
    clear_spool(directory)


def clear_spool(directory: Path) -> None:
    """Remove all files that tasks have left in the directory, if it exists."""
    for path in directory.iterdir() if directory.is_dir() else ():
        fsops.unlink(path)
