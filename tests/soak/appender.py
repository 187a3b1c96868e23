"""The soak's broker: a process that appends the made log at a rate, each record's bytes in pieces.

It may be killed at any moment. The next one finds by comparison what is stored already and goes on,
as a broker that starts again overwrites the torn end of its log.
"""

from __future__ import annotations

import os
import pickle
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from reput.store.files import offset_to_file_name
from tests.soak.madelog import FILE_SIZE, Made, MadeLog

STATE = "appender.pickle"
"""The log's maker as it was before the newest file's first record; beside the store."""
PAUSE_SECONDS = 0.005
IDLE_SECONDS = 0.01


class Appender:
    """Writes one store's log."""

    def __init__(self, store: Path, seed: int) -> None:
        self._directory = store / "commitlog"
        self._state = store.parent / STATE
        self._fd = self._start = -1
        found = self._state.read_bytes() if self._state.exists() else pickle.dumps(MadeLog(seed))
        self.log: MadeLog = pickle.loads(found)
        self._rng = random.Random(f"{seed} {self.log.number}")
        while True:
            before = pickle.dumps(self.log)
            if not self._is_stored(self.log.next()):
                self.log = pickle.loads(before)
                break

    def _is_stored(self, made: Made) -> bool:
        path = self._directory / offset_to_file_name(made.offset - made.offset % FILE_SIZE)
        if not path.exists():
            return False
        with path.open("rb") as file:
            file.seek(made.offset % FILE_SIZE)
            return file.read(len(made.data)) == made.data

    def append(self) -> None:
        """Append one record."""
        before = pickle.dumps(self.log)
        made = self.log.next()
        if made.offset % FILE_SIZE == 0:
            temporary = self._state.with_suffix(".new")
            temporary.write_bytes(before)
            temporary.rename(self._state)
        if made.blank:
            self._write(made.blank_at, made.blank)
        pieces = [*self._pieces(made)]
        self._rng.shuffle(pieces)
        for at, data in pieces:
            self._write(at, data)
            if self._rng.random() < 0.01:
                time.sleep(self._rng.random() * PAUSE_SECONDS)  # a reader may look here

    def _pieces(self, made: Made) -> Iterator[tuple[int, bytes]]:
        count = self._rng.choice((1, 1, 2, 4))
        cuts = sorted(self._rng.sample(range(1, len(made.data)), count - 1))
        for low, high in zip([0, *cuts], [*cuts, len(made.data)], strict=True):
            yield made.offset + low, made.data[low:high]

    def _write(self, at: int, data: bytes) -> None:
        start = at - at % FILE_SIZE
        if start != self._start:
            if self._fd >= 0:
                os.close(self._fd)
            path = self._directory / offset_to_file_name(start)
            self._fd, self._start = os.open(path, os.O_RDWR | os.O_CREAT, 0o644), start
            os.ftruncate(self._fd, FILE_SIZE)
        os.pwrite(self._fd, data, at - start)


def main(store: Path, seed: int, rate: int) -> None:
    """Append until it is killed."""
    appender = Appender(store, seed)
    began, done = time.monotonic(), 0
    while True:
        if (time.monotonic() - began) * rate < done:
            time.sleep(IDLE_SECONDS)
            continue
        appender.append()
        done += 1


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
