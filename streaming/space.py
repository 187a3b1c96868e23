"""Waiting for disk space: a run goes on by itself once a full disk has room again.

A full disk ends the query, whether the driver hit it with a queue or Spark with its checkpoint.
Everything durable stays, so the run repeats its start in the same process and session, and reads
and compares the positions anew. A trial write decides whether there is room, since quotas show
nowhere else.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from store import fsops
from store.errors import NoSpaceError
from streaming.measures import Measures

POLL_SECONDS = 0.5
FIRST_PAUSE_SECONDS = 0.5
LAST_PAUSE_SECONDS = 30.0
"""Longest pause between two starts: the little room that there is may not be enough for the next
write."""
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
                line = str(error)
            # this stands outside the clause, because the error's frames hold a batch, and the batch
            # its spool files
            with self._measures.waiting():
                self._wait(line)

    def progressed(self) -> None:
        """Record that something became durable."""
        self._failures = 0

    def is_there(self) -> bool:
        """Return whether each directory has some room."""
        return all(map(_has_space, self._directories))

    def _wait(self, line: str) -> None:
        began = time.monotonic()
        pause = min(FIRST_PAUSE_SECONDS * 2**self._failures, LAST_PAUSE_SECONDS)
        self._failures = min(self._failures + 1, 16)
        while not self._stop.is_set():
            now = time.monotonic()
            if now >= self._log_due:
                logger.error("waiting for space: %s", line)
                self._log_due = now + LOG_SECONDS
                self._began = self._began or began
            if now >= began + pause and self.is_there():
                if self._began is not None:
                    logger.info("space is back after %.0f s", now - self._began)
                    self._began = None
                return
            self._while_waiting()
            self._stop.wait(POLL_SECONDS)
        raise NoSpaceError(line)


def _has_space(directory: Path) -> bool:
    while not directory.is_dir() and directory != directory.parent:
        directory = directory.parent
    return fsops.has_space(directory)
