"""Fixtures that every folder of tests shares."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from streaming.session import session
from tests.support.golden import unpack_golden


@pytest.fixture
def golden(tmp_path: Path) -> Callable[[str], Path]:
    """Unpacks a golden store into the test's own directory."""
    return lambda name: unpack_golden(name, tmp_path)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One local session with the dispatcher's own settings: starting one takes seconds."""
    with session({}) as opened:
        yield opened
