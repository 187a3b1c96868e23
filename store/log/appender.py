"""The writer of a log: preallocated files, BLANK and roll, queue offsets, syncs, recovery.

A file is created together with the next one, as a broker preallocates, and both have their full
length from then on. With ``is_durable`` every file is durable before the next one gets its first
byte, so that a power cut tears no more than the end of the newest file with data.

At the start the log's end is found as a broker's recovery finds it: the first bytes that are no
whole record, with the right body CRC, end the log, and everything after them is overwritten with
zeros, so that no later record is followed by old bytes. The walk begins at the watermark of the
store's queues, which no unsynced byte is before; without one it begins in the third file from the
end, as a broker's does.

A disk's sectors are taken to be written whole or not at all. A record's topic and properties have
no checksum, and a sector that a power cut lost is zeros. A record whose text could have lost one
therefore gets RocketMQ's property CRC.
"""

from __future__ import annotations

import logging
import os
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

from reput.store import fsops
from reput.store.brokerlock import BrokerLock
from reput.store.config import StoreSettings, read_properties, read_store_settings
from reput.store.datadirectories import check_target
from reput.store.errors import OutputError, StoreError, UsageError
from reput.store.files import BROKER_CONF_FILE, COMMIT_LOG_DIRECTORY, offset_to_file_name
from reput.store.log import properties, record
from reput.store.log.commitlog import CommitLog
from reput.store.log.cursor import BUFFER_SIZE, Window
from reput.store.log.record import Record
from reput.store.log.status import Status
from reput.store.queueoffsets import BuiltOffsets, scanned_offsets

DEFAULT_FILE_SIZE = 1 << 30
WALKED_FILES = 3
"""Files at the log's end that recovery walks where no watermark tells more."""
LOST_ZEROS = bytes(64)
"""Zeros in a text that may be a lost sector."""

logger = logging.getLogger("reput")


