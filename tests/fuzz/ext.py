"""Ext units: a unit within the bytes, or None; a file's units end."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from reput.store.queue.consumequeueext import MIN_EXT_UNIT_SIZE, decode_unit


def seeds() -> Iterator[bytes]:
    """Yield units with and without a bit map, and an end mark."""
    plain = struct.pack(">hqqh", 20, 7, 8, 0)
    mapped = struct.pack(">hqqh", 24, 7, 8, 4) + b"bits"
    yield plain + mapped + plain + b"\xff\xff"
    yield mapped + bytes(40)


def check(data: bytes) -> None:
    """Walk over the bytes as over a file."""
    position = 0
    while (unit := decode_unit(data, position)) is not None:
        assert unit.size >= MIN_EXT_UNIT_SIZE
        position += unit.size
        assert position <= len(data)
    for at in range(0, len(data), 7):
        decode_unit(data, at)
