"""Compares the queues that a dispatcher builds with those of the broker whose log it follows, while
both grow.

Each queue is compared from the first entry that both sides have, up to the watermark, unit by unit
as bytes, each byte once. The broker may lag: what it has not written yet is compared when it comes.
It may also be writing the very unit that is read, so that a difference counts only if a later look
finds it too. After its first difference a queue is left alone; the others go on.

Consume queues and batch queues are compared. Ext units and index are not: ``upkeep.compare`` does
that, where nobody writes. Only reads. A thread of its own compares; the dispatcher's threads only
note which queues have grown.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from store.config import StoreSettings
from store.errors import ReputError, StoreError, error_text
from store.log.commitlog import offset_to_file_name
from store.queue.batchconsumequeue import BATCH_CONSUME_QUEUE_DIRECTORY, BatchConsumeQueueFiles
from store.queue.consumequeue import (
    CONSUME_QUEUE_DIRECTORY,
    PRE_BLANK_SIZE,
    UNITS_PER_READ,
    ConsumeQueueFiles,
    QueueFiles,
    QueueKey,
    list_queues,
    topic_directory,
)
from store.runs.dispatch import Run
from store.state.watermark import STATE_DIRECTORY, read_watermark
from upkeep.compare import Fields, PairReader, unit_fields

KINDS = (CONSUME_QUEUE_DIRECTORY, BATCH_CONSUME_QUEUE_DIRECTORY)
LOOK_SECONDS = 1.0
"""Time between two looks at a queue in which the broker lags or may be writing."""
LIST_SECONDS = 60.0
"""Time between two looks for queues that only the broker has."""

logger = logging.getLogger("reput")


@dataclass(frozen=True, slots=True)
class EntryDifference:
    """The first entry of a queue that the broker has otherwise than reput."""

    kind: str
    """One of KINDS."""
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


@dataclass(slots=True)
class ShadowResult:
    """Counts by kind, and the first difference of each queue, in the order of discovery."""

    compared: dict[str, KindCounts] = field(default_factory=dict)
    differences: list[EntryDifference] = field(default_factory=list)

    @property
    def is_equal(self) -> bool:
        """Whether there is no difference."""
        return not self.differences


@dataclass(slots=True)
class _Queue:
    """How far one queue is compared; bytes in the queue, ends exclusive."""

    kind: str
    key: QueueKey
    begin: int | None = None
    """Where the comparison began; None before."""
    compared: int = 0
    end: int = 0
    """The output's end up to the watermark."""
    suspect: EntryDifference | None = None
    """The difference that the last look found; None if it found none."""
    differs: bool = False


