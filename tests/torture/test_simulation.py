"""The simulation repeats itself: one seed gives one history, whatever the process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.torture.cases import Case
from tests.torture.simulation.world import play

ROOT = Path(__file__).parent.parent.parent
HISTORIES = 2
PROGRAM = """
import sys
from pathlib import Path
from tests.torture.test_simulation import traces
sys.stdout.write(traces(Path(sys.argv[1]), int(sys.argv[2])))
"""


def traces(directory: Path, seed: int) -> str:
    """Some histories as text."""
    cases = [Case(directory, seed, number) for number in range(HISTORIES)]
    return "\n".join(play(directory, case.rng()).history.trace() for case in cases)


def test_one_seed_gives_one_trace(ram_path: Path, seed: int) -> None:
    """Twice, in processes that order sets of texts in two ways."""
    found = []
    # a session of Spark in this process may have set PYTHONSAFEPATH
    path = os.pathsep.join(map(str, (ROOT, ROOT / "src")))
    for hash_seed in "01":
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": path}
        command = [sys.executable, "-c", PROGRAM, str(ram_path / hash_seed), str(seed)]
        done = subprocess.run(
            command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, check=True
        )
        found.append(done.stdout.decode().splitlines())
    assert len(found[0]) > 100 * HISTORIES
    assert found[0] == found[1]
