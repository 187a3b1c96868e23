"""Where records and damage are in a log image: the plain way, whole files in memory.

The rules of ``store.log.cursor`` without windows, buffers and holes: every position is tried.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from reput.store.log import record
from reput.store.log.cursor import BadRange
from reput.store.log.record import Record
from reput.store.log.status import Status
from tests.support.wire import BLANK_MAGIC, V1_MAGIC, V2_MAGIC, PlainLog

MAGICS = {magic.to_bytes(4, "big") for magic in (V1_MAGIC, V2_MAGIC, BLANK_MAGIC)}
"""Without one of them there is neither a record nor a BLANK, whatever else stands there."""


@dataclass(frozen=True)
class PlainItems:
    """The findings that a scan of a range must have."""

    records: list[int]
    """Start offsets of sound records."""
    bad: list[BadRange]
    end: int
    blanks: list[int] = field(default_factory=list, compare=False)
    """Starts of the BLANKs that ended a file."""


class PlainWalk:
    """Reads one image."""

    def __init__(self, log: PlainLog) -> None:
        self._image = bytes(log.image)
        self._start = log.start
        self._file_size = log.file_size

    def file_end(self, offset: int) -> int:
        """End of the file that covers ``offset``."""
        return offset + self._file_size - (offset - self._start) % self._file_size

    def at(self, offset: int) -> Record | Status:
        """A sound record at ``offset``, or why there is none."""
        end = self.file_end(offset)
        data = self._image[offset - self._start : end - self._start]
        found = record.decode(data, offset, end)
        return found if isinstance(found, Record) else found.status

    def is_boundary(self, offset: int, file_end: int) -> bool:
        """Whether scanning may go on here: a record (dispatchable or not) or a BLANK."""
        at = offset - self._start
        if offset + 8 > file_end or self._image[at + 4 : at + 8] not in MAGICS:
            return False
        found = self.at(offset)
        return isinstance(found, Record) or found in (Status.BLANK, Status.BAD_PROPERTY)

    def stated_size(self, offset: int) -> int:
        """totalSize, whatever it is."""
        at = offset - self._start
        return int.from_bytes(self._image[at : at + 4], "big", signed=True)

    def resync(self, offset: int) -> int:
        """Where the damaged record's own length leads, or the first boundary past ``offset``."""
        file_end, stated = self.file_end(offset), self.stated_size(offset)
        is_length = offset + 8 <= file_end and stated >= record.MIN_RECORD_LENGTH
        if is_length and self.is_boundary(offset + stated, file_end):
            return offset + stated
        later = [at for at in range(offset + 1, file_end - 7) if self.is_boundary(at, file_end)]
        found = (at for at in later if self.at(at) is not Status.BLANK)
        return next(found, later[0] if later else file_end)

    def items(self, start: int, end: int) -> PlainItems:
        """Records and bad ranges of [start, end)."""
        records, bad, blanks, offset = [], [], [], start
        while offset < end:
            found = self.at(offset)
            if isinstance(found, Record):
                records.append(offset)
                offset += found.total_size
            elif found is Status.BLANK:
                blanks.append(offset)
                offset = self.file_end(offset)
            else:
                resumed = self.resync(offset)
                if found is Status.BAD_PROPERTY:
                    resumed = offset + self.stated_size(offset)
                zeros = (Status.EMPTY, Status.NEED_MORE)
                bad.append(BadRange(offset, resumed, Status.ZERO_HOLE if found in zeros else found))
                offset = resumed
        return PlainItems(records, bad, offset, blanks)
