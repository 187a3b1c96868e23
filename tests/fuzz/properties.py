"""Property blocks: parsed as RocketMQ's MessageDecoder does, which is written here once more."""

from __future__ import annotations

import random
from collections.abc import Iterator

from reput.store.log import java, properties
from reput.store.log.lightqueues import listed_queues
from tests.support.wire import random_properties

COUNT = 60


def seeds() -> Iterator[bytes]:
    """Yield blocks, sound ones and odd ones."""
    rng = random.Random(1)
    for _ in range(COUNT):
        yield random_properties(rng) or b"\1"


def check(data: bytes) -> None:
    """Parse the bytes, and take each value for what any property may be."""
    found = properties.parse(data)
    assert found == _plainly(data)
    for value in found.values():
        assert -(1 << 31) <= java.hash_code(value) < 1 << 31
        number = java.parse_integer(value, 32)
        assert number is None or -(1 << 31) <= number < 1 << 31
        java.decode(value).encode()
        queues = listed_queues(b"T", 0, value, data, enable_lmq=True)
        assert queues is None or all(b"/" not in name for name, _, _ in queues)


def _plainly(data: bytes) -> dict[bytes, bytes]:
    found, start = {}, 0
    while start < len(data):
        end = data.find(2, start)
        end = len(data) if end < 0 else end
        at = data.find(1, start, end)
        if start < at < end - 1:
            found[data[start:at]] = data[at + 1 : end]
        start = end + 1
    return found
