"""The log of dm-log-writes: every write to the disk in the order in which it became durable
(Linux, drivers/md/dm-log-writes.c)."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SECTOR = 512
_MAGIC = 0x6A736677736872
_SUPER = struct.Struct("<QQQL")
_ENTRY = struct.Struct("<QQQQ")
FLUSH, FUA, DISCARD, MARK = 1, 2, 4, 8


@dataclass(frozen=True, slots=True)
class Write:
    """One entry of the log."""

    sector: int
    flags: int
    data: bytes
    """The bytes written, or the text of a mark."""

    @property
    def is_barrier(self) -> bool:
        """Whether all earlier writes were durable when this one had ended."""
        return bool(self.flags & (FLUSH | FUA))

    @property
    def is_mark(self) -> bool:
        """Whether the entry is a mark and no write."""
        return bool(self.flags & MARK)

    def apply(self, disk: int) -> None:
        """Apply the write to an open disk; a discard changes nothing, which a disk may do."""
        if self.data and not self.flags & (DISCARD | MARK):
            os.pwrite(disk, self.data, self.sector * SECTOR)


def read_writes(path: Path) -> Iterator[Write]:
    """Yield every entry of a log whose device has been removed, in order. Raises ValueError."""
    with path.open("rb") as file:
        magic, version, entries, sector_size = _SUPER.unpack(file.read(_SUPER.size))
        if magic != _MAGIC or version != 1:
            raise ValueError(f"{path} holds no log of writes: {magic:#x}, version {version}")
        at = sector_size
        for _ in range(entries):
            file.seek(at)
            sector, sectors, flags, length = _ENTRY.unpack(file.read(_ENTRY.size))
            at += sector_size
            if flags & MARK:
                data = file.read(length)
            elif flags & DISCARD:
                data = b""
            else:
                file.seek(at)
                # both counts are of the log's own sectors
                data = file.read(sectors * sector_size)
                at += sectors * sector_size
            yield Write(sector * sector_size // SECTOR, flags, data)
