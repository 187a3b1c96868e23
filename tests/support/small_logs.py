"""Logs of a few small files, with odd records and damage: what seeded tests are made of."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

from reput.store.log.commitlog import CommitLog
from tests.support import wire

FILE_SIZE = 2048
FILES = 3
STARTS = (0, FILE_SIZE * 5, FILE_SIZE << 21, (1 << 61) // FILE_SIZE * FILE_SIZE)

Damage = Callable[[random.Random, wire.PlainLog], None]


class SmallLogs:
    """One log directory for each start, whose bytes change from case to case."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._logs: dict[int, CommitLog] = {}

    def log_of(self, image: bytearray, start: int) -> CommitLog:
        """The log of an image that begins at log offset ``start``."""
        directory = self._directory / str(start)
        directory.mkdir(exist_ok=True)
        for at in range(0, len(image), FILE_SIZE):
            path = directory / wire.file_name(start + at)
            with path.open("r+b" if path.exists() else "wb") as file:
                file.write(image[at : at + FILE_SIZE])
        if start not in self._logs:
            self._logs[start] = CommitLog([directory])
        return self._logs[start]

    def close(self) -> None:
        """Close all logs."""
        for log in self._logs.values():
            log.close()


def random_log(rng: random.Random) -> wire.PlainLog:
    """Two files and a half of random messages, at a random start."""
    log = wire.PlainLog(FILE_SIZE, rng.choice(STARTS))
    while True:
        fields = wire.random_fields(rng)
        body = fields["body"]
        assert isinstance(body, bytes)
        if (log.end - log.start) % FILE_SIZE + 600 > FILE_SIZE:
            fields["body"] = body[:8]  # small ones come near the end of the file
        log.append(**fields)
        if log.end - log.start > (FILES - 1) * FILE_SIZE + 800:
            return log


def none(_rng: random.Random, _log: wire.PlainLog) -> None:
    """A sound log."""


def randomize(rng: random.Random, log: wire.PlainLog) -> None:
    """Random bytes, with magics and sizes sprinkled in."""
    log.image[:] = rng.randbytes(len(log.image))
    for at in range(0, len(log.image) - 120, rng.choice((40, 97, 130))):
        magic = rng.choice((wire.V1_MAGIC, wire.V2_MAGIC, wire.BLANK_MAGIC))
        head = rng.randrange(88, 200).to_bytes(4, "big") + magic.to_bytes(4, "big")
        log.image[at : at + 8] = head
        if rng.random() < 0.8:
            log.image[at + 28 : at + 36] = (log.start + at).to_bytes(8, "big")
        if rng.random() < 0.8:
            log.image[at + 36 : at + 100] = bytes(64)
