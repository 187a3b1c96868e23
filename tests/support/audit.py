"""Tells which files a piece of code touches, as Python's audit hook sees it.

Compiled libraries that open files themselves are not seen; the dispatch, its positions and
``reput verify`` use none for that.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

_CHANGES = {
    "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.link", "os.symlink", "os.truncate",
    "os.chmod", "os.chown", "os.utime", "os.setxattr", "shutil.rmtree", "shutil.move",
}  # fmt: skip
_READS = {"os.listdir", "os.scandir"}
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


@dataclass
class Touched:
    """Absolute paths, without links and ``..``."""

    read: set[Path] = field(default_factory=set)
    changed: set[Path] = field(default_factory=set)

    def outside(self, *roots: Path) -> Touched:
        """The paths that are below none of the roots."""
        return Touched(_outside(self.read, roots), _outside(self.changed, roots))


_watched: Touched | None = None
_is_installed = False


def _outside(paths: set[Path], roots: tuple[Path, ...]) -> set[Path]:
    return {path for path in paths if not any(path.is_relative_to(root) for root in roots)}


def _hook(event: str, arguments: tuple[object, ...]) -> None:
    touched = _watched
    if touched is None:
        return
    if event == "open":
        name, _, flags = arguments
        wanted = touched.changed if isinstance(flags, int) and flags & _WRITING else touched.read
        _note(wanted, name)
    elif event in _CHANGES:
        for name in arguments[:2]:
            _note(touched.changed, name)
    elif event in _READS:
        _note(touched.read, arguments[0])


def _note(found: set[Path], name: object) -> None:
    if isinstance(name, str | bytes | os.PathLike):
        found.add(Path(os.path.realpath(os.fsdecode(name))))


@contextmanager
def watched() -> Iterator[Touched]:
    """Everything that this process touches meanwhile."""
    global _watched, _is_installed  # noqa: PLW0603  a hook cannot be removed, so it is switched
    if not _is_installed:
        sys.addaudithook(_hook)
        _is_installed = True
    _watched = touched = Touched()
    try:
        yield touched
    finally:
        _watched = None
