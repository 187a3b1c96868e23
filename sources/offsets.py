"""Turns options into positions: starts, ends, and the extent of a micro-batch.

A position is the start of a record or the log's sealed end, whatever the options say; otherwise
sound bytes would be listed as damage. Nothing here keeps state: Spark does.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, TypeVar

from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxBytes, ReadMaxRows

from reput.sources.commitlogoptions import RESUME
from reput.sources.lossreport import LossReport
from reput.sources.options import EARLIEST, LATEST, SourceOptions
from reput.store import fsops
from reput.store.config import StoreSettings
from reput.store.errors import CommitLogDataLossError, StoreError, UsageError
from reput.store.files import COMMIT_LOG_DIRECTORY
from reput.store.log.commitlog import CommitLog
from reput.store.log.cursor import Window, walk
from reput.store.log.logtail import LogTail
from reput.store.log.places import before_loss, first_at_or_after, record_start
from reput.store.log.record import Record
from reput.store.queue.kinds import QueueKind
from reput.store.state.built import settings_of
from reput.store.state.evidence import holds, is_beyond_check, same_part
from reput.store.state.logoffset import LogOffset

Start = TypeVar("Start")


def store_id_of(settings: StoreSettings) -> str:
    """Return the identity of a store that has no other, from the place of its root: 32 hex digits.

    The places of the log's files do not count: a stream resumes after the log got a second
    directory.
    """
    place = str((settings.root / COMMIT_LOG_DIRECTORY).resolve())
    return hashlib.sha256(place.encode()).hexdigest()[:32]


def resolve_start(options: SourceOptions, settings: StoreSettings, log: CommitLog, end: int) -> int:
    """Return where a query without a checkpoint begins, in the order of Spark's Kafka source.

    Raises UsageError for an offset at which no record starts and a time that no record has.
    """
    timestamp, start = options["startingTimestamp"], options["startingOffsets"]
    if timestamp is not None:
        first = first_at_or_after(log, timestamp, end)
        if first is None and options["startingOffsetsByTimestampStrategy"] == "error":
            raise UsageError(
                f"no record has a storeTimestamp of {timestamp} or later; set "
                "startingOffsetsByTimestampStrategy to latest to begin at the end"
            )
        return end if first is None else before_loss(log, first)
    if start == EARLIEST:
        return earliest(options, log)
    if start == LATEST:
        return end
    if start == RESUME:
        return min(_smallest_max_physic_offset(settings, log), end)
    if options["mode"] == "runs" and start < log.min_offset:
        # a record began there when the run did, and the broker has removed its file since
        return int(start)
    return _record_start("startingOffsets", start, log, end)


def earliest(options: SourceOptions, log: CommitLog) -> int:
    """Return where the log begins. With ``failOnDataLoss`` it raises CommitLogError where the files
    before that may be on a disk that is not mounted."""
    if options["failOnDataLoss"] and log.min_offset > 0:
        log.segments.check_mounted(
            f"the log, which begins at {log.min_offset}, may have begun earlier, and with "
            "failOnDataLoss it is not read"
        )
    return log.min_offset


def resolve_end(options: SourceOptions, log: CommitLog, start: int, sealed_end: int) -> int:
    """Return where a batch read ends, exclusive. Raises UsageError for an end before the start."""
    timestamp, end = options["endingTimestamp"], options["endingOffsets"]
    if timestamp is not None:
        first = first_at_or_after(log, timestamp, sealed_end)
        resolved = sealed_end if first is None else first
    elif end in (None, LATEST):
        resolved = sealed_end
    else:
        resolved = _record_start("endingOffsets", end, log, sealed_end)
    if resolved < start:
        raise UsageError(f"the read would end at {resolved}, before its start at {start}")
    return resolved


def _record_start(key: str, offset: int, log: CommitLog, end: int) -> int:
    if offset == end:
        return offset
    if log.segments.at(offset) is None or offset > end:
        raise UsageError(f"option {key} is {offset}; the log is [{log.min_offset}, {end})")
    near = record_start(log, offset)
    if near != offset:
        raise UsageError(f"option {key} is {offset}, inside a record; one starts at {near}")
    return offset


def _smallest_max_physic_offset(settings: StoreSettings, log: CommitLog) -> int:
    """Return the smallest maxPhysicOffset of the store's queues: before it every queue is
    complete."""
    settings = settings_of(settings.root, settings)
    ends = [
        files.max_physic_offset(files.find_end(None))
        for _, files in QueueKind.CONSUME.each(settings.root, settings)
    ]
    return max(min((end for end in ends if end >= 0), default=0), log.min_offset)


class LogCheck:
    """Holds the positions of a stream against the log: is it still the one that was read?

    A log that is another one is an error with ``failOnDataLoss``. Otherwise the stream goes on
    where log and position surely agree, with a warning: messages may come again, and none is left
    out.
    """

    def __init__(self, log: CommitLog, fail: bool) -> None:
        self._log, self._loss = log, LossReport(fail)
        self._within = -1

    def agreed(self, position: LogOffset) -> int:
        """Return the position's offset, or where the log agrees with it. Raises
        CommitLogDataLossError."""
        offset, evidence = position.offset, position.evidence
        if not evidence:
            return self._within_log(offset)
        self._log.refresh()
        if holds(self._log, evidence):
            if not self._is_followed_by_another(position):
                return offset
            begin = changed_from = evidence[0].end
        else:
            part = same_part(self._log, evidence)
            begin, changed_from = part.end, part.changed_from
        end = LogTail(self._log).settled()
        self._report(
            offset,
            end,
            f"it is what was read up to {begin}, and has other messages from {changed_from} on",
            begin,
            changed_from,
        )
        return begin

    def _within_log(self, offset: int) -> int:
        """Return ``offset``, of which only the log's end can show that it is wrong."""
        if offset in (self._log.min_offset, self._within):
            return offset
        end = LogTail(self._log).settled()
        if offset <= end:
            self._within = offset
            return offset
        begin = min(self._log.min_offset, end)
        self._report(offset, end, "nothing shows up to where it is what was read", begin, end)
        return begin

    def starts_in(self, position: LogOffset) -> None:
        """Raises CommitLogDataLossError if retention has removed messages from the position on."""
        first = self._log.min_offset
        if position.offset < first and self._loss.is_error:
            raise CommitLogDataLossError(
                "START_BELOW_MIN",
                f"requested from {position.offset}, but the log begins at {first}",
                physical_offset=position.offset,
            )

    def _is_followed_by_another(self, position: LogOffset) -> bool:
        """Whether a record stands between the last one and the position, where a BLANK or damage
        was."""
        last = position.evidence[0]
        return (
            last.end < position.offset
            and not is_beyond_check(self._log, last)
            and isinstance(self._log.record_starting_at(last.end), Record)
        )

    def _report(self, offset: int, end: int, reason: str, begin: int, changed_from: int) -> None:
        """Raises CommitLogDataLossError, or logs the change once."""
        self._log.segments.check_mounted("nothing is read")
        case = "LOG_SHRANK" if end < offset else "LOG_REWRITTEN"
        detail = f"requested from {offset}, but the log, which ends at {end}, has changed: {reason}"
        if begin < changed_from:
            detail += f"; messages of [{begin}, {changed_from}) may come again"
        self._loss.report(case, detail, f"from {begin}")


