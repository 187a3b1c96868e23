"""The state of the bytes at a position of the log: sound, at an end, or damaged in some way."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class Status(IntEnum):
    """State of the bytes at a position. Up to EMPTY the log is sound; greater values are damage."""

    OK = 0
    NEED_MORE = 1
    """The buffer ends inside the record; at the true tail of a log this is a torn write."""
    BLANK = 2
    """The rest of the file is unused; the log continues in the next file."""
    EMPTY = 3
    """Size and magic are zero: nothing was written here yet."""
    FULL = 4
    """Kernels only: an output array is full; call again."""
    BAD_MAGIC = 16
    BAD_SIZE = 17
    BAD_LENGTH = 18
    """Inner lengths are negative or do not add up to totalSize."""
    BAD_PHYSICAL_OFFSET = 19
    BAD_BLANK = 20
    BAD_PROPERTY = 21
    """DELAY, INNER_NUM or INNER_BASE is not a number: RocketMQ throws here."""
    BAD_BODY_CRC = 22
    BAD_FILE_END = 23
    """Fewer than eight bytes are left in the file, and no BLANK precedes them."""
    ZERO_HOLE = 24
    """Zeros where the log continues later."""
    SEGMENT_DELETED = 25
    """The record is not damaged; the commitlog file that should hold it is gone."""
    BAD_MULTI_DISPATCH = 26
    """A sound record whose lists of light queues cannot be used: RocketMQ skips them, or throws."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """State of a position that holds no whole, sound record."""

    status: Status
    size: int = 0
    """totalSize as the header states it; 0 if unknown, the rest of the file for a BLANK."""
