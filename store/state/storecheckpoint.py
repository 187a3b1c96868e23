"""RocketMQ's ``checkpoint`` file (``StoreCheckpoint``, formats.md §9): five longs in one page.

OFFSET  SIZE  FIELD
     0     8  physicMsgTimestamp, ms
     8     8  logicsMsgTimestamp, ms
    16     8  indexMsgTimestamp, ms
    24     8  masterFlushedOffset
    32     8  confirmPhyOffset
The rest of the 4096 bytes is zero. 4.x writes the first three fields, 5.0.0 and 5.1.0 the first
four (formats.md §12). RocketMQ maps the whole page over a file that is shorter.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from pathlib import Path

from store import fsops

FILE_NAME = "checkpoint"
FILE_SIZE = 4096
_FIELDS = struct.Struct(">qqqqq")
USED_SIZE = _FIELDS.size
"""Bytes of the fields."""


@dataclass(frozen=True, slots=True)
class StoreCheckpoint:
    """Times are storeTimestamps in ms, offsets are positions in the log."""

    physic_msg_timestamp: int = 0
    logics_msg_timestamp: int = 0
    index_msg_timestamp: int = 0
    master_flushed_offset: int = 0
    confirm_phy_offset: int = 0

    @classmethod
    def read(cls, root: Path) -> StoreCheckpoint | None:
        """The checkpoint of a store; fields past a short file's end are 0. None without one."""
        try:
            data = (root / FILE_NAME).read_bytes()
        except OSError:
            return None
        return cls(*_FIELDS.unpack_from(data.ljust(_FIELDS.size, b"\0")))

    def encode(self) -> bytes:
        """Encode the whole file."""
        return _FIELDS.pack(
            self.physic_msg_timestamp,
            self.logics_msg_timestamp,
            self.index_msg_timestamp,
            self.master_flushed_offset,
            self.confirm_phy_offset,
        ).ljust(FILE_SIZE, b"\0")

    def write(self, root: Path) -> None:
        """Write in place, as RocketMQ does, and sync. Raises OutputError."""
        path = root / FILE_NAME
        fd = fsops.open_for_writing(path, FILE_SIZE)
        try:
            fsops.pwrite(fd, self.encode()[:USED_SIZE], 0, path)
            fsops.sync(fd, path)
        finally:
            os.close(fd)
