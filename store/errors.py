"""The error tree. Every leaf says what is wrong, where, and what to do, in one line.

ReputError
├── UsageError             the call is wrong: an option, a path, a value (exit code 2)
└── StoreError             the store or the machine says no (exit code 1)
    ├── CommitLogError     the commitlog directory cannot be read as one
    │   └── CommitLogDataLossError   bytes that were asked for are gone
    ├── CorruptRecordError a record is damaged and ``onCorrupt=fail``
    ├── QueueGapError      queue offsets jump and ``onQueueGap=fail``
    ├── QueueFileError     a consume queue file is not what RocketMQ would have made
    ├── IndexFileError     an index file is not what its settings say
    ├── MessageBodyError   a message's body cannot be made plain
    ├── NotFoundError      what was asked for is not there
    ├── OwnershipError     somebody else writes here
    └── OutputError        the output cannot be written
        ├── NoSpaceError   the disk is full: nothing advanced, a retry may succeed
        └── SyncError      fsync failed: pages may be lost, this process must end
"""

from __future__ import annotations


class ReputError(Exception):
    """Base of every error that reput raises on purpose; ``str()`` is the line shown."""

    exit_code = 1


class UsageError(ReputError):
    """The call is wrong; nothing was read or written."""

    exit_code = 2


class StoreError(ReputError):
    """Base of what the store or the machine refuses."""


class CommitLogError(StoreError):
    """The directory is no commitlog that we can read: the message names the file."""


class CommitLogDataLossError(CommitLogError):
    """Bytes that were asked for are gone from the log (``COMMITLOG_DATA_LOSS.<case>``)."""

    def __init__(self, case: str, detail: str) -> None:
        self.case = case
        super().__init__(
            f"COMMITLOG_DATA_LOSS.{case}: {detail}; "
            "set failOnDataLoss to false to go on with what is there"
        )


class CorruptRecordError(StoreError):
    """Damaged bytes were met and the caller asked to stop there."""

    def __init__(self, path: str, physical_offset: int, end_physical_offset: int, reason: str):
        self.physical_offset = physical_offset
        super().__init__(
            f"COMMITLOG_CORRUPT.{reason}: {path} at physical offset {physical_offset}, "
            f"{end_physical_offset - physical_offset} bytes are no record; "
            "set onCorrupt (run: --on-corrupt) to quarantine to list the range and go on behind it"
        )


class QueueGapError(StoreError):
    """Queue offsets in the log jump, and the caller asked to stop there."""


class QueueFileError(StoreError):
    """A consume queue file has a name or size that its settings do not allow."""


class IndexFileError(StoreError):
    """An index file has a size that its settings do not allow."""


class MessageBodyError(StoreError):
    """A body does not inflate, or is no inner batch: its message names itself as one."""


class NotFoundError(StoreError):
    """There is no such message, or no such queue."""


class OwnershipError(StoreError):
    """Another process owns what we were asked to write."""


class OutputError(StoreError):
    """A write to the output failed."""


class NoSpaceError(OutputError):
    """No space is left; nothing advanced, the same write may be tried again."""


class SyncError(OutputError):
    """fsync failed: the kernel may have dropped pages, so only a restart re-derives the truth."""
