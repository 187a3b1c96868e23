"""The watermark's slots and Spark's offsets: a value that is written as it was, or None."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator

from reput.store.state.evidence import PassedRecord
from reput.store.state.logoffset import offset_json, parse_log_offset
from reput.store.state.watermark import USED_SIZE, Watermark

STORE = "0123456789abcdef" * 2
EVIDENCE = (PassedRecord(500, 91, 0xFFFFFFFF), PassedRecord(7, 100, 0))


def seeds() -> Iterator[bytes]:
    """Yield slots and offsets."""
    for end in (0, 7, (1 << 63) - 1):
        yield Watermark(STORE, end, 3, 4, 5, 6, 7, 8).pack()
        yield json.dumps(offset_json(STORE, end)).encode()
        yield json.dumps(offset_json(STORE, end, EVIDENCE)).encode()


def check(data: bytes) -> None:
    """Read the bytes as they are, and with the CRC that they should have."""
    fields = data[: USED_SIZE - 4].ljust(USED_SIZE - 4, b"\0")
    for slot in (data, fields + zlib.crc32(fields).to_bytes(4, "big")):
        slots = Watermark.unpack(slot)
        if slots is not None:
            assert slots.pack() == slot[:USED_SIZE]
    found = parse_log_offset(data.decode("utf-8", "replace"))
    assert found is None or 0 <= found.offset < 1 << 63
    assert found is None or all(0 <= each.end <= found.offset for each in found.evidence)
