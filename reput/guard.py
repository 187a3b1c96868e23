"""Refuses to run among strangers: another distribution may own one of our package names.

Our folders have plain names (decision 0001), others ship packages of the same name (``streaming``
for one), pip overwrites files without a word, and executors import by name: better a clear line.
"""

from __future__ import annotations

import importlib.util
from importlib.metadata import packages_distributions
from pathlib import Path

PACKAGES = (
    "store", "filters", "sources", "sinks", "readers", "checkpoints", "streaming", "upkeep",
    "workload",
)  # fmt: skip


def foreign_packages() -> list[str]:
    """What is wrong, a line each; empty where every name is ours alone."""
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
