"""RocketMQ's ``IndexService.buildIndex`` and ``IndexFile.putKey``, key by key (formats.md §8).

What the writer's files are compared with in content: header, slots, entries. Written plainly
from the format, with nothing of this project.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from pathlib import Path

Entry = tuple[int, int, int, int]
"""(keyHash, physical offset, timeDiff, previous entry)."""


@dataclass
class Content:
    """One file: what RocketMQ reads of it."""

    slot_num: int
    index_num: int
    begin_timestamp: int = 0
    end_timestamp: int = 0
    begin_phy_offset: int = 0
    end_phy_offset: int = 0
    hash_slot_count: int = 0
    slots: dict[int, int] = field(default_factory=dict)
    """The newest entry of each slot in use."""
    entries: list[Entry] = field(default_factory=list)

    @property
    def index_count(self) -> int:
        """Number of the next entry: number 0 is never used."""
        return len(self.entries) + 1

    def put_key(self, key_hash: int, offset: int, store_timestamp: int) -> bool:
        """False where the file is full."""
        if self.index_count >= self.index_num:
            return False
        slot = key_hash % self.slot_num
        previous = self.slots.get(slot, 0)
        if previous <= 0 or previous > self.index_count:
            previous = 0
        # Java's long wraps
        wrapped = (store_timestamp - self.begin_timestamp + (1 << 63)) % (1 << 64) - (1 << 63)
        difference = max(wrapped, 0) // 1000 if self.begin_timestamp > 0 else 0
        self.slots[slot] = self.index_count
        if self.index_count == 1:
            self.begin_phy_offset, self.begin_timestamp = offset, store_timestamp
        self.hash_slot_count += previous == 0
        self.entries.append((key_hash, offset, min(difference, 2147483647), previous))
        self.end_phy_offset, self.end_timestamp = offset, store_timestamp
        return True

    def select(self, key_hash: int, begin_ms: int, end_ms: int) -> list[int]:
        """Offsets of a key hash, newest first, where the file's times meet [begin, end]."""
        if max(begin_ms, self.begin_timestamp) > min(end_ms, self.end_timestamp):
            return []
        return [
            offset
            for found, offset, difference, _ in reversed(self.entries)
            if found == key_hash and begin_ms <= self.begin_timestamp + difference * 1000 <= end_ms
        ]


def read_content(path: Path, slot_num: int, index_num: int) -> Content:
    """The contents of a file."""
    data = path.read_bytes()
    assert len(data) == 40 + 4 * slot_num + 20 * index_num
    *fields, index_count = struct.unpack_from(">qqqqii", data)
    slots = struct.unpack_from(f">{slot_num}i", data, 40)
    at = 40 + 4 * slot_num
    return Content(
        slot_num,
        index_num,
        *fields,
        {slot: index for slot, index in enumerate(slots) if index},
        [struct.unpack_from(">iqii", data, at + 20 * index) for index in range(1, index_count)],
    )


@dataclass(frozen=True)
class Message:
    """The fields of a record that the index uses."""

    offset: int
    end: int
    store_timestamp: int
    hashes: tuple[int, ...]
    """The hashes of its keys, in order; empty for a ROLLBACK."""


class ModelIndex:
    """All index files, in memory."""

    def __init__(self, slot_num: int, index_num: int) -> None:
        self._sizes = slot_num, index_num
        self.files: list[Content] = []

    def build_index(self, message: Message) -> None:
        """One message of the log, in log order."""
        self._last()
        for key_hash in message.hashes:
            while not self._last().put_key(key_hash, message.offset, message.store_timestamp):
                pass

    def _last(self) -> Content:
        """The last file, or a new one where there is none or it is full."""
        last = self.files[-1] if self.files else None
        if last is None or last.index_count >= last.index_num:
            fresh = Content(*self._sizes)
            if last and last.end_phy_offset > 0:
                fresh.begin_phy_offset = fresh.end_phy_offset = last.end_phy_offset
            if last and last.end_timestamp > 0:
                fresh.begin_timestamp = fresh.end_timestamp = last.end_timestamp
            self.files.append(fresh)
        return self.files[-1]


def key_with_hash(key_hash: int, prefix: bytes = b"T#") -> bytes:
    """Seven characters (none is a space) after ``prefix`` that make its hash this one."""
    start = 0
    for byte in prefix + b"!" * 7:
        start = 31 * start + byte
    rest = (key_hash - start) % (1 << 32)
    digits = []
    for _ in range(7):
        rest, digit = divmod(rest, 31)
        digits.append(33 + digit)
    return bytes(reversed(digits))
