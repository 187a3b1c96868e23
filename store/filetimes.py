"""Tells whether the time of a file or directory shows its next change as well.

Every reader that lists or reads again only after a change needs this: without it, a change that
follows another one at once would pass unseen.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

T = TypeVar("T")

_SETTLED_NANOSECONDS = 3_000_000_000
"""Shared file systems store times to a second or two, and clocks of two machines differ a
little."""


def is_settled(changed_ns: int, seen_ns: int) -> bool:
    """Whether a change after ``seen_ns``, when it was looked at, gives what was changed at
    ``changed_ns`` another time; both in ns since the epoch."""
    return changed_ns <= seen_ns - _SETTLED_NANOSECONDS


def identity(status: os.stat_result) -> tuple[int, int, int, int]:
    """The values that change with a file's content: inode, size, mtime and ctime, both in ns."""
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def signature(path: Path) -> object:
    """Return a value that changes whenever the file is written; None where there is no file."""
    looked_at = time.time_ns()
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    if not is_settled(status.st_mtime_ns, looked_at):
        return object()
    return identity(status)


class LookTimer:
    """Says when it is time to look again; what was seen counts meanwhile."""

    def __init__(self, seconds: float = 1.0) -> None:
        self._seconds = seconds
        self._looked_at = float("-inf")

    def is_due(self) -> bool:
        """Whether to look now; if so, the time begins anew."""
        now = time.monotonic()
        is_due = now >= self._looked_at + self._seconds
        if is_due:
            self._looked_at = now
        return is_due


class Watched(Generic[T]):
    """A value that follows from a file, read again after the file was written; otherwise a stat
    suffices."""

    def __init__(self, path: Path, read: Callable[[], T]) -> None:
        self._path = path
        self._read = read
        self._value: T | None = None
        self._seen: object = None

    def value(self) -> T:
        """Return the value as of now. Raises what ``read`` raises, and then reads again the next
        time."""
        current = signature(self._path)
        if self._value is None or current != self._seen:
            self._value, self._seen = self._read(), current
        return self._value
