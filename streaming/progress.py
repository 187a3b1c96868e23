"""The progress of a run: the dispatcher records it and the command line shows it.

It is for people: no decision depends on it, and it is lost with the process. The positions that
count are in the watermark.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from reput.store.runs.dispatch import DispatchCounts

RATE_WINDOW_SECONDS = 10.0


@dataclass(slots=True)
class BatchTimes:
    """The longest times of some batches."""

    batches: int = 0
    longest: dict[str, float] = field(default_factory=dict)
    """Stage -> seconds."""

    def add(self, seconds: Mapping[str, float], batches: int = 1) -> None:
        """Count batches with the times of their stages."""
        self.batches += batches
        for name, took in seconds.items():
            self.longest[name] = max(took, self.longest.get(name, 0.0))

    def fields(self) -> dict[str, object]:
        """The fields of a log line; none without a batch."""
        if not self.batches:
            return {}
        times = milliseconds(self.longest)
        return {"batches": self.batches} | {f"max_{name}": time for name, time in times.items()}


def milliseconds(seconds: Mapping[str, float]) -> dict[str, object]:
    """Return the fields of a log line that say how long each stage took."""
    return {f"{name}_ms": round(1000 * took, 1) for name, took in seconds.items()}


@dataclass(slots=True)
class Progress:
    """Counters of one run, written by the batch callback and read by any display."""

    start_offset: int = 0
    """The offset at which this run began."""
    end_offset: int = 0
    """The watermark."""
    position: int = 0
    """End of the part that this run has dispatched; below the watermark in a replay."""
    durable_position: int = 0
    """End of the part of it that is durable."""
    ahead_bytes: int = 0
    """Bytes of log after ``position`` that are scanned and not dispatched yet."""
    log_end: int | None = None
    """End of the log as last seen; None while unknown."""
    batches: int = 0
    counts: DispatchCounts = field(default_factory=DispatchCounts)
    started: float = field(default_factory=time.monotonic)
    first_batch: float | None = None
    """The time at which the dispatch of the first batch began."""
    _marks: deque[tuple[float, int, int]] = field(default_factory=deque)
    _shown: BatchTimes = field(default_factory=BatchTimes)

    _durable_counts: DispatchCounts = field(default_factory=DispatchCounts)

    def __post_init__(self) -> None:
        self.position = self.durable_position = self.start_offset

    @property
    def lag_bytes(self) -> int | None:
        """Bytes of log that this run has not dispatched yet; None while unknown. What was scanned
        is of the log, even if the log's end was last seen before that."""
        if self.log_end is None:
            return None
        return max(self.ahead_bytes, self.log_end - self.position)

    def advance(self, end_offset: int, counts: DispatchCounts) -> None:
        """Record that a batch is committed."""
        now = time.monotonic()
        self.batches += 1
        self.ahead_bytes = max(0, self.position + self.ahead_bytes - end_offset)
        self.position = end_offset
        self.counts.add(counts)
        self._marks.append((now, self.counts.messages, end_offset + self.ahead_bytes))
        while now - self._marks[0][0] > RATE_WINDOW_SECONDS:
            self._marks.popleft()

    def note_durable(self) -> None:
        """Record that all committed batches are durable."""
        self.durable_position = self.position
        self.end_offset = max(self.end_offset, self.position)
        self._durable_counts = replace(self.counts)

    def begin_again(self) -> None:
        """Record that another attempt writes again what is not durable."""
        self.position, self.counts = self.durable_position, replace(self._durable_counts)

    def note_stages(self, seconds: Mapping[str, float]) -> None:
        """Note how long each stage of a whole batch took."""
        self._shown.add(seconds)

    def take_times(self) -> BatchTimes:
        """Return the number of whole batches since the last call, and their longest times. A batch
        that another thread notes at the same moment may be left out."""
        taken, self._shown = self._shown, BatchTimes()
        return taken

    def rates(self) -> tuple[float, float]:
        """(messages dispatched/s, bytes scanned/s) over the last seconds, or since the run
        began."""
        now = time.monotonic()
        if len(self._marks) >= 2 and now - self._marks[0][0] <= RATE_WINDOW_SECONDS:
            began, messages, offset = self._marks[0]
        else:
            began, messages, offset = self.first_batch or self.started, 0, self.start_offset
        seconds = max(now - began, 1e-3)
        return (
            (self.counts.messages - messages) / seconds,
            max(0, self.position + self.ahead_bytes - offset) / seconds,
        )

    def active_seconds(self) -> float:
        """Seconds from the first batch to the last one that was dispatched."""
        if self.first_batch is None or not self._marks:
            return 0.0
        return max(self._marks[-1][0] - self.first_batch, 1e-3)

    def eta_seconds(self) -> float | None:
        """Seconds to the log's end at the present rate; None where unknown."""
        lag, rate = self.lag_bytes, self.rates()[1]
        if lag is None or (lag and not rate):
            return None
        return max(0, lag - self.ahead_bytes) / rate if lag else 0.0

    def summary(self) -> dict[str, Any]:
        """The content of the last line of ``--json``."""
        counts = summed_up(self.counts)
        return {
            "messages": counts.pop("messages"),
            "end_offset": self.end_offset,
            **counts,
            "seconds": round(time.monotonic() - self.started, 3),
        }


def summed_up(counts: DispatchCounts) -> dict[str, int]:
    """The counts that a summary shows, by name."""
    names = ("messages", "duplicates", "quarantined_bytes", "gaps")
    return {name: getattr(counts, name) for name in names}


class TotalProgress:
    """The progress of several runs, for the same display as that of one."""

    def __init__(self, runs: Sequence[Progress]) -> None:
        self._runs = runs
        self.start_offset = sum(run.start_offset for run in runs)
        self.position = sum(run.position for run in runs)
        self.ahead_bytes = sum(run.ahead_bytes for run in runs)

    @property
    def lag_bytes(self) -> int | None:
        """Bytes of the logs that are not dispatched yet; None while one of them is unknown."""
        lags = [run.lag_bytes for run in self._runs]
        numbers = [lag for lag in lags if lag is not None]
        return sum(numbers) if numbers and len(numbers) == len(lags) else None

    def rates(self) -> tuple[float, float]:
        """(messages dispatched/s, bytes scanned/s), as ``Progress.rates``."""
        messages, size = zip((0.0, 0.0), *(run.rates() for run in self._runs), strict=True)
        return sum(messages), sum(size)

    def take_times(self) -> BatchTimes:
        """The times of all runs, as ``Progress.take_times``."""
        total = BatchTimes()
        for taken in (run.take_times() for run in self._runs):
            total.add(taken.longest, taken.batches)
        return total

    def eta_seconds(self) -> float | None:
        """Seconds until the last one has caught up; None where unknown."""
        times = [run.eta_seconds() for run in self._runs]
        durations = [seconds for seconds in times if seconds is not None]
        return max(durations) if durations and len(durations) == len(times) else None

    def summary(self) -> dict[str, Any]:
        """The counts of all runs."""
        total = DispatchCounts()
        for run in self._runs:
            total.add(run.counts)
        return summed_up(total)


class ReadProgress(Progress):
    """The progress of a command that reads a log and dispatches nothing."""

    def summary(self) -> dict[str, Any]:
        """Return the number of messages, under ``messages``."""
        return {"messages": self.counts.messages}
