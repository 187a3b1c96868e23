"""Logs to measure on, and their presence in the page cache."""

from __future__ import annotations

import hashlib
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from bench.processes import BenchError
from reput.store.files import CONSUME_QUEUE_DIRECTORY, INDEX_DIRECTORY
from reput.store.index.indexfile import read_header
from reput.store.log.appender import DEFAULT_FILE_SIZE
from reput.store.queue.consumequeue import CQ_STORE_UNIT_SIZE, UNIT_DTYPE
from reput.store.queue.mappedfilequeue import data_end
from reput.workload.appender import Appender
from reput.workload.messages import MessageBatch, Workload

GIB = 1 << 30
KEYS_PER_MESSAGE = 2
"""Number of keys of a Workload's message: its unique key and one of KEYS."""
RARE_TAG = "TagR"
"""A tag that no Workload uses, as long as a Workload's own."""
_BATCH = 10_000
_READ_SIZE = 1 << 20
_DIGEST_SIZE = 1 << 20
_RESIDENT_SHARE = 0.01


@dataclass(frozen=True, slots=True)
class Log:
    """A CommitLog that was written for a measurement."""

    store: Path
    body_size: int
    message_count: int
    end_offset: int
    marks: tuple[int, ...]
    """Record starts every few thousand messages, ascending; the last is the end."""
    file_size: int

    @property
    def files(self) -> list[Path]:
        """The files that hold messages, without the one that is preallocated."""
        paths = sorted((self.store / "commitlog").iterdir())
        return [path for path in paths if int(path.name) < self.end_offset]

    @property
    def title(self) -> str:
        """A description for people."""
        return (
            f"{self.message_count:,} messages, {self.end_offset / GIB:.2f} GiB, "
            f"bodies of {self.body_size} bytes"
        )

    def parts(self, count: int) -> list[tuple[int, int]]:
        """Return [start, end) of ``count`` parts of about equal size, each from record to
        record."""
        cuts = [
            min(self.marks, key=lambda mark: abs(mark - self.end_offset * part // count))
            for part in range(1, count)
        ]
        bounds = [0, *cuts, self.end_offset]
        return list(pairwise(bounds))


class LogWriter:
    """Holds a store's appender, so that a log can be measured, extended, and measured again."""

    def __init__(
        self,
        appender: Appender,
        workload: Workload,
        batch: int,
        file_size: int,
        rare_tag_every: int | None,
    ) -> None:
        self._appender = appender
        self._workload = workload
        self._batch = batch
        self._file_size = file_size
        self._rare_tag_every = rare_tag_every
        self._message_count = 0
        self._marks: list[int] = []

    def grow(self, size: int) -> Log:
        """Append until the log has ``size`` bytes; they are on disk, not only in memory, on
        return."""
        while self._appender.end_offset < size:
            born = time.time_ns() // 1_000_000
            batch = self._workload.batch(self._message_count, self._batch, born)
            if self._rare_tag_every is not None:
                self._set_rare_tags(batch, self._rare_tag_every)
            self._appender.append_batch(batch)
            self._message_count += self._batch
            self._marks.append(self._appender.end_offset)
        os.sync()
        return Log(
            store=self._appender.root,
            body_size=self._workload.body_size,
            message_count=self._message_count,
            end_offset=self._appender.end_offset,
            marks=tuple(self._marks),
            file_size=self._file_size,
        )

    def _set_rare_tags(self, batch: MessageBatch, every: int) -> None:
        """Set the tag on the first of ``every`` messages of each queue; a tag ends the
        properties."""
        queue_count = len(batch.topics) * self._workload.queue_count
        sequence = np.arange(self._message_count, self._message_count + len(batch))
        rare = np.flatnonzero(sequence // queue_count % every == 0)
        last_letters = batch.property_bounds[1:][rare] - 2
        batch.properties[last_letters] = ord(RARE_TAG[-1])


@contextmanager
def log_writer(
    store: Path,
    body_size: int,
    *,
    topic_count: int = 8,
    queue_count: int = 4,
    file_size: int = DEFAULT_FILE_SIZE,
    rare_tag_every: int | None = None,
) -> Iterator[LogWriter]:
    """Open a new log in ``store``; ``queue_count`` is per topic, sizes are bytes. With
    ``rare_tag_every``, one of so many messages of each queue has RARE_TAG, beginning with the
    first."""
    workload = Workload(topic_count, queue_count, body_size, seed=1)
    # the appender visits every queue of a batch, so many queues need larger batches
    batch = max(_BATCH, topic_count * queue_count)
    with Appender(store, file_size=file_size) as appender:
        yield LogWriter(appender, workload, batch, file_size, rare_tag_every)


def link_view(log: Log, root: Path) -> Path:
    """Make a store of the same log for another system: hard links, no copies, no consume queues.

    RocketMQ maps the files and writes nothing into them while nothing is appended; ``digest``
    proves it. When it deletes the preallocated file, only its own name for the file is removed.
    """
    directory = root / "commitlog"
    directory.mkdir(parents=True)
    for path in log.files:
        os.link(path, directory / path.name)
    return root


def digest(log: Log) -> str:
    """Return the SHA-256 over name, length and both ends of every file, which changes if anyone
    writes."""
    total = hashlib.sha256()
    for path in log.files:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            end = min(size, log.end_offset - int(path.name))
            total.update(f"{path.name} {size}\n".encode())
            for position in (0, max(0, end - _DIGEST_SIZE)):
                file.seek(position)
                total.update(file.read(_DIGEST_SIZE))
    return total.hexdigest()


def check_index(root: Path, log: Log) -> None:
    """Raise BenchError if the index below ``root`` lacks keys or has some twice."""
    entry_count = sum(
        read_header(path).index_count - 1 for path in (root / INDEX_DIRECTORY).iterdir()
    )
    if entry_count != KEYS_PER_MESSAGE * log.message_count:
        raise BenchError(
            f"{root} has {entry_count:,} index entries of {log.message_count:,} messages"
        )


def check_queues(root: Path, log: Log) -> None:
    """Raises BenchError where the consume queues below ``root`` lack entries or have too many,
    counted in the files and not by their writer."""
    entry_count = sum(_entries(path) for path in (root / CONSUME_QUEUE_DIRECTORY).glob("*/*/*"))
    if entry_count != log.message_count:
        raise BenchError(
            f"{root} has {entry_count:,} queue entries of {log.message_count:,} messages"
        )


def _entries(path: Path) -> int:
    """Return the number of units with a size in a queue file; the holes of a sparse file are not
    read."""
    with path.open("rb") as file:
        end = data_end(file.fileno())
        file.seek(0)
        data = file.read(end)
    whole = len(data) // CQ_STORE_UNIT_SIZE * CQ_STORE_UNIT_SIZE
    return int(np.count_nonzero(np.frombuffer(data[:whole], UNIT_DTYPE)["size"]))


def warm(log: Log) -> None:
    """Read the whole log once, so that it is in the page cache."""
    buffer = bytearray(_READ_SIZE)
    for path in log.files:
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass


def evict(log: Log) -> None:
    """Drop the log from the page cache. Raises BenchError where it stays, for example because it is
    mapped."""
    os.sync()
    for path in log.files:
        evict_file(path)
    resident = resident_bytes(log)
    if resident > log.end_offset * _RESIDENT_SHARE:
        raise BenchError(
            f"{resident:,} bytes of the log are still in the page cache after DONTNEED"
        )


def evict_file(path: Path) -> None:
    """Drop what is clean of a file from the page cache."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)


def resident_bytes(log: Log) -> int:
    """Return how many bytes of the log are in the page cache, by ``fincore`` of util-linux."""
    command = ["fincore", "--bytes", "--noheadings", "--output", "RES", *map(str, log.files)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return sum(map(int, output.split()))


def dd_seconds(log: Log) -> float:
    """Return the seconds in which ``dd bs=1M`` reads the log from first byte to last, file after
    file."""
    began = time.monotonic()
    for path in log.files:
        count = min(log.file_size, log.end_offset - int(path.name))
        command = ["dd", f"if={path}", "of=/dev/null", "bs=1M", "status=none"]
        subprocess.run([*command, "iflag=count_bytes", f"count={count}"], check=True)
    return time.monotonic() - began
