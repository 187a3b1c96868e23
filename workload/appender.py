"""Writes a commitlog as a broker does: preallocated files, BLANK and roll, queue offsets, CRCs.

It stands in for a broker in the demo, tests and benchmarks. It holds the store's lock as a broker
does, and its appends do not sync, like those of a broker with asynchronous flush.
"""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np

from reput.store import fsops
from reput.store.brokerlock import BrokerLock
from reput.store.config import read_properties, read_store_settings
from reput.store.datadirectories import check_target
from reput.store.errors import StoreError, UsageError
from reput.store.files import BROKER_CONF_FILE, COMMIT_LOG_DIRECTORY
from reput.store.log import record
from reput.store.log.commitlog import CommitLog, offset_to_file_name
from reput.store.log.cursor import LogTail, records
from reput.store.log.kernelbase import CRC_TABLES
from reput.store.log.record import Record
from reput.workload import appendkernel
from reput.workload.messages import MessageBatch

DEFAULT_FILE_SIZE = 1 << 30
_BUFFER_SIZE = 4 << 20


class Appender:
    """The only writer of a store's log, while in a ``with`` block; it continues where a log
    ends."""

    def __init__(
        self,
        root: Path,
        *,
        file_size: int = DEFAULT_FILE_SIZE,
        property_crc: bool = False,
        born_host: tuple[str, int] = ("127.0.0.1", 50000),
        store_host: tuple[str, int] = ("127.0.0.1", 10911),
    ) -> None:
        """``file_size`` is mappedFileSizeCommitLog in bytes; an existing log keeps its own."""
        self.root = root
        self.end_offset = 0
        self._directory = root / COMMIT_LOG_DIRECTORY
        self._file_size = file_size
        self._property_crc = property_crc
        self._hosts = (born_host, store_host)
        self._host_bytes = tuple(
            np.frombuffer(record.encode_host(host), np.uint8) for host in (born_host, store_host)
        )
        self._queue_offsets: dict[tuple[bytes, int], int] = {}
        self._descriptors: dict[int, int] = {}
        self._buffer = np.empty(_BUFFER_SIZE, np.uint8)
        self._locks = ExitStack()

    def __enter__(self) -> Appender:
        """Open the log. Raises OwnershipError where a broker runs on the store, OutputError for a
        bad disk, UsageError where the store has another kind of log, has it elsewhere, or lies
        among the data of another one."""
        check_target(self.root)
        read_properties(self.root)
        fsops.make_directories(self._directory, self.root)
        self._check_place()
        self._locks.enter_context(BrokerLock(self.root))
        log = CommitLog([self._directory])
        if log.segments:
            self._file_size = log.file_size
            self._recover(log)
        elif not (self.root / BROKER_CONF_FILE).exists():
            conf = f"mappedFileSizeCommitLog={self._file_size}\n"
            fsops.replace_file(self.root / BROKER_CONF_FILE, conf.encode())
        log.close()
        return self

    def _check_place(self) -> None:
        stated = read_store_settings(self.root).commit_log_directories
        if len(stated) > 1 or not self._directory.samefile(stated[0]):
            raise UsageError(
                f"{self.root / BROKER_CONF_FILE} has the log in {', '.join(map(str, stated))}, and "
                f"an appender writes only to {self._directory}; give a store that has its log there"
            )

    def __exit__(self, *_error: object) -> None:
        for fd in self._descriptors.values():
            os.close(fd)
        self._locks.close()

    def _recover(self, log: CommitLog) -> None:
        """Find the end and the next queue offsets, as ``CommitLog.recover`` does."""
        self.end_offset = LogTail(log).settled()
        for message in records(log, log.min_offset, self.end_offset):
            if isinstance(message, Record) and message.dispatched_to_queue:
                self._queue_offsets[message.topic, message.queue_id] = message.queue_offset + 1

    def append(self, message: Record) -> Record:
        """Append one message of any kind without the kernel; return it as it was stored.

        The appender sets offsets, hosts and (where it is 0) storeTimestamp; the caller sets the
        rest. PREPARED and ROLLBACK get queue offset 0. Raises StoreError for a message larger than
        a file.
        """
        queue_offset = 0
        if message.dispatched_to_queue:
            key = (message.topic, message.queue_id)
            queue_offset = self._queue_offsets.get(key, 0)
            self._queue_offsets[key] = queue_offset + 1
        stored = replace(
            message,
            queue_offset=queue_offset,
            physical_offset=self.end_offset,
            store_timestamp=message.store_timestamp or _now_ms(),
            born_host=self._hosts[0],
            store_host=self._hosts[1],
            magic=record.magic_for(message.topic),
        )
        data = record.encode(stored, property_crc=self._property_crc)
        if len(data) + record.END_FILE_MIN_BLANK_LENGTH > self._room():
            if len(data) + record.END_FILE_MIN_BLANK_LENGTH > self._file_size:
                raise StoreError(_too_large(len(data), self._file_size))
            self._roll()
            stored = replace(stored, physical_offset=self.end_offset)
            data = record.encode(stored, property_crc=self._property_crc)
        self._write(data)
        return stored

    def append_batch(self, batch: MessageBatch) -> None:
        """Append many messages at once; all get the same storeTimestamp."""
        queue_count = int(batch.queue_ids.max(initial=0)) + 1
        next_offsets = np.array(
            [
                [self._queue_offsets.get((topic, queue), 0) for queue in range(queue_count)]
                for topic in batch.topics
            ],
            np.int64,
        )
        arena = np.frombuffer(b"".join(batch.topics), np.uint8)
        bounds = np.cumsum([0, *map(len, batch.topics)])
        done = 0
        while done < len(batch):
            file_end = self.end_offset + self._room()
            count, size, full = appendkernel.append_records(
                self._buffer, self.end_offset, file_end, done, len(batch),
                _now_ms(), *self._host_bytes, self._property_crc,
                CRC_TABLES, arena, bounds, batch.topic_ids, batch.queue_ids,
                batch.sys_flags, batch.flags, batch.born_timestamps, batch.bodies,
                batch.body_bounds, batch.properties, batch.property_bounds, next_offsets,
            )  # fmt: skip
            if size:
                self._write(self._buffer[:size].data)
            done += count
            if full:
                if not count and self._room() == self._file_size:
                    raise StoreError(_too_large(len(batch.bodies) // len(batch), self._file_size))
                self._roll()
            elif not count and done < len(batch):
                self._buffer = np.empty(len(self._buffer) * 2, np.uint8)
        for topic, row in zip(batch.topics, next_offsets, strict=True):
            for queue_id, queue_offset in enumerate(row):
                if queue_offset:
                    self._queue_offsets[topic, queue_id] = int(queue_offset)

    def _room(self) -> int:
        return self._file_size - self.end_offset % self._file_size

    def _roll(self) -> None:
        """End the file with a BLANK and begin the next one."""
        room = self._room()
        self._write(record.encode_blank(room), advance=room)

    def _write(self, data: bytes | memoryview, advance: int | None = None) -> None:
        start = self.end_offset - self.end_offset % self._file_size
        path = self._directory / offset_to_file_name(start)
        fsops.pwrite(self._descriptor(start), data, self.end_offset - start, path)
        self.end_offset += len(data) if advance is None else advance

    def _descriptor(self, start: int) -> int:
        """Return the file at ``start``, created together with the next one, as a broker
        preallocates."""
        if start not in self._descriptors:
            for old in [old for old in self._descriptors if old < start]:
                os.close(self._descriptors.pop(old))
            for file_start in (start, start + self._file_size):
                if file_start not in self._descriptors:
                    path = self._directory / offset_to_file_name(file_start)
                    self._descriptors[file_start] = fsops.open_for_writing(path, self._file_size)
        return self._descriptors[start]


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _too_large(size: int, file_size: int) -> str:
    return (
        f"a message of {size} bytes does not fit into a commitlog file of {file_size} bytes; "
        "make the files larger (`Appender.file_size=`)"
    )
