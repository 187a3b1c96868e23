"""Damage to any one file: flipped, zeroed, overwritten, cut, made longer, deleted."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path


def _position(rng: random.Random, data: bytes) -> int:
    """Half of them where something stands: files are mostly zeros."""
    used = len(data.rstrip(b"\0"))
    return rng.randrange(used if used and rng.random() < 0.7 else len(data))


def _flip(rng: random.Random, path: Path) -> None:
    data = bytearray(path.read_bytes())
    for _ in range(rng.choice((1, 1, 1, 3))):
        data[_position(rng, data)] ^= 1 << rng.randrange(8)
    path.write_bytes(data)


def _zero(rng: random.Random, path: Path) -> None:
    data = bytearray(path.read_bytes())
    at = _position(rng, data)
    count = min(rng.choice((1, 8, 20, 500, 5000, 1 << 30)), len(data) - at)
    data[at : at + count] = bytes(count)
    path.write_bytes(data)


def _noise(rng: random.Random, path: Path) -> None:
    data = bytearray(path.read_bytes())
    at = _position(rng, data)
    count = min(rng.choice((1, 4, 20, 60, 4096)), len(data) - at)
    data[at : at + count] = rng.randbytes(count)
    path.write_bytes(data)


def _cut(rng: random.Random, path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: rng.choice((0, rng.randrange(len(data)), len(data) - 1))])


def _extend(rng: random.Random, path: Path) -> None:
    size = rng.choice((1, 20, path.stat().st_size))
    path.write_bytes(path.read_bytes() + rng.choice((bytes(size), rng.randbytes(size))))


def _delete(_rng: random.Random, path: Path) -> None:
    path.unlink()


DAMAGES: dict[str, Callable[[random.Random, Path], None]] = {
    "flip": _flip,
    "zero": _zero,
    "noise": _noise,
    "cut": _cut,
    "extend": _extend,
    "delete": _delete,
}


def damage_file(rng: random.Random, path: Path) -> str:
    """Damage a file so that it is another one; what was done."""
    before = path.read_bytes()
    while True:
        name = rng.choice(list(DAMAGES))
        DAMAGES[name](rng, path)
        if not path.exists() or path.read_bytes() != before:
            return name
