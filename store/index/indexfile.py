"""Index files: a hash table with chains that finds the messages with a topic and key.

A file is a header, maxHashSlotNum slots of 4 bytes, each with the number of its newest entry (0
without one), and maxIndexNum entries, of which number 0 is never used.

OFFSET  SIZE  FIELD of the header
     0     8  beginTimestamp, storeTimestamp of the first entry, ms
     8     8  endTimestamp, of the last entry
    16     8  beginPhyOffset
    24     8  endPhyOffset
    32     4  hashSlotCount, of slots in use
    36     4  indexCount: number of the next entry, 1 in an empty file (0 if never flushed)

OFFSET  SIZE  FIELD of an entry
     0     4  keyHash, of ``topic#key``
     4     8  physical offset of the message
    12     4  timeDiff, s after beginTimestamp; of a follow-up file's first entry, after the
              endTimestamp of the file before
    16     4  number of the previous entry of the same slot; 0 without one
Everything is big-endian and signed. Files are named by the local time of their creation,
yyyyMMddHHmmssSSS, and have their full length from creation. Entries are in log order, and all keys
of a message are adjacent. Source: RocketMQ 5.3.3 ``IndexFile``, ``IndexHeader``, ``IndexService``;
formats.md §8.

Writer: one dispatcher, which owns the output (``store.index.mappedindexfile``). No checksum. After
a crash all entries of messages before the watermark are whole. The header and slots are whole too,
except in the last file, where they are rebuilt from the entries. The log decides which entry is the
last, because a torn entry may look valid.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from mmap import mmap
from operator import attrgetter
from pathlib import Path

import numpy as np

from reput.store.errors import IndexFileError, UsageError
from reput.store.files import TEMPORARY_SUFFIX
from reput.store.log import java, properties
from reput.store.log.layout import field_positions, struct_of
from reput.store.log.record import Record
from reput.store.log.sysflag import SysFlag

DEFAULT_MAX_HASH_SLOT_NUM = 5_000_000
DEFAULT_MAX_INDEX_NUM = 20_000_000
DEFAULT_MAX_MSGS_NUM_BATCH = 64
"""``maxMsgsNumBatch``, the upper limit of a query's results."""
TOPIC_KEY_SEPARATOR = b"#"
TAG_KEY_PREFIX = b"T#"

INDEX_HEADER_DTYPE = np.dtype(
    [
        ("begin_timestamp", ">i8"), ("end_timestamp", ">i8"), ("begin_phy_offset", ">i8"),
        ("end_phy_offset", ">i8"), ("hash_slot_count", ">i4"), ("index_count", ">i4"),
    ]
)  # fmt: skip
HASH_SLOT_DTYPE = np.dtype([("entry", ">i4")])
INDEX_ENTRY_DTYPE = np.dtype(
    [("key_hash", ">i4"), ("offset", ">i8"), ("time_diff", ">i4"), ("previous", ">i4")]
)
_HEADER, _SLOT, _ENTRY = map(struct_of, (INDEX_HEADER_DTYPE, HASH_SLOT_DTYPE, INDEX_ENTRY_DTYPE))
header_fields = attrgetter(*(INDEX_HEADER_DTYPE.names or ()))
"""The fields of a header, in the file's order."""
INDEX_HEADER_SIZE, HASH_SLOT_SIZE, INDEX_SIZE = _HEADER.size, _SLOT.size, _ENTRY.size
if (INDEX_HEADER_SIZE, HASH_SLOT_SIZE, INDEX_SIZE) != (40, 4, 20):
    raise ImportError("the index layout does not add up to RocketMQ's sizes")
(
    BEGIN_TIMESTAMP_POSITION, END_TIMESTAMP_POSITION, BEGIN_PHY_OFFSET_POSITION,
    END_PHY_OFFSET_POSITION, HASH_SLOT_COUNT_POSITION, INDEX_COUNT_POSITION,
) = field_positions(_HEADER)  # fmt: skip
KEY_HASH_IN_ENTRY, PHY_OFFSET_IN_ENTRY, TIME_DIFF_IN_ENTRY, PREVIOUS_IN_ENTRY = field_positions(
    _ENTRY
)

_NAME_DIGITS = 17
_NAME = re.compile(rf"[0-9]{{{_NAME_DIGITS}}}\Z", re.ASCII)


def slot_position(slot: int) -> int:
    """Byte position of a slot, counted from 0; kernels compile it too."""
    return INDEX_HEADER_SIZE + HASH_SLOT_SIZE * slot


def entry_position(max_hash_slot_num: int, index: int) -> int:
    """Byte position of entry ``index``; kernels compile it too."""
    return INDEX_HEADER_SIZE + HASH_SLOT_SIZE * max_hash_slot_num + INDEX_SIZE * index


