"""A sample of each kind with every ``make test``; ``make torture`` takes many more."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tests.torture import (
    clock,
    dispatchermachine,
    failingwrites,
    interrupted,
    kills,
    logmachine,
    logrot,
    races,
    shuffledappend,
    sparkcheckpoint,
    torntail,
)

SAMPLES = {
    logrot: 120, torntail: 3, sparkcheckpoint: 20, failingwrites: 100, kills: 40, races: 30,
    shuffledappend: 15, clock: 10, logmachine: 10,
    dispatchermachine: 6,
}  # fmt: skip


@pytest.fixture(autouse=True)
def nothing_stays_patched() -> Iterator[None]:
    """As the kinds leave it."""
    yield
    interrupted.close()
    races.close()


@pytest.mark.parametrize("kind", SAMPLES, ids=lambda kind: kind.NAME)
def test_every_case_holds(ram_path: Path, seed: int, kind: ModuleType) -> None:
    """Derived rot's sample is tests/upkeep/verify/test_kinds.py."""
    for case in range(SAMPLES[kind]):
        print(f"case={case}")
        kind.run(ram_path / "case", seed, case)
