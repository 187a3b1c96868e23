"""A Delta table on a local path, with the syncs that its library leaves out.

deltalake 1.6.6 (object_store 0.13.2, ``LocalFileSystem``) renames data files and commits into place
and leaves them in the page cache. After a power loss a commit may therefore exist without its rows,
or truncated: commitInfo is its first line, the position its last one.

So a version is begun only when all earlier ones are on disk, and only the newest one can be torn.
It is checked before anything is added to the table. An empty commit is not torn: the library reads
it as one that adds nothing and moves no position, so its rows are written again.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from reput.sinks.delta.restores import POSITION_MARK
from reput.store import fsops, jsontext
from reput.store.errors import StoreError, SyncError

TRANSACTIONS_MARK = "reputTransactions"
"""In commitInfo, says how many transactions a commit with POSITION_MARK includes."""
_PASSWORD = re.compile(r"//[^/@]*:[^/@]*@")
_COMMITS = "_delta_log/" + "[0-9]" * 20 + ".json"


class LocalTable:
    """The files of one table; used by a single thread."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._failed: SyncError | None = None

    @classmethod
    def of(cls, url: str) -> LocalTable | None:
        """The table of a path or a ``file:`` URL; None for other URLs, whose object stores are
        durable by themselves."""
        parts = urlsplit(url)
        if parts.scheme == "file":
            return cls(Path(unquote(parts.path)))
        return None if "://" in url else cls(Path(url))

    def settle(self) -> None:
        """Make all versions durable and check that the newest one is whole.

        Raises StoreError if that one is torn. Raises SyncError, also after an earlier failed sync:
        the kernel marks the lost pages as clean, so a second sync would succeed without them.
        """
        if self._failed is not None:
            raise SyncError(str(self._failed), path=self._failed.path)
        if self.root.is_dir():
            with self.synced():
                pass
            self._check_newest()

    @contextmanager
    def synced(self) -> Iterator[None]:
        """Sync the files that the block writes when it ends. Raises SyncError."""
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
            actions = [jsontext.parse(line) for line in commit.read_bytes().splitlines()]
        except ValueError:
            raise _torn(commit, "it is cut short") from None
        for action in actions:
            if "add" in action:
                self._check_file(commit, action["add"])
        # the transactions are the last lines; earlier versions wrote one and did not count it
        infos = (action.get("commitInfo", {}) for action in actions)
        count = sum(int(info.get(TRANSACTIONS_MARK, 1)) for info in infos if POSITION_MARK in info)
        complete = sum("txn" in action for action in actions) >= count
        for action in actions:
            # a compaction says how many files it has changed
            metrics = action.get("commitInfo", {}).get("operationMetrics", {})
            for kind, metric in (("add", "numFilesAdded"), ("remove", "numFilesRemoved")):
                complete &= sum(kind in other for other in actions) >= metrics.get(metric, 0)
        if not complete:
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
        "remove that file, and what it added is written again",
        path=commit,
    )


def without_password(text: str) -> str:
    """A table's URL, or a text with URLs, as people may see it."""
    return _PASSWORD.sub("//", text)