def index_keys(record: Record, *, index_tags: bool = False) -> list[bytes]:
    """The keys that a message is indexed by, in order: ``topic#key`` (``IndexService.buildIndex``).

    UNIQ_KEY comes first, then the parts of KEYS; duplicates stay. With ``index_tags``, ``T#`` and
    the whole TAGS follow, as RocketMQ 5.5 writes it. A ROLLBACK has no keys. Keys are bytes,
    because Java's decoding does not affect where the parts join.
    """
    if record.transaction_type == SysFlag.ROLLBACK:
        return []
    values = record.property_map
    uniq_key = values.get(properties.UNIQ_KEY, b"")
    keys = [uniq_key, *values.get(properties.KEYS, b"").split(properties.KEY_SEPARATOR)]
    if index_tags and properties.TAGS in values:
        keys.append(TAG_KEY_PREFIX + values[properties.TAGS])
    return [record.topic + TOPIC_KEY_SEPARATOR + key for key in keys if key]


def index_key_hash(key: bytes) -> int:
    """``IndexFile.indexKeyHashMethod`` of ``topic#key``: 0 to 2^31 - 1."""
    key_hash = abs(java.hash_code(key))
    # Java's abs of the lowest int is negative, and RocketMQ replaces it by 0
    return key_hash if key_hash < 1 << 31 else 0


@dataclass(frozen=True, slots=True)
class IndexHeader:
    """The first 40 bytes of a file."""

    begin_timestamp: int = 0
    end_timestamp: int = 0
    begin_phy_offset: int = 0
    end_phy_offset: int = 0
    hash_slot_count: int = 0
    index_count: int = 1
    """Number of the next entry."""

    @classmethod
    def decode(cls, data: bytes) -> IndexHeader:
        """Decode a file's first bytes (``IndexHeader.load``: an indexCount of 0 means 1)."""
        header = cls(*_HEADER.unpack_from(data))
        return header if header.index_count > 0 else replace(header, index_count=1)

    def encode(self) -> bytes:
        """Encode the header as 40 bytes."""
        return _HEADER.pack(*header_fields(self))

    @classmethod
    def of_follow_up(cls, previous: IndexHeader | None) -> IndexHeader:
        """Header of an empty file after a full one: all its fields are the full file's end."""
        if previous is None:
            return cls()
        timestamp = max(previous.end_timestamp, 0)
        phy_offset = max(previous.end_phy_offset, 0)
        return cls(timestamp, timestamp, phy_offset, phy_offset)

    def is_time_matched(self, begin_ms: int, end_ms: int) -> bool:
        """Whether [begin, end], both inclusive, overlaps the file's times."""
        return (
            (begin_ms < self.begin_timestamp and end_ms > self.end_timestamp)
            or self.begin_timestamp <= begin_ms <= self.end_timestamp
            or self.begin_timestamp <= end_ms <= self.end_timestamp
        )


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """One entry as stored."""

    key_hash: int
    phy_offset: int
    time_diff: int
    """s."""
    previous: int
    """Number of the previous entry in the same slot; 0 without one."""


NEVER_WRITTEN = IndexEntry(0, 0, 0, 0)
"""Bytes after the last entry; an entry with key hash 0 of the log's first message equals it."""


@dataclass(frozen=True, slots=True)
class IndexLayout:
    """The settings that determine all positions in a file.

    Raises UsageError for sizes with which RocketMQ cannot work.
    """

    max_hash_slot_num: int = DEFAULT_MAX_HASH_SLOT_NUM
    max_index_num: int = DEFAULT_MAX_INDEX_NUM
    """One more than the number of entries in a full file."""

    def __post_init__(self) -> None:
        if self.max_hash_slot_num < 1 or self.max_index_num < 2 or self.file_size >= 1 << 31:
            raise UsageError(
                f"an index file cannot have maxHashSlotNum {self.max_hash_slot_num} and "
                f"maxIndexNum {self.max_index_num}; set at least 1 and 2, a file below 2 GiB"
            )

    @property
    def file_size(self) -> int:
        """Bytes."""
        return self.entry_position(self.max_index_num)

    def slot_position(self, key_hash: int) -> int:
        """Byte position of a key hash's slot."""
        return slot_position(key_hash % self.max_hash_slot_num)

    def entry_position(self, index: int) -> int:
        """Byte position of entry ``index``."""
        return entry_position(self.max_hash_slot_num, index)

    def entry(self, data: memoryview | mmap, index: int) -> IndexEntry:
        """Decode entry ``index`` of a whole file."""
        return IndexEntry(*_ENTRY.unpack_from(data, self.entry_position(index)))


@dataclass(frozen=True, slots=True)
class QueryOffsetResult:
    """Result of a query (``QueryOffsetResult``)."""

    phy_offsets: tuple[int, ...]
    """Newest first. Some may be of other keys with the same hash; the caller compares the keys."""
    index_last_update_timestamp: int
    """endTimestamp of the newest file; 0 without one."""
    index_last_update_phyoffset: int


def new_index_file_name(newest: Path | None) -> str:
    """The current time in digits, or one more than the newest file's name if that is later."""
    name = int(datetime.now().strftime("%Y%m%d%H%M%S%f")[:_NAME_DIGITS])
    return str(max(name, int(newest.name) + 1 if newest else 0)).zfill(_NAME_DIGITS)


