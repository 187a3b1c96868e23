"""Finds packages of other distributions that have the names of ours.

Our folders have plain names (decision 0001). Other distributions ship packages of the same names,
such as ``streaming``; pip overwrites files without a warning, and executors import by name. The
command therefore checks at its start and refuses to run beside them.
"""

from __future__ import annotations

import importlib.util
from importlib.metadata import packages_distributions
from pathlib import Path

PACKAGES = (
    "store", "filters", "sources", "sinks", "readers", "serving", "checkpoints", "streaming",
    "upkeep", "workload",
)  # fmt: skip


def foreign_packages() -> list[str]:
    """Return a line per package name that another distribution owns or shadows."""
    problems = []
    owners = packages_distributions()
    here = Path(__file__).resolve().parent.parent
    for name in PACKAGES:
        others = sorted({owner for owner in owners.get(name, []) if owner.lower() != "reput"})
        if others:
            problems.append(f"package {name} is also installed by {', '.join(others)}")
        spec = importlib.util.find_spec(name)
        found = Path(spec.origin).resolve().parent.parent if spec and spec.origin else None
        if found != here:
            problems.append(f"package {name} is imported from {found}, not from {here}")
    return problems
