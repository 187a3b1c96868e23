"""The files of one queue, or of its ext, as they are, with the damage that is found in them.

A writer refuses a file of a wrong length, but a verifier must name every fault. Nothing is rejected
and nothing is written, except by ``_heal_files``, which a repair calls.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from reput.store import fsops
from reput.store.files import is_mapped_file_name, offset_to_file_name
from reput.store.queue.consumequeue import QueueKey
from reput.store.queue.mappedfilequeue import MappedFileQueue, data_end
from reput.upkeep.verify.difference import Damage, Difference, Differences, LogRange


class ComparedFiles(MappedFileQueue):
    """The common part of queues and exts that are compared: files of whatever sizes."""

    directory_name: str
    """Name of the directory below the output."""
    sizes: dict[int, int]
    """Bytes of each file, by its start."""

    def __init__(self, directory: Path, file_size: int, log: LogRange) -> None:
        super().__init__(directory, file_size)
        self.key = QueueKey(directory.parent.name, int(directory.name))
        self._log = log
        self._own = Differences()
        self._strays: list[int] = []
        self._wrong_sizes: list[int] = []
        self._missing: set[int] = set()
        """Starts of files that are missing and must exist."""

    @property
    def differences(self) -> list[Difference]:
        """Return all differences so far."""
        return self._own.items

    def refresh(self) -> None:
        """List the files."""
        self.sizes = {}
        if self.directory.is_dir():
            for entry in os.scandir(self.directory):
                if is_mapped_file_name(entry.name) and entry.is_file(follow_symlinks=False):
                    self.sizes[int(entry.name)] = entry.stat(follow_symlinks=False).st_size
        self.starts = [start for start in sorted(self.sizes) if start % self.file_size == 0]

    def bytes_at(self, position: int, size: int) -> NDArray[np.uint8]:
        """Return uint8[size] at byte ``position`` of the queue; zeros where no file has any. Raises
        OutputError."""
        data = np.zeros(size, np.uint8)
        done = 0
        while done < size:
            start = (position + done) // self.file_size * self.file_size
            at = position + done - start
            part = data[done : done + self.file_size - at]
            if start in self.sizes:
                try:
                    with self.path(start).open("rb", buffering=0) as file:
                        os.preadv(file.fileno(), [part.data], at)
                except OSError as error:
                    raise fsops.output_error(error, "read", self.path(start)) from error
            done += len(part)
        return data

    def used_bytes(self, start: int) -> int:
        """Return the bytes of a file before the zeros at its end that the file system reports as a
        hole."""
        with self.path(start).open("rb", buffering=0) as file:
            return min(data_end(file.fileno()), self.file_size)

    def _file_path(self, start: int) -> str:
        """Return the path of a file below the output."""
        name = offset_to_file_name(start)
        return f"{self.directory_name}/{self.key.relative_path}/{name}"

    def _entry_at(self, position: int) -> int:  # noqa: ARG002
        """Return the number of the entry at a byte; 0 where bytes alone do not tell it."""
        return 0

    def _note(
        self,
        damage: Damage,
        position: int,
        physical_offset: int | None = None,
        *,
        entry: int | None = None,
        count: int = 0,
        found: tuple[int | str, ...] | None = None,
        expected: tuple[int | str, ...] | None = None,
    ) -> None:
        """Note damage at a byte of the queue; fields as in ``Difference``."""
        # a file that does not belong may start anywhere
        start = position if damage is Damage.FILE else position - position % self.file_size
        self._own.add(
            Difference(
                self.directory_name, damage, self._file_path(start), position - start,
                self.key.topic, self.key.queue_id,
                self._entry_at(position) if entry is None else entry,
                count, physical_offset, expected, found,
            )
        )  # fmt: skip

    def _note_missing(
        self, position: int, physical_offset: int | None = None, entry: int | None = None
    ) -> None:
        """Note once that the file of a byte is missing."""
        start = position - position % self.file_size
        if start not in self._missing:
            self._missing.add(start)
            size = (self.file_size,)
            self._note(Damage.MISSING, position, physical_offset, entry=entry, expected=size)

    def _note_files(self, belongs: Callable[[int], bool]) -> None:
        """Note the files that do not belong, asked for by their starts, and those of a wrong
        size."""
        for start, size in sorted(self.sizes.items()):
            if not belongs(start):
                self._strays.append(start)
                self._note(Damage.FILE, start, found=(size,))
            elif size != self.file_size:
                self._wrong_sizes.append(start)
                self._note(Damage.FILE_SIZE, start, found=(size,), expected=(self.file_size,))

    def _heal_files(self) -> None:
        """Remove the files that do not belong, and give others their size. Raises OutputError,
        SyncError."""
        for start in self._strays:
            fsops.unlink(self.path(start))
        if self._strays:
            fsops.sync_directory(self.directory)
        for start in self._wrong_sizes:
            fd = fsops.open_for_writing(self.path(start), self.file_size)
            try:
                fsops.truncate(fd, self.file_size, self.path(start))
                fsops.sync(fd, self.path(start))
            finally:
                os.close(fd)