class Shadow:
    """The comparison of one output with its store's own queues; a context manager. Leaving the
    block compares what is there at last, unless an error ends it."""

    def __init__(self, store: Path, output: Path) -> None:
        self.result = ShadowResult()
        """Complete once the block is left."""
        self._store = store
        self._output = output
        self._settings: StoreSettings | None = None
        self._log_min_offset = 0
        self._watermark = 0
        self._queues: dict[tuple[str, QueueKey], _Queue] = {}
        self._grown: set[QueueKey] = set()
        self._all_grown = False
        self._due: dict[tuple[str, QueueKey], None] = {}
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._end = threading.Event()
        self._error: ReputError | None = None
        self._thread: threading.Thread | None = None
        self._reader = PairReader()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_error: object) -> None:
        self._end.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join()
        with self._reader:
            if kind is not None:
                return
            self._check()
            if self._settings is not None:
                self._finish(self._settings)

    def watermark_moved(self, settings: StoreSettings, runs: Sequence[Run] | None) -> None:
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
            self._settings = settings
            self._thread = threading.Thread(
                target=self._run, args=(settings,), name="reput-shadow", daemon=True
            )
            self._thread.start()

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    def _run(self, settings: StoreSettings) -> None:
        listed = time.monotonic()
        try:
            while not self._end.is_set():
                self._wake.wait(0 if self._due else LIST_SECONDS)
                self._wake.clear()
                if time.monotonic() >= listed + LIST_SECONDS:
                    listed = time.monotonic()
                    self._add_theirs()
                self._look_at_due(settings)
                # a queue that is due again, is so after a while
                self._end.wait(LOOK_SECONDS if self._due else 0)
        except (ReputError, OSError) as error:
            found = error if isinstance(error, ReputError) else StoreError(error_text(error))
            self._error = found
            logger.error("the comparison with the broker has ended: %s", found)

    def _finish(self, settings: StoreSettings) -> None:
        """Look at every queue of either side, and once more where one differed."""
        with self._lock:
            self._all_grown = True
        self._add_theirs()
        self._look_at_due(settings)
        if any(queue.suspect for queue in self._queues.values()):
            time.sleep(LOOK_SECONDS)
            self._look_at_due(settings)
        for queue in self._queues.values():
            counts = self.result.compared.setdefault(queue.kind, KindCounts())
            size = self._files(settings, self._output, queue).unit_size
            counts.queues += 1
            counts.entries += (queue.compared - (queue.begin or 0)) // size
            if not queue.differs:
                counts.awaited += max(queue.end - queue.compared, 0) // size

    def _add_theirs(self) -> None:
        """Queues that only the broker has are due."""
        for kind in KINDS:
            for key in list_queues(self._store / kind):
                if (kind, key) not in self._queues:
                    self._due[kind, key] = None

    def _look_at_due(self, settings: StoreSettings) -> None:
        """Look once at every queue that has grown or is due again."""
        with self._lock:
            grown, self._grown = self._grown, set()
            is_all, self._all_grown = self._all_grown, False
        watermark = read_watermark(self._output / STATE_DIRECTORY)
        if watermark is None:
            return
        self._watermark = watermark.end_offset
        self._log_min_offset = _log_min_offset(settings)
        due = self._due | dict.fromkeys(self._grown_queues(grown, is_all))
        self._due = {}
        for kind, key in due:
            queue = self._queues.get((kind, key)) or _Queue(kind, key)
            try:
                is_due = not queue.differs and self._look(settings, queue)
            except FileNotFoundError:
                is_due = True  # retention has removed the file: the queue begins later now
            if queue.begin is not None or queue.differs or queue.suspect:
                self._queues[kind, key] = queue
            if is_due:
                self._due[kind, key] = None

    def _grown_queues(self, grown: set[QueueKey], is_all: bool) -> Iterator[tuple[str, QueueKey]]:
        for kind in KINDS:
            root = self._output / kind
            if is_all:
                yield from ((kind, key) for key in list_queues(root))
            else:
                yield from ((kind, key) for key in grown if (root / key.relative_path).is_dir())

    def _look(self, settings: StoreSettings, queue: _Queue) -> bool:
        """Compare what is new; return whether the queue is due again without having grown."""
        ours, theirs = (self._files(settings, root, queue) for root in (self._output, self._store))
        if ours.starts:
            queue.end = ours.grown_end(queue.end, self._watermark)
            first = max([ours.starts[0], *theirs.starts[:1]])
            if queue.begin is None:
                queue.begin = queue.compared = max(first, _first_entry(ours, queue.end))
            elif queue.compared < first:
                queue.begin += first - queue.compared
                queue.compared = first
        position = self._compare(ours, theirs, queue)
        found = self._judge(ours, theirs, queue, position)
        if found is not None and found == queue.suspect:
            queue.differs = True
            self.result.differences.append(found)
            logger.error("the broker's queue differs: %s", found.place)
            return False
        queue.suspect = found
        return found is not None or queue.compared < queue.end

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
        elif not is_ours and not self._should_be_ours(theirs, unit):
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
            unit_fields(_unit(ours, queue.compared), dtype) if is_ours else None,
            unit_fields(unit, dtype),
        )

    def _should_be_ours(self, theirs: QueueFiles, unit: bytes) -> bool:
        """Whether the broker's unit belongs to a message below the watermark."""
        fields = unit_fields(unit, theirs.UNIT_DTYPE)
        if fields is None or fields["size"] == PRE_BLANK_SIZE:
            return False
        offset, size = int(fields["offset"]), int(fields["size"])
        return self._log_min_offset <= offset and size > 0 and offset + size <= self._watermark

    def _files(self, settings: StoreSettings, root: Path, queue: _Queue) -> QueueFiles:
        directory = root / queue.kind / queue.key.relative_path
        if queue.kind == BATCH_CONSUME_QUEUE_DIRECTORY:
            size = settings.mapper_file_size_batch_consume_queue
            return BatchConsumeQueueFiles(directory, size)
        return ConsumeQueueFiles(directory, settings.mapped_file_size_consume_queue)


def _log_min_offset(settings: StoreSettings) -> int:
    with closing(settings.open_log()) as log:
        return log.min_offset


def _first_entry(files: QueueFiles, end: int) -> int:
    """Return the byte of a consume queue's first entry: blanks before it may stand for messages
    that the broker had before the log began."""
    for start in files.starts:
        units = files.units(start)[: max(end - start, 0) // files.unit_size]
        real = (units["size"] != PRE_BLANK_SIZE).argmax() if len(units) else 0
        if len(units) and units["size"][real] != PRE_BLANK_SIZE:
            return start + int(real) * files.unit_size
    return end


def _unit(files: QueueFiles, position: int) -> bytes:
    """Return the bytes of the unit at a byte of the queue, zeros where no file has it."""
    start = position - position % files.file_size
    if start not in files.starts:
        return bytes(files.unit_size)
    return files.units(start, (position - start) // files.unit_size, 1).tobytes()


def _is_written_after(files: QueueFiles, position: int) -> bool:
    """Return whether an entry follows the one at ``position`` soon, or another file."""
    start = position - position % files.file_size
    if files.starts and files.starts[-1] > start:
        return any(_unit(files, files.starts[-1]))
    if start not in files.starts:
        return False
    return any(files.units(start, (position - start) // files.unit_size, UNITS_PER_READ).tobytes())
