"""Runs the kinds of faults at length; prints the seed, and a table at the end.

``--first`` goes on where an earlier run of the same seed and kind ended.
"""

from __future__ import annotations

import argparse
import logging
import signal
import sys
import tempfile
from pathlib import Path

from reput.store.errors import UsageError
from tests.support.memory import memory
from tests.support.seeds import choose_seed
from tests.torture.cases import BENCHES, Tally
from tests.torture.kinds import KINDS


def main() -> int:
    """1 if any case failed."""
    usual = [name for name, kind in KINDS.items() if not kind.on_request]
    parser = argparse.ArgumentParser(prog="python -m tests.torture", description=__doc__)
    parser.add_argument("kinds", nargs="*", metavar="KIND", default=usual, help=", ".join(KINDS))
    parser.add_argument("--count", type=int, help="cases of each kind; all that were promised")
    parser.add_argument("--faults", type=int, default=0, help="end after so many instead")
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
            for name in chosen.kinds:
                kind = KINDS[name]
                tallies.append(Tally(kind, chosen.seed, chosen.first, chosen.count, chosen.faults))
                tallies[-1].run(Path(directory) / name)
    except KeyboardInterrupt:
        last = tallies[-1]
        print(f"go on with: {last.kind.option} --seed {last.seed} --first {last.following}")
    except UsageError as error:
        print(error)
        return 2
    finally:
        BENCHES.close()
    for tally in tallies:
        print(tally.line())
        for outcome, count in sorted(tally.outcomes.items()):
            print(f"  {count:8,} {outcome}")
    return 1 if any(tally.failed for tally in tallies) else 0


if __name__ == "__main__":
    sys.exit(main())
