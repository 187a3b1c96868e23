"""Seeded faults, each with the tests that must notice it, and what applies them.

Each ``*.toml`` here lists canaries: a file, a text that occurs once in it, the wrong text in its
place, why that breaks a promise, and the tests that fail then. ``make canaries`` applies them one
at a time to a copy of the tree. tests/test_canaries.py checks that the lists fit the tree.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
LISTS = Path(__file__).parent


@dataclass(frozen=True)
class Canary:
    """One seeded fault."""

    name: str
    why: str
    """The promise that it breaks."""
    file: str
    old: str
    """It occurs once in the file."""
    new: str
    tests: tuple[str, ...]
    """Node ids of pytest; at least one of them fails with the fault."""

    def applied_to(self, text: str) -> str:
        """The text of the file with the fault. Raises ValueError where it does not fit."""
        if text.count(self.old) != 1:
            raise ValueError(f"{self.name}: its text occurs {text.count(self.old)} times")
        return text.replace(self.old, self.new)


@dataclass(frozen=True)
class Equivalent:
    """A random fault that no test can notice, because the program does the same with it."""

    file: str
    line: str
    """The line that it changes, without its indentation."""
    change: str
    """The line with the fault; ``pass`` where a statement is gone."""
    why: str
    """The reason why nothing that is promised changes."""


def read_canaries() -> list[Canary]:
    """All canaries, in the order of the lists."""
    return [
        Canary(**{**entry, "tests": tuple(entry["tests"])})
        for path in sorted(LISTS.glob("*.toml"))
        for entry in tomllib.loads(path.read_text("utf-8")).get("canary", ())
    ]


def read_equivalents() -> list[Equivalent]:
    """The faults that ``make mutants`` leaves out of its samples."""
    text = (LISTS / "equivalent.toml").read_text("utf-8")
    return [Equivalent(**entry) for entry in tomllib.loads(text)["equivalent"]]
