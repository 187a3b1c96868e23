"""The measures of a run for its metrics: how long its stages take, and its waits for space.

The run's threads write, any thread may read, and no lock is taken: a reader may find a duration
that is not in every sum yet.
"""

from __future__ import annotations

import bisect
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    # a commit, which measures, needs no Spark, and the command line nothing that is heavy
    from pyspark.sql.streaming.listener import StreamingQueryProgress

    from streaming.progress import Progress

APPEND_TO_DURABLE_BOUNDS = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 3600.0)
_CAPITAL = re.compile("([A-Z])")


class Durations:
    """Durations in seconds: their number, their sum, and how many are up to each bound."""

    def __init__(self, bounds: Sequence[float] = ()) -> None:
        self.bounds = bounds
        self.sum = 0.0
        self._counts = [0] * (len(bounds) + 1)

    def add(self, seconds: float) -> None:
        """Count a duration; one below 0, which clocks that differ give, is 0."""
        seconds = max(0.0, seconds)
        self._counts[bisect.bisect_left(self.bounds, seconds)] += 1
        self.sum += seconds

    @property
    def cumulative(self) -> tuple[int, ...]:
        """The number of durations up to each bound, and the number of all."""
        return tuple(accumulate(self._counts))

    @contextmanager
    def measured(self) -> Iterator[None]:
        """Count how long a ``with`` block takes, also where it raises."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.add(time.monotonic() - began)


@dataclass(slots=True)
class Measures:
    """The measures of one run."""

    progress: Progress | None = None
    """The run's progress; None before its first positions are known."""
    queries: int = 0
    """Number of queries that were begun: 1, and one more after each wait for space."""
    stages: dict[str, Durations] = field(default_factory=dict)
    """Stage of a batch -> its durations."""
    append_to_durable: Durations = field(
        default_factory=lambda: Durations(APPEND_TO_DURABLE_BOUNDS)
    )
    """For each batch, the time from the store timestamp of its last message to its watermark."""
    space_waits: Durations = field(default_factory=Durations)
    """Waits for space that have ended."""
    is_waiting: bool = False
    """The run waits for space."""
    is_failing: bool = False
    """The run has failed, and waits to be started again (``streaming.supervisor``)."""
    _sampled: str | None = None

    def stage(self, name: str) -> Durations:
        """Return the durations of a stage."""
        return self.stages.setdefault(name, Durations())

    def note_durable(self, last_store_timestamp_ms: int) -> None:
        """Count a batch that has just become durable; 0 for one without messages."""
        if last_store_timestamp_ms:
            self.append_to_durable.add(time.time() - last_store_timestamp_ms / 1000)

    def sample(self, progress: StreamingQueryProgress) -> None:
        """Count Spark's durations of its last batch once. Of batches that follow each other faster
        than this is called a part is counted."""
        durations = progress.durationMs
        if "addBatch" in durations and progress.timestamp != self._sampled:
            self._sampled = progress.timestamp
            for name, milliseconds in durations.items():
                stage = "spark_" + _CAPITAL.sub(r"_\1", name).lower()
                self.stage(stage).add(milliseconds / 1000)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Count a ``with`` block as one wait for space."""
        self.is_waiting = True
        try:
            with self.space_waits.measured():
                yield
        finally:
            self.is_waiting = False
