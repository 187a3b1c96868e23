"""Values that follow from files, which others write at any moment."""

from __future__ import annotations

import os
from pathlib import Path

from reput.store.filetimes import Watched

LONG_AGO = 1_600_000_000


def write(path: Path, text: str) -> None:
    """A file that was last written long ago, as one that ``cp -p`` or ``mv`` brings."""
    path.write_text(text, "utf-8")
    os.utime(path, (LONG_AGO, LONG_AGO))


def test_a_file_that_is_replaced_during_a_read_is_read_again(tmp_path: Path) -> None:
    """Another file takes its place after its bytes were read, and is as old as that one."""
    path, other = tmp_path / "topics.json", tmp_path / "other"
    write(path, "first")
    write(other, "second one")

    def read() -> str:
        text = path.read_text("utf-8")
        if other.exists():
            other.replace(path)
        return text

    watched = Watched(path, read)
    assert watched.value() == "first"
    assert watched.value() == "second one"
