"""Built consume queues, compared with what the log says; and cut where they are wrong.

The expected units are placed by the dispatcher itself, so that its rules stand in one place: it is
given files that compare what it would write with what they hold. Reads in bounded memory, a run of
one scanned chunk at a time. What lies before the log's first byte cannot be compared: there a unit
must only be one. Healing cuts a queue at its first wrong unit; a dispatcher that goes on from the
first message without a unit (``replay_from``) writes the rest again.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sinks.consumequeue import ConsumeQueueDispatcher, OnQueueGap
from store import fsops
from store.commitlog import is_mapped_file_name
from store.consumequeue import (
    CONSUME_QUEUE_DIRECTORY,
    CQ_STORE_UNIT_SIZE,
    PRE_BLANK,
    PRE_BLANK_SIZE,
    UNIT_DTYPE,
    ConsumeQueueFiles,
    QueueKey,
    list_queues,
    topic_directory,
)
from store.consumequeueext import CONSUME_QUEUE_EXT_DIRECTORY, MAX_ADDR, ConsumeQueueExtFiles
from store.dispatch import DispatchBatch, Run
from store.errors import QueueFileError
from store.ledger import Ledger
from store.mappedfilequeue import data_end
from store.unsynced import Unsynced, UnsyncedFiles

_NOWHERE = 1 << 63


class Damage(StrEnum):
    """What is wrong at a place of a queue."""

    UNIT = "unit"
    """Not the unit that the log says."""
    STRAY = "stray"
    """Bytes behind the last unit."""
    EXPIRED = "expired"
    """No unit, where that of a message was that the log no longer holds."""
    FILE = "file"
    """A file that does not belong to the queue."""
    FILE_SIZE = "file_size"
    """A file that is too short or too long."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One stretch of wrong units, or one wrong file; what is shown is its first unit."""

    topic: str
    queue_id: int
    damage: Damage
    queue_offset: int
    """Position of the first unit, in units."""
    unit_count: int
    """0 for a file."""
    physical_offset: int | None
    """Of the first message whose unit is wrong; None where none belongs or it is not known."""
    expected: tuple[int, ...] | None
    """(physical offset, size, tagsCode), or a file's bytes; None where nothing belongs."""
    found: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LogRange:
    """What of the log counts."""

    start: int
    """Its first byte: messages before it are gone."""
    end: int
    """The watermark: messages from here on need no unit yet."""
    sealed_end: int
    """No message lies behind it."""


