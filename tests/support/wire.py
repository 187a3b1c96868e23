"""RocketMQ's bytes once more, written plainly from formats.md and from nothing in this project.

What the product's encoder, decoder and kernels are held against, and how tests make logs.
"""

from __future__ import annotations

import random
import struct
import zlib
from dataclasses import dataclass, field
from mmap import ACCESS_READ, mmap
from pathlib import Path

import numpy as np

V1_MAGIC = 0xDAA320A7
V2_MAGIC = 0xDAA320AB
BLANK_MAGIC = 0xCBD43194
LOCALHOST = bytes((127, 0, 0, 1)) + struct.pack(">i", 10911)
UNIT = struct.Struct(">qiq")
PRE_BLANK = UNIT.pack(0, 2147483647, 0)
TWO_MESSAGES = bytes.fromhex(
    "0000002e00000000000000000000000700000005666972737400134b455953016b31206b32025441475301416102"
    "0000001e0000000000000000ffffffff0000000000085441475301424202"
)
"""``MessageDecoder.encodeMessages`` of RocketMQ 5.3.3, of two messages: flag 7, body ``first``,
TAGS Aa and KEYS k1 k2; flag -1, empty body, TAGS BB."""


def message(
    position: int,
    *,
    topic: bytes = b"Topic",
    body: bytes = b"body",
    properties: bytes = b"",
    queue_id: int = 0,
    queue_offset: int = 0,
    flag: int = 0,
    sys_flag: int = 0,
    born_timestamp: int = 1_700_000_000_000,
    born_host: bytes = LOCALHOST,
    store_timestamp: int = 1_700_000_000_001,
    store_host: bytes = LOCALHOST,
    reconsume_times: int = 0,
    prepared_transaction_offset: int = 0,
) -> bytes:
    """One record at log offset ``position`` (formats.md §2); hosts are address and port bytes."""
    sys_flag |= 0x10 * (len(born_host) == 20) | 0x20 * (len(store_host) == 20)
    wide = len(topic) > 127
    rest = b"".join(
        (
            struct.pack(">i", zlib.crc32(body) & 0x7FFFFFFF),
            struct.pack(">iiqq", queue_id, flag, queue_offset, position),
            struct.pack(">iq", sys_flag, born_timestamp) + born_host,
            struct.pack(">q", store_timestamp) + store_host,
            struct.pack(">iq", reconsume_times, prepared_transaction_offset),
            struct.pack(">i", len(body)) + body,
            struct.pack(">h" if wide else ">b", len(topic)) + topic,
            struct.pack(">h", len(properties)) + properties,
        )
    )
    return struct.pack(">iI", 8 + len(rest), V2_MAGIC if wide else V1_MAGIC) + rest


def file_name(offset: int) -> str:
    """20 digits."""
    return str(offset).zfill(20)


def write_over(path: Path, data: bytes | bytearray) -> None:
    """Write a file that somebody may be reading as a broker does: one that is new, or has another
    length, is there with all its bytes at once, and of another one only bytes that differ are
    written."""
    before = path.read_bytes() if path.exists() else b""
    if len(before) != len(data):
        whole = path.with_name(f".{path.name}")
        whole.write_bytes(data)
        whole.replace(path)
        return
    differing = np.flatnonzero(np.frombuffer(before, np.uint8) != np.frombuffer(data, np.uint8))
    if len(differing):
        first, end = int(differing[0]), int(differing[-1]) + 1
        with path.open("r+b", buffering=0) as out:
            out.seek(first)
            out.write(data[first:end])


