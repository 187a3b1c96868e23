"""Has a chosen system call below a directory fail, write short, or be the last one of the process.

As the recorder does, it takes the place of the system calls themselves, so that it reaches also
those that the product does not make through ``store.fsops``. Calls that change nothing and sync
nothing are not counted.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from reput.store import fsops
from reput.store.errors import StoreError

KILL, SHORT = "kill", "short"
SYNCS = frozenset(("fsync", "fdatasync", "msync", "syncfs"))
_OF_PATHS = ("open", "rename", "replace", "unlink", "remove", "mkdir", "rmdir")
_OF_DESCRIPTORS = ("pwrite", "write", "ftruncate", "posix_fallocate", "fsync", "fdatasync")
UNREADABLE = (
    OSError(errno.EIO, os.strerror(errno.EIO), "consumequeue/Topic/0"),
    StoreError("a unit of consumequeue/Topic/0 is damaged"),
)
"""The read of a queue may raise either: the disk's error, or ours."""
_CHANGES = os.O_CREAT | os.O_WRONLY | os.O_RDWR | os.O_DIRECTORY


class Faults:
    """Counts the calls of a ``with`` block, and does ``action`` at the one numbered ``ordinal``."""

    def __init__(
        self, root: Path, ordinal: int, action: str, last_words: Callable[[], None] = lambda: None
    ) -> None:
        """``action`` is the name of an errno, or one of this module's; ``last_words`` is called
        before a kill. The ordinal 0 stands for no call."""
        self._root = f"{root}/"
        self._ordinal = ordinal
        self._action = action
        self._last_words = last_words
        self.count = 0
        self.made: list[tuple[str, str]] = []
        """Every call and its path below the root."""
        self.call = self.path = ""
        """The call that met the fault, and its file."""
        self.in_main_thread = True
        """Whether it was the thread of the run itself, and not a follower's."""
        self._is_full = False
        self._undo: list[Callable[[], None]] = []

    def __enter__(self) -> Faults:
        for name in _OF_PATHS:
            self._patch(os, name, self._of_path(name, getattr(os, name)))
        for name in _OF_DESCRIPTORS:
            self._patch(os, name, self._of_descriptor(name, getattr(os, name)))
        self._patch(mmap, "mmap", _mapping_class(self, mmap.mmap))
        self._patch(fsops, "_libc", _Libc(self, fsops._libc))
        return self

    def __exit__(self, *_error: object) -> None:
        while self._undo:
            self._undo.pop()()

    def _patch(self, module: Any, name: str, value: object) -> None:
        before = getattr(module, name)
        self._undo.append(lambda: setattr(module, name, before))
        setattr(module, name, value)

    def reach(
        self,
        name: str,
        path: str,
        real: Callable[[], Any],
        half: Callable[[], Any] | None = None,
    ) -> Any:
        """One more call; ``half`` does a part of it."""
        if half is not None and self._is_full:
            # what follows on a short write to a full disk
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.count += 1
        self.made.append((name, path))
        if self.count != self._ordinal:
            return real()
        self.call, self.path = name, path
        self.in_main_thread = threading.current_thread() is threading.main_thread()
        if self._action == KILL:
            self._last_words()
            os.kill(os.getpid(), signal.SIGKILL)
        if self._action == SHORT:
            self._is_full = half is not None
            return (half or real)()
        number = getattr(errno, self._action)
        raise OSError(number, os.strerror(number))

    def _place(self, path: Any, dir_fd: int | None = None) -> str | None:
        """The path below the root; None elsewhere."""
        if isinstance(path, int):
            path = os.readlink(f"/proc/self/fd/{path}")  # noqa: PTH115
        elif dir_fd is not None:
            path = os.path.join(os.readlink(f"/proc/self/fd/{dir_fd}"), path)  # noqa: PTH115, PTH118
        text = os.fsdecode(path)
        return text[len(self._root) :] if text.startswith(self._root) else None

    def _of_path(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(path: Any, *args: Any, **options: Any) -> Any:
            is_counted = name != "open" or args[0] & _CHANGES
            dir_fd = options.get("dir_fd", options.get("src_dir_fd"))
            place = self._place(path, dir_fd) if is_counted else None
            if place is None:
                return real(path, *args, **options)
            return self.reach(name, place, lambda: real(path, *args, **options))

        return call

    def _of_descriptor(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(fd: int, *args: Any) -> Any:
            place = self._place(fd)
            if place is None:
                return real(fd, *args)
            half = None
            if name in ("pwrite", "write"):
                half = lambda: real(fd, args[0][: len(args[0]) // 2], *args[1:])  # noqa: E731
            return self.reach(name, place, lambda: real(fd, *args), half)

        return call


def _mapping_class(faults: Faults, real: Any) -> Any:
    class Mapping(real):  # type: ignore[misc]
        """A mapping whose syncs are counted."""

        def flush(self, *args: int) -> None:
            faults.reach("msync", "", lambda: super(Mapping, self).flush(*args))

    return Mapping


class _Libc:
    """The C library as ``fsops`` uses it: minus one and an errno."""

    def __init__(self, faults: Faults, real: Any) -> None:
        self._faults = faults
        self._real = real

    def _call(self, name: str, *args: Any) -> int:
        try:
            done: int = self._faults.reach(name, "", lambda: getattr(self._real, name)(*args))
        except OSError as error:
            ctypes.set_errno(error.errno or 0)
            return -1
        return done

    def syncfs(self, fd: int) -> int:
        """syncfs."""
        return self._call("syncfs", fd)

    def renameat2(self, *args: Any) -> int:
        """renameat2."""
        return self._call("renameat2", *args)
