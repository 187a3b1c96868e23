"""Damage to built queue files: what disks, copies and people do to them."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

from tests.support.wire import PRE_BLANK, file_name


def _flip(rng: random.Random, path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    path.write_bytes(data)


def _zero(rng: random.Random, path: Path) -> None:
    data = bytearray(path.read_bytes())
    at = rng.randrange(len(data))
    count = min(rng.choice((1, 8, 20, 500, 5000)), len(data) - at)
    data[at : at + count] = bytes(count)
    path.write_bytes(data)


def _noise(rng: random.Random, path: Path) -> None:
    data = bytearray(path.read_bytes())
    at = rng.randrange(len(data))
    count = min(rng.choice((1, 4, 20, 60)), len(data) - at)
    data[at : at + count] = rng.randbytes(count)
    path.write_bytes(data)


def _swap(rng: random.Random, path: Path) -> None:
    data = path.read_bytes()
    units = [data[at : at + 20] for at in range(0, len(data), 20)]
    first, second = rng.randrange(len(units)), rng.randrange(len(units))
    units[first], units[second] = units[second], units[first]
    path.write_bytes(b"".join(units))


def _blank(rng: random.Random, path: Path) -> None:
    data = bytearray(path.read_bytes())
    at = rng.randrange(len(data) // 20) * 20
    data[at : at + 20] = PRE_BLANK
    path.write_bytes(data)


def _insert(rng: random.Random, path: Path) -> None:
    """A unit twice: all that follows moves by one."""
    data = path.read_bytes()
    at = rng.randrange(len(data) // 20) * 20
    path.write_bytes((data[: at + 20] + data[at:])[: len(data)])


def _cut(rng: random.Random, path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: rng.choice((0, rng.randrange(len(data)), len(data) - 1))])


def _delete(_rng: random.Random, path: Path) -> None:
    path.unlink()


def _delete_queue(_rng: random.Random, path: Path) -> None:
    for file in path.parent.iterdir():
        file.unlink()
    path.parent.rmdir()


def _extend(rng: random.Random, path: Path) -> None:
    size = rng.choice((1, 20, path.stat().st_size))
    path.write_bytes(path.read_bytes() + rng.choice((bytes(size), rng.randbytes(size))))


def _another_file(rng: random.Random, path: Path) -> None:
    """Add zeros, noise or a copy: after the queue, in it at an odd place, or far away."""
    size = path.stat().st_size
    last = max(int(file.name) for file in path.parent.iterdir())
    start = rng.choice((last + size, last + 3 * size, last + 20, 7, 10**18))
    # RocketMQ itself leaves a file of zeros after a full one: that is no damage
    nothing = b"" if start == last + size else bytes(size)
    data = rng.choice((nothing, rng.randbytes(size), path.read_bytes(), b""))
    (path.parent / file_name(start)).write_bytes(data)


def _foreign_queue(rng: random.Random, path: Path) -> None:
    """A queue of which the log has no message."""
    directory = path.parent.parent / str(rng.randrange(100, 200))
    directory.mkdir(exist_ok=True)
    (directory / path.name).write_bytes(path.read_bytes())


DAMAGES: tuple[Callable[[random.Random, Path], None], ...] = (
    _flip, _flip, _zero, _noise, _swap, _blank, _insert, _cut, _delete, _delete_queue, _extend,
    _another_file, _foreign_queue,
)  # fmt: skip
