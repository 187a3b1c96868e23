"""Compares the queues that a dispatcher builds with those of the broker whose log it follows, while
both grow.

Each queue is compared from the first entry that both sides have, up to the watermark, unit by unit
as bytes, each byte once. The broker may lag: what it has not written yet is compared when it comes.
It may also be writing the very unit that is read, so that a difference counts only if a later look
finds it too. After its first difference a queue is left alone; the others go on.

Consume queues and batch queues are compared. Ext units and index are not: ``upkeep.compare`` does
that, where nobody writes. Only reads. A thread of its own compares, from the first watermark on;
the dispatcher's threads only note which queues have grown.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from reput.store.config import StoreSettings
from reput.store.errors import ReputError, StoreError, error_text
from reput.store.files import STATE_DIRECTORY, offset_to_file_name
from reput.store.queue.consumequeue import (
    PRE_BLANK_SIZE,
    UNIT_BEGIN,
    ConsumeQueueFiles,
    QueueFiles,
    QueueKey,
    list_queues,
    topic_directory,
)
from reput.store.queue.kinds import QueueKind
from reput.store.queue.mappedfilequeue import data_end
from reput.store.runs.dispatch import Run
from reput.store.state.watermark import read_watermark
from reput.upkeep.compare import PairReader
from reput.upkeep.entryfields import Fields, entry_fields

LOOK_SECONDS = 1.0
"""Time between two looks at a queue in which the broker lags or may be writing."""
LIST_SECONDS = 60.0
"""Time between two looks for queues that only the broker has."""

_READ_SIZE = 1 << 16

logger = logging.getLogger("reput")


@dataclass(frozen=True, slots=True)
class EntryDifference:
    """The first entry of a queue that the broker has otherwise than reput."""

    kind: QueueKind
    topic: str
    queue_id: int
    unit: int
    """Counted from the queue's byte 0: a consume queue's queue offset."""
    file: str
    """Name of the queue file, the same on both sides."""
    position: int
    """The first byte that differs, in that file."""
    reput: Fields | None
    """The entry's fields in the output; None where it has none."""
    broker: Fields | None

    @property
    def place(self) -> str:
        """Where the byte is, for people."""
        return f"{self.kind}/{self.topic}/{self.queue_id}/{self.file}, byte {self.position}"


@dataclass(slots=True)
class KindCounts:
    """Counts of the queues and entries of one kind."""

    queues: int = 0
    entries: int = 0
    """Entries that are equal on both sides."""
    awaited: int = 0
    """Entries that the output has and the broker does not have yet."""
    uncomparable: int = 0
    """Batch queues that the broker began with messages which the log had lost before the output
    began: the entries of both stand elsewhere."""


@dataclass(slots=True)
class ShadowResult:
    """Counts by kind, and the first difference of each queue, in the order of discovery."""

    compared: dict[QueueKind, KindCounts] = field(default_factory=dict)
    differences: list[EntryDifference] = field(default_factory=list)

    @property
    def is_equal(self) -> bool:
        """Whether entries were compared and no queue has a difference."""
        return not self.differences and any(each.entries for each in self.compared.values())


@dataclass(slots=True)
class _Queue:
    """How far one queue is compared; bytes in the queue, ends exclusive."""

    kind: QueueKind
    key: QueueKey
    begin: int | None = None
    """Where the comparison began; None before."""
    compared: int = 0
    end: int = 0
    """The output's end up to the watermark."""
    suspect: EntryDifference | None = None
    """The difference that the last look found; None if it found none."""
    differs: bool = False
    is_uncomparable: bool = False


