"""Frames of remoting: any bytes are a frame that can be written again, or a FrameError; a pull that
is decoded as one like an earlier one says what json says."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from dataclasses import replace

from reput.serving.frame import LENGTH_SIZE, Frame, FrameError, decode, encode, take
from tests.serving.test_frame import PULLS, TRICKS, any_frame, json_frame

COUNT = 100
HEADER_AT = 8
LONG = 1 << 13
"""A header of this length is compared with no other."""


def seeds() -> Iterator[bytes]:
    """Yield frames of both codecs, and pulls with fields that look like the numbers of others."""
    rng = random.Random(1)
    for _ in range(COUNT):
        yield encode(any_frame(rng))
    for pull in PULLS:
        yield json_frame(pull)
        for trick in TRICKS:
            yield json_frame(b"{" + trick + pull[1:])


def check(data: bytes) -> None:
    """Decode the bytes as they are, and with the right length in front."""
    rest = data[LENGTH_SIZE:]
    for frame in (data, struct.pack(">I", len(rest)) + rest):
        try:
            found = decode(frame)
        except FrameError as error:
            assert "\n" not in str(error)
            continue
        plain = replace(found, likeness=None)
        assert replace(decode(encode(plain)), likeness=None) == plain
        if found.likeness is not None:
            assert _alone(frame) == plain
            assert take(frame, 0, found.likeness) == (found, len(frame))


def _alone(frame: bytes) -> Frame:
    """Decode a frame whose header is compared with no other."""
    length = int.from_bytes(frame[LENGTH_SIZE + 1 : HEADER_AT], "big")
    header, body = frame[HEADER_AT:][:length], frame[HEADER_AT + length :]
    size, mark = struct.pack(">I", LONG + 4 + len(body)), struct.pack(">I", LONG)
    return decode(size + mark + header.ljust(LONG) + body)
