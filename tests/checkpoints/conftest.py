"""Tests of this folder close what they open."""

from __future__ import annotations

from tests.support.closedfiles import files_are_closed

__all__ = ["files_are_closed"]
