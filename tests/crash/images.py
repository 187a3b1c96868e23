"""``make crash-images``: as many crash images as one likes, with a table at the end.

Round 0 tries, after every operation, nothing, all, each alone and all but each of what is pending.
The rounds after it try random images. Each has its own seed, so that a run goes on with ``--round``
where another one ended. An interrupt ends it early, with the table.
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from tests.crash.workloads import NAMES, Workloads, quick
from tests.support.crash_images import Case, Tally, try_chosen, try_random
from tests.support.memory import memory
from tests.support.seeds import choose_seed

ROUND_IMAGES = 500
"""Random images of a workload in one round."""
STARTS = 10
"""Interrupted starts of a round, for each log."""
SHOWN = 20


def main() -> int:
    """Try images until there are enough; the exit code is 1 if any had a problem."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("images", type=int)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--round", type=int, default=0, help="the round to begin with")
    options = parser.parse_args()
    seed = choose_seed() if options.seed is None else options.seed
    print(f"seed={seed}", flush=True)
    logging.getLogger("reput").setLevel(logging.CRITICAL)
    begun = time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="reput-images-", dir=memory()) as place,
        quick(Path(place)) as workloads,
    ):
        tallies, following = _rounds(workloads, seed, options.round, options.images)
    for tally in tallies.values():
        for problem in tally.problems[:SHOWN]:
            print(problem)
    print(f"\n{'workload':20}{'operations':>12}{'images':>12}{'distinct':>12}{'problems':>10}")
    rows = {**tallies, "all": _sum(list(tallies.values()))}
    for name, tally in rows.items():
        print(
            f"{name:20}{tally.operations:12,}{tally.images:12,}{tally.distinct:12,}"
            f"{len(tally.problems):10,}"
        )
    seconds = time.monotonic() - begun
    print(f"seed={seed} rounds={options.round}..{following - 1} seconds={seconds:.0f}")
    return bool(rows["all"].problems)


def _rounds(
    workloads: Workloads, seed: int, first: int, wanted: int
) -> tuple[dict[str, Tally], int]:
    cases = {name: list(workloads.cases(name)) for name in NAMES}
    tallies = {name: Tally() for name in (*NAMES, "interrupted_starts")}
    number = first
    with suppress(KeyboardInterrupt):
        while sum(tally.images for tally in tallies.values()) < wanted:
            _round(workloads, cases, tallies, seed, number)
            number += 1
    return tallies, number


def _round(
    workloads: Workloads,
    cases: dict[str, list[Case]],
    tallies: dict[str, Tally],
    seed: int,
    number: int,
) -> None:
    for name, case in _all(cases):
        if number == 0:
            try_chosen(case, tallies[name])
        else:
            try_random(case, tallies[name], seed + number, ROUND_IMAGES)
    for case in workloads.interrupted_starts(seed + number, STARTS):
        try_random(case, tallies["interrupted_starts"], seed + number, ROUND_IMAGES // STARTS)


def _all(cases: dict[str, list[Case]]) -> Iterator[tuple[str, Case]]:
    for name, found in cases.items():
        for case in found:
            yield name, case


def _sum(tallies: list[Tally]) -> Tally:
    return Tally(
        sum(tally.images for tally in tallies),
        sum(tally.distinct for tally in tallies),
        sum(tally.operations for tally in tallies),
        [problem for tally in tallies for problem in tally.problems],
    )


if __name__ == "__main__":
    sys.exit(main())
