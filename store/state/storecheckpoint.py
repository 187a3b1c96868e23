"""RocketMQ's ``checkpoint`` file (``StoreCheckpoint``, formats.md §9): six longs in one page.

OFFSET  SIZE  FIELD
     0     8  physicMsgTimestamp, ms
     8     8  logicsMsgTimestamp, ms
    16     8  indexMsgTimestamp, ms: endTimestamp of the index file that was filled last, not of the
              newest one
    24     8  masterFlushedOffset
    32     8  confirmPhyOffset: start of the last valid record
    40     8  logicsPhysicalOffset, since 5.5.0: start of the last message whose unit is in a
              flushed queue; 0 where nobody keeps it
The rest of the 4096 bytes is zero. 4.x writes the first three fields, 5.0.0 and 5.1.0 the first
four, up to 5.4.0 five (formats.md §12). RocketMQ maps the whole page over a file that is shorter.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable
from dataclasses import astuple, dataclass, replace
from pathlib import Path

from reput.store import fsops
from reput.store.config import StoreSettings
from reput.store.files import STORE_CHECKPOINT_FILE
from reput.store.log.commitlog import CommitLog
from reput.store.log.record import Record

FILE_SIZE = 4096
_FIELDS = struct.Struct(">qqqqqq")
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
    logics_physical_offset: int = 0
    """Start of a record before which every message is in the queues, durably: a 5.5 broker that
    recovers from a crash dispatches from here on."""

    @classmethod
    def read(cls, root: Path) -> StoreCheckpoint | None:
        """The checkpoint of a store; fields beyond a short file's end are 0. None without one.
        Raises OSError."""
        try:
            data = (root / STORE_CHECKPOINT_FILE).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        return cls(*_FIELDS.unpack_from(data.ljust(_FIELDS.size, b"\0")))

    def encode(self) -> bytes:
        """Encode the whole file."""
        return _FIELDS.pack(*astuple(self)).ljust(FILE_SIZE, b"\0")

    def write(self, root: Path) -> None:
        """Write in place, as RocketMQ does, and sync. Raises OutputError."""
        path = root / STORE_CHECKPOINT_FILE
        new = not path.exists()
        fd = fsops.open_for_writing(path, FILE_SIZE)
        try:
            fsops.pwrite(fd, self.encode()[:USED_SIZE], 0, path)
            fsops.sync(fd, path)
        finally:
            os.close(fd)
        if new:
            fsops.sync_directory(root)


def keeps_logics_physical_offset(settings: StoreSettings, roots: Iterable[Path]) -> bool:
    """Whether an output is for RocketMQ 5.5, whose checkpoint has a logicsPhysicalOffset: its index
    has tags, its property file asks for the recovery by it, or one of ``roots`` has one."""
    if settings.index_tags or settings.enable_accelerated_recovery:
        return True
    checkpoints = map(StoreCheckpoint.read, roots)
    return any(
        checkpoint is not None and checkpoint.logics_physical_offset > 0
        for checkpoint in checkpoints
    )


def lower_logics_physical_offset(root: Path, end_offset: int) -> None:
    """Have a checkpoint claim no message from ``end_offset`` on, which is a record's start, before
    its unit goes. Raises OutputError."""
    checkpoint = StoreCheckpoint.read(root)
    if checkpoint is not None and checkpoint.logics_physical_offset > end_offset:
        replace(checkpoint, logics_physical_offset=end_offset).write(root)


def may_start_record(log: CommitLog, offset: int) -> bool:
    """Whether a record starts at ``offset``, as one must at a logicsPhysicalOffset; what the log
    has lost counts as one."""
    return offset < log.min_offset or isinstance(log.record_starting_at(offset), Record)
