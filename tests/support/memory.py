"""Where tests that sync thousands of times keep their files."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

MEMORY = Path("/dev/shm")


def memory() -> Path | None:
    """A file system in memory, where there is one; None means the usual place."""
    return MEMORY if MEMORY.is_dir() else None


@pytest.fixture
def ram_path(tmp_path: Path) -> Iterator[Path]:
    """A directory in memory where the system has one: thousands of syncs cost nothing there."""
    if not MEMORY.is_dir():
        yield tmp_path
        return
    directory = Path(tempfile.mkdtemp(prefix="reput-test-", dir=MEMORY))
    yield directory
    shutil.rmtree(directory)
