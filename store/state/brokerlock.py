"""RocketMQ's ``lock`` file: only the holder of byte 0 may write (``DefaultMessageStore.start``).

The broker takes it with Java's ``FileChannel.tryLock(0, 1)``, a POSIX record lock that flock does
not see. Every write here takes the same lock, so neither process starts beside the other.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from pathlib import Path

from reput.store import fsops
from reput.store.errors import OwnershipError
from reput.store.files import BROKER_LOCK_FILE

_CONTENT = b"lock"
# struct flock on 64-bit Linux: l_type, l_whence, l_start, l_len, l_pid
_FLOCK = struct.Struct("hhqqi4x")


def broker_pid(root: Path) -> int | None:
    """Process id of another process that holds the store's lock; None if there is none."""
    try:
        fd = os.open(root / BROKER_LOCK_FILE, os.O_RDONLY | os.O_CLOEXEC)
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


def held_by(pid: int | None, path: Path) -> OwnershipError:
    """The error about a store's lock that another process holds."""
    holder = f"process {pid}" if pid else "another process"
    return OwnershipError(
        f"{path} is held by {holder}: a broker (or another writer) runs on this store; stop it, or "
        "write elsewhere with `output=DIR`",
        path=path,
    )


class BrokerLock:
    """Holds a store's lock while in a ``with`` block; one per process and store."""

    def __init__(self, root: Path) -> None:
        self._path = root / BROKER_LOCK_FILE
        self._fd = -1

    def __enter__(self) -> BrokerLock:
        """Raises OwnershipError if a broker (or another writer) holds it."""
        # checked first: closing any descriptor of the file would drop a lock that we hold
        pid = broker_pid(self._path.parent)
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
        self._fd = fd
        return self

    def __exit__(self, *_error: object) -> None:
        os.close(self._fd)
        self._fd = -1
