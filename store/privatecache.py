"""The cache of compiled code between runs: a directory in which only this user can write."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

KEPT_VERSIONS = 8
"""Limit per kind, for as many versions and installations as may be in use at the same time."""


def private_directory(name: str) -> Path:
    """``reput/name`` in the user's cache, created if missing. Raises OSError.

    Code in it is executed, hence the strict owner and mode. Among the temporary files anybody may
    have made the directory around it, and could put another one in its place.
    """
    home = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not home.is_absolute():
        home = Path("~/.cache").expanduser()
    temporary = Path(tempfile.gettempdir()) / f"reput-{os.getuid()}"
    for parent in (home, temporary):
        directory = parent / "reput" / name
        try:
            if parent is temporary and not _is_made_private(parent):
                continue
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            directory.chmod(0o700)
        except OSError:
            continue
        if directory.stat().st_uid == os.getuid() and os.access(directory, os.W_OK):
            return directory
    raise OSError(
        f"no private directory for {name}; set XDG_CACHE_HOME to the absolute path of one"
    )


def _is_made_private(directory: Path) -> bool:
    """Make a directory if it is missing; whether only this user can change its entries."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = directory.lstat()
    is_own = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
    return is_own and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def version_directory(name: str, sources: Iterable[Path], versions: Sequence[str]) -> Path:
    """A separate ``private_directory`` for each set of ``sources`` and tool ``versions``.

    The least recently used ones are removed, all but KEPT_VERSIONS. Raises OSError.
    """
    digest = hashlib.sha256(repr(versions).encode())
    for source in sorted(sources, key=lambda source: source.name):
        data = source.read_bytes()
        digest.update(f"{source.name} {len(data)} ".encode() + data)
    directory = private_directory(f"{name}-{digest.hexdigest()[:16]}")
    os.utime(directory)
    used = sorted(directory.parent.glob(f"{name}-*"), key=_last_use)
    for old in used[:-KEPT_VERSIONS]:
        shutil.rmtree(old, ignore_errors=True)
    return directory


def _last_use(directory: Path) -> float:
    try:
        return directory.stat().st_mtime
    except FileNotFoundError:  # another process removed it
        return 0
