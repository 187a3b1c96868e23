"""How far an output's queues reach into the log, and which messages of the log are in no queue.

Queues that end before the log look complete: their readers deliver what is there, and say that
nothing is left. This is the one place that tells, for all who read queues. It only reads.

A message belongs into a queue by RocketMQ's own rule (``ConsumeQueue.putMessagePositionInfo``):
its end lies beyond the queue's maxPhysicOffset, and its queue offset is not taken. Two parts of
the log are told apart:

    pending   from the queues' reach on. With a watermark that is the reach, and all bytes beyond it
              count: it is lag, and a dispatcher takes it away. Without one, the reach is the
              largest maxPhysicOffset of all queues, and the messages beyond it are counted.
    missing   before the reach: messages whose queue lacks their unit, though other queues hold
              later ones, or the watermark says that all are dispatched. That is a loss.

Only the last LOOKED_AT bytes of the log are compared, and only the queues of their messages are
opened. A queue that lost its end shows there, unless it got no message for long: ``reput verify``
compares all messages. Where messages without units are found, all queues are asked for their reach.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from reput.store.brokerlock import broker_pid
from reput.store.commandline import command_line
from reput.store.config import StoreSettings
from reput.store.files import ABORT_FILE
from reput.store.log.commitlog import CommitLog
from reput.store.log.cursor import Window, record_starts, records, walk
from reput.store.log.lightqueues import light_queues
from reput.store.log.record import Record
from reput.store.queue.consumequeue import PRE_BLANK_SIZE, QueueKey, topic_directory
from reput.store.queue.kinds import kind_of, list_all_queues
from reput.store.queue.view import BatchConsumeQueueView, QueueView, open_view

LOOKED_AT = 256 << 10
"""Bytes of the log before the queues' reach that are compared: some hundredths of a second."""
MAX_COUNTED = 16 << 20
"""Bytes whose messages are counted one by one."""

Takes = Callable[[QueueKey], bool]


@dataclass(frozen=True, slots=True)
class Messages:
    """Messages of the log that are in no queue."""

    bytes: int = 0
    """Size of their records; of many pending ones, all bytes beyond MAX_COUNTED."""
    messages: int | None = 0
    """None where they are not all counted."""
    first: int | None = None
    """Physical offset of the first of them."""


@dataclass(frozen=True, slots=True)
class Coverage:
    """The reach of an output's queues into the log, as of one moment."""

    log_end: int
    """The log's sealed end."""
    reach: int
    """The watermark, or without one the largest end of a message that has a unit; the log's first
    offset where there is no unit."""
    has_watermark: bool
    has_units: bool
    """Whether any queue holds a unit."""
    pending: Messages
    missing: Messages
    writer_pid: int | None
    """The process, a broker or a dispatcher, that holds the output's lock; None if it is free."""
    is_open_elsewhere: bool
    """Whether the store's ``abort`` file says that a broker has it open, on another machine, or was
    killed."""

    @property
    def bytes(self) -> int:
        """Bytes of the log that are in no queue."""
        return self.missing.bytes + self.pending.bytes

    @property
    def is_growing(self) -> bool:
        """Whether all that is in no queue is the lag of a process that builds the queues."""
        return self.writer_pid is not None and not self.missing.bytes

    @property
    def is_loss(self) -> bool:
        """Whether readers of the queues lose messages that nobody brings into them: a watermark
        tells how far they may read, and a broker's queues lag while it has the store open."""
        if self.missing.bytes or self.has_watermark or self.is_growing:
            return bool(self.missing.bytes)
        return bool(self.pending.bytes) and not (self.is_open_elsewhere and self.has_units)

    def command(self, store: Path, output: Path) -> str:
        """The command that brings what is in no queue into one."""
        if self.has_watermark and self.missing.bytes:
            return command_line("rebuild", store, output)
        adopt = ("--adopt",) if self.has_units and not self.has_watermark else ()
        return command_line("run", store, output, *adopt, "--once")

    def line(self, store: Path, output: Path) -> str | None:
        """A line for people about what is in no queue, and what to do; None without any."""
        if not self.bytes:
            return None
        first = self.missing.first if self.missing.bytes else self.pending.first
        least = "at least " if self.missing.bytes and self.missing.messages is None else ""
        text = f"{self.bytes:,} bytes of the log are in no queue, from physical offset {first} on"
        text = least + text
        if self.is_growing:
            return f"{text}; process {self.writer_pid} is building the queues"
        if self.missing.bytes:
            later = "the watermark lies" if self.has_watermark else "other queues reach"
            text += f", and {later} beyond them"
        return f"{text}: {self.command(store, output)}"


def read_coverage(
    output: Path,
    settings: StoreSettings,
    log: CommitLog,
    watermark: int | None,
    log_end: int,
    takes: Takes = lambda _key: True,
) -> Coverage:
    """Compare the queues with the log. Messages of queues that ``takes`` refuses do not count,
    unless they lie beyond a watermark. ``watermark`` was read before ``log_end`` was found.

    Raises StoreError if a queue or the log cannot be read.
    """
    bound = log_end if watermark is None else min(watermark, log_end)
    check = _Check(output, settings, log, bound, takes)
    reach, has_units = max(bound, log.min_offset), True
    pending, missing = Messages(), check.missing(reach)
    if watermark is not None and bound < log_end:
        pending = Messages(log_end - reach, None, reach)
    if watermark is None and missing.bytes:
        end = check.max_physic_offset()
        reach, has_units = max(end, log.min_offset), end >= 0
        pending, missing = check.uncovered(reach, log_end), check.missing(reach)
    return Coverage(
        log_end, reach, watermark is not None, has_units, pending, missing, broker_pid(output),
        (settings.root / ABORT_FILE).exists(),
    )  # fmt: skip