def limited_end(log: CommitLog, start: int, end: int, limit: ReadLimit) -> int:
    """Return where one micro-batch from ``start`` ends: a record or file start, up to ``end``.

    It holds at least one record, whatever the limit. The rest of the log is divided evenly, so that
    the last batch is no longer a few bytes; within the limit the nearest file start is preferred,
    because it costs no walk.
    """
    start = max(start, min(log.min_offset, end))
    if isinstance(limit, ReadMaxRows):
        return min(walk(log, Window(log), start, end, max_records=limit.max_rows).offset, end)
    if not isinstance(limit, ReadMaxBytes) or end - start <= limit.max_bytes:
        return end
    left = end - start
    target = start + left // -(-left // limit.max_bytes)
    segment = log.segments.at(target)
    if segment is not None:
        starts = (segment.start, segment.start + log.file_size)
        near = min(starts, key=lambda at: abs(at - target))
        if limit.max_bytes // 4 < near - start <= limit.max_bytes:
            return near
    window = Window(log)
    reached = walk(log, window, max(start, segment.start if segment else start), target).offset
    if reached <= start:
        reached = walk(log, window, start, end, max_records=1).offset
    return min(reached, end)


class PinnedStart(Generic[Start]):
    """Keeps the first answer to "where to begin" in the file that ``initialOffsetPath`` names."""

    def __init__(self, path: str | None, parse: Callable[[str], Start | None]) -> None:
        """``parse`` returns the start that the file's text holds; None where it is not one of the
        store's."""
        self._path = Path(path) if path else None
        self._parse = parse

    def read(self) -> Start | None:
        """Return the kept start; None where there is none yet. Raises UsageError for a damaged
        file, StoreError for one that cannot be read."""
        if self._path is None:
            return None
        try:
            if not self._path.exists():
                return None
            start = self._parse(self._path.read_text("utf-8", "replace"))
        except OSError as error:
            line = f"cannot read {self._path}: {error.strerror}"
            raise StoreError(line, path=self._path) from error
        if start is None:
            raise UsageError(f"{self._path} is damaged or another store's; remove it to begin anew")
        return start

    def keep(self, offset: dict[str, Any]) -> None:
        """Write the start down in Spark's form, before Spark learns of it."""
        if self._path is not None:
            fsops.replace_file(self._path, json.dumps(offset).encode())
