"""Writes made-up messages into a commitlog in bulk, with ``store.log.appender`` and a kernel.

It stands in for a broker in the demo, tests and benchmarks. It holds the store's lock as a broker
does, and its appends do not sync, like those of a broker with asynchronous flush.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from reput.store.log import record
from reput.store.log.appender import DEFAULT_FILE_SIZE, LogAppender, now_ms, too_large
from reput.store.log.kernelbase import CRC_TABLES
from reput.store.log.record import Record
from reput.workload import appendkernel
from reput.workload.messages import MessageBatch

_BUFFER_SIZE = 4 << 20


class Appender:
    """The only writer of a store's log, while in a ``with`` block."""

    def __init__(
        self,
        root: Path,
        *,
        file_size: int = DEFAULT_FILE_SIZE,
        property_crc: bool = False,
        born_host: tuple[str, int] = ("127.0.0.1", 50000),
        store_host: tuple[str, int] = ("127.0.0.1", 10911),
    ) -> None:
        """``file_size`` is mappedFileSizeCommitLog in bytes; a property file that states it and an
        existing log overrule it."""
        self.root = root
        self._log = LogAppender(
            root, file_size=file_size, property_crc=property_crc, is_durable=False
        )
        self._property_crc = property_crc
        self._hosts = (born_host, store_host)
        self._host_bytes = tuple(
            np.frombuffer(record.encode_host(host), np.uint8) for host in (born_host, store_host)
        )
        self._buffer = np.empty(_BUFFER_SIZE, np.uint8)

    @property
    def end_offset(self) -> int:
        """Physical offset after the last message."""
        return self._log.end_offset

    def __enter__(self) -> Appender:
        """Open the log. Raises as ``LogAppender``."""
        self._log.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._log.__exit__(*error)

    def append(self, message: Record) -> Record:
        """Append one message of any kind without the kernel; return it as it was stored.

        The appender sets hosts, and what ``LogAppender`` sets. Raises StoreError for a message
        larger than a file.
        """
        born_host, store_host = self._hosts
        return self._log.append(replace(message, born_host=born_host, store_host=store_host))

    def append_batch(self, batch: MessageBatch) -> None:
        """Append many messages at once; all get the same storeTimestamp."""
        queue_count = int(batch.queue_ids.max(initial=0)) + 1
        next_offsets = np.array(
            [
                [self._log.next_queue_offset(topic, queue) for queue in range(queue_count)]
                for topic in batch.topics
            ],
            np.int64,
        )
        arena = np.frombuffer(b"".join(batch.topics), np.uint8)
        bounds = np.cumsum([0, *map(len, batch.topics)])
        done = 0
        while done < len(batch):
            file_end = self.end_offset + self._log.room
            count, size, full = appendkernel.append_records(
                self._buffer, self.end_offset, file_end, done, len(batch),
                now_ms(), *self._host_bytes, self._property_crc,
                CRC_TABLES, arena, bounds, batch.topic_ids, batch.queue_ids,
                batch.sys_flags, batch.flags, batch.born_timestamps, batch.bodies,
                batch.body_bounds, batch.properties, batch.property_bounds, next_offsets,
            )  # fmt: skip
            if size:
                self._log.write(self._buffer[:size].data)
            done += count
            if full:
                if not count and self._log.room == self._log.file_size:
                    raise too_large(len(batch.bodies) // len(batch), self._log.file_size)
                self._log.roll()
            elif not count and done < len(batch):
                self._buffer = np.empty(len(self._buffer) * 2, np.uint8)
        for topic, row in zip(batch.topics, next_offsets, strict=True):
            for queue_id, queue_offset in enumerate(row):
                if queue_offset:
                    self._log.set_next_queue_offset(topic, queue_id, int(queue_offset))
