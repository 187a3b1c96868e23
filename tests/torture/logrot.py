"""Rot of the log: bits flipped, ranges zeroed, doubled or written to the wrong place.

After each: the output is what the plain models make of the bytes that are there, and every message
of the log before it was damaged has its unit or lies in a range of the ledger.
"""

from __future__ import annotations

import copy
import random
from collections import Counter
from collections.abc import Callable

from tests.crash.work import one_after_another
from tests.support.damage import damage
from tests.support.small_store import SmallStore
from tests.support.wire import PlainLog, random_fields
from tests.torture.cases import Case, Kind

LONG_FILES = 26
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


def random_log(rng: random.Random, files: int = 2) -> PlainLog:
    """Some files and a bit of messages, most of them in order in their queues."""
    log = PlainLog(LOG_FILE_SIZE, rng.choice((0, LOG_FILE_SIZE * 5)))
    queue_offset = 0
    while log.end - log.start < files * LOG_FILE_SIZE + 300:
        fields = random_fields(rng)
        if rng.random() < 0.9:
            # mostly numbers that are numbers
            fields["properties"] = rng.choice(
                (b"TAGS\x01a\x02KEYS\x01k1 k2\x02", b"", b"x\x01y\x02")
            )
        queue_offset += rng.choice((1, 1, 1, 1, 0, 2))
        log.append(**{**fields, "queue_offset": queue_offset})
    return log


def _run(case: Case) -> Counter[str]:
    """One log, mostly a short one that is damaged once, or a long one that is damaged in many
    places; how often, and how."""
    rng = case.rng()
    files, faults = rng.choice(((2, 1), (2, 3), (LONG_FILES, LONG_FILES)))
    sound = random_log(rng, files)
    harmed = copy.deepcopy(sound)
    names = rng.choices(list(ROT), k=faults)
    for name in names:
        ROT[name](rng, harmed)
    store = SmallStore(case.emptied(), harmed)
    with one_after_another():
        store.output.start()
        expected = store.check(verify=rng.random() < 0.3)
    assert store.lost(sound, expected) == []
    return Counter({names[0] if faults == 1 else f"{faults} in one log": faults})


KIND = Kind("log rot", _run, 20_000, sample=120)
"""Ten faults each, on average."""
