"""Places in the log: what a stretch of it holds, the record at an offset, the first one of a time.

Everything here hops over headers and reads no bodies.
"""

from __future__ import annotations

from dataclasses import dataclass

from reput.store.errors import UsageError
from reput.store.log.commitlog import CommitLog
from reput.store.log.cursor import BadRange, Window, bad_range, hop_file, missing_range, walk
from reput.store.log.status import Status


@dataclass(frozen=True, slots=True)
class Passage:
    """The records and damaged ranges that a walk over a part of the log has passed."""

    end: int
    """Offset at which it ended: the bound, or the start of whatever contains the bound, be it a
    record, a BLANK or a damaged range."""
    messages: int
    """Number of records passed, with those whose properties cannot be read."""
    first_record_offset: int
    """Start of the first one; -1 if there was none."""
    last_record_offset: int
    """Start of the last one; -1 if there was none."""
    bad: tuple[BadRange, ...]
    """Ranges without a record that were passed as a whole."""


def pass_over(log: CommitLog, start: int, end: int) -> Passage:
    """Walk from ``start``, a record or file start, up to ``end``."""
    window = Window(log)
    offset, messages, first, last = start, 0, -1, -1
    bad: list[BadRange] = []
    while offset < end:
        segment = log.segments.at(offset)
        if segment is None:
            loss = missing_range(log, offset, end, fail=False)
        else:
            file_end = segment.start + log.file_size
            hop = hop_file(log, window, offset, stop=min(end, file_end))
            if hop.record_count:
                first = offset if first < 0 else first
                last, messages = hop.last_record_offset, messages + hop.record_count
            offset = hop.offset
            if hop.status is Status.OK:
                break
            if hop.status is Status.BLANK:
                if file_end > end:
                    break
                offset = file_end
                continue
            loss = bad_range(log, window, offset, hop.status)
        if loss.end > end:
            break
        bad.append(loss)
        offset = loss.end
    return Passage(offset, messages, first, last, tuple(bad))


def record_start(log: CommitLog, offset: int, earlier_start: int = 0) -> int:
    """Return ``offset`` if a record may start there, otherwise the start of the record that
    contains it; past ``offset`` if a damaged range does. ``earlier_start`` is a record start before
    it."""
    segment = log.segments.at(offset)
    start = max(segment.start, earlier_start) if segment else offset
    return walk(log, Window(log), start, offset).offset


def last_record_before(log: CommitLog, end: int) -> int:
    """Return the start of the last record that ends at or before ``end``; -1 if the log has
    none."""
    for segment in reversed(log.segments.listed):
        if segment.start < end:
            passed = pass_over(log, segment.start, min(end, segment.start + log.file_size))
            if passed.last_record_offset >= 0:
                return passed.last_record_offset
    return -1


def first_at_or_after(log: CommitLog, timestamp: int, end: int) -> int | None:
    """Return the offset of the first record with storeTimestamp >= ``timestamp``; None if there is
    none before ``end``. Files are assumed to be in time order; only the file in question is
    walked."""
    window = Window(log)
    start = log.min_offset
    for segment in log.segments.listed:
        first = walk(log, window, segment.start, end, max_records=1, max_timestamp=timestamp - 1)
        if not first.record_count:
            break
        start = segment.start
    offset = walk(log, window, start, end, max_timestamp=timestamp - 1).offset
    return offset if offset < end else None


def before_loss(log: CommitLog, offset: int) -> int:
    """Return the start of the lost or damaged range that ends at ``offset``, where a record or file
    starts, or else ``offset``. What was there may have been stored as late as what follows it."""
    gap, segment = log.segments.gap_at(offset - 1), log.segments.at(offset - 1)
    if gap is not None:
        return gap[0]
    bad = pass_over(log, segment.start, offset).bad if segment else ()
    return bad[-1].start if bad and bad[-1].end == offset else offset


@dataclass(frozen=True, slots=True)
class AsOf:
    """A moment of the log: what was stored later does not count. One of the fields is given."""

    offset: int | None = None
    """A physical offset, after the last byte that counts."""
    time_ms: int | None = None
    """A store time; messages stored then or earlier count."""

    def end(self, log: CommitLog, end: int) -> int:
        """Return the physical offset of the moment; ``end`` is that of what is dispatched now, and
        of a time yet to come. Raises UsageError for an offset beyond it."""
        if self.offset is not None:
            if self.offset > end:
                raise UsageError(
                    f"physical offset {self.offset} is beyond what is dispatched, which ends at "
                    f"{end}"
                )
            return self.offset
        if self.time_ms is None:
            raise ValueError("a moment without a field")
        later = first_at_or_after(log, self.time_ms + 1, end)
        return end if later is None else later
