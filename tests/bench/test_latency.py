"""Latency and lag from two traces: small ones whose answer is plain to see."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from bench.latency import evaluate
from bench.processes import BenchError

MS = 1_000_000
RATE = 1000


def appends(count: int) -> NDArray[np.int64]:
    """A message of 100 bytes every millisecond."""
    steps = np.arange(1, count + 1)
    return np.stack([steps * MS, steps * 100, np.ones(count, np.int64)], axis=1)


def watermarks(*pairs: tuple[float, int]) -> NDArray[np.int64]:
    """(ms, physical offset)"""
    return np.array([(round(ms * MS), offset) for ms, offset in pairs], np.int64)


def test_a_message_is_covered_by_the_first_watermark_at_its_end() -> None:
    """Ten messages; one watermark in the middle of the last one covers it not."""
    found = evaluate(appends(10), watermarks((0, 0), (5, 500), (15, 999), (20, 1000)), RATE)
    # 4, 3, 2, 1, 0 ms, then 9, 8, 7, 6 ms, then 10 ms
    assert (found.p50_ms, found.p99_ms, found.max_ms) == (4.0, 10.0, 10.0)
    assert found.message_count == 10


def test_ticks_weigh_as_many_messages_as_they_have() -> None:
    """One slow tick of 98 messages is the median, two quick ones are not."""
    trace = np.array([(1 * MS, 100, 1), (2 * MS, 9900, 98), (60 * MS, 10000, 1)], np.int64)
    found = evaluate(trace, watermarks((1, 100), (52, 9900), (60, 10000)), RATE)
    assert (found.p50_ms, found.p99_ms, found.message_count) == (50.0, 50.0, 100)


@pytest.mark.parametrize(("share", "bounded"), [(1.0, True), (0.5, False)])
def test_lag_that_grows_is_seen(share: float, bounded: bool) -> None:
    """A dispatcher at half the producer's rate lags by more than a second's worth of messages."""
    trace = appends(10_000)
    marks = [(float(ms), int(ms * share) * 100) for ms in range(10, 10_001, 10)]
    found = evaluate(trace, watermarks(*marks, (20_000.0, 1_000_000)), RATE)
    assert found.lag_bounded is bounded
    assert found.lag_max_messages == pytest.approx(10_000 * (1 - share), abs=20)


def test_messages_that_never_became_durable_are_an_error() -> None:
    """No latency is made up for them."""
    with pytest.raises(BenchError, match="the log at 1000"):
        evaluate(appends(10), watermarks((20, 999)), RATE)
