"""Watches an output: everything that files tell of it, read again and again, for ``reput top``.

It only reads, also while others write, and needs no JVM. Log and queues stay open between readings,
so that a reading costs what has changed since the last one. Each part is read for itself: one that
cannot be read is named, and hides no other. A value that is unknown is None, never 0.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self, TypeVar

from reput.checkpoints.agreement import what_differs
from reput.checkpoints.history import Batch, History, read_history
from reput.checkpoints.ownership import unstopped_run
from reput.store.brokerlock import broker_pid
from reput.store.commandline import command_line
from reput.store.config import StoreSettings
from reput.store.errors import ReputError, StoreError, error_text
from reput.store.files import STATE_DIRECTORY, WATERMARK_FILE
from reput.store.log.logtail import LogTail
from reput.store.queue.consumequeue import QueueKey
from reput.store.queue.kinds import QueueKind, list_all_queues
from reput.store.queue.view import QueueView, open_view
from reput.store.state.ledger import LedgerCount, LedgerCounter
from reput.store.state.output import end_of_output
from reput.store.state.visible import EndReader
from reput.store.state.watermark import Watermark
from reput.upkeep.watch.stages import RunStages, StageReader
from reput.upkeep.watch.status import (
    LIVE_COUNTED_LAG,
    FollowerStatus,
    Lag,
    follower_statuses,
    queue_bounds,
    read_lag,
)

RATE_SECONDS = 10.0
"""Time over which rates are taken."""
REOPEN_SECONDS = 60.0
"""Time for which queues stay open: an open one does not notice what became of files that it has
read."""

_Queue = tuple[QueueKey, QueueKind]
"""A queue, and whether it is a batch queue."""
_Bounds = tuple[int, int] | None
"""Min and max offset of a queue; None where its files cannot be read."""
_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class WatchedQueue:
    """One queue; offsets count messages, max exclusive, and are None where its files cannot be
    read."""

    topic: str
    queue_id: int
    min_offset: int | None
    max_offset: int | None
    rate: float | None
    """Messages that the queue has got, per second."""


@dataclass(frozen=True, slots=True)
class Reading:
    """The state of an output at one moment. A part that is None could not be read, and
    ``unreadable`` says why."""

    taken: float
    """Seconds since the epoch."""
    log_min: int | None
    log_end: int | None
    watermark: int | None
    """None as well where reput has built nothing."""
    watermark_age: float | None
    """Seconds since the watermark was written."""
    lag: Lag
    differs: str | None
    """The sign that the log is not the one that was dispatched, if there is one."""
    writer_pid: int | None
    """The process that holds the output's lock; None if it is free."""
    unstopped_run: str | None
    """A line about a run that ended without stopping, since which nobody has held the output."""
    appended_rate: float | None
    """Bytes by which the log grows, per second."""
    dispatched_rate: float | None
    """Bytes by which the watermark advances, per second."""
    queues: tuple[WatchedQueue, ...] | None
    ledger: tuple[LedgerCount, ...] | None
    followers: tuple[FollowerStatus, ...] | None
    batches: tuple[Batch, ...] | None
    """The batches that Spark's checkpoint lists, the oldest first."""
    damage: tuple[str, ...]
    """Damage of Spark's checkpoint, a line for each finding."""
    stages: RunStages | None
    """None without metrics as well."""
    unreadable: Mapping[str, str]
    """Part -> why it could not be read."""


@dataclass(frozen=True, slots=True)
class _Mark:
    """The positions at a time of the monotonic clock."""

    at: float
    log_end: int | None
    watermark: int | None
    ends: Mapping[_Queue, int] | None
    """The max offset of each queue that could be read."""


