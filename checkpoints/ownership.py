"""One writer per output: locks that end with their holder, and RocketMQ's own store lock.

The file lock works on every file system that has locks. People remove lock files, to start beside a
process that stands still, so the state directory itself is locked too (decision 0004).
"""

from __future__ import annotations

import json
import os
import platform
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from reput.store import fsops, jsontext
from reput.store.brokerlock import BrokerLock, broker_pid, held_by
from reput.store.datadirectories import check_target
from reput.store.errors import OwnershipError
from reput.store.filelocks import lock_directory
from reput.store.files import (
    ABORT_FILE,
    BROKER_LOCK_FILE,
    OWNER_FILE,
    OWNER_LOCK_FILE,
    STATE_DIRECTORY,
)


def is_owner(output: Path) -> bool | None:
    """Whether this process is the owner that the output names; None where that cannot be read."""
    try:
        owner = _owner(output)
        return (owner["pid"], owner["host"]) == (os.getpid(), platform.node())
    except (OSError, ValueError, KeyError, TypeError):
        return None


def unstopped_run(output: Path) -> str | None:
    """A line about a run of this output that was killed or failed: its ``abort`` file remains, and
    nobody holds the output; None otherwise."""
    abort = output / STATE_DIRECTORY / ABORT_FILE
    if not abort.exists() or broker_pid(output) is not None or is_owner(output):
        return None
    if not abort.exists():
        return None  # it ended between the two looks
    return (
        f"the run of {output} ended without stopping, the last writer was {_owner_text(output)}; "
        "start reput run again"
    )


def check_is_free(output: Path) -> None:
    """Raise OwnershipError where another process writes an output, as ``Ownership`` does; nothing
    is taken."""
    pid = broker_pid(output)
    if pid is None:
        return
    owned = Ownership(output)
    raise owned.refusal() if owned.is_owned_by(pid) else held_by(pid, output / BROKER_LOCK_FILE)


class Ownership:
    """Holds an output for the length of a ``with`` block."""

    def __init__(self, output: Path) -> None:
        self.output = output
        self.directory = output / STATE_DIRECTORY
        self._locks = ExitStack()

    def __enter__(self) -> Ownership:
        """Take the output. Raises OwnershipError naming the owner, OutputError for a read-only
        output, and UsageError for a directory in which a store has its data."""
        check_target(self.output)
        fsops.make_directories(self.directory, self.output)
        with ExitStack() as locks:
            directory = lock_directory(self.directory)
            if directory is None:
                raise self.refusal()
            locks.enter_context(directory)
            try:
                locks.enter_context(FileLock(self.directory / OWNER_LOCK_FILE, timeout=0))
            except Timeout as error:
                raise self.refusal() from error
            except OSError as error:
                raise fsops.output_error(error, "lock", self.directory / OWNER_LOCK_FILE) from error
            locks.enter_context(BrokerLock(self.output))
            fsops.replace_file(self.directory / OWNER_FILE, _about_us())
            self._locks = locks.pop_all()
        return self

    def __exit__(self, *_error: object) -> None:
        self._locks.close()

    def is_owned_by(self, pid: int) -> bool:
        """Return whether the output names a process as its owner."""
        try:
            return bool(_owner(self.output)["pid"] == pid)
        except (OSError, ValueError, KeyError, TypeError):
            return False

    def refusal(self) -> OwnershipError:
        """Return the error that names the owner."""
        return OwnershipError(
            f"{self.output} is written by another dispatcher ({_owner_text(self.output)}); "
            "stop it first, or write elsewhere with `output=DIR`",
            path=self.output,
        )


def _owner_text(output: Path) -> str:
    try:
        owner = _owner(output)
        return f"process {owner['pid']} on {owner['host']}, started {owner['started']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "unknown process"


def _owner(output: Path) -> Any:
    return jsontext.parse((output / STATE_DIRECTORY / OWNER_FILE).read_text("utf-8"))


def _about_us() -> bytes:
    owner = {
        "pid": os.getpid(),
        "host": platform.node(),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    return json.dumps(owner).encode()
