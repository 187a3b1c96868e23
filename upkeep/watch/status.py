"""The positions and lag of a store and its queues, for people; it only reads, also while others
write.

An unknown value is None, never 0 (a zero lag looks healthy).
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from reput.checkpoints.agreement import what_differs
from reput.checkpoints.followers import FollowerState, read_follower_states
from reput.checkpoints.ownership import unstopped_run
from reput.store.brokerlock import broker_pid
from reput.store.config import StoreSettings
from reput.store.files import STATE_DIRECTORY
from reput.store.log.commitlog import CommitLog
from reput.store.log.cursor import Window, records, walk
from reput.store.log.logtail import LogTail
from reput.store.log.record import Record
from reput.store.queue.consumequeue import QueueKey
from reput.store.queue.kinds import QueueKind, list_all_queues
from reput.store.queue.placement import unit_queue_offset
from reput.store.queue.topics import check_topics
from reput.store.queue.view import QueueView, open_view
from reput.store.state.coverage import Coverage, holds_more, read_coverage
from reput.store.state.ledger import (
    QUEUE_OFFSET_GAP,
    QUEUE_OFFSET_SEEN_BEFORE,
    LedgerCount,
    RepeatedQueue,
    read_counts,
    read_repeats,
)
from reput.store.state.output import end_of_output
from reput.store.state.watermark import Watermark

MAX_COUNTED_LAG = 1 << 30
"""Bytes of lag up to which its messages are counted."""
LIVE_COUNTED_LAG = 32 << 20
"""The same for looks that are made again and again; to count takes some milliseconds then."""


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """One queue; offsets count messages, max exclusive."""

    topic: str
    queue_id: int
    min_offset: int
    max_offset: int


@dataclass(frozen=True, slots=True)
class FollowerStatus(FollowerState):
    """One follower's last recorded state, with its lag in the log as it is now."""

    lag_bytes: int | None = None
    """Bytes from its position to the log's end."""


@dataclass(frozen=True, slots=True)
class Lag:
    """The distance from a watermark to the log's end; nothing of it is known without a watermark,
    or where the log was cut below it, until a dispatcher has seen that."""

    bytes: int | None = None
    messages: int | None = None
    """None beyond the lag that is counted."""
    seconds: float | None = None
    """Seconds since the first message that is not dispatched was stored; 0 where there is none."""


@dataclass(frozen=True, slots=True)
class OutputStatus:
    """One output and the log that it follows."""

    broker_conf: str | None
    """The property file that was read; None where there is none and RocketMQ's defaults apply."""
    commit_log_directories: tuple[str, ...]
    """All directories that were read."""
    log_min: int
    log_end: int
    """The end of the last record that may be dispatched."""
    watermark: int | None
    lag_bytes: int | None
    """Bytes from the watermark to the log's end; None where the log was cut below the watermark,
    until a dispatcher has seen it."""
    lag_messages: int | None
    lag_seconds: float | None
    """Seconds since the first message that is not dispatched was stored."""
    writer_pid: int | None
    """The process that holds the output's lock, a dispatcher or a broker; None if free."""
    unstopped_run: str | None
    """A line about a run that ended without stopping, since which nobody has held the output."""
    unqueued_bytes: int
    """Bytes of the log that are in no queue: ``coverage`` tells them apart."""
    unqueued: str | None
    """A line about them, and what to do; None without any."""
    coverage: Coverage
    queues_beyond_log: tuple[str, ...]
    """Queues without a watermark that hold units beyond the log's end, as ``TOPIC/ID``."""
    quarantine: tuple[LedgerCount, ...]
    """Ranges that got no entry, by reason."""
    gaps: int
    """Number of places where queue offsets jump."""
    repeated: tuple[RepeatedQueue, ...]
    """Queues with messages in no queue, because their offsets began again in the log."""
    queues: tuple[QueueStatus, ...]
    followers: tuple[FollowerStatus, ...]


def read_status(
    settings: StoreSettings, output: Path, topics: Collection[str] | None = None
) -> OutputStatus:
    """Return the current status, with the queues of ``topics``, or of all.

    Raises UsageError where ``output`` does not belong to this log and for an unknown topic,
    StoreError where log or queues cannot be read.
    """
    with closing(settings.open_log()) as log:
        return _read_status(log, settings, output, topics)


