"""Rot of the log: bits flipped, ranges zeroed, doubled or written to the wrong place.

After each: the output is what the plain models make of the bytes that are there, and every message
of the log before it was damaged has its unit or lies in a range of the ledger.
"""

from __future__ import annotations

import copy
import random
import shutil
from collections.abc import Callable
from pathlib import Path

from tests.support.damage import damage
from tests.support.small_store import SmallStore
from tests.support.wire import PlainLog, random_fields

NAME = "log rot"
CASES = 200_000
LOG_FILE_SIZE = 2048
SIZES = (1, 2, 8, 91, 512, 1024)


def _range(rng: random.Random, log: PlainLog, size: int) -> int:
    """A place for so many bytes; half of the places are aligned as a disk's sectors are."""
    at = rng.randrange(len(log.image) - size + 1)
    return at - at % 512 if rng.random() < 0.5 else at


def _flip(rng: random.Random, log: PlainLog) -> None:
    for _ in range(rng.choice((1, 1, 1, 3, 20))):
        log.image[rng.randrange(len(log.image))] ^= 1 << rng.randrange(8)


def _zero(rng: random.Random, log: PlainLog) -> None:
    size = rng.choice(SIZES)
    at = _range(rng, log, size)
    log.image[at : at + size] = bytes(size)


def _duplicate(rng: random.Random, log: PlainLog) -> None:
    size = rng.choice(SIZES)
    at = _range(rng, log, 2 * size)
    log.image[at + size : at + 2 * size] = log.image[at : at + size]


def _misdirect(rng: random.Random, log: PlainLog) -> None:
    """A write went elsewhere; what was to be replaced there may still be at the right place."""
    size = rng.choice(SIZES)
    source, target = _range(rng, log, size), _range(rng, log, size)
    data = log.image[source : source + size]
    if rng.random() < 0.5:
        log.image[source : source + size] = log.image[target : target + size]
    log.image[target : target + size] = data


ROT: dict[str, Callable[[random.Random, PlainLog], None]] = {
    "flip": _flip, "zero": _zero, "duplicate": _duplicate, "misdirect": _misdirect, "other": damage,
}  # fmt: skip


def random_log(rng: random.Random) -> PlainLog:
    """Two files and a bit of messages, most of them in order in their queues."""
    log = PlainLog(LOG_FILE_SIZE, rng.choice((0, LOG_FILE_SIZE * 5)))
    queue_offset = 0
    while log.end - log.start < 2 * LOG_FILE_SIZE + 300:
        fields = random_fields(rng)
        if rng.random() < 0.9:
            # mostly numbers that are numbers
            fields["properties"] = rng.choice(
                (b"TAGS\x01a\x02KEYS\x01k1 k2\x02", b"", b"x\x01y\x02")
            )
        queue_offset += rng.choice((1, 1, 1, 1, 0, 2))
        log.append(**{**fields, "queue_offset": queue_offset})
    return log


def run(directory: Path, seed: int, case: int) -> str:
    """One case; how the log was damaged."""
    rng = random.Random(f"{seed}:{case}")
    sound = random_log(rng)
    harmed = copy.deepcopy(sound)
    name = rng.choice(list(ROT))
    for _ in range(rng.choice((1, 1, 1, 3))):
        ROT[name](rng, harmed)
    if directory.exists():
        shutil.rmtree(directory)
    store = SmallStore(directory, harmed)
    store.output.start()
    store.check(verify=rng.random() < 0.3)
    assert store.lost(sound) == []
    return name
