"""Frames of remoting: any bytes are a frame that can be written again, or a FrameError."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator

from serving.frame import LENGTH_SIZE, FrameError, decode, encode
from tests.serving.test_frame import any_frame

COUNT = 100


def seeds() -> Iterator[bytes]:
    """Yield frames of both codecs."""
    rng = random.Random(1)
    for _ in range(COUNT):
        yield encode(any_frame(rng))


def check(data: bytes) -> None:
    """Decode the bytes as they are, and with the right length in front."""
    rest = data[LENGTH_SIZE:]
    for frame in (data, struct.pack(">I", len(rest)) + rest):
        try:
            found = decode(frame)
        except FrameError as error:
            assert "\n" not in str(error)
            continue
        assert decode(encode(found)) == found
