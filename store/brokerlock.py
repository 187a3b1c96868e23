"""RocketMQ's ``lock`` file: only the holder of byte 0 may write (``DefaultMessageStore.start``).

The broker takes it with Java's ``FileChannel.tryLock(0, 1)``, a POSIX record lock that flock does
not see. Every write here takes the same lock, so neither process starts beside the other.

A process loses the lock as soon as it closes any descriptor of the file. So one that holds it has
one descriptor, which its appender and its dispatcher share, and does not open the file again.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import threading
from dataclasses import dataclass
from pathlib import Path

from reput.store import fsops
from reput.store.errors import OwnershipError
from reput.store.files import BROKER_LOCK_FILE

_CONTENT = b"lock"
# struct flock on 64-bit Linux: l_type, l_whence, l_start, l_len, l_pid
_FLOCK = struct.Struct("hhqqi4x")


@dataclass(slots=True)
class _Held:
    """A lock that this process holds."""

    fd: int
    users: int = 1


_held: dict[tuple[int, int], _Held] = {}
"""Device and inode of a file -> the lock on it."""
_guard = threading.Lock()


def broker_pid(root: Path) -> int | None:
    """Process id of another process that holds the store's lock; None if there is none."""
    path = root / BROKER_LOCK_FILE
    with _guard:
        if _file_of(path) in _held:
            return None
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            question = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
            answer = _FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_GETLK, question))
        except OSError:
            return None  # a file system without locks, which whoever wants to take one is told of
        finally:
            os.close(fd)
        return None if answer[0] == fcntl.F_UNLCK else int(answer[4])


def _file_of(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def held_by(pid: int | None, path: Path) -> OwnershipError:
    """The error about a store's lock that another process holds."""
    holder = f"process {pid}" if pid else "another process"
    return OwnershipError(
        f"{path} is held by {holder}: a broker (or another writer) runs on this store; stop it, or "
        "write elsewhere with `output=DIR`",
        path=path,
    )


class BrokerLock:
    """Holds a store's lock while in a ``with`` block; those of one process and store share it."""

    def __init__(self, root: Path) -> None:
        self._path = root / BROKER_LOCK_FILE
        self._file = (0, 0)

    def __enter__(self) -> BrokerLock:
        """Raises OwnershipError if a broker (or another writer) holds it."""
        # asked first: who is refused cannot be told the holder's process any more
        pid = broker_pid(self._path.parent)
        with _guard:
            file = _file_of(self._path)
            if file in _held:
                _held[file].users += 1
            else:
                fd = self._take(pid)
                status = os.fstat(fd)
                file = status.st_dev, status.st_ino
                _held[file] = _Held(fd)
        self._file = file
        return self

    def _take(self, pid: int | None) -> int:
        fd = fsops.open_for_writing(self._path)
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0, os.SEEK_SET)
            if os.fstat(fd).st_size == 0:
                fsops.pwrite(fd, _CONTENT, 0, self._path)
        except BaseException as error:
            os.close(fd)
            if not isinstance(error, OSError):
                raise
            if error.errno not in (errno.EACCES, errno.EAGAIN):
                raise fsops.output_error(error, "lock", self._path) from error
            raise held_by(pid, self._path) from error
        return fd

    def __exit__(self, *_error: object) -> None:
        with _guard:
            held = _held.get(self._file)
            if held is None:
                return  # a forked child has no lock
            held.users -= 1
            if not held.users:
                os.close(_held.pop(self._file).fd)


def _forget_inherited() -> None:
    """A forked child has the descriptors without the locks."""
    global _guard  # noqa: PLW0603  another thread may have held it
    _guard = threading.Lock()
    for held in _held.values():
        os.close(held.fd)
    _held.clear()


os.register_at_fork(after_in_child=_forget_inherited)
