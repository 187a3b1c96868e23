"""A sample of each kind with every ``make test``; ``make torture`` takes many more."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.torture.cases import BENCHES, Case, Kind
from tests.torture.kinds import KINDS


@pytest.fixture(autouse=True)
def nothing_stays_patched() -> Iterator[None]:
    """As the kinds leave it."""
    yield
    BENCHES.close()


LONG = ("dispatcher machine", "log rot", "torn tails")


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, id=kind.name, marks=pytest.mark.extended if kind.name in LONG else ())
        for kind in KINDS.values()
        if kind.sample
    ],
)
def test_every_case_holds(ram_path: Path, seed: int, kind: Kind) -> None:
    """The samples of other kinds are tests of their own."""
    seed = seed if kind.sample_seed is None else kind.sample_seed
    for number in range(kind.sample):
        print(f"case={number}")
        kind.run(Case(ram_path / "case", seed, number))
