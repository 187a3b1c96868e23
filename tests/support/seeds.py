"""Seeds of random tests: printed, and set again with ``REPUT_TEST_SEED``."""

from __future__ import annotations

import os
import random

import pytest

SEED_VARIABLE = "REPUT_TEST_SEED"


@pytest.fixture
def seed() -> int:
    """A fresh seed, or the one asked for; pytest shows the printed line with a failure."""
    asked = os.environ.get(SEED_VARIABLE)
    chosen = int(asked) if asked else random.SystemRandom().randrange(1 << 32)
    print(f"seed={chosen}")
    return chosen
