"""Follows the end of a live log at a low price: spaces small batches, and scans them on the driver.

A batch of a live tail holds little, and almost all of its CPU time is Spark's own, per batch. So
batches are spaced as far as the wanted latency allows: with entries that arrive evenly, a batch
every P seconds that readers see D seconds after its pause gives a median latency of P/2 + D. D is
measured. And a small range is scanned here, as a task would scan it, because Spark's job for it
takes half of a batch's CPU time (docs/decisions/0013-tail-on-the-driver.md).

Spark still plans every batch: its file of offsets, which it writes before it calls foreachBatch,
says where the batch ends and when it was planned.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections import deque
from dataclasses import dataclass

from reput.checkpoints.spark_checkpoint import DamagedCheckpointError, read_planned
from reput.sources.livesettings import LiveSettings
from reput.store.files import SPARK_OFFSETS_DIRECTORY
from reput.store.log.commitlog import CommitLog
from reput.store.runs.dispatch import DispatchBatch
from reput.streaming.config import DispatcherConfig
from reput.streaming.indexes import Indexes

SCANNED_HERE_BYTES = 8 << 20
"""The largest range that is scanned on the driver: the kernels take 5 to 10 ms for it."""
BACKLOG_SHARE = 4
"""A batch of at least the limit's fourth part may have been limited: the source makes no smaller
one of a backlog (``sources.offsets.limited_end``)."""
MEASURED_BATCHES = 9
AIMED_SHARE = 0.95
"""The share of the wanted latency that is aimed at, since some leads take longer than the least."""


@dataclass(frozen=True, slots=True)
class Planned:
    """A batch as Spark has planned it."""

    end: int
    """Physical offset, exclusive."""
    at: float
    """The time of planning, in seconds since the epoch: what is appended later is not in it."""


def is_small(start: int, end: int) -> bool:
    """Return whether [start, end) is scanned on the driver."""
    return 0 < end - start <= SCANNED_HERE_BYTES


class Tail:
    """Spaces and scans the batches of one query that follows a log."""

    def __init__(
        self, config: DispatcherConfig, indexes: Indexes, log: CommitLog, store_id: str
    ) -> None:
        self._offsets = config.spark_directory / SPARK_OFFSETS_DIRECTORY
        self._store_id = store_id
        self._indexes = indexes
        self._log = log
        self._live = LiveSettings(indexes.settings, config.broker_conf, indexes.batch_topics)
        self._backlog_bytes = config.max_bytes_per_trigger // BACKLOG_SHARE
        self._latency = AIMED_SHARE * config.latency_ms / 1000
        self._durations: deque[float] = deque(maxlen=MEASURED_BATCHES)
        """Times from plan to visible."""
        self._leads: deque[float] = deque(maxlen=MEASURED_BATCHES)
        """Times from the end of a pause to the next plan."""
        self._resumed: float | None = None

    def planned(self, batch_id: int) -> Planned | None:
        """Return what Spark has planned for the batch of which it calls foreachBatch; None where
        its file of offsets does not tell."""
        try:
            end, at_ms = read_planned(self._offsets / str(batch_id), self._store_id)
        except (DamagedCheckpointError, OSError):
            return None
        if at_ms is None:
            return None
        planned = Planned(end, at_ms / 1000)
        if self._resumed is not None:
            self._leads.append(max(0.0, planned.at - self._resumed))
        return planned

    def scan(self, start: int, end: int) -> DispatchBatch | None:
        """Scan [start, end), a small range, here; None where Spark's tasks have to."""
        self._log.refresh()
        return self._indexes.scan(self._log, start, end, self._live.poll())

    def note_visible(self, planned: Planned) -> None:
        """Measure a batch, when readers see it."""
        self._durations.append(max(0.0, time.time() - planned.at))

    def pause(self, planned: Planned, size: int, stopping: threading.Event) -> None:
        """Wait until the next batch is due or the run is stopping; a backlog is due at once."""
        is_backlog = 0 < self._backlog_bytes <= size
        if self._durations and not is_backlog:
            # the least one, since Spark may have waited for data after the others
            lead = min(self._leads, default=0.0)
            period = 2 * (self._latency - lead - statistics.median(tuple(self._durations)))
            # the clock may have been set back
            stopping.wait(max(0.0, min(planned.at + period - lead - time.time(), period)))
        self._resumed = time.time()