class ComparedFiles(ConsumeQueueFiles):
    """The files of one queue as they are, sizes and names included. Never writes, but to heal."""

    def __init__(
        self,
        directory: Path,
        file_size: int,
        log: LogRange,
        first: Run | None,
        ext: ConsumeQueueExtFiles,
        *,
        blank_gaps: bool,
    ) -> None:
        """``first``: the queue's first messages in the log; None without one. ``blank_gaps``: there
        may be blank units behind a message, not only before the first one.
        ``ext``: of the same queue, if it has any."""
        self.sizes: dict[int, int] = {}
        """Bytes of each file, by its start."""
        super().__init__(directory, file_size)
        self.key = QueueKey(directory.parent.name, int(directory.name))
        self.differences: list[Difference] = []
        self.compared = 0
        """Units."""
        self._log = log
        self._ext = ext
        self._blank_gaps = blank_gaps
        self._anchor = None if first is None else self._find_first(first)
        self._begin: int | None = None
        self._end = 0
        self._strays: list[int] = []
        self._wrong_sizes: list[int] = []

    def refresh(self) -> None:
        """List the files, whatever their sizes."""
        self.sizes = {}
        if self.directory.is_dir():
            for entry in os.scandir(self.directory):
                if is_mapped_file_name(entry.name) and entry.is_file(follow_symlinks=False):
                    self.sizes[int(entry.name)] = entry.stat(follow_symlinks=False).st_size
        self.starts = [start for start in sorted(self.sizes) if start % self.file_size == 0]

    def bytes_at(self, position: int, size: int) -> NDArray[np.uint8]:
        """uint8[size] at byte ``position`` of the queue; zeros where no file has any."""
        data = np.zeros(size, np.uint8)
        done = 0
        while done < size:
            start = (position + done) // self.file_size * self.file_size
            at = position + done - start
            part = data[done : done + self.file_size - at]
            if start in self.sizes:
                with self.path(start).open("rb", buffering=0) as file:
                    os.preadv(file.fileno(), [part.data], at)
            done += len(part)
        return data

    def _find_first(self, first: Run) -> int | None:
        """Byte position of the queue's first message in the log, by the units that are there; None
        where the log is whole, or no unit tells: then its queue offset says where it belongs.

        A message stands at its queue offset, or before it where gaps were closed up; only offset 0
        is placed anywhere.
        """
        if self._log.start == 0:
            return None
        offsets = first.units["offset"]
        votes: Counter[int] = Counter()
        for start in self.starts:
            units = self._units(start)
            found = np.flatnonzero(np.isin(units["offset"], offsets) & (units["size"] > 0))
            indexes = found - np.searchsorted(offsets, units["offset"][found])
            votes.update((start // CQ_STORE_UNIT_SIZE + indexes).tolist())
        if not votes:
            return None
        # most of them: a single unit may have been moved
        queue_offset = votes.most_common(1)[0][0]
        if first.first_queue_offset > 0:
            queue_offset = min(queue_offset, first.first_queue_offset)
        return queue_offset * CQ_STORE_UNIT_SIZE if queue_offset >= 0 else None

    def find_end(self, end_offset: int | None) -> int:
        """Where the first message in the log belongs; the dispatcher begins there."""
        assert end_offset is None
        return self._anchor or 0

    def last_unit(self, end: int) -> tuple[int, int] | None:  # noqa: ARG002
        """Some message before the log's first byte, if there are units of such."""
        return (self._log.start - 1, 1) if self._anchor else None

    def write(self, position: int, data: bytes | memoryview, root: Path) -> Unsynced:  # noqa: ARG002
        """Compare instead."""
        expected = np.frombuffer(data, np.uint8)
        found = self.bytes_at(position, len(expected))
        if not np.array_equal(expected, found):
            units = expected.view(UNIT_DTYPE)
            self._note_units(position, units, self._without_addresses(units, found))
        self._begin = position if self._begin is None else self._begin
        self._end = position + len(expected)
        self.compared += len(expected) // CQ_STORE_UNIT_SIZE
        return Unsynced([], [])

    def _without_addresses(
        self, expected: NDArray[np.void], found: NDArray[np.uint8]
    ) -> NDArray[np.void]:
        """Units with the tagsCode that an ext address stands for, where there is an ext unit."""
        units = found.view(UNIT_DTYPE)
        codes = units["tags_code"]
        for index in np.flatnonzero((codes <= MAX_ADDR) & (codes != expected["tags_code"])):
            unit = self._ext.read(int(codes[index]))
            if unit is not None:
                codes[index] = unit.tags_code
        return units

    def _note_units(
        self, position: int, expected: NDArray[np.void], found: NDArray[np.void]
    ) -> None:
        real = np.flatnonzero(expected["size"] != PRE_BLANK_SIZE)
        for first, last in _stretches(np.flatnonzero(expected != found)):
            message = expected[real[np.searchsorted(real, first)]]
            self._note(
                Damage.UNIT, position + first * CQ_STORE_UNIT_SIZE, last - first,
                found[first], expected[first], int(message["offset"]),
            )  # fmt: skip

    def _note(
        self,
        damage: Damage,
        position: int,
        count: int,
        found: Iterable[int],
        expected: Iterable[int] | None = None,
        physical_offset: int | None = None,
    ) -> None:
        last = self.differences[-1] if self.differences else None
        queue_offset = position // CQ_STORE_UNIT_SIZE
        if count and last and (last.damage, last.queue_offset + last.unit_count) == (
            damage, queue_offset,
        ):  # fmt: skip
            # a stretch that goes on in the next run
            self.differences[-1] = replace(last, unit_count=last.unit_count + count)
            return
        self.differences.append(
            Difference(
                self.key.topic, self.key.queue_id, damage, queue_offset, count, physical_offset,
                None if expected is None else tuple(int(value) for value in expected),
                tuple(int(value) for value in found),
            )
        )  # fmt: skip

    def finish(self) -> None:
        """Look at what was not compared: files, expired units, and what is behind the last unit."""
        first, begin, end = self._bounds()
        for start, size in sorted(self.sizes.items()):
            belongs = start % self.file_size == 0 and first < start + self.file_size
            if not belongs or (start >= end and not self._goes_on(start, end)):
                self._strays.append(start)
                self._note(Damage.FILE, start, 0, (size,))
            elif size != self.file_size:
                self._wrong_sizes.append(start)
                self._note(Damage.FILE_SIZE, start, 0, (size,), (self.file_size,))
        for start in self.starts:
            is_compared = begin <= start and start + self.file_size <= end
            if start not in self._strays and not is_compared:
                units = self._units(start, least=begin - start)
                at = start + CQ_STORE_UNIT_SIZE * np.arange(len(units))
                is_unit = (units["size"] > 0) & (units["offset"] >= 0)
                is_gone = is_unit & (units["offset"] + units["size"] <= self._log.start)
                is_blank = units == PRE_BLANK
                if not self._blank_gaps:
                    is_blank = np.logical_and.accumulate(is_blank) & (start == first)
                self._note_wrong(Damage.EXPIRED, start, units, (at < begin) & ~is_gone & ~is_blank)
                is_zero = units == np.zeros(1, UNIT_DTYPE)
                is_stray = (at >= end) & ~is_zero & ~self._is_live(units)
                self._note_wrong(Damage.STRAY, start, units, is_stray)

    def _goes_on(self, start: int, end: int) -> bool:
        """Whether a file behind the last unit follows the one before it, and has units of messages
        behind the watermark; or none at all, where RocketMQ made it for a message that it dropped.
        """
        before, units = start - self.file_size, self._units(start)
        if start == end and before in self.sizes and not units.view(np.uint8).any():
            return True
        follows = before < end or (before in self.sizes and before not in self._strays)
        begins = self._begin is None and start == self.starts[0]
        return (follows or begins) and bool(self._is_live(units).any())

    def _note_wrong(
        self, damage: Damage, start: int, units: NDArray[np.void], wrong: NDArray[np.bool_]
    ) -> None:
        for low, high in _stretches(np.flatnonzero(wrong)):
            self._note(damage, start + low * CQ_STORE_UNIT_SIZE, high - low, units[low])

    def _bounds(self) -> tuple[int, int, int]:
        """Byte positions: the first file that belongs, the first unit of a message in the log, and
        behind the last unit. Without a message in the log the last two are the same."""
        begin, end = self._begin, self._end
        if begin is None:
            begin = end = self._expired_end() if self._log.start else 0
        elif self._anchor is None:
            return begin, begin, end
        first = begin - begin % -self.file_size
        while first - self.file_size in self.sizes:
            first -= self.file_size
        return first, begin, end

    def _expired_end(self) -> int:
        """Behind the last unit of a queue that has no message in the log."""
        for start in reversed(self.starts):
            units = self._units(start)
            used = np.flatnonzero((units != np.zeros(1, UNIT_DTYPE)) & ~self._is_live(units))
            if len(used):
                return start + (int(used[-1]) + 1) * CQ_STORE_UNIT_SIZE
        return 0

    def _units(self, start: int, least: int = 0) -> NDArray[np.void]:
        """Units of a file, ``least`` bytes or more; without the zeros that the file system knows
        of at its end."""
        with self.path(start).open("rb", buffering=0) as file:
            end = min(max(data_end(file.fileno()), least), self.file_size)
        size = -(-end // CQ_STORE_UNIT_SIZE) * CQ_STORE_UNIT_SIZE
        return self.bytes_at(start, size).view(UNIT_DTYPE)

    def _is_live(self, units: NDArray[np.void]) -> NDArray[np.bool_]:
        """Which units are of messages behind the watermark, to be written anew."""
        offsets, sizes = units["offset"], units["size"]
        return np.asarray(
            (offsets >= self._log.end) & (sizes > 0) & (offsets <= self._log.sealed_end - sizes)
        )

    def remove_strays(self, root: Path) -> None:
        """Heal what costs no message: give files their size, remove what does not belong, put units
        of some message that is gone where they cannot be known. Raises OutputError, SyncError."""
        for start in self._strays:
            fsops.unlink(self.path(start))
        for start in self._wrong_sizes:
            fd = fsops.open_for_writing(self.path(start), self.file_size)
            try:
                fsops.truncate(fd, self.file_size, self.path(start))
                fsops.sync(fd, self.path(start))
            finally:
                os.close(fd)
        files = ConsumeQueueFiles(self.directory, self.file_size)
        unsynced = UnsyncedFiles()
        for found in self.differences:
            if found.damage is Damage.EXPIRED:
                gone = self._gone_unit(files, found.queue_offset) * found.unit_count
                unsynced.add(files.write(found.queue_offset * CQ_STORE_UNIT_SIZE, gone, root))
        unsynced.sync()
        strays = self._positions(Damage.STRAY)
        files.clear_from(min(strays, default=_NOWHERE))

    def _gone_unit(self, files: ConsumeQueueFiles, queue_offset: int) -> bytes:
        """A unit of the message before: offsets must not fall, nor may blanks stand there, behind
        which a queue that is cut would be taken to end before them."""
        before = files.read(max(queue_offset - 1, 0), 1)
        last = int(before[0]["offset"]) if queue_offset and len(before) else 0
        gone = (min(max(last, 0), self._log.start - 1), 1, 0)
        return np.array([gone], UNIT_DTYPE).tobytes()

    def cut(self) -> None:
        """Cut the queue at its first wrong unit, which the log can give again. Raises OutputError,
        SyncError."""
        positions = self._positions(Damage.UNIT)
        if positions:
            files = ConsumeQueueFiles(self.directory, self.file_size)
            # without a message left, what remains is blank: the queue begins anew
            files.clear_from(min(positions) if files.last_unit(min(positions)) else 0)

    def _positions(self, damage: Damage) -> list[int]:
        return [
            found.queue_offset * CQ_STORE_UNIT_SIZE
            for found in self.differences
            if found.damage is damage
        ]


class ConsumeQueueVerifier:
    """Compares every queue of an output; not thread-safe, for one pass over the log."""

    def __init__(
        self,
        output: Path,
        file_size: int,
        ledger: Ledger,
        log: LogRange,
        ext_file_size: int,
        on_queue_gap: OnQueueGap = OnQueueGap.ROCKETMQ,
        batch_topics: frozenset[bytes] = frozenset(),
    ) -> None:
        """``ledger`` is read only; ``on_queue_gap``: as the queues were built; ``batch_topics``
        have no consume queues.

        Raises QueueFileError where not one file has ``file_size`` bytes: that is not damage.
        """
        self._output = output
        self._root = output / CONSUME_QUEUE_DIRECTORY
        self._file_size = file_size
        self._ext_file_size = ext_file_size
        self._on_queue_gap = on_queue_gap
        self._log = log
        self._first: dict[QueueKey, Run] = {}
        self._queues: dict[QueueKey, ComparedFiles] = {}
        self._check_file_size()
        self._dispatcher = ConsumeQueueDispatcher(
            output,
            file_size,
            ledger,
            durable_end=None,
            queue_offset_at=lambda _offset, _size: None,
            on_queue_gap=on_queue_gap,
            batch_topics=batch_topics,
            open_files=self._open,
        )

    def _check_file_size(self) -> None:
        wrong = None
        for key in list_queues(self._root):
            try:
                if ConsumeQueueFiles(self._root / key.relative_path, self._file_size).starts:
                    return
            except QueueFileError as error:
                wrong = error
        if wrong is not None:
            raise wrong

    def _open(self, directory: Path, file_size: int) -> ComparedFiles:
        key = QueueKey(directory.parent.name, int(directory.name))
        ext = self._output / CONSUME_QUEUE_EXT_DIRECTORY / key.relative_path
        files = ComparedFiles(
            directory, file_size, self._log, self._first.get(key),
            ConsumeQueueExtFiles(ext, self._ext_file_size),
            blank_gaps=self._on_queue_gap is OnQueueGap.BLANK,
        )  # fmt: skip
        self._queues[key] = files
        return files

    def compare(self, batch: DispatchBatch) -> None:
        """Compare what the next batch of the log says. Raises QueueGapError."""
        self._first = {}
        for run in batch.runs:
            name = topic_directory(run.topic)
            if name is not None:
                self._first.setdefault(QueueKey(name, run.queue_id), run)
        self._dispatcher.dispatch(batch)

    def finish(self) -> list[Difference]:
        """Look at what no batch says anything about; every difference, by queue."""
        self._first = {}
        for key in list_queues(self._root):
            if key not in self._queues:
                self._open(self._root / key.relative_path, self._file_size)
        for files in self._queues.values():
            files.finish()
        return [found for files in self._by_key() for found in files.differences]

    def _by_key(self) -> list[ComparedFiles]:
        keys = sorted(self._queues, key=lambda key: (key.topic, key.queue_id))
        return [self._queues[key] for key in keys]

    @property
    def queue_count(self) -> int:
        """Queues looked at."""
        return len(self._queues)

    @property
    def unit_count(self) -> int:
        """Units compared with the log."""
        return sum(files.compared for files in self._queues.values())

    def remove_strays(self) -> None:
        """Heal what costs no message. Raises OutputError, SyncError."""
        for files in self._by_key():
            if files.differences:
                files.remove_strays(self._output)

    def cut(self) -> None:
        """Cut queues at their first wrong units. The watermark must be at or before
        ``replay_from`` by then. Raises OutputError, SyncError."""
        for files in self._by_key():
            files.cut()


def replay_from(differences: Iterable[Difference]) -> int | None:
    """Start of the first message that a healed queue has no unit of; None where none lacks one."""
    offsets = [found.physical_offset for found in differences]
    return min((offset for offset in offsets if offset is not None), default=None)


def _stretches(indexes: NDArray[np.intp]) -> Iterator[tuple[int, int]]:
    """[first, last) of every stretch of consecutive indexes."""
    if not len(indexes):
        return
    breaks = np.flatnonzero(np.diff(indexes) != 1) + 1
    bounds = [0, *(int(at) for at in breaks), len(indexes)]
    for low, high in pairwise(bounds):
        yield int(indexes[low]), int(indexes[high - 1]) + 1