class Shadow:
    """The comparison of one output with its store's own queues; a context manager. Leaving the
    block compares what is there at last, unless an error ends it."""

    def __init__(self, settings: StoreSettings, output: Path) -> None:
        """``settings`` are the output's, whose root is the store's."""
        self.result = ShadowResult()
        """Complete once the block is left; empty where there was no watermark."""
        self._settings = settings
        self._output = output
        self._watermark = 0
        self._queues: dict[tuple[QueueKind, QueueKey], _Queue] = {}
        self._grown: set[QueueKey] = set()
        self._all_grown = False
        self._due: dict[tuple[QueueKind, QueueKey], None] = {}
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._end = threading.Event()
        self._is_abandoned = False
        self._error: ReputError | None = None
        self._thread: threading.Thread | None = None
        self._reader = PairReader()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_error: object) -> None:
        self._is_abandoned = kind is not None
        self._end.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join()
        if kind is None:
            self._check()

    def end_moved(self, _settings: StoreSettings, runs: Sequence[Run] | None) -> None:
        """Note the queues of these runs as grown (None: all queues). The dispatcher's threads call
        it. Raises the error that has ended the comparison."""
        self._check()
        with self._lock:
            if runs is None:
                self._all_grown = True
            else:
                names = ((topic_directory(run.topic), run.queue_id) for run in runs)
                self._grown |= {QueueKey(name, number) for name, number in names if name}
        self._wake.set()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="reput-shadow", daemon=True)
            self._thread.start()

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            with self._reader:
                self._follow()
                if not self._is_abandoned:
                    self._finish()
        except Exception as error:
            # whatever it is, the dispatcher's thread and the caller get it as one line
            text = f"the comparison with the broker has failed: {error_text(error)}"
            self._error = error if isinstance(error, ReputError) else StoreError(text)
            logger.error("the comparison with the broker has ended: %s", error_text(error))

    def _follow(self) -> None:
        listed = time.monotonic()
        while not self._end.is_set():
            self._wake.wait(0 if self._due else LIST_SECONDS)
            self._wake.clear()
            if time.monotonic() >= listed + LIST_SECONDS:
                listed = time.monotonic()
                self._add_theirs()
            self._look_at_due()
            # a queue that is due again, is so after a while
            self._end.wait(LOOK_SECONDS if self._due else 0)

    def _finish(self) -> None:
        """Look at every queue of either side, and once more, after a while, where one differed."""
        with self._lock:
            self._all_grown = True
        self._add_theirs()
        for _ in range(2):
            if any(queue.suspect and not queue.differs for queue in self._queues.values()):
                time.sleep(LOOK_SECONDS)
            self._look_at_due()
        for queue in self._queues.values():
            counts = self.result.compared.setdefault(queue.kind, KindCounts())
            counts.uncomparable += queue.is_uncomparable
            if queue.begin is not None:
                size = queue.kind.files.UNIT_DTYPE.itemsize
                counts.queues += 1
                counts.entries += (queue.compared - queue.begin) // size
                if not queue.differs:
                    counts.awaited += max(queue.end - queue.compared, 0) // size

    def _add_theirs(self) -> None:
        """Queues that only the broker has are due."""
        for kind in QueueKind:
            for key in list_queues(self._settings.root / kind):
                if (kind, key) not in self._queues:
                    self._due[kind, key] = None

    def _look_at_due(self) -> None:
        """Look once at every queue that has grown or is due again."""
        with self._lock:
            grown, self._grown = self._grown, set()
            is_all, self._all_grown = self._all_grown, False
        watermark = read_watermark(self._output / STATE_DIRECTORY)
        if watermark is None:
            return
        self._watermark = watermark.end_offset
        due = self._due | dict.fromkeys(self._grown_queues(grown, is_all))
        self._due = {}
        for kind, key in due:
            queue = self._queues.get((kind, key)) or _Queue(kind, key)
            try:
                is_due = not queue.differs and self._look(queue)
            except FileNotFoundError:
                is_due = True  # retention has removed the file: the queue begins later now
            if queue.begin is not None or queue.suspect or queue.is_uncomparable:
                self._queues[kind, key] = queue
            if is_due:
                self._due[kind, key] = None

    def _grown_queues(
        self, grown: set[QueueKey], is_all: bool
    ) -> Iterator[tuple[QueueKind, QueueKey]]:
        for kind in QueueKind:
            root = self._output / kind
            if is_all:
                yield from ((kind, key) for key in list_queues(root))
            else:
                yield from ((kind, key) for key in grown if (root / key.relative_path).is_dir())

    def _look(self, queue: _Queue) -> bool:
        """Compare what is new; return whether the queue is due again without having grown."""
        ours, theirs = (
            queue.kind.open(root, queue.key, self._settings)
            for root in (self._output, self._settings.root)
        )
        if ours.starts:
            queue.end = ours.grown_end(queue.end, self._watermark)
        if queue.begin is None:
            has_entries = bool(ours.starts) and queue.end > ours.starts[0]
            queue.compared = self._first(ours, theirs, queue, has_entries)
            if queue.is_uncomparable:
                return False
            queue.begin = queue.compared if has_entries else None
        elif queue.compared < (first := _common_start(ours, theirs)):
            queue.begin += first - queue.compared
            queue.compared = first
        position = self._compare(ours, theirs, queue)
        difference = self._judge(ours, theirs, queue, position)
        if difference is not None and difference == queue.suspect:
            queue.differs = True
            self.result.differences.append(difference)
            logger.error("the broker's queue differs: %s", difference.place)
            return False
        queue.suspect = difference
        return difference is not None or queue.compared < queue.end

    def _first(self, ours: QueueFiles, theirs: QueueFiles, queue: _Queue, has_entries: bool) -> int:
        """Return the byte of the first entry of either side whose message is in the log."""
        start = _common_start(ours, theirs)
        with closing(self._settings.open_log()) as log:
            log_min_offset = log.min_offset
        if isinstance(theirs, ConsumeQueueFiles):
            end = theirs.find_end(self._watermark)
            first = theirs.min_offset_in_queue(end, log_min_offset) * theirs.unit_size
            own = end
            if has_entries:
                # blanks before it may stand for messages that the broker had before the log began
                entry = ours.first_real_unit(queue.end)
                own = queue.end if entry is None else entry[0] * ours.unit_size
            return max(start, min(first, own) if first < end else own)
        if theirs.starts:
            # a batch queue begins at byte 0, with the first batch that its writer found
            unit = theirs.units(theirs.starts[0], 0, 1)[0]
            own_offset = (
                ours.units(ours.starts[0], 0, 1)[0]["offset"] if has_entries else log_min_offset
            )
            is_older = unit["offset"] < min(own_offset, log_min_offset)
            queue.is_uncomparable = bool(unit["size"] > 0 and is_older)
        return start

    def _compare(self, ours: QueueFiles, theirs: QueueFiles, queue: _Queue) -> int:
        """Move ``queue.compared`` to the first unit that differs, or to the output's end; return
        the first byte that differs."""
        while queue.compared < queue.end:
            start = queue.compared - queue.compared % ours.file_size
            if start not in theirs.starts or start not in ours.starts:
                return queue.compared
            stop = min(queue.end, start + ours.file_size)
            self._reader.take(str(ours.path(start)), str(theirs.path(start)))
            at = self._reader.first_difference(queue.compared - start, stop - start)
            if at is not None:
                queue.compared = start + at - at % ours.unit_size
                return start + at
            queue.compared = stop
        return queue.compared

    def _judge(
        self, ours: QueueFiles, theirs: QueueFiles, queue: _Queue, position: int
    ) -> EntryDifference | None:
        """Return the difference at ``queue.compared``; None where the broker has yet to write, or
        the dispatcher."""
        is_ours = queue.compared < queue.end
        unit = _unit(theirs, queue.compared)
        if not any(unit):
            # a broker writes in order, so that a later entry means that this one is missing
            if not is_ours or not _is_written_after(theirs, queue.compared):
                return None
        elif not is_ours and not self._should_be_ours(unit):
            return None
        start = position - position % theirs.file_size
        dtype = theirs.UNIT_DTYPE
        return EntryDifference(
            queue.kind,
            queue.key.topic,
            queue.key.queue_id,
            queue.compared // theirs.unit_size,
            offset_to_file_name(start),
            position - start,
            entry_fields(_unit(ours, queue.compared), dtype) if is_ours else None,
            entry_fields(unit, dtype),
        )

    def _should_be_ours(self, unit: bytes) -> bool:
        """Whether the broker's unit belongs to a message below the watermark."""
        offset, size, _ = UNIT_BEGIN.unpack_from(unit)
        return bool(0 < size < PRE_BLANK_SIZE and offset + size <= self._watermark)


def _common_start(ours: QueueFiles, theirs: QueueFiles) -> int:
    """Return the byte at which the first file begins that both sides may have."""
    return max([*ours.starts[:1], *theirs.starts[:1]], default=0)


def _unit(files: QueueFiles, position: int) -> bytes:
    """Return the bytes of the unit at a byte of the queue, zeros where no file has it."""
    start = position - position % files.file_size
    if start not in files.starts:
        return bytes(files.unit_size)
    return files.units(start, (position - start) // files.unit_size, 1).tobytes()


def _is_written_after(files: QueueFiles, position: int) -> bool:
    """Return whether an entry follows the one at ``position``, however far away."""
    start = position - position % files.file_size
    if any(any(_unit(files, later)) for later in files.starts if later > start):
        return True
    if start not in files.starts:
        return False
    with files.path(start).open("rb", buffering=0) as file:
        end = data_end(file.fileno())
        return any(
            any(os.pread(file.fileno(), _READ_SIZE, at))
            for at in range(position - start, end, _READ_SIZE)
        )
