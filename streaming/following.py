"""Follows the end of a live log in small steps, beside the batches that Spark plans.

A micro-batch costs Spark tens of milliseconds, whatever it holds. So the log's sealed end is looked
for, scanned and committed right here, on the commit thread, every few milliseconds, and Spark
confirms every two seconds how far that has come: its batch is held open until there is something
for the next one to confirm (docs/decisions/0024-following-in-steps.md). A backlog is Spark's: its
tasks scan it on all cores.

Spark still plans every batch: its file of offsets, which it writes before it calls foreachBatch,
says where the batch ends.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from pyspark.sql.streaming.datasource import ReadMaxBytes

from reput.checkpoints.spark_checkpoint import DamagedCheckpointError, read_planned
from reput.sources.livesettings import LiveSettings
from reput.sources.offsets import limited_end
from reput.store.files import SPARK_OFFSETS_DIRECTORY
from reput.store.log.commitlog import CommitLog
from reput.store.log.logtail import LogTail
from reput.store.runs.dispatch import DispatchBatch
from reput.streaming.config import DispatcherConfig
from reput.streaming.indexes import Indexes
from reput.streaming.progress import Progress

STEP_BYTES = 8 << 20
"""The largest range of one step: the kernels take 5 to 10 ms for it."""
BACKLOG_BYTES = 64 << 20
"""A backlog of more than this is left to Spark's tasks."""
CONFIRM_SECONDS = 2.0
"""Time for which Spark's batch is held open: each costs what Spark's plan and files cost."""
LOOK_SECONDS = 0.0042
"""Time after a look that found nothing to dispatch: two of them are what the seal of the log's last
record needs (``LogTail.SEAL_SECONDS``)."""
QUIET_LOOK_SECONDS = 0.02
QUIET_SECONDS = 1.0
"""After this time without a message there are fewer looks."""
TEND_SECONDS = 1.0
"""The longest wait, since what was committed is due to become durable."""
STORES_AT_ONCE = 4
"""The stores of one process share an interpreter: with more of them, each looks less often."""
_FOLLOWING = set["Following"]()
"""The logs that are followed in this process now."""


