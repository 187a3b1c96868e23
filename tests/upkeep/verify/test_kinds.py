"""A sample of the damage of ``tests.torture.derivedrot``: found and healed, whatever it is."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

from tests.torture.derivedrot import NAMES, Bench

CASES = 14


@pytest.mark.parametrize("name", NAMES)
def test_damage_is_found_and_healed(ram_path: Path, seed: int, name: str) -> None:
    """``make torture`` takes ten thousand of each store."""
    bench, found = Bench(name, ram_path), Counter[str]()
    for case in range(CASES):
        print(f"case={case}")
        found[bench.check_case(random.Random(f"{seed}:{case}"))[0]] += 1
    assert found.total() == CASES
    assert found["found by verify"] > CASES // 4