class LogAppender:
    """The only writer of a store's log, while in a ``with`` block; not thread-safe.

    After a write or a sync that failed it refuses everything: what the disk has is found out by
    the next start, and pages whose sync failed are never synced again.
    """

    def __init__(
        self,
        root: Path,
        *,
        file_size: int = DEFAULT_FILE_SIZE,
        property_crc: bool = False,
        is_durable: bool = True,
    ) -> None:
        """``file_size`` is mappedFileSizeCommitLog in bytes; a property file that states it and an
        existing log overrule it. Without ``is_durable`` nothing is synced, as with asynchronous
        flush, and nobody asks for it."""
        self.root = root
        self.end_offset = 0
        """Physical offset after the last record, synced or not."""
        self.file_size = file_size
        self._directory = root / COMMIT_LOG_DIRECTORY
        self._property_crc = property_crc
        self._is_durable = is_durable
        self._queue_offsets: dict[tuple[bytes, int], int] = {}
        self._descriptors: dict[int, int] = {}
        self._unsynced: set[int] = set()
        """Starts of the files that were written since the last sync."""
        self._has_new_names = False
        self._recovered = (0, 0)
        """The range whose bytes an earlier process may have left unsynced."""
        self._failure: BaseException | None = None
        self._resources = ExitStack()

    def __enter__(self) -> LogAppender:
        """Open the log. Raises OwnershipError where a broker runs on the store, OutputError for a
        bad disk, UsageError where the store has another kind of log, has it elsewhere, or lies
        among the data of another one."""
        check_target(self.root)
        read_properties(self.root)
        fsops.make_directories(self._directory, self.root)
        stated_size = self._checked_settings().mapped_file_size_commit_log
        with ExitStack() as resources:
            resources.enter_context(BrokerLock(self.root))
            resources.callback(self._close_files)
            with closing(CommitLog([self._directory])) as log:
                if log.segments.listed:
                    self.file_size = log.file_size
                    self._recover(log)
                elif stated_size is not None:
                    self.file_size = stated_size
                elif not (self.root / BROKER_CONF_FILE).exists():
                    conf = f"mappedFileSizeCommitLog={self.file_size}\n"
                    fsops.replace_file(self.root / BROKER_CONF_FILE, conf.encode())
            self._resources = resources.pop_all()
        return self

    def _checked_settings(self) -> StoreSettings:
        settings = read_store_settings(self.root)
        stated = settings.commit_log_directories
        if len(stated) > 1 or not self._directory.samefile(stated[0]):
            raise UsageError(
                f"{self.root / BROKER_CONF_FILE} has the log in {', '.join(map(str, stated))}, and "
                f"an appender writes only to {self._directory}; give a store that has its log there"
            )
        return settings

    def __exit__(self, *_error: object) -> None:
        self._resources.close()

    def _close_files(self) -> None:
        for fd in self._descriptors.values():
            os.close(fd)
        self._descriptors.clear()

    def _recover(self, log: CommitLog) -> None:
        """Find the end and the next queue offsets, and clear what is beyond the end."""
        built = BuiltOffsets.read(self.root, log)
        start = _walk_start(log) if built.watermark is None else built.watermark
        start = max([start, *(end for _, end in log.segments.gaps())])
        self._queue_offsets = dict(built.next_offsets)
        self._queue_offsets.update(scanned_offsets(log, built.end_offset, start))
        self.end_offset = start
        for found in _whole_records(log, start):
            self.end_offset, message = found
            if message is not None and message.dispatched_to_queue:
                self._queue_offsets[message.topic, message.queue_id] = message.queue_offset + 1
        # an earlier process may have left their names, lengths and bytes unsynced
        self._recovered = (start, self.end_offset)
        self._has_new_names = True
        for segment in log.segments.listed:
            if segment.start + log.file_size > start:
                self._open(segment.start)
                self._unsynced.add(segment.start)
        cleared = self._clear_beyond(log)
        if cleared:
            logger.warning(
                "the log of %s ends at %d: cleared bytes=%d, which were no whole record, or "
                "followed one", self.root, self.end_offset, cleared,
            )  # fmt: skip

    def _clear_beyond(self, log: CommitLog) -> int:
        """Overwrite what is beyond the end with zeros, durably; the number of bytes that were
        none."""
        cleared = 0
        for segment in log.segments.listed:
            file_end = segment.start + log.file_size
            position, is_written = max(segment.start, self.end_offset), False
            while (position := log.next_data(position)) < file_end:
                data = log.read(position, BUFFER_SIZE)
                if not data:
                    break
                others = len(data) - data.count(0)
                if others:
                    cleared, is_written = cleared + others, True
                    self._write_at(segment.start, position, bytes(len(data)))
                position += len(data)
            if is_written:
                fsops.sync(self._descriptors[segment.start], segment.path)
        return cleared

    def next_queue_offset(self, topic: bytes, queue_id: int) -> int:
        """The queue offset of the next message of a queue."""
        return self._queue_offsets.get((topic, queue_id), 0)

    def append(self, message: Record) -> Record:
        """Append one record as ``append_all`` does; return it as it was stored."""
        return self.append_all([message])[0]

    def append_all(self, messages: Sequence[Record]) -> list[Record]:
        """Append records of any kind; return them as they were stored. They are not synced.

        The appender sets queue offset, physical offset, magic, sizes and, where it is 0,
        storeTimestamp. PREPARED and ROLLBACK get queue offset 0. Raises StoreError for a record
        that cannot be stored, with nothing appended of any, and OutputError for a failed write.
        """
        self._check_usable()
        position, queue_offsets = self.end_offset, dict[tuple[bytes, int], int]()
        stored: list[Record] = []
        encoded: list[bytes] = []
        for message in messages:
            key, queue_offset = (message.topic, message.queue_id), 0
            if message.dispatched_to_queue:
                queue_offset = queue_offsets.get(key, self.next_queue_offset(*key))
                queue_offsets[key] = queue_offset + 1
            placed, data = self._place(message, queue_offset, position)
            room = self.file_size - position % self.file_size
            if len(data) + record.END_FILE_MIN_BLANK_LENGTH > room:
                self._check_size(len(data))
                position += room
                placed, data = self._place(message, queue_offset, position)
            stored.append(_as_stored(placed, data))
            encoded.append(data)
            position += len(data)
        self._write_all(stored, encoded)
        self._queue_offsets.update(queue_offsets)
        return stored

    def _place(
        self, message: Record, queue_offset: int, physical_offset: int
    ) -> tuple[Record, bytes]:
        """The message at its place, and its bytes."""
        has_tail = self._property_crc or _looks_torn(message)
        try:
            placed = _placed(message, queue_offset, physical_offset)
            return placed, record.encode(placed, property_crc=has_tail)
        except (ValueError, struct.error) as error:
            raise StoreError(f"a message cannot be stored: {error}") from error

    def _check_size(self, size: int) -> None:
        if size + record.END_FILE_MIN_BLANK_LENGTH > self.file_size:
            raise too_large(size, self.file_size)

    def _write_all(self, stored: Sequence[Record], encoded: Sequence[bytes]) -> None:
        """Write encoded records with one write for each file."""
        pieces: list[bytes] = []
        position = self.end_offset
        for message, data in zip(stored, encoded, strict=True):
            if message.physical_offset != position:
                self.write(b"".join(pieces))
                pieces = []
                self.roll()
            pieces.append(data)
            position = message.physical_offset + len(data)
        self.write(b"".join(pieces))

    @property
    def room(self) -> int:
        """Bytes from the end to the end of its file."""
        return self.file_size - self.end_offset % self.file_size

    def roll(self) -> None:
        """End the file with a BLANK, and begin the next one."""
        room = self.room
        self._append_bytes(record.encode_blank(room))
        self.end_offset += room

    def write(self, data: bytes | memoryview) -> None:
        """Append encoded records, of which the file at the end has room for all and a BLANK."""
        if data:
            self._append_bytes(data)
            self.end_offset += len(data)

    def set_next_queue_offset(self, topic: bytes, queue_id: int, queue_offset: int) -> None:
        """Note the queue offset that follows those of records that the caller encoded."""
        self._queue_offsets[topic, queue_id] = queue_offset

    def _append_bytes(self, data: bytes | memoryview) -> None:
        self._check_usable()
        try:
            start = self.end_offset - self.end_offset % self.file_size
            self._open_files(start)
            self._write_at(start, self.end_offset, data)
        except OutputError as error:
            self._failure = error
            raise

    def _write_at(self, start: int, offset: int, data: bytes | memoryview) -> None:
        if start not in self._descriptors:
            self._open(start)
        self._unsynced.add(start)
        fsops.pwrite(self._descriptors[start], data, offset - start, self._path(start))

    def _open_files(self, start: int) -> None:
        """Open the file at ``start`` and the next one; close those before, which are durable
        then."""
        for file_start in (start, start + self.file_size):
            if file_start not in self._descriptors:
                if self._has_new_names and self._is_durable:
                    # a power cut leaves no file without those before it
                    self.sync()
                self._open(file_start)
        for old in [old for old in self._descriptors if old < start]:
            if self._is_durable and old in self._unsynced:
                self.sync()
            os.close(self._descriptors.pop(old))
            self._unsynced.discard(old)

    def _open(self, start: int) -> None:
        path = self._path(start)
        is_whole = path.exists() and path.stat().st_size == self.file_size
        self._descriptors[start] = fsops.open_for_writing(path, self.file_size)
        if not is_whole:
            self._has_new_names = True
            self._unsynced.add(start)

    def _path(self, start: int) -> Path:
        return self._directory / offset_to_file_name(start)

    def sync(self) -> None:
        """Make everything durable that was appended: the written files, and the names of new ones.

        What an earlier process left is written again first, since a sync of its own that failed may
        have left pages that only look as if the disk had them. Raises SyncError.
        """
        self._check_usable()
        try:
            self._write_recovered()
            for start in sorted(self._unsynced):
                fsops.sync(self._descriptors[start], self._path(start))
            if self._has_new_names:
                fsops.sync_directory(self._directory)
        except OutputError as error:
            self._failure = error
            raise
        self._unsynced.clear()
        self._has_new_names = False

    def _write_recovered(self) -> None:
        position, end = self._recovered
        if position == end:
            return
        with closing(CommitLog([self._directory])) as log:
            while position < end:
                start = position - position % self.file_size
                size = min(start + self.file_size, end) - position
                data = log.read(position, min(size, BUFFER_SIZE))
                self._write_at(start, position, data)
                position += len(data)
        self._recovered = (end, end)

    def _check_usable(self) -> None:
        """Raises StoreError after a failed write or sync."""
        if self._failure is not None:
            raise StoreError(
                f"nothing more is appended to {self._directory}, because an earlier write failed "
                f"({self._failure}); the next start finds out what the disk has"
            )