def read_header(path: Path) -> IndexHeader:
    """Read the header of a file."""
    with path.open("rb", buffering=0) as file:
        return IndexHeader.decode(file.read(INDEX_HEADER_SIZE))


def read_entry(path: Path, layout: IndexLayout, index: int) -> IndexEntry:
    """Read entry ``index`` of a file."""
    with path.open("rb", buffering=0) as file:
        data = os.pread(file.fileno(), INDEX_SIZE, layout.entry_position(index))
    return IndexEntry(*_ENTRY.unpack(data))


class IndexFiles:
    """The index files of one store or output, for reading; every call lists them again."""

    def __init__(self, directory: Path, layout: IndexLayout) -> None:
        self.directory = directory
        self.layout = layout

    def named_paths(self) -> list[Path]:
        """Return all index files, the oldest first, whatever their sizes. What has such a name and
        is no regular file is left out, since opening a pipe would block."""
        return [path for path in self._entries() if self._is_index_file(path)]

    def paths(self) -> list[Path]:
        """All index files, the oldest first. Raises IndexFileError for a wrong size."""
        paths = []
        for path in self.named_paths():
            size = path.stat().st_size
            if size != self.layout.file_size:
                raise IndexFileError(
                    f"index file {path} has {size} bytes but maxHashSlotNum and maxIndexNum give "
                    f"{self.layout.file_size}; set them as the file's writer did (broker.conf); "
                    "where a single file is damaged, reput verify names the command that heals it",
                    path=path,
                )
            paths.append(path)
        return paths

    def first_phy_offset(self) -> int | None:
        """Physical offset of the first message in the first file; None without a file.

        If header and entry differ, it is the lower one.
        """
        for path in self.named_paths():
            with path.open("rb", buffering=0) as file:
                header = file.read(INDEX_HEADER_SIZE)
                entry = os.pread(file.fileno(), INDEX_SIZE, self.layout.entry_position(1))
            begin = IndexHeader.decode(header.ljust(INDEX_HEADER_SIZE, b"\0")).begin_phy_offset
            return min(begin, IndexEntry(*_ENTRY.unpack(entry.ljust(INDEX_SIZE, b"\0"))).phy_offset)
        return None

    def unfinished_paths(self) -> list[Path]:
        """Files whose creation was interrupted."""
        return [
            path
            for path in self._entries()
            if path.suffix == TEMPORARY_SUFFIX and _NAME.match(path.stem)
        ]

    def foreign_names(self) -> list[str]:
        """Other names in the directory, sorted; RocketMQ loads none of them."""
        return [path.name for path in self._entries() if not self._is_index_file(path)]

    @staticmethod
    def _is_index_file(path: Path) -> bool:
        return _NAME.match(path.name) is not None and stat.S_ISREG(path.lstat().st_mode)

    def _entries(self) -> list[Path]:
        return sorted(self.directory.iterdir()) if self.directory.is_dir() else []

    def query_offset(
        self,
        key: bytes,
        max_num: int,
        begin_ms: int,
        end_ms: int,
        end_offset: int | None = None,
    ) -> QueryOffsetResult:
        """Messages with ``topic#key`` and a store time in [begin, end], both inclusive.

        Returns the newest, up to ``max_num`` (``IndexService.queryOffset``), all before
        ``end_offset`` of the log. Times are whole seconds after a file's first entry. Raises
        IndexFileError like ``paths``.
        """
        key_hash = index_key_hash(key)
        offsets: list[int] = []
        newest: IndexHeader | None = None
        for path in reversed(self.paths()):
            header = read_header(path)
            newest = newest or header
            if header.is_time_matched(begin_ms, end_ms):
                for entry in self._chain(path, header, key_hash):
                    if len(offsets) >= max_num or entry.time_diff < 0:
                        break
                    time = header.begin_timestamp + entry.time_diff * 1000
                    is_readable = end_offset is None or entry.phy_offset < end_offset
                    if is_readable and entry.key_hash == key_hash and begin_ms <= time <= end_ms:
                        offsets.append(entry.phy_offset)
                    if time < begin_ms:
                        break
            if header.begin_timestamp < begin_ms or len(offsets) >= max_num:
                break
        newest = newest or IndexHeader()
        return QueryOffsetResult(tuple(offsets), newest.end_timestamp, newest.end_phy_offset)

    def _chain(self, path: Path, header: IndexHeader, key_hash: int) -> Iterator[IndexEntry]:
        """Entries of a hash's slot, newest first.

        In a sound file every entry is chained to an older one. Any other link ends the chain here,
        whereas RocketMQ would loop forever.
        """
        if header.index_count <= 1:
            return
        layout = self.layout
        with path.open("rb", buffering=0) as file:
            fd = file.fileno()
            index = _SLOT.unpack(os.pread(fd, HASH_SLOT_SIZE, layout.slot_position(key_hash)))[0]
            limit = min(header.index_count, layout.max_index_num - 1)
            while 0 < index <= limit:
                data = os.pread(fd, INDEX_SIZE, layout.entry_position(index))
                entry = IndexEntry(*_ENTRY.unpack(data))
                yield entry
                limit, index = index - 1, entry.previous
