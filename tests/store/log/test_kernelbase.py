"""What decides which compiled kernels are taken from the cache."""

from __future__ import annotations

import ast
from pathlib import Path

from store.log.kernelbase import SOURCES

ROOT = Path(__file__).parents[3]
PACKAGES = ("store", "workload")


def imports(path: Path) -> set[str]:
    """Files of this project from which a module takes names."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            for name in (node.module, *(f"{node.module}.{alias.name}" for alias in node.names)):
                file = ROOT / f"{name.replace('.', '/')}.py"
                if file.is_file():
                    found.add(str(file.relative_to(ROOT)))
    return found


def test_the_cache_key_covers_every_kernel_and_what_it_takes() -> None:
    """A kernel that is missing there would run as it was compiled before a change."""
    kernels = {
        str(path.relative_to(ROOT))
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        if "\n@kernel\n" in path.read_text("utf-8")
    }
    assert len(kernels) >= 5
    taken = {name for kernel in kernels for name in imports(ROOT / kernel)}
    # what is called from Python, or has no constants of a kernel's
    beside = {"store/privatecache.py"}
    assert kernels | taken <= {*SOURCES, *beside}, kernels | taken
    assert all((ROOT / name).is_file() for name in SOURCES)
