"""The watermark's slots and Spark's offsets: a value that is written as it was, or None."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator

from store.state.logoffset import offset_json, parse_offset
from store.state.watermark import USED_SIZE, Watermark

STORE = "0123456789abcdef" * 2


def seeds() -> Iterator[bytes]:
    """Yield slots and offsets."""
    for end in (0, 7, (1 << 63) - 1):
        yield Watermark(STORE, end, 3, 4, 5, 6, 7, 8).pack()
        yield json.dumps(offset_json(STORE, end)).encode()


def check(data: bytes) -> None:
    """Read the bytes as they are, and with the CRC that they should have."""
    fields = data[: USED_SIZE - 4].ljust(USED_SIZE - 4, b"\0")
    for slot in (data, fields + zlib.crc32(fields).to_bytes(4, "big")):
        found = Watermark.unpack(slot)
        if found is not None:
            assert found.pack() == slot[:USED_SIZE]
    offset = parse_offset(data.decode("utf-8", "replace"))
    assert offset is None or 0 <= offset < 1 << 63
