"""Finds the stores of several brokers by one pattern, and names each one's output.

A store is named by its directory, and its output is the directory of that name among the outputs.
"""

from __future__ import annotations

import glob
from pathlib import Path

from store.config import COMMIT_LOG_DIRECTORY
from store.config import FILE_NAME as BROKER_CONF
from store.errors import NotReadyError, UsageError


def find_roots(pattern: str) -> list[Path]:
    """Return the paths that match ``--stores``, sorted. Raises NotReadyError where none
    does."""
    # Path.glob takes no absolute pattern
    found = [Path(path) for path in sorted(glob.glob(pattern))]  # noqa: PTH207
    if not found:
        raise NotReadyError(f"--stores is {pattern!r}, which no directory matches yet")
    return found


def find_stores(pattern: str, outputs: Path) -> dict[Path, Path]:
    """Return root -> output of each store that matches. A directory that has neither a commitlog
    nor a ``broker.conf`` is no store yet. Raises NotReadyError where there is none, and UsageError
    for two stores of one name."""
    found: dict[Path, Path] = {}
    roots: dict[str, Path] = {}
    for root in find_roots(pattern):
        if not ((root / COMMIT_LOG_DIRECTORY).is_dir() or (root / BROKER_CONF).is_file()):
            continue
        other = roots.setdefault(root.name, root)
        if other is not root:
            raise UsageError(
                f"{other} and {root} would both have the output {outputs / root.name}; let "
                "--stores match symbolic links of different names"
            )
        found[root] = outputs / root.name
    if not found:
        raise NotReadyError(
            f"--stores is {pattern!r}, and nothing that matches has a {COMMIT_LOG_DIRECTORY} or a "
            f"{BROKER_CONF} yet"
        )
    return found
