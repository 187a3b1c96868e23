"""Runs the followers of a log, each in its own thread, up to the durable watermark
(ARCHITECTURE.md).

A thread reads the log by itself, from the position that its target keeps up to the watermark. A
batch therefore costs no more than a notification, and a target that fails or is slow delays nobody.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.compute as pc

from reput.checkpoints.followers import (
    FollowerState,
    follower_file,
    note_truncation,
    read_follower_state,
    write_follower_state,
)
from reput.sources.livesettings import LiveSettings
from reput.store import fsops
from reput.store.config import StoreSettings
from reput.store.errors import NoSpaceError, OutputError, StoreError, library_text
from reput.store.follower import FollowerTarget
from reput.store.log.status import Status
from reput.store.rows.rowform import DEFAULT_FORM
from reput.store.rows.rows import message_rows
from reput.store.rows.rowschema import ROWS_SCHEMA
from reput.streaming.config import DispatcherConfig
from reput.streaming.logcontext import store_name

BYTES_PER_WRITE = 256 << 20
"""Bytes of log, up to this many; at least one record."""
FIRST_RETRY_SECONDS = 0.5
LAST_RETRY_SECONDS = 30.0
ATTEMPTS = 3
"""Number of attempts without progress after which a run that is due to end gives up."""
SAVE_SECONDS = 1.0
"""Least time between two writes of a follower's file, unless there is news."""
STOP_SECONDS = 10.0
"""Time that a stop waits for a write; after it the write is abandoned, and its target keeps what it
had."""
POLL_SECONDS = 0.25
_LOST = Status.SEGMENT_DELETED.name.lower()

logger = logging.getLogger("reput")


class _StoppedError(Exception):
    """The run is being stopped."""


