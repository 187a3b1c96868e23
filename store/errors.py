"""The error tree. Every leaf states in one line the problem, its place and the remedy.

A line names a setting as a program gives it, in backquotes and with its equals sign, such as
"(`broker_conf=`)" or "with `output=DIR`". The command line shows its own option in that place
(``cli.settingflags``).

ReputError
├── UsageError             the call is wrong: an option, a path, a value (exit code 2)
└── StoreError             the store or the machine refuses (exit code 1)
    ├── NotReadyError      what a broker or a mount brings is not there yet, or not whole
    ├── CommitLogError     the commitlog directory cannot be read as one
    │   └── CommitLogDataLossError   requested bytes are gone
    ├── CorruptRecordError a record is damaged and ``onCorrupt=fail``
    ├── QueueGapError      queue offsets jump and ``onQueueGap=fail``
    ├── QueueFileError     a consume queue file is not one that RocketMQ would have made
    ├── IndexFileError     an index file contradicts its settings
    ├── MessageBodyError   a message's body cannot be inflated or split
    ├── NotFoundError      the requested message or queue does not exist
    ├── RefusedMessageError  a message is not written, as RocketMQ would not write it
    ├── OwnershipError     another process writes here
    ├── BusyError          more waits to be written than is kept in memory
    └── OutputError        the output cannot be written
        ├── NoSpaceError   the disk is full: nothing advanced, a retry may succeed
        └── SyncError      fsync failed: pages may be lost, this run must end
"""

from __future__ import annotations

import errno
import re
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
PASSING_ERRORS = (errno.EADDRINUSE, errno.EADDRNOTAVAIL)
"""Numbers of errors of an address that another process, or an interface that is not up, causes: the
call is not wrong."""


class ReputError(Exception):
    """Base of every error that reput raises on purpose; ``str()`` is the line shown."""

    exit_code: ClassVar[int] = 1
    retriable: ClassVar[bool] = False
    """Whether the same call may be repeated, unchanged, by a program that nobody watches.

    That takes two things. What refused the call stands outside of it, and may pass: a directory is
    mounted, a disk gets room. And the failed call left nothing on which another one would build: a
    write that failed counts as not written. So it is false for a wrong call, for damage and loss,
    which stay, and for a failed fsync, after which only another process finds out what is durable.
    It is false for another owner, too: that one may end, but which of the two shall write is for a
    person to say.
    """

    details: ClassVar[tuple[str, ...]] = ()
    """Names of the attributes that say what it is about."""

    @property
    def fields(self) -> Mapping[str, object]:
        """Name -> value, for the error's JSON line: ``retriable``, and what is known of
        ``details``."""
        known = ((name, getattr(self, name)) for name in self.details)
        return {"retriable": self.retriable} | {n: value for n, value in known if value is not None}


class UsageError(ReputError):
    """The call is wrong; nothing was read or written."""

    exit_code = 2


class StoreError(ReputError):
    """Base of the errors in which the store or the machine refuses an operation.

    A line that names a place is raised with it: ``path`` is the file or directory, the others are
    places in the log, in a queue, and in its files, in bytes.
    """

    details: ClassVar[tuple[str, ...]] = ("path", "physical_offset", "queue_offset", "position")

    def __init__(
        self,
        line: str,
        *,
        path: str | Path | None = None,
        physical_offset: int | None = None,
        queue_offset: int | None = None,
        position: int | None = None,
    ) -> None:
        super().__init__(line)
        self.path = None if path is None else str(path)
        self.physical_offset = physical_offset
        self.queue_offset = queue_offset
        self.position = position


class NotReadyError(StoreError):
    """A directory or file that a broker, a mount or another command brings is missing or not whole;
    the same call may succeed later, and whatever follows a store waits for it."""

    retriable = True


class CommitLogError(StoreError):
    """The directory is not a readable commitlog; the message names the file."""


REST_OF_THE_LOG = (
    "set failOnDataLoss to false (`fail_on_data_loss=False`) to continue with the rest of the log"
)


class CommitLogDataLossError(CommitLogError):
    """Requested bytes are gone from the log (``COMMITLOG_DATA_LOSS.<case>``)."""

    details = ("case", *StoreError.details)

    def __init__(
        self,
        case: str,
        detail: str,
        remedy: str = REST_OF_THE_LOG,
        physical_offset: int | None = None,
    ) -> None:
        self.case = case
        line = f"COMMITLOG_DATA_LOSS.{case}: {detail}; {remedy}"
        super().__init__(line, physical_offset=physical_offset)


class CorruptRecordError(StoreError):
    """A range is damaged and the caller asked to stop there."""

    def __init__(self, path: str, physical_offset: int, end_physical_offset: int, reason: str):
        super().__init__(
            f"COMMITLOG_CORRUPT.{reason}: {path} at physical offset {physical_offset}, "
            f"{end_physical_offset - physical_offset} bytes are no record; to "
            "list the range and continue after it, set onCorrupt to quarantine "
            "(`DispatcherConfig.fail_on_corrupt=False`; `MessageStore.fail_on_data_loss=False`)",
            path=path,
            physical_offset=physical_offset,
        )


class QueueGapError(StoreError):
    """Queue offsets in the log jump, and the caller asked to stop there, at the ``physical_offset``
    of the message after the gap."""


class QueueFileError(StoreError):
    """A consume queue file has a name or size that its settings do not allow."""


class IndexFileError(StoreError):
    """An index file has a size that its settings do not allow."""


class MessageBodyError(StoreError):
    """A body does not inflate, or is not an inner batch although its message is marked as one."""


class NotFoundError(StoreError):
    """The requested message or queue does not exist."""


class RefusedMessageError(StoreError):
    """A message is not written: RocketMQ would refuse it, too."""

    details = ("code",)

    def __init__(self, code: int, line: str) -> None:
        """``code`` is that of RocketMQ's answer (``ResponseCode``)."""
        self.code = code
        super().__init__(line)


class OwnershipError(StoreError):
    """Another process owns the output."""


class BusyError(StoreError):
    """More waits to be written than is kept in memory; nothing of the call is."""

    retriable = True


class OutputError(StoreError):
    """A write to the output failed; what it would have written is not there."""

    retriable = True


class NoSpaceError(OutputError):
    """No space is left; nothing advanced."""


class SyncError(OutputError):
    """fsync failed: the kernel may have dropped pages, so only a restart finds the true state."""

    retriable = False


def error_text(error: Exception) -> str:
    """One line about any error: ours and the system's are whole sentences already."""
    return str(error) if isinstance(error, ReputError | OSError) else repr(error)


def library_text(error: BaseException) -> str:
    """One line about the error of a library, which may have several, and colours."""
    text = _COLOUR.sub("", str(error))
    printable = "".join(char if char.isprintable() else " " for char in text)
    return " ".join(printable.split()) or type(error).__name__
