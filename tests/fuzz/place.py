"""The directory of targets that read files: one for all inputs, in memory where that can be."""

from __future__ import annotations

import os
import tempfile
from functools import cache
from pathlib import Path

from tests.support.memory import MEMORY


@cache
def place(name: str) -> Path:
    """The directory of one target; it goes when the process ends, if libFuzzer does not end it."""
    parent = MEMORY if MEMORY.is_dir() and "TMPDIR" not in os.environ else None
    held = tempfile.TemporaryDirectory(prefix=f"reput-fuzz-{name}-", dir=parent)
    _held.append(held)
    return Path(held.name)


_held: list[tempfile.TemporaryDirectory[str]] = []
