"""Waiting for disk space: a run goes on by itself once a full disk has room again.

A full disk ends the query, whether the driver hit it with a queue or Spark with its checkpoint.
Everything durable stays, so the run repeats its start in the same process and session, and reads
and compares the positions anew. A trial write decides whether there is room, since quotas show
nowhere else. The little that a nearly full disk has left was not enough for the batch that failed:
it is tried again when there is more, and after the longest pause, since not all of it shows.
"""

from __future__ import annotations

import logging
import operator
import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from reput.store import fsops
from reput.store.errors import NoSpaceError
from reput.streaming.measures import Measures

POLL_SECONDS = 0.5
FIRST_PAUSE_SECONDS = 0.5
LAST_PAUSE_SECONDS = 30.0
"""Longest pause between two starts: the little room that there is may not be enough for the next
write."""
ENOUGH_BYTES = 512 << 20
"""Free bytes that no batch needs."""
LOG_SECONDS = 30.0
"""Least time between two lines of a wait, or of several waits in a row."""

_Result = TypeVar("_Result")
logger = logging.getLogger("reput")


class SpaceWait:
    """The waits of one run."""

    def __init__(
        self,
        directories: Sequence[Path],
        stop: threading.Event,
        while_waiting: Callable[[], None] = lambda: None,
        measures: Measures | None = None,
    ) -> None:
        """``directories`` must have room, whether they exist yet or not; ``stop`` ends a wait;
        ``while_waiting`` is called several times a second."""
        self._directories = directories
        self._stop = stop
        self._while_waiting = while_waiting
        self._measures = measures or Measures()
        self._failures = 0
        self._began: float | None = None
        """Start of the wait that was logged and whose end was not."""
        self._log_due = 0.0

    def retry(self, work: Callable[[], _Result]) -> _Result:
        """Repeat ``work`` until it finds room; raises its NoSpaceError where the run is stopped
        before. ``work`` calls ``progressed`` when another try needs no pause."""
        while True:
            try:
                return work()
            except NoSpaceError as error:
                line, path = str(error), error.path
            # this stands outside the clause, because the error's frames hold a batch, and the batch
            # its spool files
            with self._measures.waiting():
                self._wait(line, path)

    def progressed(self) -> None:
        """Record that something became durable."""
        self._failures = 0

    def is_there(self) -> bool:
        """Return whether each directory has some room."""
        return all(map(_has_space, self._directories))

    def _free(self) -> list[int]:
        """The bytes that each directory's file system has left."""
        file_systems = [os.statvfs(_existing(directory)) for directory in self._directories]
        return [file_system.f_bavail * file_system.f_frsize for file_system in file_systems]

    def _wait(self, line: str, path: str | None) -> None:
        began = time.monotonic()
        is_full, free = False, self._free()
        pause = min(FIRST_PAUSE_SECONDS * 2**self._failures, LAST_PAUSE_SECONDS)
        self._failures = min(self._failures + 1, 16)
        while not self._stop.is_set():
            now = time.monotonic()
            if now >= self._log_due:
                logger.error("waiting for space: %s", line)
                self._log_due = now + LOG_SECONDS
                self._began = self._began or began
            if now >= began + pause:
                is_there = self.is_there()
                # where there is much room, something else was full
                has_more = is_full or min(free) >= ENOUGH_BYTES
                has_more = has_more or any(map(operator.gt, self._free(), free))
                if is_there and has_more:
                    if self._began is not None:
                        logger.info("space is back after %.0f s", now - self._began)
                        self._began = None
                    return
                if is_there and now >= began + LAST_PAUSE_SECONDS:
                    return
                is_full = is_full or not is_there
            self._while_waiting()
            self._stop.wait(POLL_SECONDS)
        raise NoSpaceError(line, path=path)


def _has_space(directory: Path) -> bool:
    return fsops.has_space(_existing(directory))


def _existing(directory: Path) -> Path:
    while not directory.is_dir() and directory != directory.parent:
        directory = directory.parent
    return directory
