"""A broker's store that loses the end of its log and goes on, with the queues that a broker has.

The bytes are ``wire``'s; queues are written from the log's records as plain units.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from tests.support.wire import UNIT, PlainLog, file_name

QUEUE_FILE_SIZE = 400 * UNIT.size


class RewrittenStore:
    """One store on disk, whose log and queues a test changes."""

    def __init__(self, root: Path, file_size: int = 1 << 16, start: int = 0) -> None:
        self.root = root
        self.plain = PlainLog(file_size, start)
        self.bodies: list[bytes] = []
        """The body of each record of ``plain.spans``."""
        self.places: list[tuple[str, int, int]] = []
        """Topic, queue and queue offset of each record."""
        self.now = 1_700_000_000_000
        root.mkdir(parents=True)
        settings = {
            "mappedFileSizeCommitLog": file_size,
            "mappedFileSizeConsumeQueue": QUEUE_FILE_SIZE,
        }
        conf = "".join(f"{name}={value}\n" for name, value in settings.items())
        (root / "broker.conf").write_text(conf)
        self.write()

    def put(self, body: bytes, topic: str = "T", queue: int = 0, **fields: Any) -> None:
        """Append a message; ``write`` puts it on disk."""
        self.now += 10
        offset = 1 + max((o for t, q, o in self.places if (t, q) == (topic, queue)), default=-1)
        self.plain.append(
            topic=topic.encode(), queue_id=queue, queue_offset=offset, body=body,
            **{"store_timestamp": self.now, **fields},
        )  # fmt: skip
        self.bodies.append(body)
        self.places.append((topic, queue, offset))

    def fill(self, count: int, prefix: str = "m", size: int = 100, queues: int = 1) -> list[bytes]:
        """Append messages, in turn to several queues; their bodies."""
        bodies = [f"{prefix}{number}".encode().ljust(size, b".") for number in range(count)]
        for number, body in enumerate(bodies):
            self.put(body, queue=number % queues)
        self.write()
        return bodies

    def lose(self, count: int, *, clock: bool = False) -> None:
        """Lose the last records; with ``clock`` the clock goes back to them, too."""
        kept = len(self.plain.spans) - count
        self.plain.cut(self.plain.spans[kept - 1][1] if kept else self.plain.start)
        del self.bodies[kept:], self.places[kept:]
        if clock:
            self.now -= 10 * count
        self.write()

    def change(self, rng: random.Random, prefix: str) -> None:
        """Lose some records, append some, or both."""
        if self.bodies and rng.random() < 0.5:
            count = min(len(self.bodies), rng.choice((1, 3, 20, 200)))
            self.lose(count, clock=rng.random() < 0.5)
        if rng.random() < 0.9:
            count, size = rng.choice((1, 10, 60)), rng.choice((20, 60, 200))
            self.fill(count, prefix, size, rng.choice((1, 2, 5)))

    def write(self) -> None:
        """The log, then the queues; in place, as a broker does, since somebody may be reading."""
        plain, size = self.plain, self.plain.file_size
        image = bytes(plain.image) or bytes(size)
        starts = range(0, len(image), size)
        _update(
            self.root / "commitlog",
            {file_name(plain.start + at): image[at : at + size] for at in starts},
        )
        units: dict[tuple[str, int], bytearray] = {}
        for (topic, queue, _), (start, end) in zip(self.places, plain.spans, strict=True):
            units.setdefault((topic, queue), bytearray()).extend(UNIT.pack(start, end - start, 0))
        known = {(path.parent.name, int(path.name))
                 for path in (self.root / "consumequeue").glob("*/*")}  # fmt: skip
        for topic, queue in sorted(known | units.keys()):
            data = units.get((topic, queue), bytearray())
            starts = range(0, max(len(data), 1), QUEUE_FILE_SIZE)
            parts = {at: bytes(data[at : at + QUEUE_FILE_SIZE]) for at in starts}
            _update(
                self.root / "consumequeue" / topic / str(queue),
                {file_name(at): part.ljust(QUEUE_FILE_SIZE, b"\0") for at, part in parts.items()},
            )

    def replace_queue(self, units: list[int], topic: str = "T", queue: int = 0) -> None:
        """Build one queue anew: of the records with these numbers alone."""
        spans = [self.plain.spans[number] for number in units]
        data = b"".join(UNIT.pack(start, end - start, 0) for start, end in spans)
        place = self.root / "consumequeue" / topic / str(queue) / file_name(0)
        place.write_bytes(data.ljust(QUEUE_FILE_SIZE, b"\0"))

    def expire(self, files: int) -> None:
        """Remove the first log files, as retention does; ``write`` brings them back."""
        for path in sorted((self.root / "commitlog").iterdir())[:files]:
            path.unlink()


def _update(directory: Path, files: dict[str, bytes]) -> None:
    """Make a directory hold these files; those that have their bytes already are not touched."""
    directory.mkdir(parents=True, exist_ok=True)
    for path in directory.iterdir():
        if path.name not in files:
            path.unlink()
    for name, data in sorted(files.items()):
        path = directory / name
        path.touch()
        if path.read_bytes() != data:
            with path.open("r+b") as out:
                out.write(data)


def old_form(offset: str) -> str:
    """An offset of either source as versions before this one wrote it."""
    found = json.loads(offset)
    return json.dumps({key: found[key] for key in found if key not in ("evidence", "/evidence")})
