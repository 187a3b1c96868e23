"""Reads the units of a store's queues plainly: RocketMQ's files, struct and nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tests.support.batch_queue import BATCH_UNIT
from tests.support.wire import UNIT


@dataclass(frozen=True)
class Placed:
    """A unit and where it is."""

    topic: str
    queue_id: int
    queue_offset: int
    offset: int
    size: int
    tags_code: int


def queue_units(store: Path) -> list[Placed]:
    """Every unit of every queue of both kinds, blanks left out, by topic, queue and offset."""
    found = []
    for directory in (store / "consumequeue").glob("*/*"):
        # a power cut may leave a directory alone
        first = int(min((path.name for path in directory.iterdir()), default="0")) // UNIT.size
        for index, (offset, size, code) in enumerate(UNIT.iter_unpack(_data(directory, UNIT.size))):
            if size and size != 2147483647:
                place = directory.parent.name, int(directory.name), first + index
                found.append(Placed(*place, offset, size, code))
    for directory in (store / "batchconsumequeue").glob("*/*"):
        data = _data(directory, BATCH_UNIT.size)
        for offset, size, code, _, base, _, _, _ in BATCH_UNIT.iter_unpack(data):
            if size:
                found.append(
                    Placed(directory.parent.name, int(directory.name), base, offset, size, code)
                )
    return sorted(found, key=lambda unit: (unit.topic, unit.queue_id, unit.queue_offset))


def _data(directory: Path, unit_size: int) -> bytes:
    data = b"".join(path.read_bytes() for path in sorted(directory.iterdir()))
    return data[: len(data) // unit_size * unit_size]
