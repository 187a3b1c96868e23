"""A recorder of all changes to the files below one directory, in order, with their bytes.

The recorder replaces the system calls themselves (in ``os``, ``mmap``, and the two that
``store.fsops`` takes from the C library), so that it does not depend on what the product believes
to have synced. Stores to mapped files are found by comparison before each other operation.
``Recorder.check`` shows that no change has escaped it.
"""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from reput.store import fsops

ROOT = 0
"""The number of the directory that is recorded."""
_MIN_GAP = 8
"""Changes in a mapping with at least this many unchanged bytes between them are separate writes."""
Tree = dict[str, bytes | None]
"""Relative path -> content; None for a directory."""


@dataclass(frozen=True, slots=True)
class Write:
    """Bytes written to a file."""

    file: int
    at: int
    data: bytes
    grows: bool = False
    """Whether the write extends the file."""


@dataclass(frozen=True, slots=True)
class Resize:
    """A new length of a file."""

    file: int
    size: int


@dataclass(frozen=True, slots=True)
class Names:
    """An atomic change of names, each of which then belongs to another file or to none."""

    changes: tuple[tuple[int, str, int | None], ...]
    """(directory, name, its new file or directory)."""
    synced_by: frozenset[int]
    """The directories that must be synced for the change to be durable."""


@dataclass(frozen=True, slots=True)
class Sync:
    """fsync or fdatasync of a file or directory."""

    file: int


@dataclass(frozen=True, slots=True)
class SyncRange:
    """msync of [start, end) of a file."""

    file: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class SyncAll:
    """syncfs."""


@dataclass(frozen=True, slots=True)
class FailedSync:
    """A sync that failed: the kernel counts the pages as clean, and the disk may not have them."""

    of: Sync | SyncRange | SyncAll


Operation = Write | Resize | Names | Sync | SyncRange | SyncAll | FailedSync


@dataclass
class Content:
    """Directories and files by number, as the process sees them."""

    directories: dict[int, dict[str, int]] = field(default_factory=lambda: {ROOT: {}})
    files: dict[int, bytearray] = field(default_factory=dict)

    def apply(self, operation: Operation) -> None:
        """Change what an operation changes."""
        if isinstance(operation, Names):
            for directory, name, file in operation.changes:
                self.directories[directory].pop(name, None)
                if file is not None:
                    self.directories[directory][name] = file
        elif isinstance(operation, Write):
            data = self.files[operation.file]
            data.extend(bytes(max(operation.at - len(data), 0)))
            data[operation.at : operation.at + len(operation.data)] = operation.data
        elif isinstance(operation, Resize):
            data = self.files[operation.file]
            del data[operation.size :]
            data.extend(bytes(operation.size - len(data)))

    def tree(self) -> Tree:
        """Return everything that has a name."""
        found: Tree = {}

        def visit(directory: int, prefix: str) -> None:
            for name, number in sorted(self.directories[directory].items()):
                if number in self.directories:
                    found[prefix + name] = None
                    visit(number, f"{prefix}{name}/")
                else:
                    found[prefix + name] = bytes(self.files[number])

        visit(ROOT, "")
        return found


def read_tree(root: Path) -> Tree:
    """Return the tree below a real directory."""
    found: Tree = {}

    def visit(directory: str, prefix: str) -> None:
        # Paths take longer than the files
        for entry in sorted(os.scandir(directory), key=lambda entry: entry.name):
            if entry.is_dir(follow_symlinks=False):
                found[prefix + entry.name] = None
                visit(entry.path, f"{prefix}{entry.name}/")
            else:
                with open(entry.path, "rb", buffering=0) as file:
                    found[prefix + entry.name] = file.read()

    visit(str(root), "")
    return found


