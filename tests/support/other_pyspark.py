"""A pyspark that works as the installed one does, and whose private parts have other names."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import pyspark

HOME = Path(pyspark.__file__).parent


def other_pyspark(below: Path, names: Iterable[str]) -> Path:
    """Make it, of links to the installed one's files and of copies in which each of ``names`` is
    another word; the result goes into PYTHONPATH."""
    words = re.compile(rb"\b(%s)\b" % b"|".join(map(str.encode, names)))
    for path in HOME.rglob("*"):
        target = below / "pyspark" / path.relative_to(HOME)
        if path.is_dir():
            target.mkdir(parents=True)
        elif path.suffix == ".py" and words.search(data := path.read_bytes()):
            target.write_bytes(words.sub(rb"\1_of_another_release", data))
        else:
            target.symlink_to(path)
    return below
