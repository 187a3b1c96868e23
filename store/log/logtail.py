"""The live end of the log: how far a reader may go while a broker appends."""

from __future__ import annotations

import time
import zlib

from reput.store.log import record
from reput.store.log.commitlog import CommitLog
from reput.store.log.cursor import Hop, Window, hop_file, is_boundary, resync
from reput.store.log.segments import Segment
from reput.store.log.status import Outcome, Status

_NOTHING = bytes(record.SIZE_MAGIC_LENGTH)


class LogTail:
    """The live end of the log: how far a reader may go (the seal rule, ARCHITECTURE.md).

    A record counts as written if a sound record or a BLANK follows it, or if its body CRC is right
    and two polls some milliseconds apart saw the same bytes. At a torn tail the reader waits. Bytes
    that stay damaged before sound records are damage and are passed; while a broker may still be
    writing, only after a grace time.
    """

    SEAL_SECONDS = 0.008
    """A broker stores a record from front to back, and a torn end shows. A writer that stores a
    record's pieces in any order may leave a hole of zeros, which can be a right value, for less
    than this time."""
    ZEROS_SECONDS = 1.0
    """The same for a record with zeros within its topic or properties, where a hole is likelier."""
    DAMAGE_GRACE_SECONDS = 5.0
    HOLE_CHECK_SECONDS = 60.0

    def __init__(self, log: CommitLog) -> None:
        self._log = log
        self._window = Window(log)
        self._offset = log.min_offset
        self._candidate: tuple[int, int, int, float] | None = None
        self._has_zeros = False
        """The last record is sealed after ``ZEROS_SECONDS`` alone."""
        self._stuck: tuple[int, float] | None = None
        self._next_hole_check = 0.0
        self._idle_end: int | None = None

    @property
    def is_idle(self) -> bool:
        """Whether the last poll has found the log whole, and nothing after its sealed end."""
        return self._idle_end is not None

    def settled(self, start: int = 0, *, patient: bool = False) -> int:
        """The sealed end after two polls, so that it includes the last record, which one poll
        omits.

        With ``patient``, damage is waited for as in ``poll``; otherwise it is passed at once, as
        for a log that does not grow.
        """
        self.poll(start, patient=patient)
        time.sleep(self.SEAL_SECONDS)
        end = self.poll(start, patient=patient)
        if self._has_zeros:
            time.sleep(self.ZEROS_SECONDS)
            end = self.poll(start, patient=patient)
        return end

    def poll(self, start: int = 0, *, patient: bool = True) -> int:
        """The sealed end now: a log offset after the last record that may be dispatched.

        ``start`` is a known record start; nothing before it is walked again.
        """
        self._log.refresh()
        if self._is_idle(start):
            return max(start, self._idle_end or 0)
        active = self._log.active_segment()
        if active is None:
            return start
        self._idle_end = None
        if self._offset < active.start or not self._log.segments.at(self._offset - 1):
            self._offset = active.start
        if self._offset < start <= active.start + self._log.file_size:
            self._offset = start
        while True:
            segment = self._log.segments.at(self._offset)
            if segment is None:
                return self._offset
            hop = hop_file(self._log, self._window, self._offset)
            if hop.status is Status.BLANK:
                self._offset = segment.start + self._log.file_size
                continue
            if hop.last_record_offset >= 0:
                # every earlier record has a sound successor
                self._offset = hop.last_record_offset
            sealed = hop.offset if self._is_sealed(hop) else self._offset
            resumed = self._end_of_damage(segment, hop, patient)
            if resumed is None:
                if sealed == hop.offset and hop.status is Status.EMPTY:
                    self._idle_end = sealed
                return sealed
            self._offset = resumed

    def is_unchanged(self) -> bool:
        """Whether the log is as a poll has found it that sealed all of it, by one small read: what
        a broker appends at this end, or in the next file, begins with a record or a BLANK. A change
        of the files is not noticed."""
        end = self._idle_end
        return end is not None and self._log.read(end, len(_NOTHING)) == _NOTHING

    def _is_idle(self, start: int) -> bool:
        """Whether a poll would find nothing new."""
        end = self._idle_end
        if end is None or start > end or time.monotonic() >= self._next_hole_check:
            return False
        return self.is_unchanged()

    def _is_sealed(self, hop: Hop) -> bool:
        self._has_zeros = False
        if hop.last_record_offset < 0:
            return True
        size = hop.offset - hop.last_record_offset
        data, seen = self._log.read(hop.last_record_offset, size), self._candidate
        digest, now = zlib.crc32(data), time.monotonic()
        if seen is None or seen[:3] != (hop.last_record_offset, size, digest):
            self._candidate = (hop.last_record_offset, size, digest, now)
            return False
        # a sum: the difference after a sleep of just that time may be less by its rounding
        if now < seen[3] + self.SEAL_SECONDS:
            # in a busy log nearly every last record gets a successor meanwhile
            return False
        view, file_end = memoryview(data), hop.offset + record.END_FILE_MIN_BLANK_LENGTH
        framed = record.frame(view, hop.last_record_offset, file_end)
        if isinstance(framed, Outcome) or not record.looks_written(view, framed):
            return False
        self._has_zeros = record.has_zeros(view, framed)
        return not self._has_zeros or now >= seen[3] + self.ZEROS_SECONDS

    def _end_of_damage(self, active: Segment, hop: Hop, patient: bool) -> int | None:
        """Offset at which sound records continue after damage; None to wait."""
        now = time.monotonic()
        if self._stuck is None or self._stuck[0] != hop.offset:
            self._stuck = (hop.offset, now)
            self._next_hole_check = 0.0
        if patient and now - self._stuck[1] < self.DAMAGE_GRACE_SECONDS:
            return None
        if now < self._next_hole_check and patient:
            return None
        self._next_hole_check = now + self.HOLE_CHECK_SECONDS
        next_start = resync(self._log, self._window, hop.offset)
        file_end = active.start + self._log.file_size
        if next_start < file_end:
            return next_start
        # nothing sound is left in this file; later ones may have lost their first records as well
        later = (file.start for file in self._log.segments.listed if file.start >= file_end)
        return file_end if any(map(self._has_record, later)) else None

    def _has_record(self, start: int) -> bool:
        """Whether the file that begins at ``start`` holds a record or its BLANK."""
        end = start + self._log.file_size
        return is_boundary(self._log, start, end) or resync(self._log, self._window, start) < end
