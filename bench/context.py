"""The context of every measure: sizes, a place for its data, and the output for progress."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

FULL_GIB = 8.0
FULL_LIVE_SECONDS = 300
FULL_IDLE_SECONDS = 60
FULL_QUIET_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Context:
    """One run of the suite: its sizes, the wanted rows, and where its data goes."""

    data: Path
    """A directory of this run, removed at its end."""
    row_names: frozenset[str]
    """Names of the rows to measure."""
    gib: float = FULL_GIB
    """Size in GiB of the logs that are caught up with; the other logs' sizes follow from it."""
    rounds: int = 3
    live_seconds: int = FULL_LIVE_SECONDS
    """Seconds for which a live log is followed."""
    idle_seconds: int = FULL_IDLE_SECONDS
    quiet_seconds: float = FULL_QUIET_SECONDS
    """Seconds without a message before each of those that come alone."""
    started: float = 0.0
    """Start of the run, by ``time.monotonic``."""

    def say(self, text: str) -> None:
        """Print progress, with the time since the start."""
        print(f"[{time.monotonic() - self.started:6.0f} s] {text}", flush=True)

    def judged(self, met: bool) -> bool | None:
        """Return ``met``, if the logs have the size for which the goals are set."""
        return met if self.gib >= FULL_GIB else None

    @contextmanager
    def directory(self, name: str) -> Iterator[Path]:
        """Make a fresh directory below ``data`` for the block."""
        path = self.data / name
        path.mkdir(parents=True)
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)