def now_ms() -> int:
    """ms since the epoch."""
    return time.time_ns() // 1_000_000


def too_large(size: int, file_size: int) -> StoreError:
    """The error about a record of ``size`` bytes."""
    return StoreError(
        f"a message of {size} bytes does not fit into a commitlog file of {file_size} bytes; "
        "make the files larger (`Appender.file_size=`)"
    )


def _walk_start(log: CommitLog) -> int:
    """The start of the first file that recovery walks without a watermark."""
    active = log.active_segment()
    starts = [segment.start for segment in log.segments.listed if active and segment <= active]
    return max(starts[-WALKED_FILES:][:1], default=log.min_offset)


def _whole_records(log: CommitLog, offset: int) -> Iterator[tuple[int, Record | None]]:
    """(end, record) of each whole record from ``offset`` on, up to the first bytes that are none.
    None stands for a BLANK, where the end is that of its file, and for a record of which RocketMQ
    does not understand a property."""
    window, loaded = Window(log), False
    while (segment := log.segments.at(offset)) is not None:
        if not loaded:
            window.load(offset)
        loaded, file_end = True, segment.start + log.file_size
        view = window.data.data[offset - window.base : window.length]
        result = record.decode(view, offset, file_end, verify_crc=True)
        if isinstance(result, Record):
            if _looks_torn(result) and not _has_property_crc(view[: result.total_size]):
                return
            offset += result.total_size
            yield offset, result
        elif result.status is Status.BLANK:
            offset, loaded = file_end, False
            yield offset, None
        elif result.status is Status.BAD_PROPERTY:
            offset += result.size
            yield offset, None
        elif result.status is not Status.NEED_MORE or not window.load(
            offset, window.plausible_size(offset)
        ):
            return


