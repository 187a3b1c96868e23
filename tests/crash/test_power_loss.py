"""Power cuts at every moment of small runs: all promises hold, and the outcome is the same.

Images are a sample here; ``make crash-images`` tries any number (``tests.torture.crashimages``).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.workloads import Workloads, quick
from tests.support.crash_images import Tally, try_chosen, try_random


@pytest.fixture
def workloads(ram_path: Path) -> Iterator[Workloads]:
    with quick(ram_path) as found:
        yield found


@pytest.mark.parametrize(
    ("name", "share", "images"),
    [
        ("dispatch", 0.04, 100),
        ("long_batch", 0.01, 50),
        ("second_run", 0.02, 60),
        ("many_queues", None, 60),
        ("followers", None, 40),
        ("cut_log", 0.1, 80),
        ("long_cut", 0.1, 60),
        ("retention", 0.1, 60),
        ("expiry", 0.1, 60),
        pytest.param("begun_anew", 0.1, 60, marks=pytest.mark.extended),
        ("then_more", 0.1, 60),
        ("repair", 0.1, 50),
        ("rebuild", 0.0, 80),
        ("rewind", None, 60),
        ("crashed_rewind", None, 60),
    ],
)
def test_a_power_cut_changes_nothing(
    workloads: Workloads, seed: int, name: str, share: float | None, images: int
) -> None:
    """After every operation, none and all of the pending operations survive, and a share of the
    images with one alone or without one is tried; then random images with torn writes."""
    tally = Tally()
    for case in workloads.cases(name):
        if share is not None:
            try_chosen(case, tally, share=share, seed=seed)
        try_random(case, tally, seed, images)
    print(f"images={tally.images} distinct={tally.distinct}")
    assert tally.problems == []


@pytest.mark.extended
def test_a_power_cut_during_the_start_after_a_power_cut(workloads: Workloads, seed: int) -> None:
    """A second power cut hits the start, with the same outcome."""
    tally = Tally()
    for case in workloads.interrupted_starts(seed, 4):
        try_random(case, tally, seed, 40)
    print(f"images={tally.images} distinct={tally.distinct}")
    assert tally.problems == []
