"""The commitlog directory: a list of equally sized files, read by position and never written.

Which files these are, ``store.log.segments`` finds out. Reads are ``preadv`` into the caller's
buffer: a file that is truncated meanwhile gives fewer bytes, whereas a mapping would raise SIGBUS.
Only a server's pulls read mapped files (``store.queue.pullkernel``), which takes care of that.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path

from reput.store.errors import CommitLogError
from reput.store.log import record
from reput.store.log.record import SIZE_MAGIC_LENGTH, Record
from reput.store.log.segments import Segment, Segments
from reput.store.log.status import Outcome, Status

_EMPTY_HEADER = bytes(SIZE_MAGIC_LENGTH)
READ_AHEAD_BYTES = 128 << 20
NO_TIME = -1
"""storeTimestamp if there is no record."""
_SIZE_LENGTH = 4
"""Bytes of a record's first field."""


class CommitLog:
    """The bytes and records of one log; several threads may read while another refreshes."""

    def __init__(self, directories: Sequence[Path], file_size: int | None = None) -> None:
        """The parameters and errors are those of ``Segments``."""
        self.segments = Segments(directories, file_size)

    def refresh(self) -> None:
        """List the files again if a directory changed; an unchanged one costs a stat."""
        self.segments.refresh()

    def close(self) -> None:
        """Close the files; the object may be used again."""
        self.segments.close()

    @property
    def file_size(self) -> int:
        """Bytes of each file; 0 for a log without files whose size is not configured."""
        return self.segments.file_size

    @property
    def min_offset(self) -> int:
        """Log offset of the first file's first byte; 0 for a log without files."""
        files = self.segments.listed
        return files[0].start if files else 0

    def active_segment(self) -> Segment | None:
        """The file that the broker appends to: the last one with data at its start."""
        for segment in reversed(self.segments.listed):
            if self.read(segment.start, SIZE_MAGIC_LENGTH) != _EMPTY_HEADER:
                return segment
        return self.segments.listed[0] if self.segments.listed else None

    def read(self, offset: int, size: int) -> bytes:
        """Up to ``size`` bytes at ``offset``, within one file."""
        segment = self.segments.at(offset)
        if segment is None:
            return b""
        position = offset - segment.start
        size = min(size, self.segments.file_size - position)
        try:
            file = self.segments.open(segment)
            data = os.pread(file.fd, size, position)
            while len(data) < size:
                # the file's end, or one of the file systems that answer in parts
                more = os.pread(file.fd, size - len(data), position + len(data))
                if not more:
                    break
                data += more
        except OSError as error:
            raise _read_error(segment, position, error) from error
        return data

    def read_into(self, offset: int, buffer: memoryview) -> int:
        """Fill ``buffer`` from ``offset`` on, within one file; return the number of bytes read."""
        segment = self.segments.at(offset)
        if segment is None:
            return 0
        position = offset - segment.start
        view = buffer[: self.segments.file_size - position]
        done = 0
        try:
            file = self.segments.open(segment)
            while done < len(view):
                count = os.preadv(file.fd, [view[done:]], position + done)
                if count == 0:
                    break
                done += count
        except OSError as error:
            raise _read_error(segment, position + done, error) from error
        return done

    def will_need(self, offset: int, size: int) -> None:
        """Ask the kernel to read ahead ``size`` bytes at ``offset``, up to 128 MiB of one file."""
        segment = self.segments.at(offset)
        if segment is not None and size > 0:
            file, position = self.segments.open(segment), offset - segment.start
            size = min(size, READ_AHEAD_BYTES)
            os.posix_fadvise(file.fd, position, size, os.POSIX_FADV_WILLNEED)

    def record_at(self, offset: int, size: int, *, verify_crc: bool = False) -> Record | Outcome:
        """Decode the record at ``offset`` and ``size``, given by a queue's unit or a walk.

        The result is BAD_SIZE if the record there has another size, and SEGMENT_DELETED if no file
        covers ``offset``.
        """
        if self.segments.at(offset) is None:
            return Outcome(Status.SEGMENT_DELETED)
        data = self.read(offset, min(size, record.MAX_RECORD_LENGTH))
        # bytes after it are not read: it is decoded as if it were the last one of its file
        file_end = offset + size + record.END_FILE_MIN_BLANK_LENGTH
        result = record.decode(data, offset, file_end, verify_crc=verify_crc)
        if isinstance(result, Record) and result.total_size != size:
            return Outcome(Status.BAD_SIZE, result.total_size)
        return result

    def record_starting_at(self, offset: int) -> Record | Outcome:
        """Decode the record at ``offset``, of the size that its own first field gives."""
        result, segment = self.record_at(offset, self.stated_size(offset)), self.segments.at(offset)
        if segment and isinstance(result, Outcome) and result.status is Status.BAD_BLANK:
            # a BLANK is one by reaching to its file's end
            is_blank = offset + result.size == segment.start + self.segments.file_size
            return Outcome(Status.BLANK, result.size) if is_blank else result
        return result

    def stated_size(self, offset: int) -> int:
        """totalSize of the record that begins at ``offset``, whatever it is; 0 beyond the log."""
        return int.from_bytes(self.read(offset, _SIZE_LENGTH), "big")

    def may_be_torn(self, offset: int) -> bool:
        """Whether a physical offset in a queue may be one whose first bytes a power cut has lost.

        It is none where it has as many bytes as those of the newest file, and the log cannot tell
        where a file is gone.
        """
        last = max(self.segments.end - 1, 1)
        is_short = not offset >> (last.bit_length() - 1) // 8 * 8
        return is_short and self.segments.at(offset) is not None

    def store_time(self, offset: int) -> int:
        """storeTimestamp of the record that begins at ``offset``, ms; NO_TIME if no file has its
        head."""
        head = self.read(offset, record.STORE_TIMESTAMP_END_MAX)
        if len(head) < record.STORE_TIMESTAMP_END_MAX:
            return NO_TIME
        return record.store_timestamp(head)

    def next_data(self, offset: int) -> int:
        """``offset``, or the end of the sparse hole that covers it, up to the file's end."""
        segment = self.segments.at(offset)
        if segment is None:
            return offset
        try:
            file = self.segments.open(segment)
            data_position = os.lseek(file.fd, offset - segment.start, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return segment.start + self.segments.file_size
            return offset
        return segment.start + data_position


def _read_error(segment: Segment, position: int, error: OSError) -> CommitLogError:
    line = f"cannot read commitlog file {segment.path} at {position}: {error.strerror}"
    return CommitLogError(line, path=segment.path, physical_offset=segment.start + position)