class _Signals:
    """The positions that the run passes to its followers, and the signal to look again."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.watermark = 0
        self.log_end = 0
        """End of the log at the start of the run."""
        self.draining = False
        """No more log follows: write the rest, without waiting for more."""
        self.stopping = False

    def wait_for_work(self, position: int, due: float, until: float | None) -> int | None:
        """Wait for something to write and return the watermark: at ``due``, or sooner if it is much
        or the last; None at ``until`` (monotonic times). Raises _StoppedError."""
        with self.changed:
            while True:
                self.check()
                now, lag = time.monotonic(), self.watermark - position
                ready = self.draining or lag >= BYTES_PER_WRITE or now >= due
                if lag > 0 and ready:
                    return self.watermark
                if until is not None and now >= until:
                    return None
                times = [*([due] if lag > 0 else []), *([until] if until is not None else [])]
                self.changed.wait(min(times) - now if times else None)

    def pause(self, seconds: float) -> None:
        """Sleep. Raises _StoppedError as soon as the run is stopped."""
        with self.changed:
            self.changed.wait_for(lambda: self.stopping, seconds)
        self.check()

    def check(self) -> None:
        """Raises _StoppedError where the run is stopped."""
        if self.stopping:
            raise _StoppedError


@dataclass(slots=True)
class _Tally:
    """Counts of what one write received, and of what was left out."""

    rows: int = 0
    lost_bytes: int = 0
    damaged_bytes: int = 0
    internal_left_out: int = 0

    def leave_out(self, count: int) -> None:
        self.internal_left_out += count

    def add(self, batch: pa.RecordBatch) -> None:
        reasons = batch.column("corruptReason")
        self.rows += batch.num_rows
        if reasons.null_count < batch.num_rows:
            bad = batch.filter(reasons.is_valid())
            lost = bad.filter(pc.equal(bad.column("corruptReason"), _LOST))
            lost_bytes = pc.sum(lost.column("storeSize")).as_py() or 0
            self.lost_bytes += lost_bytes
            self.damaged_bytes += pc.sum(bad.column("storeSize")).as_py() - lost_bytes


class _FollowerThread(threading.Thread):
    """One follower: it asks for its position, writes up to the watermark, and tries again on
    failure."""

    def __init__(
        self,
        target: FollowerTarget,
        config: DispatcherConfig,
        settings: StoreSettings,
        store_id: str,
        signals: _Signals,
    ) -> None:
        super().__init__(name=f"reput-{target.name}", daemon=True)
        self._follower = target.open(store_id, settings)
        self._may_lose_position = target.position_is_apart
        self._interval = target.interval_seconds
        self._directory = config.state_directory
        self._verify_crc = settings.verify_crc
        self._live = LiveSettings(settings, config.broker_conf)
        self._log = settings.open_log()
        self._signals = signals
        self.position: int | None = None
        """The position that the target has reported in this run."""
        self.attempts = 0
        """Failed attempts since the target was complete or the last write succeeded."""
        self.state = FollowerState(target.name, target.description)
        self._counts_before: Mapping[str, int] = {}
        self._form = DEFAULT_FORM
        self._saved: FollowerState | None = None
        self._save_due = 0.0
        self._save_fails = False
        self._read_error: BaseException | None = None
        self._unanswered: tuple[int, int] | None = None
        """The range of a write that has not returned: it may have been made, or a part of it."""
        self._store_name = store_name.get()

    def run(self) -> None:
        """Follow until the run is stopped."""
        store_name.set(self._store_name)
        try:
            self._load()
            while True:
                try:
                    self._follow()
                # a panic in a Rust library is not an Exception
                except BaseException as error:
                    self._signals.check()
                    self._failed(self._read_error or error)
                delay = FIRST_RETRY_SECONDS * 2 ** min(self.attempts - 1, 10)
                self._signals.pause(min(delay, LAST_RETRY_SECONDS))
        except _StoppedError:
            self._save()
        finally:
            self.let_go()

    def let_go(self) -> None:
        """Close open resources, also for a thread that was never started."""
        self._follower.close()
        self._log.close()

    def _load(self) -> None:
        """Load the state that earlier runs left, including a cut that this run has noted."""
        state = read_follower_state(self._directory, self.state.name)
        if state is not None:
            # another target holds something else
            position = state.position if state.target == self.state.target else None
            self.state = replace(
                state, name=self.state.name, target=self.state.target, position=position
            )
        self._counts_before = self.state.counts

    def _follow(self) -> None:
        self._read_error = None
        if self._saved is None:
            # the follower is on record before its first write, however that ends: a later cut must
            # reach its target
            write_follower_state(self._directory, self.state)
            self._saved = self.state
        if self.state.truncate_to is not None:
            self._follower.truncate(self.state.truncate_to)
            cut, position = self.state.truncate_to, self.state.position
            position = None if position is None else min(position, cut)
            done = replace(self.state, truncate_to=None, position=position)
            write_follower_state(self._directory, done)
            self.state = done
        self._log.refresh()
        last_position = self._follower.position()
        self._form = self._follower.row_form()
        position = self._log.min_offset if last_position is None else last_position
        self._check_position(position)
        if self._unanswered is not None and position > self._unanswered[0]:
            self._made_all_the_same(*self._unanswered, position)
        elif position >= self._signals.watermark:
            self._at(position, _Tally())
        self._unanswered = None
        due = 0.0
        while True:
            until = None if self.state == self._saved else self._save_due
            end = self._signals.wait_for_work(position, due, until)
            if end is None:
                self._save()
                continue
            due = time.monotonic() + self._interval
            position = self._write(position, end)

    def _check_position(self, position: int) -> None:
        known = self.state.position
        if self._may_lose_position and known is not None and position < known:
            path = follower_file(self._directory, self.state.name)
            raise StoreError(
                f"it held messages up to physical offset {known}, and has lost this position: from "
                f"{position} on they would come twice; mend the target, or make it anew and remove "
                f"{path}",
                path=path,
            )
        if position > max(self._signals.log_end, self._signals.watermark):
            raise StoreError(
                f"it holds messages up to physical offset {position}, the log ended at "
                f"{self._signals.log_end}: this is another log, or one that was cut and whose "
                "output was made anew; give the log that was delivered, or another target",
                physical_offset=position,
            )
        if position > self._signals.watermark:
            logger.warning(
                "follower %s: holds messages up to %d, the queues are at %d: waiting for them",
                self.state.name, position, self._signals.watermark,
            )  # fmt: skip

    def _write(self, start: int, end: int) -> int:
        # a run without followers may be one without Spark
        from pyspark.sql.streaming.datasource import ReadMaxBytes  # noqa: PLC0415

        from reput.sources.offsets import limited_end  # noqa: PLC0415

        self._log.refresh()
        end = limited_end(self._log, start, end, ReadMaxBytes(BYTES_PER_WRITE))
        tally = _Tally()
        self._unanswered = start, end
        self._follower.write(start, end, self._rows(start, end, tally))
        self._unanswered = None
        self._made(start, end, tally)
        return end

    def _made_all_the_same(self, start: int, end: int, position: int) -> None:
        """Count what a write added although it failed, by reading it once more."""
        tally, end = _Tally(), min(end, position)
        for _ in self._rows(start, end, tally):
            pass
        self._made(start, end, tally)

    def _made(self, start: int, end: int, tally: _Tally) -> None:
        """Count the messages of [start, end), which the target holds now."""
        for kind, count in (("lost", tally.lost_bytes), ("damaged", tally.damaged_bytes)):
            if count:
                logger.warning(
                    "follower %s: data loss: of the log between %d and %d, %d bytes are %s",
                    self.state.name, start, end, count, kind,
                )  # fmt: skip
        self._at(end, tally)

    def _rows(self, start: int, end: int, tally: _Tally) -> Iterator[pa.RecordBatch]:
        try:
            for batch in message_rows(
                self._log, start, end, ROWS_SCHEMA, self._form, tally.leave_out,
                delay_levels_ms=self._live.delay_levels_ms(), fail_on_corrupt=False,
                verify_crc=self._verify_crc, fail_on_data_loss=False,
            ):  # fmt: skip
                self._signals.check()
                tally.add(batch)
                yield batch
        except Exception as error:
            # libraries raise messages of their own about the rows that they receive
            self._read_error = error
            raise

    def _at(self, position: int, tally: _Tally) -> None:
        """Record that the target is at ``position``."""
        if self.state.error is not None:
            logger.info("follower %s: works again at %d", self.state.name, position)
        counted, before = self._follower.counts(), self._counts_before
        with self._signals.changed:
            self.position, self.attempts = position, 0
            self.state = replace(
                self.state,
                position=position,
                rows=self.state.rows + tally.rows,
                lost_bytes=self.state.lost_bytes + tally.lost_bytes,
                internal_left_out=self.state.internal_left_out + tally.internal_left_out,
                counts={
                    kind: counted.get(kind, 0) + before.get(kind, 0)
                    for kind in {**before, **counted}
                },
                error=None,
                failing_since=None,
            )
            self._signals.changed.notify_all()
        if time.monotonic() >= self._save_due:
            self._save()

    def _failed(self, error: BaseException) -> None:
        text = library_text(error)
        if text != self.state.error:
            logger.error("follower %s: %s; trying again", self.state.name, text)
        since = self.state.failing_since or datetime.now(UTC).isoformat(timespec="seconds")
        with self._signals.changed:
            self.attempts += 1
            self.state = replace(self.state, error=text, failing_since=since)
            self._signals.changed.notify_all()
        self._save()

    def _save(self) -> None:
        self._save_due = time.monotonic() + SAVE_SECONDS
        try:
            write_follower_state(self._directory, self.state)
        except OutputError as error:
            # people then see an old position, and nothing depends on it; one line is logged while
            # it lasts
            if not self._save_fails:
                logger.warning("follower %s: %s", self.state.name, error)
            self._save_fails = True
        else:
            self._saved, self._save_fails = self.state, False


class Followers:
    """The followers of one run; without any it does nothing."""

    def __init__(self, config: DispatcherConfig, settings: StoreSettings, store_id: str) -> None:
        """Open the targets. Raises UsageError as ``FollowerTarget.open`` does, and StoreError for a
        state that cannot be read."""
        self._directory = config.state_directory
        for target in config.followers:
            read_follower_state(self._directory, target.name)
        self._signals = _Signals()
        self._threads = [
            _FollowerThread(target, config, settings, store_id, self._signals)
            for target in config.followers
        ]

    def truncate(self, end: int) -> None:
        """Record that the log was cut at ``end``, durably, before the watermark falls. Raises
        OutputError."""
        note_truncation(self._directory, end)

    def start(self, watermark: int, log_end: int) -> None:
        """Begin to follow; ``watermark`` is durable, ``log_end`` is the current end of the log."""
        self._signals.watermark = watermark
        self._signals.log_end = log_end
        for thread in self._threads:
            thread.start()

    def advance(self, watermark: int) -> None:
        """Pass on a higher watermark, which is durable."""
        with self._signals.changed:
            self._signals.watermark = watermark
            self._signals.changed.notify_all()

    def catch_up(self, stop: threading.Event) -> None:
        """Wait until every follower is at the watermark, or ``stop`` is set.

        Raises StoreError for followers that make no progress, and NoSpaceError where one of them
        finds the disk full.
        """
        with self._signals.changed:
            self._signals.draining = True
            self._signals.changed.notify_all()
            while late := [thread for thread in self._threads if self._lags(thread)]:
                if stop.is_set():
                    return
                if all(thread.attempts >= ATTEMPTS for thread in late):
                    break
                self._signals.changed.wait(POLL_SECONDS)
        if late:
            reasons = "; ".join(f"{thread.state.name}: {thread.state.error}" for thread in late)
            kind = NoSpaceError if fsops.says_no_space(reasons) else StoreError
            raise kind(
                f"the queues are complete up to {self._signals.watermark}, their followers are "
                f"not: {reasons}; the next run goes on from there"
            )

    def _lags(self, thread: _FollowerThread) -> bool:
        return thread.position is None or thread.position < self._signals.watermark

    def close(self) -> None:
        """Stop: a write that does not end is abandoned, and its target keeps what it had."""
        with self._signals.changed:
            self._signals.stopping = True
            self._signals.changed.notify_all()
        deadline = time.monotonic() + STOP_SECONDS
        for thread in self._threads:
            if thread.ident is None:
                thread.let_go()
            if thread.is_alive():
                thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                logger.warning("follower %s: a write was abandoned", thread.state.name)
