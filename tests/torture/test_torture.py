"""A sample of each kind with every ``make test``; ``make torture`` takes many more."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from tests.torture import logrot, sparkcheckpoint, torntail

SAMPLES = {logrot: 1000, torntail: 3, sparkcheckpoint: 20}


@pytest.mark.parametrize("kind", SAMPLES, ids=lambda kind: kind.NAME)
def test_every_case_holds(ram_path: Path, seed: int, kind: ModuleType) -> None:
    """Derived rot's sample is tests/upkeep/verify/test_kinds.py."""
    for case in range(SAMPLES[kind]):
        print(f"case={case}")
        kind.run(ram_path / "case", seed, case)
