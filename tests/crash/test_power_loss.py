"""Power cuts at every moment of small runs: what was told is on the disk, the end is the same.

``make crash-images`` tries as many images as one likes (``tests.crash.images``).
"""

from __future__ import annotations

from pathlib import Path

from tests.crash.workloads import quick
from tests.support.crash_images import Tally, try_chosen, try_random


def test_a_power_cut_during_dispatch_changes_nothing(ram_path: Path, seed: int) -> None:
    """First start, three batches of every kind of index and the end; the log may lose its end."""
    with quick(ram_path) as workloads:
        tally = Tally()
        for case in workloads.dispatch():
            try_chosen(case, tally, share=0.1, seed=seed)
            try_random(case, tally, seed, 150)
    print(tally.images, tally.distinct)
    assert tally.problems == []
