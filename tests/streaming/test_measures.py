"""The measures of a run, as Prometheus counts them."""

from __future__ import annotations

from reput.streaming.measures import Durations


def test_a_duration_below_zero_is_none() -> None:
    """The clocks of a broker and a dispatcher may differ: neither count nor sum ever falls."""
    durations = Durations((1.0, 5.0))
    for seconds, total, counts in (
        (0.5, 0.5, (1, 1, 1)), (-7.0, 0.5, (2, 2, 2)), (1.0, 1.5, (3, 3, 3)),
        (4.0, 5.5, (3, 4, 4)), (6.0, 11.5, (3, 4, 5)),
    ):  # fmt: skip
        durations.add(seconds)
        assert (durations.sum, durations.cumulative) == (total, counts)
