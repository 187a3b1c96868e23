"""Fixtures of these tests."""

from __future__ import annotations

from tests.support.memory import ram_path
from tests.support.seeds import seed

__all__ = ["ram_path", "seed"]
