"""Runs the kinds of faults at length; prints the seed, and a table at the end.

``--first`` goes on where an earlier run of the same seed and kind ended.
"""

from __future__ import annotations

import argparse
import logging
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path
from types import ModuleType

from tests.support.memory import memory
from tests.support.seeds import choose_seed
from tests.torture import (
    Several,
    clock,
    derivedrot,
    dispatchermachine,
    failingwrites,
    jvmcalls,
    kills,
    logmachine,
    logrot,
    races,
    shuffledappend,
    sparkcheckpoint,
    sparkkills,
    torntail,
)

MODULES = (
    torntail, logrot, derivedrot, sparkcheckpoint, failingwrites, kills, races, shuffledappend,
    clock, logmachine, dispatchermachine, sparkkills, jvmcalls,
)  # fmt: skip
KINDS: dict[str, ModuleType] = {module.NAME.replace(" ", "-").lower(): module for module in MODULES}
SHOWN_FAILURES = 20
SAYING_SECONDS = 60.0


class Tally:
    """The cases of one kind so far."""

    def __init__(self, kind: str, seed: int, first: int, count: int) -> None:
        self.kind, self.seed, self.first, self.count = kind, seed, first, count
        self.done = self.faults = 0
        self.failed: list[int] = []
        self.outcomes: Counter[str] = Counter()
        self._began = time.monotonic()
        self._said = self._began

    def run(self, directory: Path) -> None:
        """All cases; a failure is printed, and the next case follows."""
        for case in range(self.first, self.first + self.count):
            try:
                outcome = KINDS[self.kind].run(directory, self.seed, case)
                self.outcomes[outcome] += 1
                self.faults += outcome.faults if isinstance(outcome, Several) else 1
            except Exception:
                self.failed.append(case)
                if len(self.failed) <= SHOWN_FAILURES:
                    print(f"{self.kind}: seed={self.seed} case={case}")
                    traceback.print_exc(file=sys.stdout)
            self.done += 1
            if time.monotonic() - self._said > SAYING_SECONDS:
                self._said = time.monotonic()
                print(self.line(), flush=True)

    def line(self) -> str:
        """One row of the table."""
        seconds = time.monotonic() - self._began
        return (
            f"{self.kind:24} seed={self.seed} cases {self.first}..{self.first + self.done - 1} "
            f"of {self.count}, {self.faults:,} faults: {len(self.failed)} failed, {seconds:.0f} s"
        )


def main() -> int:
    """1 if any case failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.torture", description=__doc__)
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=", ".join(KINDS))
    parser.add_argument("--count", type=int, help="cases of each kind; all that were promised")
    parser.add_argument("--seed", type=int, default=choose_seed())
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    chosen = parser.parse_args()
    if unknown := set(chosen.kinds) - KINDS.keys():
        parser.error(f"no kind {', '.join(sorted(unknown))}; there are {', '.join(KINDS)}")
    logging.getLogger("reput").setLevel(logging.CRITICAL)
    # a run that is stopped prints its table, whoever stops it
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    print(f"seed={chosen.seed}", flush=True)
    tallies: list[Tally] = []
    try:
        with tempfile.TemporaryDirectory(prefix="reput-torture-", dir=memory()) as directory:
            for kind in chosen.kinds or KINDS:
                count = KINDS[kind].CASES if chosen.count is None else chosen.count
                tallies.append(Tally(kind, chosen.seed, chosen.first, count))
                tallies[-1].run(Path(directory) / kind)
    except KeyboardInterrupt:
        last = tallies[-1]
        print(f"go on with: {last.kind} --seed {last.seed} --first {last.first + last.done}")
    for tally in tallies:
        print(tally.line())
        for outcome, count in sorted(tally.outcomes.items()):
            print(f"  {count:8,} {outcome}")
    return 1 if any(tally.failed for tally in tallies) else 0


if __name__ == "__main__":
    sys.exit(main())
