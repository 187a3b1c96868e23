"""The spool: files in which scanned parts of a batch wait for the driver, instead of passing
through Spark.

Megabytes of units in a task's result cost the JVM more than the scan itself (about ten copies),
and they come only when the last task has ended. So a task writes the rows of one part, a range of
the log, as an Arrow stream into a file of the spool, which it renames when it is whole. The driver
maps it meanwhile. Both sides must see the directory: it is the output's own one on one machine.

    {start}.at        a task has claimed the part that begins at this offset; a long says how many
                      bytes of it are scanned, for ``scanned_bytes``
    {start}.partial   its rows so far
    {start}.part      all of its rows
    open              while this is there, all parts may be claimed, otherwise a batch's first one

A batch's tasks share its parts: each claims the first one that nobody has claimed, so that they
end at about the same time. A part depends only on the log, on its range and on its batch's
settings, whoever scans it. One that never comes is scanned by the driver, which needs nothing of
the spool: nothing in it is durable, and every query has a directory of its own, so that a task of
an earlier one, which may live on for seconds, finds its directory gone.
"""

from __future__ import annotations

import mmap
import os
import time
import uuid
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa

from reput.store import fsops
from reput.store.errors import OutputError, StoreError
from reput.store.files import CLAIM_SUFFIX, PART_SUFFIX, PARTIAL_SUFFIX
from reput.store.runs.packedschema import PACKED_SCHEMA

MARK_SECONDS = 0.25
"""Least time between two records of a claim's progress."""
_CLAIM_BYTES = 8
_OPEN = "open"


class Claim:
    """A task's claim of one part, with the number of its bytes that are scanned."""

    def __init__(self, path: Path, fd: int, start: int) -> None:
        self._path = path
        self._fd = fd
        self._start = start
        self._due = time.monotonic() + MARK_SECONDS

    def reached(self, offset: int, *, at_once: bool = False) -> None:
        """Record now and then that the scan has reached ``offset``."""
        now = time.monotonic()
        if now < self._due and not at_once:
            return
        self._due = now + MARK_SECONDS
        mark = (offset - self._start).to_bytes(_CLAIM_BYTES, "big")
        try:
            fsops.pwrite(self._fd, mark, 0, self._path)
        except OutputError:
            return  # only displays miss it

    def __enter__(self) -> Claim:
        return self

    def __exit__(self, *_error: object) -> None:
        # the file stays until ``remove_claims``: nobody may scan the part again
        os.close(self._fd)


def claim(directory: Path, start: int) -> Claim | None:
    """Claim the part that begins at ``start``; None if another task has it, or if the spool is gone
    or full: the task then leaves it alone."""
    path = directory / f"{start}{CLAIM_SUFFIX}"
    try:
        fd = fsops.create_exclusively(path)
    except OutputError:
        return None
    return None if fd is None else Claim(path, fd, start)


def scanned_bytes(directory: Path) -> int:
    """Sum of the bytes that tasks of the current batch have recorded as scanned."""
    total = 0
    for path in directory.glob(f"*{CLAIM_SUFFIX}"):
        try:
            total += int.from_bytes(path.read_bytes()[:_CLAIM_BYTES], "big")
        except OSError:
            continue
    return total


def remove_claims(directory: Path) -> None:
    """Remove the claims of a batch whose tasks have ended."""
    for path in directory.glob(f"*{CLAIM_SUFFIX}"):
        fsops.unlink(path)


class _PartFile:
    """A file as Arrow writes to it."""

    closed = False

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = fsops.open_for_writing(path)
        self._size = 0

    def write(self, data: pa.Buffer | bytes) -> None:
        """Append; raises OutputError."""
        view = memoryview(data)
        fsops.pwrite(self._fd, view, self._size, self._path)
        self._size += len(view)

    def tell(self) -> int:
        """Return the size so far."""
        return self._size

    def flush(self) -> None:
        """Do nothing: nothing is held back."""

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)


def write_part(directory: Path, start: int, rows: Iterable[pa.RecordBatch]) -> None:
    """Hand over the rows of a claimed part; without room for them, they are dropped."""
    partial = directory / f"{start}{PARTIAL_SUFFIX}"
    try:
        file = _PartFile(partial)
        try:
            with pa.ipc.new_stream(pa.PythonFile(file, "w"), PACKED_SCHEMA) as stream:
                for batch in rows:
                    stream.write_batch(batch)
        finally:
            file.close()
        fsops.rename(partial, directory / f"{start}{PART_SUFFIX}", durable=False)
    except OutputError:
        fsops.unlink(partial)


def take_part(directory: Path, start: int) -> list[pa.RecordBatch] | None:
    """Return the rows of the part that begins at ``start``, and remove it; None if it is not there.

    They lie in the mapped file, whose space is free when nothing refers to them any more. Raises
    StoreError if it cannot be read.
    """
    path = directory / f"{start}{PART_SUFFIX}"
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _unreadable(path, error) from error
    try:
        mapped = mmap.mmap(fd, 0, prot=mmap.PROT_READ, flags=mmap.MAP_SHARED)
        batches = list(pa.ipc.open_stream(pa.py_buffer(mapped)))
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from error
    finally:
        os.close(fd)
    fsops.unlink(path)
    return batches


def _unreadable(path: Path, error: Exception) -> StoreError:
    line = f"cannot read spool file {path}: {error}; nothing of it was written"
    return StoreError(line, path=path)


def open_spool(directory: Path, root: Path) -> Path:
    """Create a directory for one query in ``directory``, which is below ``root``."""
    spool = directory / uuid.uuid4().hex
    fsops.create_directories(spool, root)
    fsops.write_new_file(spool / _OPEN, b"")
    return spool


def is_open(spool: Path) -> bool:
    """Return whether tasks may claim any part."""
    return (spool / _OPEN).exists()


def close_spool(spool: Path) -> None:
    """Let tasks claim no part but a batch's first; those that they have claimed may still come."""
    fsops.unlink(spool / _OPEN)


def empty_spool(directory: Path, root: Path) -> None:
    """Create the directory of spools below ``root``, or empty it of what earlier queries left."""
    fsops.make_directories(directory, root)
    for path in directory.iterdir():
        fsops.remove_tree(path)
