"""kill -9 of a whole run's processes: the tree, the driver, Spark's JVM, or a Python worker.

Up to four runs of a case are killed, at any moment of their start or after some batch. The JVM and
the workers of a killed driver end by themselves; the driver of a killed JVM ends with one line.
"""

from __future__ import annotations

import random
import time
from pathlib import Path

import psutil

from tests.support.cli import kill_tree
from tests.support.processes import name_of
from tests.torture import Several
from tests.torture.sparkruns import Run, SparkBench

NAME = "spark kills"
CASES = 120
TARGETS = ("tree", "driver", "jvm", "worker")
LONGEST_START_SECONDS = 3.0
POLL_SECONDS = 0.002


def run(directory: Path, seed: int, case: int) -> str:
    """One to four kills, then a run that nobody disturbs."""
    rng = random.Random(f"{seed} {case}")
    bench, outcomes = SparkBench(directory), list[str]()
    for _ in range(rng.randint(1, 4)):
        outcomes.append(_kill(bench.start(), rng))
    bench.check()
    return Several(", ".join(sorted(set(outcomes))), len(outcomes))


def _kill(run: Run, rng: random.Random) -> str:
    target = rng.choice(TARGETS)
    if rng.random() < 0.3:
        time.sleep(rng.random() * LONGEST_START_SECONDS)  # the moment is random, not an event
    else:
        wanted = run.sequence() + rng.randint(1, 12)
        while run.sequence() < wanted and run.process.poll() is None:
            time.sleep(POLL_SECONDS)  # polls a file of another process
        time.sleep(rng.random() * 0.02)
    tree = run.tree()
    met = True
    if target == "tree":
        kill_tree(run.process.pid)
    elif target == "driver":
        run.process.kill()
    else:
        named = [one for one in tree[1:] if (name_of(one) == "java") == (target == "jvm")]
        met = bool(named) and _kill_one(rng.choice(named))
    ended = run.end(tree, may_be_killed=target in ("tree", "driver"))
    return f"{target}: {ended if met else 'not there'}"


def _kill_one(process: psutil.Process) -> bool:
    try:
        process.kill()
    except psutil.NoSuchProcess:
        return False
    return True