def holds_more(queue: QueueView) -> bool:
    """Whether a unit stands after a queue's end: its message ends beyond where the queue is read,
    which is beyond the log's end if the queue has followed that."""
    units = queue.files.read(queue.end_unit, 1)
    return bool(len(units)) and bool(0 < units["size"][0] < PRE_BLANK_SIZE)


class _Check:
    """Compares messages of the log with their queues, which are opened when they are needed."""

    def __init__(
        self, output: Path, settings: StoreSettings, log: CommitLog, bound: int, takes: Takes
    ) -> None:
        self._output = output
        self._settings = settings
        self._log = log
        self._bound = bound
        self._takes = takes
        begins = settings.topic_begins.items()
        self._topic_begins = {topic.encode(): offset for topic, offset in begins}
        self._views: dict[QueueKey, QueueView] = {}
        self._ends: dict[QueueKey, int] = {}
        """The end of the last message with a unit, -1 without one, of each open queue."""
        self._suspected: set[QueueKey] = set()

    def max_physic_offset(self) -> int:
        """The largest of all queues; -1 without a unit."""
        for key, _ in list_all_queues(self._output):
            self._view(key)
        return max(self._ends.values(), default=-1)

    def missing(self, reach: int) -> Messages:
        """The messages before ``reach`` that their queues lack, if there is one among the last
        LOOKED_AT bytes; at least those, where the queues end more than MAX_COUNTED before."""
        at = max(reach - LOOKED_AT, self._log.min_offset)
        segment = self._log.segments.at(at) or self._log.segments.after(at)
        if segment is None or segment.start >= reach:
            return Messages()
        start = segment.start
        if start < at:
            start = min(next(record_starts(self._log, [at])), reach)
        messages = self.uncovered(start, reach)
        if not messages.bytes:
            return messages
        end = min(self._ends[key] for key in self._suspected)
        if reach - end <= MAX_COUNTED:
            return self.uncovered(max(end, self._log.min_offset), reach)
        # a body may hold what looks like records: the walk ends at the one that contains the start
        sound = walk(self._log, Window(self._log), segment.start, start).offset
        if sound != start:
            messages = self.uncovered(sound, reach)
        return replace(messages, messages=None) if messages.bytes else messages

    def uncovered(self, start: int, end: int) -> Messages:
        """The messages of [start, end) that are in no queue; ``start`` is a record's."""
        size, count, first = 0, 0, None
        stop = at = min(end, start + MAX_COUNTED)
        for record in records(
            self._log, start, stop,
            verify_crc=self._settings.verify_crc, fail_on_data_loss=False,
        ):  # fmt: skip
            if not isinstance(record, Record) or record.physical_offset + record.total_size > end:
                continue
            at = max(at, record.physical_offset + record.total_size)
            if self._is_uncovered(record):
                size, count = size + record.total_size, count + 1
                first = record.physical_offset if first is None else first
        if stop == end:
            return Messages(size, count, first)
        return Messages(size + end - at, None, at if first is None else first)

    def _is_uncovered(self, record: Record) -> bool:
        if not record.dispatched_to_queue:
            return False
        queues = [(record.topic, record.queue_id, record.queue_offset)]
        if self._settings.enable_multi_dispatch:
            queues += light_queues(record, self._settings.enable_lmq) or ()
        for topic, queue_id, queue_offset in queues:
            name = topic_directory(topic)
            if name is None or queue_id < 0 or queue_offset < 0:
                continue  # the ledger has it
            if record.physical_offset < self._topic_begins.get(topic, 0):
                continue  # an operator has left it out
            key = QueueKey(name, queue_id)
            if self._takes(key) and self._lacks(key, record, queue_offset):
                return True
            if isinstance(self._views.get(key), BatchConsumeQueueView):
                return False  # its messages go into no light queue
        return False

    def _lacks(self, key: QueueKey, record: Record, queue_offset: int) -> bool:
        queue = self._view(key)
        if self._has_unit(key, queue, record, queue_offset):
            return False
        if key not in self._suspected:
            # whoever builds the queues may have written the unit since this one was looked at
            self._suspected.add(key)
            self._follow(key, queue)
        return not self._has_unit(key, queue, record, queue_offset)

    def _has_unit(self, key: QueueKey, queue: QueueView, record: Record, queue_offset: int) -> bool:
        """Whether a message has its unit, or gets none because its place is taken."""
        if record.physical_offset < self._ends[key]:
            return True
        is_batch = isinstance(queue, BatchConsumeQueueView)
        return not is_batch and 0 < queue_offset < queue.max_offset

    def _view(self, key: QueueKey) -> QueueView:
        queue = self._views.get(key)
        if queue is None:
            kind = kind_of(self._output, key.topic)
            queue = open_view(self._output, key, self._settings, self._log, kind)
            self._views[key] = queue
            self._follow(key, queue)
        return queue

    def _follow(self, key: QueueKey, queue: QueueView) -> None:
        queue.follow(self._bound)
        self._ends[key] = queue.max_physic_offset
