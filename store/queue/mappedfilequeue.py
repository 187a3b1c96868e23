"""Files that together hold one range of bytes, for a consume queue or its ext.

Each is named by the offset of its first byte in 20 digits and has the same full length from
creation, with zeros where nothing was written. Source: RocketMQ 5.3.3 ``MappedFileQueue``;
formats.md §1.
"""

from __future__ import annotations

import errno
import os
import zlib
from collections.abc import Iterable
from pathlib import Path

from reput.store import fsops
from reput.store.errors import QueueFileError
from reput.store.files import BROKER_CONF_FILE, is_mapped_file_name, offset_to_file_name
from reput.store.queue.unsynced import UnsyncedFiles

_BYTES_PER_READ = 1 << 20


class MappedFileQueue:
    """One directory of such files; offsets are bytes, ends exclusive. Not thread-safe."""

    kind: str
    """For errors: the kind of file, the setting of its size, and where that is set."""
    setting: str
    place = BROKER_CONF_FILE

    def __init__(self, directory: Path, file_size: int) -> None:
        """``file_size`` in bytes. Raises QueueFileError for files of other sizes."""
        self.directory = directory
        self._directory_name = str(directory)
        self.file_size = file_size
        self.starts: list[int] = []
        """Byte offsets at which files start, ascending."""
        self.empty: list[Path] = []
        """Files without a byte: what is left where a process ends while it creates one."""
        self.refresh()

    def refresh(self) -> None:
        """List the files again; empty and foreign ones are left out."""
        self.starts, self.empty = [], []
        try:
            entries = sorted(os.scandir(self._directory_name), key=lambda entry: entry.name)
        except (FileNotFoundError, NotADirectoryError):
            return
        for entry in entries:
            if not is_mapped_file_name(entry.name) or not entry.is_file(follow_symlinks=False):
                continue
            size = entry.stat(follow_symlinks=False).st_size
            if size == 0:
                self.empty.append(Path(entry.path))
                continue
            if size != self.file_size:
                raise QueueFileError(
                    f"{self.kind} file {entry.path} has {size} bytes but {self.setting} is "
                    f"{self.file_size}; set it as the queue's writer did ({self.place}); where a "
                    "single queue is damaged, reput verify names the command that heals it",
                    path=entry.path,
                )
            self.starts.append(int(entry.name))

    def path(self, start: int) -> Path:
        """The file that starts at byte ``start``."""
        return Path(self._path_text(start))

    def _path_text(self, start: int) -> str:
        """``path`` as text for writes, because creating Paths was slow with many new queues."""
        return f"{self._directory_name}/{offset_to_file_name(start)}"

    def write_pieces(
        self, pieces: Iterable[tuple[int, bytes | memoryview]], root: Path, unsynced: UnsyncedFiles
    ) -> None:
        """Write (byte offset, data) pairs, none of which crosses a file's end.

        Directories are created below ``root``. Nothing is durable before the caller has synced
        ``unsynced``, which also knows the new names of a call that failed. Raises OutputError.
        """
        for offset, data in pieces:
            self.write_piece(offset, data, root, unsynced)

    def write_piece(
        self, offset: int, data: bytes | memoryview, root: Path, unsynced: UnsyncedFiles
    ) -> None:
        """Write one piece (``write_pieces``)."""
        start = offset - offset % self.file_size
        new = start not in self.starts
        if new:
            unsynced.add_names(fsops.create_directories(self.directory, root))
            unsynced.add_names([self.directory])
        unsynced.write(self._path_text(start), self.file_size, data, offset - start)
        if new:
            self.starts = sorted({*self.starts, start})

    def remove_all(self) -> None:
        """Remove every file, oldest first, each durably before the next one: what a power cut
        leaves has no hole."""
        for path in [*self.empty, *map(self.path, self.starts)]:
            fsops.unlink(path)
            fsops.sync_directory(self.directory)
        self.starts, self.empty = [], []

    def clear_from(self, end: int) -> None:
        """Cut durably at byte ``end``: later files and empty ones are removed, later bytes
        zeroed."""
        kept = [start for start in self.starts if start < end]
        gone = [*self.empty, *map(self.path, self.starts[len(kept) :])]
        if gone:
            for path in gone:
                fsops.unlink(path)
            self.starts, self.empty = kept, []
            fsops.sync_directory(self.directory)
        if not kept or end >= kept[-1] + self.file_size:
            return
        path, position = self.path(kept[-1]), end - kept[-1]
        fd = fsops.open_for_writing(path)
        try:
            used = used_end(fd, position)
            if used > position:
                fsops.pwrite(fd, bytes(used - position), position, path)
                fsops.sync(fd, path)
        finally:
            os.close(fd)


def data_end(fd: int) -> int:
    """End of the last data of a sparse file."""
    end = 0
    while True:
        try:
            end = os.lseek(fd, os.lseek(fd, end, os.SEEK_DATA), os.SEEK_HOLE)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return end
            raise


def crc32_of(fd: int, start: int, end: int) -> int:
    """CRC-32 of an open file's bytes [start, end), or of those before its end. Raises OSError."""
    crc = 0
    while start < end and (data := os.pread(fd, min(_BYTES_PER_READ, end - start), start)):
        crc, start = zlib.crc32(data, crc), start + len(data)
    return crc


def used_end(fd: int, position: int = 0) -> int:
    """Byte after the last nonzero one from ``position`` on; ``position`` without one.

    Holes are not read, because a new file mostly consists of one.
    """
    used = position
    while True:
        try:
            start = os.lseek(fd, position, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            return used
        position = os.lseek(fd, start, os.SEEK_HOLE)
        data = os.pread(fd, position - start, start).rstrip(b"\0")
        used = start + len(data) if data else used
