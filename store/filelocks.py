"""Locks between processes: flock on a file, which ends with its holder, however that ends.

A lock belongs to an open file. A forked child would share it and keep it after its parent's death,
so a child closes what it inherits.
"""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import suppress
from pathlib import Path

from reput.store import fsops

RETRY_SECONDS = 0.01
_locks: set[HeldLock] = set()


class HeldLock:
    """A lock until it is released; a context manager."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        """The locked file, open for writing, or the locked directory."""
        _locks.add(self)

    def __enter__(self) -> HeldLock:
        return self

    def __exit__(self, *_error: object) -> None:
        self.release()

    def release(self) -> None:
        """Release the lock; a second call does nothing."""
        if self in _locks:
            _locks.remove(self)
            os.close(self.fd)


def lock(path: Path, *, shared: bool = False, patience: float | None = 0.0) -> HeldLock | None:
    """Lock the file ``path``, which is created if it is missing: for this process alone, or shared
    with all others that share it.

    Return None if others hold it for longer than ``patience`` seconds; a patience of None waits
    without a limit. Raises OutputError.
    """
    fd = fsops.open_for_writing(path)
    try:
        if _is_locked(fd, fcntl.LOCK_SH if shared else fcntl.LOCK_EX, patience):
            return HeldLock(fd)
    except OSError as error:
        os.close(fd)
        raise fsops.output_error(error, "lock", path) from error
    os.close(fd)
    return None


def lock_directory(path: Path) -> HeldLock | None:
    """Lock a directory, which unlike a lock file nobody removes by mistake; None if another process
    holds it. Raises OutputError.

    On a network file system it is a lock within the host. Where the file system refuses to lock
    directories, the result holds nothing but the open directory.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise fsops.output_error(error, "open", path) from error
    with suppress(OSError):
        if not _is_locked(fd, fcntl.LOCK_EX, 0.0):
            os.close(fd)
            return None
    return HeldLock(fd)


def read_held(path: Path) -> bytes | None:
    """Return the content of a file on which another process holds an exclusive lock.

    If nobody holds it, its holder has died: the file is removed, and the result is None. A process
    that locks such a file must therefore check that the file still exists.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    try:
        if _is_locked(fd, fcntl.LOCK_SH, 0.0):
            fsops.unlink(path)
            return None
        return os.pread(fd, os.fstat(fd).st_size, 0)
    finally:
        os.close(fd)


def _is_locked(fd: int, mode: int, patience: float | None) -> bool:
    if patience is None:
        fcntl.flock(fd, mode)
        return True
    deadline = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(fd, mode | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(RETRY_SECONDS)
        else:
            return True


def _close_inherited() -> None:
    for held_lock in _locks:
        with suppress(OSError):
            os.close(held_lock.fd)
    _locks.clear()


os.register_at_fork(after_in_child=_close_inherited)
