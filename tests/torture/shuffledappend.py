"""A live appender that stores the bytes of its records in shuffled order, and a dispatcher that
follows it and is started again now and then, while retention removes files that it may not have
read.

No record is dispatched before its last byte is stored. Time is simulated: a record's bytes come
within less than the seal time, or its length and magic come last and at any time. Queue offsets
count up, jump, repeat and go back. At the end the output is what the plain models make of the
log, and what retention took undispatched is listed.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

from reput.store.log import logtail
from reput.store.log.logtail import LogTail
from reput.streaming.config import DispatcherConfig
from reput.streaming.sparkless import running
from tests.support.small_store import SmallStore
from tests.support.wire import PlainLog, file_name
from tests.torture.cases import Case, Kind

LOG_FILE_SIZE = 2048
PAUSES = (0.0, 0.0001, 0.001, 0.01, 1.0, 20.0)
"""Seconds; the seal time is 8 ms, the time after which damage is passed is 5 s."""


class Time:
    """The simulated clock, in place of the module ``time`` where the log's end is looked for."""

    def __init__(self, appender: Appender) -> None:
        self._now = 0.0
        self._appender = appender

    def monotonic(self) -> float:
        """Seconds."""
        return self._now

    def sleep(self, seconds: float) -> None:
        """The appender goes on meanwhile."""
        self._now += seconds
        self._appender.advance(self._now)


class Appender:
    """Stores a log's bytes at moments that were chosen before."""

    def __init__(self, rng: random.Random, plain: PlainLog, directory: Path) -> None:
        self._plain = plain
        self._directory = directory
        self._pieces: list[tuple[float, int, int]] = []
        """(moment, [start, end)), not stored yet, in order."""
        self._begin(0)
        now = 0.0
        borders = [plain.start, *(end for _, end in plain.spans)]
        for start, end in pairwise(borders):
            now = self._schedule(rng, now, start, end)

    def _schedule(self, rng: random.Random, now: float, start: int, end: int) -> float:
        """One record, with the BLANK before it where it begins a file."""
        file_start = end - end % self._plain.file_size
        if start < file_start < end:
            self._pieces.append((now, start, file_start))
            start = file_start
        cuts = sorted(rng.sample(range(start + 8, end), rng.randrange(1, 7)))
        rest = list(pairwise((start + 8, *cuts, end)))
        head = (start, start + 8)
        is_head_last = rng.random() < 0.5
        pieces = rest if is_head_last else [head, *rest]
        rng.shuffle(pieces)
        within = LogTail.SEAL_SECONDS / 2 / len(pieces)
        for low, high in pieces:
            now += rng.choice(PAUSES) if is_head_last else rng.random() * within
            self._pieces.append((now, low, high))
        if is_head_last:
            now += rng.choice(PAUSES)
            self._pieces.append((now, *head))
        return now + rng.choice(PAUSES)

    def _begin(self, at: int) -> None:
        path = self._directory / file_name(self._plain.start + at)
        with path.open("wb") as file:
            file.truncate(self._plain.file_size)

    @property
    def is_done(self) -> bool:
        """Whether all is stored."""
        return not self._pieces

    @property
    def stored_end(self) -> int:
        """The end of the records and BLANKs that are stored as a whole."""
        waiting = min((low for _, low, _ in self._pieces), default=self._plain.end)
        borders = [border for span in self._plain.spans for border in span if border <= waiting]
        return max(borders, default=self._plain.start)

    def advance(self, now: float) -> None:
        """Store what is due."""
        while self._pieces and self._pieces[0][0] <= now:
            _, low, high = self._pieces.pop(0)
            at = low - self._plain.start
            file_at = at - at % self._plain.file_size
            path = self._directory / file_name(self._plain.start + file_at)
            if not path.exists():
                self._begin(file_at)
            with path.open("r+b") as file:
                file.seek(at - file_at)
                file.write(self._plain.bytes_at((low, high)))


def random_log(rng: random.Random) -> PlainLog:
    """Up to six files of messages of a few queues."""
    log = PlainLog(LOG_FILE_SIZE, rng.choice((0, LOG_FILE_SIZE * 7)))
    following: dict[tuple[bytes, int], int] = {}
    now = 1_700_000_000_000
    for number in range(rng.randrange(5, 40)):
        queue = rng.choice((b"A", b"B")), rng.randrange(2)
        step = rng.choice((0, 0, 0, 0, 0, 1, 5, -1, -3))
        queue_offset = max(following.get(queue, 0) + step, 0)
        following[queue] = queue_offset + 1
        now += rng.choice((0, 1, 1000, -1000, 10**11, -(10**11)))
        log.append(
            topic=queue[0], queue_id=queue[1], queue_offset=queue_offset,
            properties=b"TAGS\x01a\x02KEYS\x01k%d\x02" % number, store_timestamp=now,
            body=bytes(rng.randrange(1, 256) for _ in range(rng.choice((0, 9, 60, 300)))),
        )  # fmt: skip
    return log


@contextmanager
def _simulated(clock: Time) -> Iterator[None]:
    before = logtail.time
    logtail.time = clock  # type: ignore[assignment]
    try:
        yield
    finally:
        logtail.time = before


def _retain(rng: random.Random, directory: Path) -> int:
    """Remove some of the first files, never the last; the log's new start."""
    files = sorted(directory.iterdir())
    gone = rng.randrange(len(files))
    for path in files[:gone]:
        path.unlink()
    return int(files[gone].name)


def _run(case: Case) -> str:
    """One log; how often the dispatcher was started, and what retention took."""
    rng = case.rng()
    plain = random_log(rng)
    store = SmallStore(case.emptied(), plain)
    commitlog = store.output.store / "commitlog"
    shutil.rmtree(commitlog)
    commitlog.mkdir()
    appender = Appender(rng, plain, commitlog)
    clock = Time(appender)
    retention = rng.choice((0.0, 0.05))
    gone: list[tuple[int, int]] = []
    fronts: list[tuple[int, int]] = []
    first = plain.start
    config = DispatcherConfig(store.output.store, store.output.root, once=True)
    starts, is_last = 0, False
    with _simulated(clock):
        while not is_last:
            is_last, starts = appender.is_done, starts + 1
            with running(config) as dispatcher:
                tail, end = LogTail(dispatcher.log), dispatcher.start.log_end
                while True:
                    assert end <= appender.stored_end, (end, starts)
                    if end > dispatcher.position:
                        fronts = [one for one in fronts if one[0] < dispatcher.position]
                        fronts.append((dispatcher.position, first))
                        dispatcher.commit(dispatcher.scan(end))
                    if rng.random() < (1.0 if is_last else 0.05):
                        break
                    clock.sleep(rng.choice(PAUSES))
                    end = tail.poll(dispatcher.position)
                    if rng.random() < retention:
                        first, position = _retain(rng, commitlog), dispatcher.position
                        if first > position:
                            gone.append((position, first))
                            end = max(end, first)
    assert store.end == plain.end
    # a file that is open can be read after it was removed
    gone = [lost for lost in gone if (*lost, "segment_deleted") in store.listed()]
    store.check(verify=rng.random() < 0.2, front=first, gone=gone, fronts=fronts)
    return f"{'more starts' if starts > 2 else 'few starts'}{', a part was gone' if gone else ''}"


KIND = Kind("shuffled append", _run, 20_000, sample=15)
