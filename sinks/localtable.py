"""A Delta table on a local path: what its library leaves out there, which is to sync.

deltalake 1.6.6 (object_store 0.13.2, ``LocalFileSystem``) gives data files and commits their names
and leaves them to the page cache. After a power loss a commit may then be there without its rows,
or cut short: commitInfo is its first line, the position its last one.

So a version is begun when all before it are on disk, and only the newest one can be torn. That is
looked for before anything is added to the table. An empty commit is none: the library reads it as
one that adds nothing and moves no position, and its rows come again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from store import fsops
from store.errors import StoreError, SyncError

COMMIT_MARK = "reputPosition"
"""In commitInfo: the transaction with this position belongs to the commit."""
_COMMITS = "_delta_log/" + "[0-9]" * 20 + ".json"


class LocalTable:
    """The files of one table. Used by one thread."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._failed: SyncError | None = None

    @classmethod
    def of(cls, url: str) -> LocalTable | None:
        """The table of a path or a ``file://`` URL; None for other URLs, whose stores are durable
        by themselves."""
        if "://" not in url:
            return cls(Path(url))
        parts = urlsplit(url)
        return cls(Path(unquote(parts.path))) if parts.scheme == "file" else None

    def settle(self) -> None:
        """Have all versions on disk, and the newest one be whole.

        Raises StoreError where that was torn; SyncError, also for a sync that failed before: the
        kernel calls the lost pages clean, so that a second one would succeed.
        """
        if self._failed is not None:
            raise SyncError(str(self._failed))
        if self.root.is_dir():
            with self.synced():
                pass
            self._check_newest()

    @contextmanager
    def synced(self) -> Iterator[None]:
        """What the block writes is on disk behind it. Raises SyncError."""
        fsops.make_directories(self.root, self.root)
        fd = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            yield
            fsops.sync_file_system(fd, self.root)
        except SyncError as error:
            self._failed = error
            raise
        finally:
            os.close(fd)

    def _check_newest(self) -> None:
        commit = max(self.root.glob(_COMMITS), default=None)
        if commit is None:
            return
        try:
            actions = [json.loads(line) for line in commit.read_bytes().splitlines()]
        except ValueError:
            raise _torn(commit, "it is cut short") from None
        for action in actions:
            if "add" in action:
                self._check_file(commit, action["add"])
        told = any(COMMIT_MARK in action.get("commitInfo", ()) for action in actions)
        if told and not any("txn" in action for action in actions):
            raise _torn(commit, "its end is missing")

    def _check_file(self, commit: Path, added: dict[str, Any]) -> None:
        path = self.root / unquote(added["path"])
        try:
            size = path.stat().st_size
        except FileNotFoundError:
            raise _torn(commit, f"{path} is missing") from None
        if size != added["size"]:
            raise _torn(commit, f"{path} has {size} bytes instead of {added['size']}")


def _torn(commit: Path, what: str) -> StoreError:
    return StoreError(
        f"the newest version of the Delta table, {commit}, was torn, as by a power loss: {what}; "
        "remove that file, and its rows come again"
    )