class OutputWatch:
    """Reads one output again and again, in a ``with`` block; only one thread uses it at a time."""

    def __init__(
        self,
        settings: StoreSettings,
        output: Path,
        spark_directory: Path,
        stages: StageReader | None = None,
    ) -> None:
        """Raises UsageError where ``output`` does not belong to this log, StoreError where the log
        cannot be read."""
        self._settings = settings
        self._output = output
        self._state = output / STATE_DIRECTORY
        self._spark_directory = spark_directory
        self._stages = stages
        self._log = settings.open_log()
        try:
            end_of_output(output, settings.root, self._log)
        except BaseException:
            self._log.close()
            raise
        self._tail = LogTail(self._log)
        self._watermark = EndReader(self._state)
        self._ledger = LedgerCounter(self._state)
        self._views: dict[_Queue, QueueView] = {}
        self._reopen_due = 0.0
        self._marks: deque[_Mark] = deque()
        self._suspected: set[str] = set()
        self._unreadable: dict[str, str] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._log.close()

    def read(self) -> Reading:
        """Return the state as of now."""
        self._unreadable = {}
        # before the log: a dispatcher may be moving it
        watermark = self._part("watermark", self._read_watermark)
        end = watermark.end_offset if watermark else None
        log_end = self._part("log", lambda: self._tail.settled(patient=True))
        differs = None
        if watermark is not None and log_end is not None:
            differs = self._part("log", lambda: what_differs(self._log, log_end, watermark))
        known_end = log_end if watermark is None else end
        bounds = self._part("queues", lambda: dict(self._read_queues(known_end)))
        before = self._mark(log_end, end, bounds)
        history = self._part("batches", lambda: self._read_history(watermark))
        return Reading(
            taken=time.time(),
            log_min=None if log_end is None else self._log.min_offset,
            log_end=log_end,
            watermark=end,
            watermark_age=self._part("watermark", self._watermark_age),
            lag=self._part("log", lambda: self._read_lag(log_end, watermark)) or Lag(),
            differs=differs,
            writer_pid=broker_pid(self._output),
            unstopped_run=unstopped_run(self._output),
            appended_rate=self._rate(before.log_end, log_end),
            dispatched_rate=self._rate(before.watermark, end),
            queues=None if bounds is None else tuple(self._queues(bounds, before)),
            ledger=self._part("ledger", self._ledger.counts),
            followers=self._part("followers", lambda: follower_statuses(self._output, log_end)),
            batches=None if history is None else history.batches,
            damage=self._lasting(history.damage if history else ()),
            stages=self._part("metrics", self._stages.read) if self._stages else None,
            unreadable=self._unreadable,
        )

    def _part(self, name: str, read: Callable[[], _Value]) -> _Value | None:
        try:
            return read()
        except (ReputError, OSError) as error:
            self._unreadable.setdefault(name, error_text(error))
            return None

    def _read_watermark(self) -> Watermark | None:
        watermark = self._watermark.read()
        path = self._state / WATERMARK_FILE
        if watermark is None and path.exists():
            heal = command_line("verify", self._settings.root, self._output, "--repair")
            raise StoreError(f"{path} is damaged, both slots of it; {heal}", path=path)
        return watermark

    def _watermark_age(self) -> float | None:
        try:
            return max(0.0, time.time() - (self._state / WATERMARK_FILE).stat().st_mtime)
        except FileNotFoundError:
            return None

    def _read_lag(self, log_end: int | None, watermark: Watermark | None) -> Lag:
        if log_end is None:
            return Lag()
        return read_lag(self._log, log_end, watermark, LIVE_COUNTED_LAG)

    def _read_queues(self, end: int | None) -> Iterator[tuple[_Queue, _Bounds]]:
        now = time.monotonic()
        if now >= self._reopen_due:
            self._views.clear()
            self._reopen_due = now + REOPEN_SECONDS
        for queue in list_all_queues(self._output):
            try:
                yield queue, self._bounds(queue, end)
            except (ReputError, OSError) as error:
                self._views.pop(queue, None)
                self._unreadable.setdefault("queues", error_text(error))
                yield queue, None

    def _bounds(self, queue: _Queue, end: int | None) -> tuple[int, int]:
        with suppress(FileNotFoundError):
            # an open view of files that were removed since must be opened again
            if queue in self._views:
                return queue_bounds(self._views[queue], end)
        key, kind = queue
        view = open_view(self._output, key, self._settings, self._log, kind)
        self._views[queue] = view
        return queue_bounds(view, end)

    def _read_history(self, watermark: Watermark | None) -> History | None:
        if watermark is None:
            return None
        return read_history(self._spark_directory, watermark.store_id)

    def _lasting(self, damage: Sequence[str]) -> tuple[str, ...]:
        """Return the findings that the last reading had as well: Spark removes files meanwhile."""
        lasting = tuple(finding for finding in damage if finding in self._suspected)
        self._suspected = set(damage)
        return lasting

    def _mark(
        self,
        log_end: int | None,
        watermark: int | None,
        bounds: Mapping[_Queue, _Bounds] | None,
    ) -> _Mark:
        """Keep the positions, and return those with which to compare them."""
        ends = None
        if bounds is not None:
            ends = {queue: both[1] for queue, both in bounds.items() if both is not None}
        mark = _Mark(time.monotonic(), log_end, watermark, ends)
        if self._marks and (self._marks[-1].watermark or 0) > (watermark or 0):
            self._marks.clear()  # it was cut or rewound
        self._marks.append(mark)
        while len(self._marks) > 2 and mark.at - self._marks[1].at >= RATE_SECONDS:
            self._marks.popleft()
        return self._marks[0]

    def _rate(self, before: int | None, now: int | None) -> float | None:
        seconds = self._marks[-1].at - self._marks[0].at
        if before is None or now is None or not seconds:
            return None
        return max(0, now - before) / seconds

    def _queues(self, bounds: Mapping[_Queue, _Bounds], before: _Mark) -> Iterator[WatchedQueue]:
        for queue, both in bounds.items():
            key, (low, high) = queue[0], both or (None, None)
            # a queue that is new since has got all that it holds
            former_end = None if before.ends is None else before.ends.get(queue, low)
            yield WatchedQueue(key.topic, key.queue_id, low, high, self._rate(former_end, high))
