"""Finds the stores of several brokers by one pattern, and names each one's output.

A store is named by its directory, and its output is the directory of that name among the outputs.
"""

from __future__ import annotations

import glob
from collections.abc import Iterable
from pathlib import Path

from reput.store.errors import NotReadyError, UsageError
from reput.store.files import BROKER_CONF_FILE, COMMIT_LOG_DIRECTORY


def find_roots(stores: str) -> list[Path]:
    """Return the stores that match a pattern, sorted. What has neither a commitlog nor a
    ``broker.conf`` is no store yet. Raises NotReadyError where there is none."""
    # Path.glob takes no absolute pattern
    matching = [Path(path) for path in sorted(glob.glob(stores))]  # noqa: PTH207
    if not matching:
        raise NotReadyError(f"`stores=` is {stores!r}, which no directory matches yet", path=stores)
    roots = [
        root
        for root in matching
        if (root / COMMIT_LOG_DIRECTORY).is_dir() or (root / BROKER_CONF_FILE).is_file()
    ]
    if not roots:
        raise NotReadyError(
            f"`stores=` is {stores!r}, and nothing that matches has a {COMMIT_LOG_DIRECTORY} or a "
            f"{BROKER_CONF_FILE} yet",
            path=stores,
        )
    return roots


def find_stores(stores: str, outputs: Path) -> dict[Path, Path]:
    """Return root -> output of each store of ``find_roots``. Raises UsageError as
    ``name_outputs``."""
    return name_outputs(find_roots(stores), outputs)


def name_outputs(roots: Iterable[Path], outputs: Path) -> dict[Path, Path]:
    """Return root -> output, named by the root's own name. Raises UsageError for two stores of one
    name."""
    output_of: dict[Path, Path] = {}
    root_of: dict[str, Path] = {}
    for root in roots:
        other = root_of.setdefault(root.name, root)
        if other is not root:
            raise UsageError(
                f"{other} and {root} would both have the output {outputs / root.name}; let the "
                "pattern match symbolic links of different names"
            )
        output_of[root] = outputs / root.name
    return output_of
