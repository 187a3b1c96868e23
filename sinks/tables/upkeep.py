"""Upkeep of tables: small files become large ones, and what no reader needs any more goes."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from reput.store.errors import SyncError

TARGET_FILE_BYTES = 128 << 20
"""Size of files of a new table; those of at least three quarters of it are not compacted."""

logger = logging.getLogger("reput")


@dataclass(frozen=True, slots=True)
class Compaction:
    """Files that were replaced, and those in their place."""

    replaced_files: int = 0
    replaced_bytes: int = 0
    new_files: int = 0
    new_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Expiry:
    """Removed history of a table: its versions, and files that only they had."""

    versions: int = 0
    files: int = 0


class TableUpkeep(Protocol):
    """The upkeep of one table in its format. It may run beside the table's writers: where one of
    them is faster, it looks again. Its calls raise the errors of the format's library, or a
    ReputError; the table is then as readers know it, with files beside it that are removed later.
    """

    def compact(self, target_bytes: int | None = None) -> Compaction:
        """Join small files up to a size, or up to that of the table's properties. Raises UsageError
        where there is no table that has our form."""
        ...

    def expire(self) -> Expiry:
        """Remove history and files that are not needed any more, broken-off writes included. Raises
        UsageError where there is no table."""
        ...


class RegularUpkeep:
    """The upkeep of a follower's table, after a write and at an interval. Rows wait meanwhile."""

    def __init__(self, table: TableUpkeep, name: str, interval_seconds: float) -> None:
        """``name`` is the follower's, for log lines."""
        self._table = table
        self._name = name
        self._interval = interval_seconds
        self._due = time.monotonic() + interval_seconds

    def run_if_due(self) -> None:
        """Compact and expire. What fails is logged and tried again after the next interval, since
        the rows are there; raises SyncError, which ends all writes to a local table."""
        if time.monotonic() < self._due:
            return
        with self._failures_logged("compaction"):
            done = self._table.compact()
            logger.info(
                "follower %s: %d files compacted to %d",
                self._name, done.replaced_files, done.new_files,
            )  # fmt: skip
        # also of a table that cannot be compacted, which grows all the more
        with self._failures_logged("expiry"):
            gone = self._table.expire()
            logger.info(
                "follower %s: %d old versions and %d files removed",
                self._name, gone.versions, gone.files,
            )  # fmt: skip
        self._due = time.monotonic() + self._interval

    @contextmanager
    def _failures_logged(self, act: str) -> Iterator[None]:
        try:
            yield
        except SyncError:
            raise
        except Exception as error:
            logger.warning(
                "follower %s: %s failed, and is tried again in %d s: %s",
                self._name, act, self._interval, error,
            )  # fmt: skip
