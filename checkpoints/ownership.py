"""One writer per output: a file lock that ends with its holder, and RocketMQ's own store lock."""

from __future__ import annotations

import json
import os
import platform
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

from filelock import FileLock, Timeout

from checkpoints import STATE_DIRECTORY
from store import fsops, jsontext
from store.datadirectories import check_target
from store.errors import OwnershipError
from store.state.brokerlock import BrokerLock

LOCK_NAME = "owner.lock"
OWNER_NAME = "owner.json"


class Ownership:
    """Holds an output for the length of a ``with`` block."""

    def __init__(self, output: Path) -> None:
        self.output = output
        self.directory = output / STATE_DIRECTORY
        self._held = ExitStack()

    def __enter__(self) -> Ownership:
        """Take the output. Raises OwnershipError naming the owner, OutputError for a read-only
        output, and UsageError for a directory in which a store has its data."""
        check_target(self.output)
        fsops.make_directories(self.directory, self.output)
        try:
            lock = self._held.enter_context(FileLock(self.directory / LOCK_NAME, timeout=0))
        except Timeout as error:
            raise OwnershipError(
                f"{self.output} is written by another dispatcher ({self._owner()}); "
                "stop it first, or write elsewhere with --output DIR"
            ) from error
        except OSError as error:
            raise fsops.output_error(error, "lock", self.directory / LOCK_NAME) from error
        try:
            self._held.enter_context(BrokerLock(self.output))
            fsops.replace_file(self.directory / OWNER_NAME, _about_us())
        except BaseException:
            lock.release()
            self._held.close()
            raise
        return self

    def __exit__(self, *_error: object) -> None:
        self._held.close()

    def _owner(self) -> str:
        try:
            owner = jsontext.parse((self.directory / OWNER_NAME).read_text("utf-8"))
            return f"process {owner['pid']} on {owner['host']}, started {owner['started']}"
        except (OSError, ValueError, KeyError, TypeError):
            return "unknown process"


def _about_us() -> bytes:
    owner = {
        "pid": os.getpid(),
        "host": platform.node(),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    return json.dumps(owner).encode()
