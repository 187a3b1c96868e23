"""Coverage-guided fuzzing: ``python -m tests.fuzz TARGET --seconds N``, or ``make fuzz``.

atheris, which is libFuzzer for Python, runs in a child. The last line tells of executions, coverage
and memory. An input that fails is kept below build/fuzz, and ``--input FILE`` checks it alone.
"""

from __future__ import annotations

import argparse
import importlib.util
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO, cast

from tests.fuzz import targets
from tests.support.memory import memory
from tests.support.seeds import choose_seed

ROOT = Path(__file__).parent.parent.parent
FAILURES = ROOT / "build" / "fuzz"
MEMORY_MIB, INPUT_SECONDS = 1024, 10
"""A process that takes more memory, or an input that takes longer, fails."""
INTERRUPTED = 72
"""libFuzzer's exit code after SIGINT or SIGTERM."""
STATE = re.compile(r"#(\d+)\s+(?:INITED|DONE|pulse)\s+cov: (\d+) .*corp: (\d+)/.*rss: (\d+)Mb")
DETAIL = re.compile(r"#\d+\s+(NEW|REDUCE|RELOAD)")


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz", description="Fuzz a target, guided by coverage."
    )
    parser.add_argument("target", choices=targets.TARGETS)
    parser.add_argument("--seconds", type=int, default=3600, metavar="N", help="3600 by default")
    parser.add_argument("--seed", type=int, metavar="N", help="repeat a run's choices")
    parser.add_argument("--input", type=Path, metavar="FILE", help="check one input alone")
    found = parser.parse_args(arguments)
    if found.input is None and importlib.util.find_spec("atheris") is None:
        parser.error("atheris is missing; install it with pip install -e '.[fuzz]', or make fuzz")
    return found


def fuzz(name: str, seconds: int, seed: int) -> int:
    """Fuzz a target; the exit code."""
    FAILURES.mkdir(parents=True, exist_ok=True)
    print(f"target={name} seed={seed} seconds={seconds}", flush=True)
    with tempfile.TemporaryDirectory(prefix="reput-fuzz-", dir=memory()) as corpus:
        for number, data in enumerate(targets.load(name).seeds()):
            Path(corpus, str(number)).write_bytes(data)
        command = [
            sys.executable, "-m", "tests.fuzz.worker", name, f"-seed={seed}",
            f"-max_total_time={seconds}", f"-rss_limit_mb={MEMORY_MIB}",
            f"-timeout={INPUT_SECONDS}", f"-artifact_prefix={FAILURES}/{name}-", corpus,
        ]  # fmt: skip
        process = subprocess.Popen(
            command, cwd=ROOT, stderr=subprocess.PIPE, text=True, errors="replace"
        )
        states = []
        for line in cast(IO[str], process.stderr):
            if not DETAIL.match(line):
                print(line, end="", file=sys.stderr, flush=True)
            if found := STATE.match(line):
                states.append(tuple(map(int, found.groups())))
        exit_code = process.wait()
    if exit_code not in (0, INTERRUPTED) or not states:
        print(f"target={name} seed={seed} failed; its input is in {FAILURES}", flush=True)
        return 1
    (_, first, seeds, began), (executions, covered, inputs, ended) = states[0], states[-1]
    print(
        f"target={name} seed={seed} executions={executions} coverage={first}..{covered} "
        f"inputs={seeds}..{inputs} memory_mib={began}..{ended}{' interrupted' * bool(exit_code)}",
        flush=True,
    )
    return exit_code


def main() -> int:
    """Fuzz, or check one input."""
    asked = parse()
    if asked.input is not None:
        targets.load(asked.target).check(asked.input.read_bytes())
        return 0
    seed = choose_seed() if asked.seed is None else asked.seed
    # libFuzzer takes 0 for none
    return fuzz(asked.target, asked.seconds, seed or 1)


if __name__ == "__main__":
    raise SystemExit(main())
