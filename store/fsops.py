"""Every write, rename, truncation and sync of reput goes through this module.

It converts operating system errors into ReputErrors in one place, and it injects faults: the fault
tests set ``REPUT_FAILPOINTS`` to ``pwrite:3=ENOSPC`` (the third pwrite fails), ``*:17=kill``
(SIGKILL before the 17th operation of any kind) or ``pwrite:2=short`` (half is written first).
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import shutil
import signal
import threading
from pathlib import Path

from reput.store.errors import NoSpaceError, OutputError, SyncError
from reput.store.files import PROBE_FILE, TEMPORARY_SUFFIX

FAILPOINTS_VARIABLE = "REPUT_FAILPOINTS"
_libc = ctypes.CDLL(None, use_errno=True)
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_NO_SPACE_TEXTS = (os.strerror(errno.ENOSPC), os.strerror(errno.EDQUOT))
PROBE_BYTES = 1 << 20


class _Failpoints:
    """Counts operations by name and in all, and triggers faults at the chosen ones."""

    def __init__(self, text: str) -> None:
        self._actions: dict[tuple[str, int], str] = {}
        self._counts: dict[str, int] = {"*": 0}
        self._lock = threading.Lock()
        for item in filter(None, text.split(",")):
            point, _, action = item.partition("=")
            name, _, ordinal = point.partition(":")
            self._actions[name, int(ordinal)] = action

    def reach(self, operation: str, path: str) -> bool:
        """Count one operation, and fail or die if configured; True requests a short write."""
        if not self._actions:
            return False
        short = False
        with self._lock:
            names = ("*", operation)
            for name in names:
                self._counts[name] = self._counts.get(name, 0) + 1
            actions = [self._actions.get((name, self._counts[name])) for name in names]
        for action in actions:
            if action == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            elif action == "short":
                short = True
            elif action:
                number = getattr(errno, action)
                raise OSError(number, os.strerror(number), path)
        return short


_failpoints = _Failpoints(os.environ.get(FAILPOINTS_VARIABLE, ""))


def output_error(error: OSError, doing: str, path: str | Path) -> OutputError:
    """Convert a failed write; a full disk has its own class, because a retry may succeed."""
    text = f"cannot {doing} {path}: {error.strerror or error}"
    if error.errno in _NO_SPACE:
        line = f"{text}; free some space and the work continues where it stopped"
        return NoSpaceError(line, path=path)
    return OutputError(text, path=path)


def says_no_space(text: str) -> bool:
    """Whether an error text of another component (Spark's JVM, a library) means a full disk."""
    return any(sign in text for sign in _NO_SPACE_TEXTS)


def has_space(directory: Path) -> bool:
    """Whether a directory has some space left, found by trying.

    Other errors, such as a read-only file system, are left to the code that writes there.
    """
    path = directory / PROBE_FILE
    try:
        fd = open_for_writing(path)
        try:
            allocate(fd, 0, PROBE_BYTES, path)
        finally:
            os.close(fd)
            unlink(path)
    except OutputError as error:
        return not isinstance(error, NoSpaceError)
    return True


def make_directories(path: Path, root: Path) -> None:
    """Create ``path`` below ``root``, and ``root`` itself where it is missing, durably.

    A process that was killed may have left directories whose names only the kernel knows: the
    parents below ``root`` are synced whether or not anything is missing in them.
    """
    top = root if root.parent.is_dir() else Path(root.anchor)
    created_in = create_directories(path, top)
    below_root = [parent for parent in path.parents if parent.is_relative_to(root)]
    for parent in dict.fromkeys((*created_in, *below_root)):
        sync_directory(parent)


def create_directories(path: Path, root: Path) -> list[Path]:
    """Create ``path`` below ``root``; return the directories that must still be synced for it.

    The parent of ``root`` must exist: who writes to a place that was removed must not create it
    again. After an error, those that were created are durable: another call finds them there.
    """
    unsynced: list[Path] = []
    try:
        _create_directory(path, root, unsynced)
    except OSError as error:
        for parent in unsynced:
            sync_directory(parent)
        raise output_error(error, "create directory", error.filename or path) from error
    return unsynced


def _create_directory(path: Path, root: Path, unsynced: list[Path]) -> None:
    # the call that creates it also finds out whether it, and its parent, exist
    _failpoints.reach("mkdir", str(path))
    try:
        path.mkdir()
    except FileNotFoundError:
        if path == root:
            raise
        _create_directory(path.parent, root, unsynced)
        _create_directory(path, path, unsynced)
    except FileExistsError:
        if not path.is_dir():
            raise
    else:
        unsynced.append(path.parent)


def open_for_writing(path: str | Path, size: int | None = None) -> int:
    """Open ``path``, created if missing; a new or shorter file is extended to ``size`` bytes.

    Raises OutputError; never follows a symbolic link.
    """
    try:
        _failpoints.reach("open", str(path))
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    except OSError as error:
        raise output_error(error, "open", path) from error
    try:
        if size is not None and os.fstat(fd).st_size < size:
            truncate(fd, size, path)
    except BaseException:
        os.close(fd)
        raise
    return fd


def create_exclusively(path: Path) -> int | None:
    """Create ``path`` and open it for writing; None if it exists. Raises OutputError."""
    try:
        _failpoints.reach("open", str(path))
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    except FileExistsError:
        return None
    except OSError as error:
        raise output_error(error, "create", path) from error


def pwrite(fd: int, data: bytes | memoryview, offset: int, path: str | Path) -> None:
    """Write all of ``data`` at ``offset``, continuing after short writes; raises OutputError."""
    view = memoryview(data).cast("B")
    try:
        short = _failpoints.reach("pwrite", str(path))
        if short:
            offset += os.pwrite(fd, view[: len(view) // 2], offset)
            view = view[len(view) // 2 :]
        while view:
            written = os.pwrite(fd, view, offset)
            view = view[written:]
            offset += written
    except OSError as error:
        raise output_error(error, "write", path) from error


def truncate(fd: int, size: int, path: str | Path) -> None:
    """Set the length of an open file."""
    try:
        _failpoints.reach("truncate", str(path))
        os.ftruncate(fd, size)
    except OSError as error:
        raise output_error(error, "size", path) from error


def allocate(fd: int, start: int, size: int, path: str | Path) -> None:
    """Reserve ``size`` bytes of an open file: no later write to them finds the disk full.

    The file's content stays, and a longer file keeps its length. Raises NoSpaceError.
    """
    try:
        _failpoints.reach("allocate", str(path))
        os.posix_fallocate(fd, start, size)
    except OSError as error:
        raise output_error(error, "reserve space for", path) from error


def map_for_writing(fd: int, size: int, path: str | Path) -> mmap.mmap:
    """Map the first ``size`` bytes of an open file for writing.

    They must be allocated: a store to a page for which the disk has no room kills the process.
    """
    try:
        _failpoints.reach("mmap", str(path))
        return mmap.mmap(fd, size, flags=mmap.MAP_SHARED)
    except OSError as error:
        raise output_error(error, "map", path) from error


def sync(fd: int, path: str | Path) -> None:
    """fdatasync; a failure is final, because the kernel then marks the lost pages as clean."""
    try:
        _failpoints.reach("sync", str(path))
        os.fdatasync(fd)
    except OSError as error:
        raise _sync_error(error, path) from error


def sync_mapping(mapping: mmap.mmap, start: int, end: int, path: str | Path) -> None:
    """msync bytes [start, end): like fdatasync, but of these alone; a failure is as final."""
    start -= start % mmap.PAGESIZE
    try:
        _failpoints.reach("sync", str(path))
        mapping.flush(start, end - start)
    except OSError as error:
        raise _sync_error(error, path) from error


def _sync_error(error: OSError, path: str | Path) -> SyncError:
    line = f"cannot sync {path}: {error.strerror}; stop, check the disk, start again"
    return SyncError(line, path=path)


def sync_file_system(fd: int, path: str | Path) -> None:
    """syncfs: make all writes and names on the file system of ``fd`` durable at once.

    It reports errors since ``fd`` was opened (Linux 5.8 and later).
    """
    try:
        _failpoints.reach("sync", str(path))
        if _libc.syncfs(fd):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
    except OSError as error:
        raise _sync_error(error, path) from error


def sync_directory(path: Path) -> None:
    """Make new names in ``path`` durable."""
    fd = _open_directory(path)
    try:
        sync(fd, path)
    finally:
        os.close(fd)


def sync_file_system_of(path: Path) -> None:
    """Make durable what any process has written on the file system of a directory, and named there.

    A process that is killed leaves writes and names that only the kernel knows.
    """
    fd = _open_directory(path)
    try:
        sync_file_system(fd, path)
    finally:
        os.close(fd)


def _open_directory(path: Path) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        # a name whose directory cannot be synced is as lost as one whose sync has failed
        raise _sync_error(error, path) from error


def rename(source: Path, target: Path, *, durable: bool = True) -> None:
    """Rename within one file system: durably, unless nothing depends on it or the caller syncs."""
    try:
        _failpoints.reach("rename", str(source))
        source.rename(target)
    except OSError as error:
        raise output_error(error, "rename", source) from error
    if durable:
        sync_directory(target.parent)


def exchange(first: Path, second: Path) -> bool:
    """Atomically and durably exchange the files or directories of two names on one file system.

    Returns False, with nothing changed, if the system or file system cannot (``renameat2``).
    """
    if not hasattr(_libc, "renameat2"):
        return False
    try:
        _failpoints.reach("exchange", str(second))
        if _libc.renameat2(
            _AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second), _RENAME_EXCHANGE
        ):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):
            return False
        raise output_error(error, "exchange", second) from error
    sync_directory(first.parent)
    sync_directory(second.parent)
    return True


def remove_tree(path: Path) -> None:
    """Remove a directory with everything in it, or a file; it may already be gone.

    After a kill or an error a part remains, for another call. Links are not followed.
    """
    try:
        _failpoints.reach("remove_tree", str(path))
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    except OSError as error:
        raise output_error(error, "remove", path) from error


def unlink(path: Path) -> None:
    """Remove a file; it may already be gone."""
    try:
        _failpoints.reach("unlink", str(path))
        path.unlink(missing_ok=True)
    except OSError as error:
        raise output_error(error, "remove", path) from error


def remove_directory(path: Path) -> None:
    """Remove a directory durably; a non-empty one stays, and it may already be gone."""
    try:
        _failpoints.reach("rmdir", str(path))
        path.rmdir()
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTEMPTY):
            return
        raise output_error(error, "remove directory", path) from error
    sync_directory(path.parent)


def write_new_file(path: Path, data: bytes) -> None:
    """Write a whole file, which is durable only when the file system is synced."""
    fd = open_for_writing(path)
    try:
        pwrite(fd, data, 0, path)
    finally:
        os.close(fd)


def replace_file(path: Path, data: bytes) -> None:
    """Write a small file so that a reader sees the old or the new one, never a part of it."""
    temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
    fd = open_for_writing(temporary)
    try:
        truncate(fd, 0, temporary)
        pwrite(fd, data, 0, temporary)
        sync(fd, temporary)
    finally:
        os.close(fd)
    rename(temporary, path)