class Following:
    """Follows the log of one query; ``run`` is for the commit thread, the rest for others."""

    def __init__(
        self,
        config: DispatcherConfig,
        indexes: Indexes,
        log: CommitLog,
        store_id: str,
        progress: Progress,
    ) -> None:
        """``progress`` says how far the run has dispatched, and where the log's sealed end is."""
        self._offsets = config.spark_directory / SPARK_OFFSETS_DIRECTORY
        self._store_id = store_id
        self._indexes = indexes
        self._log = log
        self._tail = LogTail(log)
        self._progress = progress
        self._live = LiveSettings(indexes.settings, config.broker_conf, indexes.batch_topics)
        limit = config.max_bytes_per_trigger
        self._step_bytes, self._backlog_bytes = min(STEP_BYTES, limit), min(BACKLOG_BYTES, limit)
        self._interval = config.latency_ms / 1000
        self._planned_end = progress.log_end or 0
        """The end that Spark has planned: its planner may have seen damage for longer than this."""
        self._letting_go = threading.Event()
        self._changed = threading.Condition()
        self._awaited: int | None = None
        """The offset that Spark's thread waits for: steps before it do not wake that."""
        self._runs = False
        self._moved = 0.0
        """The time, of the monotonic clock, at which the last look found something."""
        self._quiet_until = 0.0
        """The time up to which a look at a quiet log is one read."""

    def planned_end(self, batch_id: int) -> int | None:
        """Return where Spark's batch ends of which it calls foreachBatch; None where its file of
        offsets does not tell."""
        try:
            return read_planned(self._offsets / str(batch_id), self._store_id)[0]
        except (DamagedCheckpointError, OSError):
            return None

    def is_backlog(self, start: int, end: int) -> bool:
        """Return whether [start, end) is left to Spark's tasks."""
        return end - start > self._backlog_bytes

    def run(self, commit: Callable[[DispatchBatch], None], tend: Callable[[], None]) -> None:
        """Follow the log until ``let_go`` is called, or a backlog is there; ``tend`` is called
        after each look. Raises what they raise, and StoreError."""
        _FOLLOWING.add(self)
        self._moved = time.monotonic()
        due = 0.0
        try:
            while not self._is_let_go_within(min(max(0.0, due - time.monotonic()), TEND_SECONDS)):
                began = time.monotonic()
                if began >= due:
                    pause = QUIET_LOOK_SECONDS if self._is_quiet(began) else self._look(commit)
                    if pause is None:
                        return
                    due = began + max(1.0, len(_FOLLOWING) / STORES_AT_ONCE) * pause
                tend()
        finally:
            _FOLLOWING.discard(self)
            self._runs = False
            self._tell()

    def _is_let_go_within(self, seconds: float) -> bool:
        """Wait for so long, or until ``let_go`` is called. Between two steps a sleep ends soon
        enough, and takes two thirds of the CPU time of a timed wait for an event."""
        if seconds > QUIET_LOOK_SECONDS:
            return self._letting_go.wait(seconds)
        time.sleep(seconds)
        return self._letting_go.is_set()

    def _look(self, commit: Callable[[DispatchBatch], None]) -> float | None:
        """Dispatch what has come, up to a step; return the seconds from now to the next look, or
        None where a backlog is there."""
        now, position, was_idle = time.monotonic(), self._progress.position, self._tail.is_idle
        # what Spark has planned its planner has sealed, which may know damage for longer
        end = max(self._tail.poll(position), self._planned_end)
        self._progress.log_end = end
        if self.is_backlog(position, end):
            return None
        if end > position or (was_idle and not self._tail.is_idle):
            self._moved = now
        if end > position:
            step_end = limited_end(self._log, position, end, ReadMaxBytes(self._step_bytes))
            commit(self.scan(position, step_end))
            if self._awaited is not None and self._is_at(self._awaited):
                self._tell()
            return 0.0 if step_end < end else self._interval
        if now - self._moved <= QUIET_SECONDS:
            return LOOK_SECONDS
        self._quiet_until = now + TEND_SECONDS
        return QUIET_LOOK_SECONDS

    def _is_quiet(self, now: float) -> bool:
        """Whether nothing has come since a look that found a quiet log; once a second it is looked
        at as a whole."""
        return now < self._quiet_until and self._tail.is_unchanged()

    def scan(self, start: int, end: int) -> DispatchBatch:
        """Scan a range here, as tasks do. Raises StoreError where it changes meanwhile."""
        # read after the end was found: the settings have all that its messages need
        return self._indexes.scan_unchanged(self._log, start, end, self._live.poll())

    def _tell(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def begin(self) -> None:
        """Announce that ``run`` is called next."""
        self._letting_go.clear()
        self._runs = True

    @property
    def runs(self) -> bool:
        """Whether the log is being followed, or will be in a moment."""
        return self._runs

    def let_go(self) -> None:
        """Have ``run`` end after its step, and nobody wait for more."""
        self._letting_go.set()
        self._tell()

    def wait_for(self, planned_end: int) -> bool:
        """Wait until all that Spark has planned is dispatched; False where ``run`` has ended before
        that."""
        self._planned_end = planned_end
        return self._wait_until_at(planned_end)

    def hold(self, planned_end: int) -> None:
        """Hold Spark's batch open until the next one is due and has something to confirm, or until
        ``run`` has ended: then what comes is Spark's."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_over, CONFIRM_SECONDS)
        self._wait_until_at(planned_end + 1)

    def _wait_until_at(self, offset: int) -> bool:
        """Wait until the log is dispatched up to an offset; False where ``run`` has ended before
        that."""
        with self._changed:
            self._awaited = offset
            self._changed.wait_for(lambda: self._is_at(offset) or self._is_over)
            self._awaited = None
        return self._is_at(offset)

    @property
    def _is_over(self) -> bool:
        return not self._runs or self._letting_go.is_set()

    def _is_at(self, offset: int) -> bool:
        return self._progress.position >= offset
