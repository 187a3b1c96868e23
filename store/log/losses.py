"""Parts of the log that a reader has passed without a message: lost ones, and damaged ones.

With the records and BLANKs these account for every byte that was passed. Messages may have been
there, also of a topic or time that the reader was asked for, so whoever gives messages says it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

from reput.store.errors import CommitLogDataLossError, CorruptRecordError, StoreError
from reput.store.log.commitlog import CommitLog
from reput.store.log.cursor import BadRange
from reput.store.log.record import SIZE_MAGIC_LENGTH
from reput.store.log.status import Status

SHOWN_RANGES = 3

logger = logging.getLogger("reput")


class Losses:
    """Ranges by place, so that one which is passed twice counts once."""

    def __init__(self) -> None:
        self._statuses: dict[tuple[int, int], Status] = {}
        self._said = 0

    def add(self, bad: BadRange) -> None:
        """Add a range that holds no record."""
        self._statuses[bad.start, bad.end] = bad.status

    @property
    def lost_bytes(self) -> int:
        """Bytes that no file covers."""
        return sum(end - start for start, end in self._ranges(lost=True))

    @property
    def damaged_bytes(self) -> int:
        """Bytes in files that are neither a record nor a BLANK."""
        return sum(end - start for start, end in self._ranges(lost=False))

    def _ranges(self, *, lost: bool) -> Iterator[tuple[int, int]]:
        is_lost = {
            place: status is Status.SEGMENT_DELETED for place, status in self._statuses.items()
        }
        return (place for place in sorted(is_lost) if is_lost[place] is lost)

    def say(self) -> None:
        """Log in one warning what was passed, unless nothing came after the last one."""
        if len(self._statuses) == self._said:
            return
        self._said = len(self._statuses)
        lost, damaged = self.lost_bytes, self.damaged_bytes
        fields: dict[str, object] = {"lost_bytes": lost, "damaged_bytes": damaged}
        for name, is_lost in (("lost", True), ("damaged", False)):
            ranges = [f"[{start}, {end})" for start, end in self._ranges(lost=is_lost)]
            if (more := len(ranges) - SHOWN_RANGES) > 0:
                ranges[SHOWN_RANGES:] = [f"{more} more"]
            if ranges:
                fields[name] = ", ".join(ranges)
        logger.warning(
            "data loss: of the log that was read %d bytes are lost and %d damaged, which may have "
            "held messages of any topic and queue", lost, damaged, extra={"fields": fields},
        )  # fmt: skip


def loss_error(log: CommitLog, bad: BadRange) -> StoreError:
    """The error for a reader that must not pass a range."""
    if bad.status is Status.SEGMENT_DELETED:
        line = f"no commitlog file covers [{bad.start}, {bad.end})"
        return CommitLogDataLossError(bad.status.name, line, physical_offset=bad.start)
    segment = log.segments.at(bad.start)
    place = str(segment.path) if segment else "the commitlog"
    return CorruptRecordError(place, bad.start, bad.end, bad.status.name)


def warn_of_unread_end(log: CommitLog, end: int) -> None:
    """Log a warning where something stands at the sealed end: it is being written, or damaged, and
    only later records could tell."""
    if any(log.read(end, SIZE_MAGIC_LENGTH)):
        logger.warning(
            "the log is read up to physical offset %d, where no whole record stands: one is being "
            "written, or its end is damaged; see reput inspect record", end,
        )  # fmt: skip


def warn_of_unmounted(log: CommitLog) -> None:
    """Log a warning where one of several directories has no file: the log may begin earlier."""
    for directory in log.segments.unmounted:
        logger.warning(
            "%s has no file of the log, and its disk may not be mounted: the log, which begins at "
            "%d, may have begun earlier", directory, log.min_offset,
        )  # fmt: skip