def _looks_torn(message: Record) -> bool:
    """Whether a page that was lost may have left the zeros in a record's text."""
    return any(
        text.endswith(b"\0") or LOST_ZEROS in text for text in (message.topic, message.properties)
    )


def _has_property_crc(data: memoryview) -> bool:
    size = properties.PROPERTY_CRC_SIZE
    return bytes(data[-size:]) == properties.property_crc_tail(bytes(data[:-size]))


def _placed(message: Record, queue_offset: int, physical_offset: int) -> Record:
    """A message with all that its place gives it."""
    magic = record.magic_for(message.topic)
    return replace(
        message,
        queue_offset=queue_offset,
        physical_offset=physical_offset,
        store_timestamp=message.store_timestamp or now_ms(),
        sys_flag=record.stored_sys_flag(message),
        magic=magic,
        body_crc=record.body_crc(message.body),
        total_size=record.stored_size(message, magic),
        property_map=properties.parse(message.properties),
    )


def _as_stored(message: Record, data: bytes) -> Record:
    """The record that a reader finds in ``data``."""
    if message.total_size == len(data):
        return message
    # its properties have got a tail
    file_end = message.physical_offset + len(data) + record.END_FILE_MIN_BLANK_LENGTH
    decoded = record.decode(data, message.physical_offset, file_end)
    # RocketMQ does not understand a property of the others
    return decoded if isinstance(decoded, Record) else replace(message, total_size=len(data))
