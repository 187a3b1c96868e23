"""Mapped files as they are, sizes and names included; nothing is rejected and nothing is written.

A writer refuses a file of a wrong length, but a verifier must name every fault. Only
``heal_files``, which a repair calls, changes files.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from reput.store import fsops
from reput.store.log.commitlog import is_mapped_file_name
from reput.store.queue.mappedfilequeue import MappedFileQueue, data_end


class FilesAsFound(MappedFileQueue):
    """The files of one queue, or of its ext, whatever their sizes."""

    sizes: dict[int, int]
    """Bytes of each file, by its start."""

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

    def heal_files(self, strays: Iterable[int], wrong_sizes: Iterable[int]) -> None:
        """Remove files, and give others their size. Raises OutputError, SyncError."""
        for start in strays:
            fsops.unlink(self.path(start))
        for start in wrong_sizes:
            fd = fsops.open_for_writing(self.path(start), self.file_size)
            try:
                fsops.truncate(fd, self.file_size, self.path(start))
                fsops.sync(fd, self.path(start))
            finally:
                os.close(fd)
