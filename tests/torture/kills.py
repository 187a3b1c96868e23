"""kill -9 before every system call of every run, and of the starts that follow.

``interrupted`` says what must hold.
"""

from __future__ import annotations

from pathlib import Path

from tests.support.faults import KILL
from tests.torture import interrupted

NAME = "kills"
CASES = 20_000


def run(directory: Path, seed: int, case: int) -> str:
    """One kill, or several in a row; the run that was killed."""
    return interrupted.check_case(directory, seed, case, (KILL,))
