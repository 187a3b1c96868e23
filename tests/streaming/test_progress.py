"""The figures that people are shown of a run, and of several: what is unknown, and what never goes
back."""

from __future__ import annotations

import time

import pytest

from reput.store.runs.dispatch import DispatchCounts
from reput.streaming.progress import Progress, TotalProgress


def run(position: int, log_end: int | None, *, seconds: float = 0.0, ahead: int = 0) -> Progress:
    """A run that has dispatched the log up to a position, in so many seconds up to now."""
    found = Progress(0, 0, log_end=log_end, ahead_bytes=ahead)
    found.advance(position, DispatchCounts(messages=position // 10))
    found.ahead_bytes, found.first_batch = ahead, time.monotonic() - seconds
    return found


def test_a_lag_is_at_least_what_is_scanned() -> None:
    """The log's end was seen before the last part was scanned; without an end nothing is known."""
    assert run(100, None).lag_bytes is None
    assert run(100, 500).lag_bytes == 400
    assert run(100, 500, ahead=700).lag_bytes == 700
    assert run(500, 500).lag_bytes == 0


def test_a_watermark_that_is_shown_stays_in_a_replay() -> None:
    """The run repeats the log from its beginning, and passes the watermark later."""
    replay = Progress(0, 1000, log_end=2000)
    for end, shown in ((400, 1000), (1000, 1000), (1500, 1500)):
        replay.advance(end, DispatchCounts(messages=1))
        replay.note_durable()
        assert (replay.end_offset, replay.durable_position) == (shown, end)


def test_what_was_not_durable_is_counted_once() -> None:
    """Another attempt dispatches it again."""
    found = Progress(0, 0)
    found.advance(100, DispatchCounts(messages=10, gaps=1))
    found.note_durable()
    found.advance(200, DispatchCounts(messages=20, gaps=2))
    found.begin_again()
    assert (found.position, found.counts) == (100, DispatchCounts(messages=10, gaps=1))
    found.advance(200, DispatchCounts(messages=20, gaps=2))
    assert found.counts == DispatchCounts(messages=30, gaps=3)
    assert found.summary()["messages"] == 30


def test_the_time_that_is_left_is_that_of_what_is_not_scanned() -> None:
    """At 100 bytes a second, of 400 bytes that are left; nothing is left at the end, and nothing
    is known without a rate."""
    assert run(100, 500, seconds=1.0).eta_seconds() == pytest.approx(4.0, rel=0.1)
    assert run(100, 500, seconds=2.0, ahead=100).eta_seconds() == pytest.approx(3.0, rel=0.1)
    assert run(500, 500, seconds=1.0).eta_seconds() == 0.0
    assert Progress(0, 0, log_end=500).eta_seconds() is None
    assert Progress(0, 0).eta_seconds() is None


def test_of_several_runs_the_last_one_decides() -> None:
    """Lags add up; of a run that does not know its own, nothing is known of all."""
    slow, fast, unknown = run(100, 900, seconds=1.0), run(100, 200, seconds=1.0), run(100, None)
    both = TotalProgress([slow, fast])
    assert both.lag_bytes == 900
    assert both.eta_seconds() == pytest.approx(8.0, rel=0.1)
    assert both.summary()["messages"] == 20
    assert (both.start_offset, both.position, both.ahead_bytes) == (0, 200, 0)
    for total in (TotalProgress([slow, unknown]), TotalProgress([])):
        assert (total.lag_bytes, total.eta_seconds()) == (None, None)


def test_the_times_of_several_runs_are_the_longest() -> None:
    """With the number of batches of all; what was taken is not shown again."""
    one, other = Progress(), Progress()
    for progress, seconds in ((one, 0.5), (one, 0.2), (other, 0.3)):
        progress.note_stages({"commit": seconds, "collect": 1.0 - seconds})
    total = TotalProgress([one, other])
    assert total.take_times().fields() == {
        "batches": 3, "max_commit_ms": 500.0, "max_collect_ms": 800.0,
    }  # fmt: skip
    assert total.take_times().fields() == {}
