"""Index files: a search ends, and finds offsets that the file holds."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

from reput.store.index.indexfile import IndexFiles, IndexHeader, IndexLayout
from tests.support.memory import memory

LAYOUT = IndexLayout(4, 12)
FOREVER = 1 << 62


def seeds() -> Iterator[bytes]:
    """Yield a file of three entries in one chain, and noise."""
    header = IndexHeader(1, 5000, 0, 900, 1, 4).encode()
    slots = (3).to_bytes(4, "big") * 4
    entries = b"".join(
        (7).to_bytes(4, "big") + (300 * n).to_bytes(8, "big") + bytes(4) + n.to_bytes(4, "big")
        for n in range(4)
    )
    yield header + slots + entries
    yield random.Random(1).randbytes(LAYOUT.file_size)


def check(data: bytes) -> None:
    """Search a file of these bytes for a few keys."""
    header = IndexHeader.decode(data.ljust(40, b"\0"))
    assert header.index_count > 0
    with tempfile.TemporaryDirectory(dir=memory()) as place:
        directory = Path(place)
        path = directory / "20200101000000000"
        path.write_bytes(data[: LAYOUT.file_size].ljust(LAYOUT.file_size, b"\0"))
        files = IndexFiles(directory, LAYOUT)
        files.first_phy_offset()
        for key in (b"", b"\7", b"T#k"):
            found = files.query_offset(key, 1000, 0, FOREVER)
            assert len(found.phy_offsets) < LAYOUT.max_index_num
