"""Files that were written and are not durable yet.

A writer leaves its syncs to the caller, since one pass at the end of a batch, or one ``syncfs`` for
many files, costs a fraction of a sync for each write. Nothing may count as durable before.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from reput.store import fsops

MAX_OPEN_FILES = 256
SYNC_THREADS = 8


class UnsyncedFiles:
    """Files written since the last sync, which stay open until then.

    A few files are synced one by one. Many are synced with their whole file system: that takes one
    journal commit instead of two per file, but also writes the data of other processes.
    """

    def __init__(self) -> None:
        self._files: dict[str, int] = {}
        self._directories: dict[Path, None] = {}
        self._are_many = False

    def write(self, path: str, size: int, data: bytes | memoryview, position: int) -> None:
        """Write into a file, which is created with its full ``size`` in bytes where there is none.
        Raises OutputError."""
        fd = self._files.get(path)
        if fd is None:
            # it stays: opened before others would be, it reports their errors too
            fd = self._files[path] = fsops.open_for_writing(path, size)
        fsops.pwrite(fd, data, position, path)
        if self._are_many or len(self._files) >= MAX_OPEN_FILES:
            self._are_many = True
            self._directories.clear()
            while len(self._files) > 1:
                os.close(self._files.popitem()[1])

    def add_names(self, directories: Iterable[Path]) -> None:
        """Note directories with new names."""
        if not self._are_many:
            self._directories |= dict.fromkeys(directories)

    def sync(self) -> None:
        """Make the files durable; raises SyncError."""
        if self._are_many:
            # a write that failed has left a second one
            path, fd = next(iter(self._files.items()))
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
