"""A planted fault, which only a fuzzer that sees comparisons finds in seconds."""

from __future__ import annotations

from collections.abc import Iterator


def seeds() -> Iterator[bytes]:
    """Yield bytes that tell nothing."""
    yield b"........"


def check(data: bytes) -> None:
    """Fail for one beginning of 2**64."""
    if int.from_bytes(data[:4], "big") == 0x526F636B and int.from_bytes(data[4:8], "big") == 7:
        raise AssertionError("the planted fault was found")
