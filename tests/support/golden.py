"""The golden stores, unpacked, and how their trees are compared."""

from __future__ import annotations

import tarfile
from pathlib import Path

GOLDEN_DIRECTORY = Path(__file__).parent.parent / "golden"
GOLDEN_NAMES = ("plain", "mixed", "wide", "killed", "broker")


def unpack_golden(name: str, into: Path) -> Path:
    """Unpack one golden store; returns its root."""
    with tarfile.open(GOLDEN_DIRECTORY / f"{name}.tar.gz") as archive:
        archive.extractall(into, filter="data")
    return into / name


def tree(root: Path) -> dict[str, bytes]:
    """Relative file names and contents below ``root``."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


def difference(ours: Path, theirs: Path) -> list[str]:
    """Names of files that one tree lacks or that differ; empty for equal trees."""
    left, right = tree(ours), tree(theirs)
    return sorted(name for name in left.keys() | right.keys() if left.get(name) != right.get(name))
