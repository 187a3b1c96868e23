"""Seeds of random tests: printed, and set again with ``REPUT_TEST_SEED``."""

from __future__ import annotations

import os
import random

import pytest

SEED_VARIABLE = "REPUT_TEST_SEED"


def choose_seed() -> int:
    """A fresh seed, or the one asked for."""
    asked = os.environ.get(SEED_VARIABLE)
    return int(asked) if asked else random.SystemRandom().randrange(1 << 32)


@pytest.fixture
def seed() -> int:
    """``choose_seed``; pytest shows the printed line with a failure."""
    chosen = choose_seed()
    print(f"seed={chosen}")
    return chosen