@dataclass
class PlainLog:
    """A commitlog in memory, appended to as a broker does: BLANK and roll at a file's end."""

    file_size: int
    start: int = 0
    image: bytearray = field(default_factory=bytearray)
    """Return whole files, with zeros past the end."""
    spans: list[tuple[int, int]] = field(default_factory=list)
    """[start, end) log offsets of every record."""
    end: int = -1

    def __post_init__(self) -> None:
        self.end = self.start

    def append(self, **fields: object) -> int:
        """Append one message (the fields of ``message``); its log offset."""
        while True:
            data = message(self.end, **fields)  # type: ignore[arg-type]
            room = self.file_size - (self.end - self.start) % self.file_size
            if len(data) + 8 <= room:
                break
            if room == self.file_size:
                raise ValueError("the message fits into no file")
            self.put(self.end, struct.pack(">iI", room, BLANK_MAGIC))
            self.end += room
        self.put(self.end, data)
        self.spans.append((self.end, self.end + len(data)))
        self.end += len(data)
        return self.spans[-1][0]

    def put(self, offset: int, data: bytes) -> None:
        """Overwrite bytes at a log offset; files are added as needed."""
        at = offset - self.start
        missing = at + len(data) - len(self.image)
        if missing > 0:
            self.image.extend(bytes(-(-missing // self.file_size) * self.file_size))
        self.image[at : at + len(data)] = data

    def cut(self, end: int) -> None:
        """Lose all bytes from ``end`` on, as a broker that starts again sees to it; the first file
        stays."""
        self.spans = [span for span in self.spans if span[1] <= end]
        self.end, at = end, end - self.start
        del self.image[max(-(-at // self.file_size), 1) * self.file_size :]
        self.image[at:] = bytes(len(self.image) - at)

    def bytes_at(self, span: tuple[int, int]) -> bytes:
        """The bytes of [start, end)."""
        return bytes(self.image[span[0] - self.start : span[1] - self.start])

    def write(self, directory: Path) -> Path:
        """Write all files into ``directory``, over what is there."""
        directory.mkdir(parents=True, exist_ok=True)
        for at in range(0, len(self.image), self.file_size):
            write_over(directory / file_name(self.start + at), self.image[at : at + self.file_size])
        return directory


def read_log(directory: Path) -> list[tuple[int, bytes]]:
    """(log offset, bytes) of every record of a sound log, hopped by length and magic alone."""
    found = []
    for path in sorted(directory.iterdir()):
        if not path.stat().st_size:
            continue
        start, at = int(path.name), 0
        # a file of 64 MB is read again and again, and is a hole but for its first pages
        with path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as data:
            while at + 8 <= len(data):
                size, magic = struct.unpack_from(">iI", data, at)
                if magic not in (V1_MAGIC, V2_MAGIC):
                    break
                found.append((start + at, data[at : at + size]))
                at += size
    return found


def random_properties(rng: random.Random) -> bytes:
    """A property block: mostly sound, some with stray separators, duplicates or odd names."""
    names = (b"TAGS", b"KEYS", b"DELAY", b"UNIQ_KEY", b"INNER_NUM", b"INNER_BASE", b"a", b"TAG")
    values = (
        b"TagA",
        b"3",
        b"+7",
        b"99",
        b"x",
        "标签😀".encode(),
        b"\xed\xa0\x80",
        b"\xf0\x9f",
        b"",
    )
    parts = []
    for _ in range(rng.choice((0, 1, 2, 3, 5))):
        separator = rng.choice((b"\x01", b"\x01", b"\x01", b"\x01\x01", b""))
        end = rng.choice((b"\x02", b"\x02", b"\x02", b"\x02\x02", b""))
        parts.append(rng.choice(names) + separator + rng.choice(values) + end)
    return b"".join(parts)


def random_fields(rng: random.Random) -> dict[str, object]:
    """Fields of a message, plain or odd, for ``PlainLog.append``."""
    six = rng.randbytes(16) + struct.pack(">i", rng.randrange(1 << 16))
    return {
        "topic": rng.choice((b"A", b"Topic", b"Topic", b"SCHEDULE_TOPIC_XXXX", b"w" * 130)),
        "body": rng.randbytes(rng.choice((0, 1, 7, 8, 9, 40, 200))),
        "properties": random_properties(rng),
        "queue_id": rng.choice((0, 0, 1, 2, -1, 2147483647)),
        "queue_offset": rng.choice((0, 1, 2, 3, rng.randrange(1 << 40))),
        "sys_flag": rng.choice((0, 0, 0, 1, 4, 8, 12, 0x300)),
        "store_timestamp": rng.randrange(-5, 1 << 42),
        "born_host": rng.choice((LOCALHOST, six)),
        "store_host": rng.choice((LOCALHOST, six)),
    }
