"""Fixtures of these tests."""

from __future__ import annotations

from tests.support.seeds import seed

__all__ = ["seed"]
