"""Computes latencies and lag from two traces: the times of appends and of durable watermarks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bench.measures import percentile
from bench.processes import BenchError

_LAG_GROWTH = 1.5


@dataclass(frozen=True, slots=True)
class Latencies:
    """Latencies of one run."""

    message_count: int
    p50_ms: float
    p99_ms: float
    max_ms: float
    lag_max_messages: int
    """The highest number of messages that were appended but not durable at one moment."""
    lag_bounded: bool
    """Whether the last third's highest lag is like the first's."""


def evaluate(appends: NDArray[np.int64], watermarks: NDArray[np.int64], rate: float) -> Latencies:
    """Compute the latencies of a run.

    ``appends`` is int64[n, 3], see ``bench.producer.TRACE_FIELDS``, in order of appending.
    ``watermarks`` is int64[m, 2], (ns, physical offset) as each was first seen, both ascending.

    The latency of a message is the time from the return of its append to the sight of a watermark
    at or beyond its end. Raises BenchError if messages were never covered.
    """
    returned, ends, counts = appends.T
    covering = np.searchsorted(watermarks[:, 1], ends, side="left")
    if covering[-1] >= len(watermarks):
        raise BenchError(f"the watermark ended at {watermarks[-1:, 1]}, the log at {int(ends[-1])}")
    milliseconds = (watermarks[covering, 0] - returned) / 1e6
    lags = _lags(appends, watermarks)
    during = (watermarks[:, 0] >= returned[0]) & (watermarks[:, 0] <= returned[-1])
    worst = [int(part.max(initial=0)) for part in np.array_split(lags[during], 3)]
    return Latencies(
        message_count=int(counts.sum()),
        p50_ms=percentile(milliseconds, counts, 0.50),
        p99_ms=percentile(milliseconds, counts, 0.99),
        max_ms=float(milliseconds.max()),
        lag_max_messages=max(worst),
        # a second's worth of messages counts as bounded, however low the lag of the first third was
        lag_bounded=worst[2] <= max(rate, _LAG_GROWTH * worst[0]),
    )


def _lags(appends: NDArray[np.int64], watermarks: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the messages not covered just before each watermark, where the lag is at its
    highest."""
    returned, ends, counts = appends.T
    totals = np.concatenate(([0], np.cumsum(counts)))
    appended = totals[np.searchsorted(returned, watermarks[:, 0], side="right")]
    before = np.concatenate(([0], watermarks[:-1, 1]))
    covered = totals[np.searchsorted(ends, before, side="right")]
    lags: NDArray[np.int64] = appended - covered
    return lags
