"""Spark's checkpoint directory: positions, the newest first, or DamagedCheckpointError."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

from reput.checkpoints.spark_checkpoint import DamagedCheckpointError, read_positions, read_start
from reput.store.state.logoffset import offset_json
from tests.support.memory import memory

STORE = "0" * 32
FILES = ("metadata", "reput-start", "offsets/0", "offsets/1", "commits/0", "commits/1")
BETWEEN = b"\xff\xfe"


def seeds() -> Iterator[bytes]:
    """Yield the files of a directory, one after the other."""
    start, first, second = (json.dumps(offset_json(STORE, end)) for end in (0, 100, 900))
    for commits in (("v1\n{}", "v1\n{}"), ("v1\n{}", ""), ("", "")):
        texts = ('{"id":"x"}', start, f"v1\n{{}}\n{first}", f"v1\n{{}}\n{second}", *commits)
        yield BETWEEN.join(text.encode() for text in texts)


def check(data: bytes) -> None:
    """Write the files, of which empty ones are missing, and read the positions."""
    with tempfile.TemporaryDirectory(dir=memory()) as place:
        directory = Path(place)
        for folder in ("offsets", "commits"):
            (directory / folder).mkdir()
        for path, content in zip(FILES, data.split(BETWEEN), strict=False):
            if content:
                (directory / path).write_bytes(content)
        read_start(directory, STORE)
        try:
            found = read_positions(directory, STORE)
        except DamagedCheckpointError:
            return
        offsets = [position.offset for position in found]
        assert all(0 <= offset < 1 << 63 for offset in offsets)
        assert set(offsets) <= {0, 100, 900}, "a position that nobody wrote"
