"""Writes, syncs, names and files that fail, one in each run, at every system call of every run.

The run ends in one line of ours or goes on; a failed sync ends it. ``interrupted`` says what else
must hold.
"""

from __future__ import annotations

from pathlib import Path

from tests.support.faults import SHORT
from tests.torture import interrupted

NAME = "failing writes"
CASES = 20_000
ACTIONS = ("ENOSPC", "EDQUOT", "EIO", SHORT)


def run(directory: Path, seed: int, case: int) -> str:
    """One fault; the run that met it and how it ended."""
    return interrupted.check_case(directory, seed, case, ACTIONS)