class Recorder:
    """Records the changes below a directory within a ``with`` block. What is there when the block
    begins counts as durable."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.operations: list[Operation] = []
        self.notes: list[tuple[int, str, object]] = []
        """(number of operations before it, kind, value): what somebody has learned."""
        self.begin = Content()
        self._live = Content()
        self.inodes: dict[int, int] = {}
        """File -> its inode during the recording."""
        self._descriptors: dict[int, int] = {}
        self._mappings: list[tuple[mmap.mmap, int]] = []
        self._next = ROOT + 1
        self._lock = threading.RLock()
        self._undo: list[Callable[[], None]] = []

    def note(self, kind: str, value: object) -> None:
        """Note that somebody learns something now."""
        with self._lock:
            self._find_stores()
            self.notes.append((len(self.operations), kind, value))

    def rewind(self, count: int) -> Tree:
        """Forget all operations but the first ``count``; return the tree as it was then, which the
        caller lays before the recording goes on. No file is open any more."""
        del self.operations[count:]
        self.notes = [note for note in self.notes if note[0] <= count]
        self._descriptors.clear()
        self._mappings.clear()
        directories, files = self._live.directories, self._live.files
        self._live = Content(
            {number: dict(self.begin.directories.get(number, {})) for number in directories},
            {number: bytearray(self.begin.files.get(number, b"")) for number in files},
        )
        for operation in self.operations:
            self._live.apply(operation)
        return self._live.tree()

    def directories(self) -> Collection[int]:
        """Return the numbers of all directories that have existed."""
        return self._live.directories.keys()

    def check(self) -> None:
        """Assert that the real directory has what the recorded operations make."""
        assert self._live.tree() == read_tree(self.root)

    def __getstate__(self) -> dict[str, Any]:
        """The recording, with which another process goes on once this one has been killed."""
        with self._lock:
            self._find_stores()
            names = ("root", "operations", "notes", "begin", "_live", "inodes", "_next")
            return {name: getattr(self, name) for name in names}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["root"])  # type: ignore[misc]
        self.__dict__ |= state

    def __enter__(self) -> Recorder:
        if self._next == ROOT + 1:
            self._begin()
        for name in (
            "open", "pwrite", "write", "ftruncate", "posix_fallocate", "fsync", "fdatasync",
            "rename", "replace", "unlink", "remove", "mkdir", "rmdir",
        ):  # fmt: skip
            self._patch(os, name, getattr(self, f"_{name}"))
        for name in ("truncate", "link", "symlink", "pwritev", "writev", "copy_file_range"):
            self._patch(os, name, self._refused(name))
        self._patch(mmap, "mmap", _mapping_class(self, mmap.mmap))
        self._patch(fsops, "_libc", _Libc(self, fsops._libc))
        return self

    def _begin(self) -> None:
        self._load(self.root, ROOT)
        self.begin.directories = {key: dict(names) for key, names in self._live.directories.items()}
        self.begin.files = {key: bytearray(data) for key, data in self._live.files.items()}

    def __exit__(self, *_error: object) -> None:
        self._find_stores()
        while self._undo:
            self._undo.pop()()

    def _patch(self, module: Any, name: str, value: object) -> None:
        before = getattr(module, name)
        self._undo.append(lambda: setattr(module, name, before))
        if callable(value) and module is os:
            value = _with_real(value, before)
        setattr(module, name, value)

    def _refused(self, name: str) -> Callable[..., object]:
        def refused(_real: Callable[..., object], *_args: object, **_options: object) -> object:
            raise NotImplementedError(f"os.{name} is not recorded")

        return refused

    def _load(self, directory: Path, number: int) -> None:
        for path in sorted(directory.iterdir()):
            child = self._new(path.lstat().st_ino)
            self._live.directories[number][path.name] = child
            if path.is_dir():
                self._live.directories[child] = {}
                self._load(path, child)
            else:
                self._live.files[child] = bytearray(path.read_bytes())

    def _new(self, inode: int) -> int:
        number, self._next = self._next, self._next + 1
        self.inodes[number] = inode
        return number

    def _add(self, operation: Operation) -> None:
        self._find_stores()
        self.operations.append(operation)
        self._live.apply(operation)

    def _find_stores(self) -> None:
        """Record changes of mapped files as writes."""
        for mapping, file in self._mappings:
            now = np.frombuffer(mapping[:], np.uint8)
            live = self._live.files[file]
            changed = np.flatnonzero(now != np.frombuffer(live[: len(now)], np.uint8))
            if not len(changed):
                continue
            borders = np.flatnonzero(np.diff(changed) >= _MIN_GAP) + 1
            for part in np.split(changed, borders):
                first, last = int(part[0]), int(part[-1]) + 1
                self.operations.append(Write(file, first, now[first:last].tobytes()))
                live[first:last] = now[first:last].tobytes()

    def _place(self, path: Any, dir_fd: int | None = None) -> tuple[int, str] | None:
        """Return (directory, name) of a path below the root; None for any other path."""
        if isinstance(path, int):
            return None
        text = os.fsdecode(path)
        if dir_fd is not None:
            return (self._descriptors[dir_fd], text) if dir_fd in self._descriptors else None
        if not text.startswith(f"{self.root}/"):
            return None
        directory = ROOT
        *parents, name = text[len(str(self.root)) + 1 :].split("/")
        for part in parents:
            directory = self._live.directories[directory][part]
        return directory, name

    def _open(
        self, real: Any, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None
    ) -> int:
        with self._lock:
            fd: int = real(path, flags, mode, dir_fd=dir_fd)
            self._descriptors.pop(fd, None)
            if not isinstance(path, int) and os.fsdecode(path) == str(self.root):
                self._descriptors[fd] = ROOT
            with suppress(KeyError):
                place = self._place(path, dir_fd)
                if place is None:
                    return fd
                directory, name = place
                number = self._live.directories[directory].get(name)
                if number is None:
                    number = self._new(os.fstat(fd).st_ino)
                    self._live.files[number] = bytearray()
                    self._add(Names(((directory, name, number),), frozenset({directory})))
                self._descriptors[fd] = number
                if flags & os.O_TRUNC and self._live.files.get(number):
                    self._add(Resize(number, 0))
            return fd

    def _pwrite(self, real: Any, fd: int, data: Any, offset: int) -> int:
        with self._lock:
            written: int = real(fd, data, offset)
            if fd in self._descriptors:
                self._written(fd, offset, bytes(data)[:written])
            return written

    def _write(self, real: Any, fd: int, data: Any) -> int:
        with self._lock:
            at = os.lseek(fd, 0, os.SEEK_CUR) if fd in self._descriptors else 0
            written: int = real(fd, data)
            if fd in self._descriptors:
                self._written(fd, at, bytes(data)[:written])
            return written

    def _written(self, fd: int, at: int, data: bytes) -> None:
        file = self._descriptors[fd]
        self._add(Write(file, at, data, at + len(data) > len(self._live.files[file])))

    def _ftruncate(self, real: Any, fd: int, size: int) -> None:
        with self._lock:
            real(fd, size)
            if fd in self._descriptors:
                self._add(Resize(self._descriptors[fd], size))

    def _posix_fallocate(self, real: Any, fd: int, start: int, size: int) -> None:
        with self._lock:
            real(fd, start, size)
            file = self._descriptors.get(fd)
            if file is not None and start + size > len(self._live.files[file]):
                self._add(Resize(file, start + size))

    def _fdatasync(self, real: Any, fd: int) -> None:
        with self._lock:
            number = self._descriptors.get(fd)
            if number is None:
                real(fd)
                return
            with self._noting(Sync(number)):
                real(fd)

    @contextmanager
    def _noting(self, sync: Sync | SyncRange) -> Iterator[None]:
        try:
            yield
        except OSError:
            self._add(FailedSync(sync))
            raise
        self._add(sync)

    _fsync = _fdatasync

    def _rename(
        self, real: Any, source: Any, target: Any, *, src_dir_fd: int | None = None,
        dst_dir_fd: int | None = None,
    ) -> None:  # fmt: skip
        with self._lock:
            real(source, target, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
            before, after = self._place(source, src_dir_fd), self._place(target, dst_dir_fd)
            if before is None and after is None:
                return
            assert before is not None and after is not None, f"{source} crosses {self.root}"
            file = self._live.directories[before[0]][before[1]]
            self._add(Names(((*before, None), (*after, file)), frozenset({after[0]})))

    _replace = _rename

    def _unlink(self, real: Any, path: Any, *, dir_fd: int | None = None) -> None:
        with self._lock:
            real(path, dir_fd=dir_fd)
            place = self._place(path, dir_fd)
            if place is not None:
                self._add(Names(((*place, None),), frozenset({place[0]})))

    _remove = _rmdir = _unlink

    def _mkdir(self, real: Any, path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        with self._lock:
            real(path, mode, dir_fd=dir_fd)
            place = self._place(path, dir_fd)
            if place is not None:
                number = self._new(os.stat(path, dir_fd=dir_fd).st_ino)
                self._live.directories[number] = {}
                self._add(Names(((*place, number),), frozenset({place[0]})))

    def exchanged(self, first: bytes, second: bytes) -> None:
        """Record that renameat2 has exchanged two names."""
        with self._lock:
            one, other = self._place(first), self._place(second)
            if one is None or other is None:
                return
            names = self._live.directories
            changes = ((*one, names[other[0]][other[1]]), (*other, names[one[0]][one[1]]))
            self._add(Names(changes, frozenset({one[0], other[0]})))

    def synced_all(self, fd: int, failed: int) -> None:
        """syncfs has returned."""
        with self._lock:
            if fd in self._descriptors:
                self._add(FailedSync(SyncAll()) if failed else SyncAll())

    def mapped(self, mapping: mmap.mmap, fd: int) -> None:
        """Watch a file that is mapped for writing."""
        with self._lock:
            if fd in self._descriptors:
                self._mappings.append((mapping, self._descriptors[fd]))

    @contextmanager
    def syncing_range(self, mapping: mmap.mmap, start: int, end: int) -> Iterator[None]:
        """msync is called within."""
        with self._lock, ExitStack() as noting:
            for known, file in self._mappings:
                if known is mapping:
                    noting.enter_context(self._noting(SyncRange(file, start, end)))
            yield

    def unmapped(self, mapping: mmap.mmap) -> None:
        """Record the last changes of a mapping that is about to end."""
        with self._lock:
            self._find_stores()
            self._mappings = [pair for pair in self._mappings if pair[0] is not mapping]


def _with_real(function: Any, real: Any) -> Callable[..., object]:
    return lambda *args, **options: function(real, *args, **options)


def _mapping_class(recorder: Recorder, real: Any) -> Any:
    class Mapping(real):  # type: ignore[misc]
        """A mapping that reports its syncs and its end to the recorder."""

        def __new__(cls, fd: int, length: int, *args: Any, **options: Any) -> Any:
            mapping = super().__new__(cls, fd, length, *args, **options)
            if options.get("prot", mmap.PROT_WRITE) & mmap.PROT_WRITE:
                recorder.mapped(mapping, fd)
            return mapping

        def flush(self, offset: int = 0, size: int | None = None) -> None:
            size = len(self) - offset if size is None else size
            with recorder.syncing_range(self, offset, offset + size):
                super().flush(offset, size)

        def close(self) -> None:
            recorder.unmapped(self)
            super().close()

    return Mapping


class _Libc:
    """The C library as ``fsops`` uses it."""

    def __init__(self, recorder: Recorder, real: Any) -> None:
        self._recorder = recorder
        self._real = real

    def syncfs(self, fd: int) -> int:
        """syncfs, recorded."""
        failed: int = self._real.syncfs(fd)
        self._recorder.synced_all(fd, failed)
        return failed

    def renameat2(
        self, first_fd: int, first: bytes, second_fd: int, second: bytes, how: int
    ) -> int:
        """renameat2, recorded."""
        failed: int = self._real.renameat2(first_fd, first, second_fd, second, how)
        if not failed:
            self._recorder.exchanged(first, second)
        return failed
