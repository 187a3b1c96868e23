"""The process that fuzzes: ``python -m tests.fuzz.worker TARGET [libFuzzer's arguments]``."""

from __future__ import annotations

import sys
from pathlib import Path

import atheris

from tests.fuzz import targets

ROOT = Path(__file__).parent.parent.parent


def main() -> None:
    """Fuzz until libFuzzer's limits, or an input that fails; libFuzzer ends the process."""
    name, *arguments = sys.argv[1:]
    guiding = {f"tests.fuzz.{name}", *targets.TARGETS[name]}
    packages = {module.partition(".")[0] for module in guiding}
    # atheris includes whole top-level packages, and excludes single modules
    others = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for package in packages
        for path in (ROOT / package).rglob("*.py")
    } - guiding
    with atheris.instrument_imports(include=sorted(packages), exclude=sorted(others)):
        target = targets.load(name)
    atheris.Setup([name, *arguments], target.check)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
