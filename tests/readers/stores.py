"""Stores for these tests, bytes written plainly: a log, and the queues that belong to it."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from pathlib import Path

from reput.readers.getmessage import GetMessageResult, delivered
from reput.readers.messagefilter import MessageFilter
from reput.readers.messages import Message
from reput.readers.messagestore import MessageStore
from reput.readers.queuereader import QueueReader
from reput.store.log import record
from reput.store.log.record import Record
from tests.support.wire import UNIT, PlainLog, file_name, write_over

LOG_FILE_SIZE = 4096
QUEUE_FILE_SIZE = 200
"""Ten units."""


class StoreByRanges(MessageStore):
    """Pulls records as they are in the log, and decodes what arrived."""

    def queue(self, topic: str, queue_id: int) -> QueueReader:
        return QueueByRanges(self._queues, topic, queue_id)


class QueueByRanges(QueueReader):
    """One queue of a StoreByRanges."""

    def get_message(
        self,
        offset: int,
        max_count: int = 32,
        *,
        max_bytes: int = 1 << 20,
        message_filter: MessageFilter | None = None,
    ) -> GetMessageResult:
        pulled = self.get_ranges(
            offset, max_count, max_bytes=max_bytes, message_filter=message_filter
        )
        found, data = [], bytes(pulled.data)
        while data:
            # each record begins with its size, and has its own position
            size, start = int.from_bytes(data[:4], "big"), int.from_bytes(data[28:36], "big")
            decoded = record.decode(data[:size], start, start + size + 8)
            assert isinstance(decoded, Record)
            found.append(Message.of(decoded))
            data = data[size:]
        return GetMessageResult(
            pulled.status,
            pulled.next_begin_offset,
            pulled.min_offset,
            pulled.max_offset,
            tuple(delivered(found, message_filter)),
            tuple(found),
            damaged=pulled.damaged,
        )


@dataclass
class SmallStore:
    """A store of one topic, as a broker would have it."""

    root: Path
    topic: bytes = b"Topic"
    log: PlainLog = field(default_factory=lambda: PlainLog(LOG_FILE_SIZE))
    units: dict[int, list[bytes]] = field(default_factory=dict)
    """By queue id; positions are queue offsets."""

    def append(self, tags_code: int = 0, queue_id: int = 0, **fields: object) -> int:
        """A message and its unit; the physical offset."""
        units = self.units.setdefault(queue_id, [])
        given = {"topic": self.topic, "queue_id": queue_id, "queue_offset": len(units), **fields}
        offset = self.log.append(**given)
        start, end = self.log.spans[-1]
        units.append(UNIT.pack(offset, end - start, tags_code))
        return offset

    def write(self) -> Path:
        """Write all of it, over what is there; the root."""
        self.log.write(self.root / "commitlog")
        conf = f"mappedFileSizeConsumeQueue={QUEUE_FILE_SIZE}\nmaxHashSlotNum=1\nmaxIndexNum=16\n"
        write_over(self.root / "broker.conf", conf.encode())
        for queue_id, units in self.units.items():
            directory = self.root / "consumequeue" / self.topic.decode() / str(queue_id)
            directory.mkdir(parents=True, exist_ok=True)
            data = b"".join(units)
            for start in range(0, len(data), QUEUE_FILE_SIZE):
                part = data[start : start + QUEUE_FILE_SIZE].ljust(QUEUE_FILE_SIZE, b"\0")
                write_over(directory / file_name(start), part)
        return self.root

    def write_index(self, keys: list[tuple[str, int]]) -> None:
        """An index file with one slot, of (``topic#key``, physical offset) at time 0."""
        count = len(keys)
        header = struct.pack(">qqqqii", 0, 0, keys[0][1], keys[-1][1], 1, count + 1)
        entries = [
            struct.pack(">iqii", abs(java_hash(key)), offset, 0, number)
            for number, (key, offset) in enumerate(keys)
        ]
        data = header + struct.pack(">i", count) + bytes(20) + b"".join(entries)
        directory = self.root / "index"
        directory.mkdir()
        (directory / "20261121073730214").write_bytes(data.ljust(40 + 4 + 16 * 20, b"\0"))


def java_hash(text: str) -> int:
    """``String.hashCode`` of ASCII."""
    value = 0
    for char in text:
        value = (31 * value + ord(char)) & 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


def store_of_messages(root: Path, count: int, settings: str) -> SmallStore:
    """A store that is written, with settings of its own, whose messages have unique keys."""
    small = SmallStore(root)
    for number in range(count):
        text = b"UNIQ_KEY\x01%032X\x02WAIT\x01true\x02" % number
        small.append(body=b"message %d" % number, properties=text)
    small.write()
    with (root / "broker.conf").open("a") as conf:
        conf.write(settings)
    return small
