"""The images of a disk that power cuts may leave of small runs, and a start on each.

Case 0 tries, after every operation, nothing, all, each alone and all but each of what is pending.
The cases after it try random images of every run, and of starts that a power cut interrupts.
"""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack

from tests.crash.workloads import NAMES, quick
from tests.support.crash_images import Tally, try_chosen, try_random
from tests.torture.cases import BENCHES, Case, Kind

IMAGES = 500
"""Random images of a workload in one case."""
STARTS = 10
"""Interrupted starts of a case, for each log."""
STARTED = "interrupted_starts"
SHOWN = 20


class ImageBench:
    """A bench has the recorded runs, and what was tried of the images of each."""

    def __init__(self, stack: ExitStack, case: Case) -> None:
        self.workloads = stack.enter_context(quick(case.emptied()))
        self._recorded = {name: list(self.workloads.cases(name)) for name in NAMES}
        self._tallies = {name: Tally() for name in (*NAMES, STARTED)}

    def check_case(self, number: int, seed: int) -> Counter[str]:
        """Try images of all runs, and say how many there were, and how many of them were new."""
        tallies = self._tallies
        before = {name: (tally.distinct, tally.images) for name, tally in tallies.items()}
        for name, recorded in self._recorded.items():
            for case in recorded:
                if number == 0:
                    try_chosen(case, tallies[name])
                else:
                    try_random(case, tallies[name], seed, IMAGES)
        for case in self.workloads.interrupted_starts(seed, STARTS):
            try_random(case, tallies[STARTED], seed, IMAGES // STARTS)
        problems = [problem for tally in tallies.values() for problem in tally.problems]
        for tally in tallies.values():
            tally.problems.clear()
        assert not problems, problems[:SHOWN]
        outcomes = Counter[str]()
        for name, (distinct, images) in before.items():
            new = tallies[name].distinct - distinct
            outcomes[f"{name}: new"] = new
            outcomes[f"{name}: tried before"] = tallies[name].images - images - new
        return outcomes


def _run(case: Case) -> Counter[str]:
    return BENCHES.find(case, ImageBench).check_case(case.number, case.seed + case.number)


KIND = Kind("crash images", _run, 100, on_request=True)
"""A million images; the sample is tests/crash/test_power_loss.py."""
