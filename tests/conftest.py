"""Fixtures that every folder of tests shares."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.golden import unpack_golden


@pytest.fixture
def golden(tmp_path: Path) -> Callable[[str], Path]:
    """Unpacks a golden store into the test's own directory."""
    return lambda name: unpack_golden(name, tmp_path)
