"""Files that were written and are not durable yet.

A writer leaves its syncs to the caller, since one pass at the end of a batch, or one ``syncfs`` for
many files, costs a fraction of a sync for each write. Nothing may count as durable before.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from reput.store import fsops

MAX_OPEN_FILES = 256
SYNC_THREADS = 8


@dataclass(frozen=True, slots=True)
class Unsynced:
    """Syncs that a write leaves to its caller."""

    files: list[tuple[int, str | Path]]
    """Open descriptors, to be synced and closed."""
    directories: list[Path]
    """Directories with new names."""


class UnsyncedFiles:
    """Files written since the last sync.

    A few files are synced one by one. Many are synced with their whole file system: that takes one
    journal commit instead of two per file, but also writes the data of other processes.
    """

    def __init__(self) -> None:
        self._files: dict[str | Path, int] = {}
        self._directories: dict[Path, None] = {}
        self._are_many = False

    def add(self, written: Unsynced) -> None:
        """Take over the descriptors."""
        for fd, path in written.files:
            # the first stays: opened before the others, it reports their errors too
            if self._are_many or path in self._files:
                os.close(fd)
            else:
                self._files[path] = fd
        if not self._are_many:
            self._directories |= dict.fromkeys(written.directories)
            self._are_many = len(self._files) >= MAX_OPEN_FILES
        if self._are_many:
            while len(self._files) > 1:
                os.close(self._files.popitem()[1])
            self._directories.clear()

    def sync(self) -> None:
        """Make the files durable; raises SyncError."""
        if self._are_many:
            ((path, fd),) = self._files.items()
            fsops.sync_file_system(fd, path)
        else:
            # in parallel: all wait for the disk, whose journal commits them together
            with ThreadPoolExecutor(SYNC_THREADS) as threads:
                list(threads.map(lambda file: fsops.sync(file[1], file[0]), self._files.items()))
        self.close()
        for directory in self._directories:
            fsops.sync_directory(directory)
        self._directories.clear()
        self._are_many = False

    def close(self) -> None:
        """Close the files without a sync; no durable state depends on them."""
        while self._files:
            os.close(self._files.popitem()[1])
