"""Commands in advice: lines of a shell that are followed as they are."""

from __future__ import annotations

import shlex
from pathlib import Path


def command_line(name: str, store: Path, output: Path | None, *words: str) -> str:
    """The line of a shell that calls a command on an output, for advice that is followed as it
    is."""
    place = () if output is None or output.resolve() == store.resolve() else ("--output", output)
    return shlex.join(["reput", *name.split(), str(store), *map(str, place), *words])
