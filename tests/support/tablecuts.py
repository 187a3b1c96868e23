"""Power cuts of a directory in which libraries write files that nobody records, such as those of an
Iceberg table.

The disk is assumed to promise no more than POSIX. A file's content is durable as it was when the
file was synced, a name once its directory was. Of everything else, any part may survive. sqlite
syncs its own files, and they are kept as they are at a cut, which never hits sqlite itself.
"""

from __future__ import annotations

import os
import random
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy.orm import Session

from tests.support.recorder import Tree, read_tree

DATABASE = "catalog.db"


class PowerCutError(BaseException):
    """Nothing that is done from here on reaches the disk."""


class CutDisk:
    """A directory that loses power at one of the syncs and commits of a ``with`` block."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._contents: dict[str, bytes | None] = {}
        """Path -> durable content; None for a directory."""
        self._names: set[str] = set()
        """Paths whose names are durable."""
        self._image: Tree | None = None
        self._left = 0
        self._rng = random.Random()
        self._lock = threading.Lock()
        self._patches = pytest.MonkeyPatch()
        self.points = 0
        """The number of moments at which the power could be cut so far."""

    def __enter__(self) -> CutDisk:
        self._contents = {**read_tree(self._root)}
        self._names = {*self._contents}
        for name in ("fsync", "fdatasync"):
            self._patches.setattr(os, name, self._around_sync(getattr(os, name)))
        self._patches.setattr(Session, "commit", self._around_commit(Session.commit))
        return self

    def __exit__(self, *_error: object) -> None:
        self._patches.undo()

    def cut_after(self, points: int, rng: random.Random) -> None:
        """Cut the power after so many moments."""
        self._left, self._rng, self._image = points, rng, None

    def begin_again(self) -> None:
        """Leave what the cut has left. No file is open."""
        assert self._image is not None
        shutil.rmtree(self._root)
        self._root.mkdir()
        for path, content in self._image.items():
            place = self._root / path
            if content is None:
                place.mkdir()
            else:
                place.write_bytes(content)
        self._contents, self._names = {**self._image}, {*self._image}
        self._image = None

    @property
    def is_cut(self) -> bool:
        """Whether the power is off."""
        return self._image is not None

    def _reach(self) -> None:
        """One moment. Raises PowerCutError at the chosen one, and ever after."""
        with self._lock:
            self.points, self._left = self.points + 1, self._left - 1
            if self._left == 0:
                self._image = self._survivors(read_tree(self._root))
            if self._image is not None:
                raise PowerCutError

    def _survivors(self, seen: Tree) -> Tree:
        rng, image = self._rng, Tree()
        likely, whole = rng.choice((0.1, 0.5, 0.9)), rng.choice((0.0, 0.5, 1.0))
        # a name that was removed, and is durable, may come back
        for path in sorted({*seen, *self._names}):
            is_durable = path in self._names
            is_database = Path(path).name.startswith(DATABASE)
            if not is_database:
                is_sure = is_durable and path in seen
                parent = str(Path(path).parent)
                is_lost = parent not in (".", *image)
                if is_lost or (not is_sure and rng.random() > likely):
                    continue
            content = seen.get(path, self._contents.get(path))
            is_synced = path in self._contents and self._contents[path] == content
            if content is not None and not (is_synced or is_database or rng.random() < whole):
                content = _torn(rng, content)
            image[path] = content
        return image

    def _around_sync(self, sync: Callable[[int], None]) -> Callable[[int], None]:
        def synced(fd: int) -> None:
            path = Path(f"/proc/self/fd/{fd}").readlink()
            if not path.is_relative_to(self._root):
                sync(fd)
                return
            self._reach()
            with self._lock:
                self._settle(path)

        return synced

    def _settle(self, path: Path) -> None:
        relative = path.relative_to(self._root)
        if not path.is_dir():
            self._contents[str(relative)] = path.read_bytes()
            return
        now = {str(one.relative_to(self._root)): one.is_dir() for one in path.iterdir()}
        gone = {name for name in self._names if Path(name).parent == relative} - {*now}
        for name in gone:
            self._contents.pop(name, None)
        self._names = self._names - gone | {*now}
        self._contents |= {name: None for name, is_directory in now.items() if is_directory}

    def _around_commit(self, commit: Callable[[Session], None]) -> Callable[[Session], None]:
        def committed(session: Session) -> None:
            self._reach()
            commit(session)
            self._reach()

        return committed


def _torn(rng: random.Random, content: bytes) -> bytes:
    """The beginning, the rest of which is zeros or missing."""
    kept = content[: rng.randrange(len(content) + 1)]
    return kept.ljust(len(content), b"\0") if rng.random() < 0.5 else kept
