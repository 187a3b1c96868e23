"""The measures of a run for its metrics: how long its stages take, and its waits for space.

The run's threads write, any thread may read, and no lock is taken: a reader may find a duration
that is not in every sum yet.
"""

from __future__ import annotations

import bisect
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    # the command line needs nothing that is heavy
    from reput.store.runs.dispatch import Run
    from reput.streaming.progress import Progress

AGE_BOUNDS = (
    0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0,
    3600.0,
)  # fmt: skip
_CAPITAL = re.compile("([A-Z])")


class _Measured:
    """A ``with`` block that is measured. A class costs a third of ``contextmanager``, which counts
    where a step takes half a millisecond."""

    __slots__ = ("_began", "_durations")

    def __init__(self, durations: Durations) -> None:
        self._durations = durations

    def __enter__(self) -> None:
        self._began = time.monotonic()

    def __exit__(self, *_: object) -> None:
        self._durations.add(time.monotonic() - self._began)


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

    def measured(self) -> _Measured:
        """Count how long a ``with`` block takes, also where it raises."""
        return _Measured(self)


@dataclass(slots=True)
class QueueMeasure:
    """The measures of one queue."""

    topic: str
    queue_id: int
    messages: int = 0
    """Messages dispatched by this run, with duplicates."""
    last_store_timestamp_ms: int = 0
    """Store time of the last of them; 0 if it has none."""


class QueueMeasures:
    """The measures of the first ``limit`` queues of which messages come, and how many are left
    out: a broker may have 100,000."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._measured: dict[tuple[bytes, int], QueueMeasure] = {}
        self._dropped: set[tuple[bytes, int]] = set()

    def note(self, runs: Iterable[Run]) -> None:
        """Count the messages of a batch."""
        for run in runs:
            key = run.topic, run.queue_id
            measure = self._measured.get(key)
            if measure is None:
                if len(self._measured) >= self._limit:
                    self._dropped.add(key)
                    continue
                measure = QueueMeasure(run.topic.decode(errors="backslashreplace"), run.queue_id)
                self._measured[key] = measure
            measure.messages += len(run)
            measure.last_store_timestamp_ms = run.last_store_timestamp

    def measured(self) -> list[QueueMeasure]:
        """Return the measures of the queues that have any."""
        return [*self._measured.values()]

    @property
    def dropped(self) -> int:
        """The number of queues that are left out."""
        return len(self._dropped)


@dataclass(slots=True)
class Measures:
    """The measures of one run."""

    progress: Progress | None = None
    """The run's progress; None before its first positions are known."""
    queries: int = 0
    """Number of queries that were begun: 1, and one more after each wait for space."""
    stages: dict[str, Durations] = field(default_factory=dict)
    """Stage of a batch -> its durations."""
    append_to_visible: Durations = field(default_factory=lambda: Durations(AGE_BOUNDS))
    """For each batch, the time from the store timestamp of its last message until readers of this
    machine see it."""
    append_to_durable: Durations = field(default_factory=lambda: Durations(AGE_BOUNDS))
    """For each batch, the time from that timestamp to the watermark."""
    space_waits: Durations = field(default_factory=Durations)
    """Waits for space that have ended."""
    is_waiting: bool = False
    """The run waits for space."""
    queues: QueueMeasures | None = None
    """Measures of single queues; None unless they are wanted."""
    is_failing: bool = False
    """The run has failed, and waits to be started again (``streaming.supervisor``)."""

    def stage(self, name: str) -> Durations:
        """Return the durations of a stage."""
        found = self.stages.get(name)
        if found is None:
            found = self.stages.setdefault(name, Durations())
        return found

    def note_visible(self, last_store_timestamp_ms: int) -> None:
        """Count a batch that readers see from now on; 0 for one without messages."""
        _add_age(self.append_to_visible, last_store_timestamp_ms)

    def note_durable(self, last_store_timestamp_ms: int) -> None:
        """Count a batch that has just become durable; 0 for one without messages."""
        _add_age(self.append_to_durable, last_store_timestamp_ms)

    def note_spark(self, durations_ms: Mapping[str, int]) -> None:
        """Count Spark's durations of a batch, its ``durationMs``."""
        for name, milliseconds in durations_ms.items():
            self.stage("spark_" + _CAPITAL.sub(r"_\1", name).lower()).add(milliseconds / 1000)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Count a ``with`` block as one wait for space."""
        self.is_waiting = True
        try:
            with self.space_waits.measured():
                yield
        finally:
            self.is_waiting = False


def _add_age(ages: Durations, store_timestamp_ms: int) -> None:
    if store_timestamp_ms:
        ages.add(time.time() - store_timestamp_ms / 1000)