def _read_status(
    log: CommitLog, settings: StoreSettings, output: Path, topics: Collection[str] | None
) -> OutputStatus:
    # the order matters: a dispatcher may be moving the watermark
    stored_watermark = end_of_output(output, settings.root, log)
    if topics is not None:
        check_topics(topics, settings.root, output)
    log_end = LogTail(log).settled()
    watermark = stored_watermark.end_offset if stored_watermark else None
    lag = read_lag(log, log_end, stored_watermark)
    ledger = read_counts(output / STATE_DIRECTORY)
    coverage = read_coverage(output, settings, log, watermark, log_end)
    queues, beyond = [], []
    for key, kind in list_all_queues(output):
        if topics is not None and key.topic not in topics:
            continue
        queue = open_view(output, key, settings, log, kind)
        bounds = queue_bounds(queue, log_end if watermark is None else watermark)
        queues.append(QueueStatus(key.topic, key.queue_id, *bounds))
        # a broker that runs may have appended since the log's end was found
        if watermark is None and coverage.writer_pid is None and holds_more(queue):
            beyond.append(str(key.relative_path))
    return OutputStatus(
        str(settings.property_file) if settings.property_file else None,
        tuple(map(str, settings.commit_log_directories)),
        log.min_offset, log_end, watermark, lag.bytes, lag.messages, lag.seconds,
        broker_pid(output), unstopped_run(output),
        coverage.bytes, coverage.line(settings.root, output), coverage, tuple(beyond),
        tuple(count for count in ledger if count.reason != QUEUE_OFFSET_GAP),
        sum(count.ranges for count in ledger if count.reason == QUEUE_OFFSET_GAP),
        _with_begins(read_repeats(output / STATE_DIRECTORY), output, settings, log)
        if any(count.reason == QUEUE_OFFSET_SEEN_BEFORE for count in ledger)
        else (),
        tuple(queues), follower_statuses(output, log_end),
    )  # fmt: skip


def _with_begins(
    repeats: Sequence[RepeatedQueue], output: Path, settings: StoreSettings, log: CommitLog
) -> tuple[RepeatedQueue, ...]:
    """Return the queues with the places from which to take their topics, so that no new message of
    any of these queues is left out."""
    begins: dict[str, int] = {}
    for repeat in repeats:
        key, begin = QueueKey(repeat.topic, repeat.queue_id), repeat.begin
        files = QueueKind.CONSUME.open(output, key, settings)
        last = files.last_unit(files.find_end(begin))
        if last is not None and unit_queue_offset(log, settings.enable_lmq, key, *last) == 0:
            begin = last[0]
        begins[repeat.topic] = min(begin, begins.get(repeat.topic, begin))
    return tuple(replace(repeat, begin=begins[repeat.topic]) for repeat in repeats)


def queue_bounds(queue: QueueView, end: int | None) -> tuple[int, int]:
    """Return the min and the max offset of a queue up to ``end`` of the log, which is the watermark
    or else the log's own end; up to its last unit where neither is known."""
    queue.follow(end)
    return queue.min_offset, queue.max_offset


def read_lag(
    log: CommitLog, log_end: int, watermark: Watermark | None, max_counted: int = MAX_COUNTED_LAG
) -> Lag:
    """Return the lag of a log with this sealed end; messages are counted in up to ``max_counted``
    bytes. Raises StoreError."""
    if watermark is None or what_differs(log, log_end, watermark) is not None:
        return Lag()
    end, messages = watermark.end_offset, None
    if log_end - end <= max_counted:
        messages = walk(log, Window(log), end, log_end).record_count
    return Lag(log_end - end, messages, _age_of_first(log, end, log_end))


def _age_of_first(log: CommitLog, watermark: int, log_end: int) -> float:
    start = max(watermark, log.min_offset)
    items = records(log, start, log_end, fail_on_data_loss=False)
    first = next((record for record in items if isinstance(record, Record)), None)
    if first is None:
        return 0.0
    return max(0.0, time.time() - first.store_timestamp / 1000)


def follower_statuses(output: Path, log_end: int | None) -> tuple[FollowerStatus, ...]:
    """Return the last recorded state of each follower; the lag is unknown without the log's end.
    Raises StoreError for a file that cannot be read."""
    statuses = []
    for state in read_follower_states(output / STATE_DIRECTORY):
        lag = None
        if log_end is not None and state.position is not None:
            lag = max(0, log_end - state.position)
        statuses.append(FollowerStatus(**asdict(state), lag_bytes=lag))
    return tuple(statuses)
