"""Damage to a log image: what disks, copies and hostile producers do to bytes."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable

from tests.support.wire import BLANK_MAGIC, V1_MAGIC, V2_MAGIC, PlainLog, message

_ODD_VALUES = (0, 1, -1, 8, 90, 91, 92, 127, -128, 32767, -32768, 64 << 20, (64 << 20) + 1)
_EDGES = (2147483647, -2147483648)


def _span(rng: random.Random, log: PlainLog) -> tuple[int, int]:
    return rng.choice(log.spans)


def _flip(rng: random.Random, log: PlainLog) -> None:
    log.image[rng.randrange(len(log.image))] ^= 1 << rng.randrange(8)


def _cut_out(rng: random.Random, log: PlainLog) -> None:
    at, count = rng.randrange(len(log.image)), rng.choice((1, 2, 4, 8, 100))
    removed = log.image[at : at + count]
    del log.image[at : at + count]
    log.image.extend(bytes(len(removed)))


def _insert(rng: random.Random, log: PlainLog) -> None:
    at, data = rng.randrange(len(log.image)), rng.randbytes(rng.choice((1, 2, 4, 8, 100)))
    length = len(log.image)
    log.image[at:at] = data
    del log.image[length:]


def _zero(rng: random.Random, log: PlainLog) -> None:
    at = rng.choice((rng.randrange(len(log.image)), _span(rng, log)[0] - log.start))
    count = min(rng.choice((1, 4, 8, 91, 300, 5000)), len(log.image) - at)
    log.image[at : at + count] = bytes(count)


def _noise(rng: random.Random, log: PlainLog) -> None:
    at = rng.randrange(len(log.image))
    count = min(rng.choice((1, 8, 200)), len(log.image) - at)
    log.image[at : at + count] = rng.randbytes(count)


def _field(rng: random.Random, log: PlainLog) -> None:
    """One field of one record: sizes, magic, offsets, sysFlag, inner lengths."""
    start, end = _span(rng, log)
    data = log.bytes_at((start, end))
    sys_flag = struct.unpack_from(">i", data, 36)[0]
    body_length_at = 68 + (20 if sys_flag & 0x10 else 8) + (20 if sys_flag & 0x20 else 8)
    body_length = int.from_bytes(data[body_length_at : body_length_at + 4], "big", signed=True)
    topic_at = body_length_at + 4 + body_length
    layout, at = rng.choice(
        (
            (">i", 0), (">i", 0), (">I", 4), (">i", 8), (">q", 20), (">q", 28), (">i", 36),
            (">i", body_length_at), (">b", topic_at), (">h", topic_at),
            (">h", max(0, end - start - 2 - rng.randrange(40))),
        )
    )  # fmt: skip
    if not 0 <= at <= len(data) - struct.calcsize(layout):
        return
    old = struct.unpack_from(layout, data, at)[0]
    bits = 8 * struct.calcsize(layout)
    value = rng.choice(
        (old + 1, old - 1, old + rng.randrange(-100, 100), old ^ 1 << rng.randrange(bits),
         rng.choice(_ODD_VALUES), rng.choice(_EDGES), rng.choice((V1_MAGIC, V2_MAGIC, BLANK_MAGIC)))
    )  # fmt: skip
    wrapped = (value % (1 << bits)).to_bytes(bits // 8, "big")
    log.put(start + at, wrapped)


def _properties(rng: random.Random, log: PlainLog) -> None:
    """Bytes near a record's end, where its properties stand."""
    start, end = _span(rng, log)
    for _ in range(rng.choice((1, 2, 5))):
        at = end - 1 - rng.randrange(min(40, end - start))
        log.put(at, bytes([rng.choice(b"\x01\x02\x00+-9\xed\xa0\xf0")]))


def _copy_record(rng: random.Random, log: PlainLog) -> None:
    """A whole record at the wrong place."""
    data = log.bytes_at(_span(rng, log))
    at = rng.randrange(len(log.image) - len(data))
    log.image[at : at + len(data)] = data


def forge(rng: random.Random, log: PlainLog) -> None:
    """A record that is right for its position, wherever that is (in a body, say)."""
    body = rng.randbytes(rng.randrange(4))
    size = len(message(0, body=body))
    at = rng.randrange(len(log.image) - size)
    log.put(log.start + at, message(log.start + at, body=body, queue_id=9))


def _forge_blank(rng: random.Random, log: PlainLog) -> None:
    at = rng.randrange(len(log.image) - 8)
    room = log.file_size - at % log.file_size
    log.image[at : at + 8] = struct.pack(">iI", room + rng.choice((0, 0, -1, 8)), BLANK_MAGIC)


DAMAGES: tuple[Callable[[random.Random, PlainLog], None], ...] = (
    _flip, _cut_out, _insert, _zero, _noise, _field, _field, _field, _field, _properties,
    _properties, _copy_record, forge, _forge_blank,
)  # fmt: skip


def damage(rng: random.Random, log: PlainLog) -> None:
    """Between none and a few damages of any kind."""
    for _ in range(rng.choice((0, 1, 1, 1, 2, 4))):
        rng.choice(DAMAGES)(rng, log)
