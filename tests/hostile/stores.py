"""Stores with one hostile message, or a few, between sound ones."""

from __future__ import annotations

import struct
from pathlib import Path

from tests.support.small_store import FILE_SIZE, SmallStore
from tests.support.wire import PlainLog

SOUND = {"topic": b"Sound", "body": b"sound body", "properties": b"TAGS\x01a\x02KEYS\x01k1 k2\x02"}


def sound_log(messages: int = 6, file_size: int = FILE_SIZE) -> PlainLog:
    """Some messages of one queue."""
    plain = PlainLog(file_size)
    for queue_offset in range(messages):
        plain.append(**SOUND, queue_offset=queue_offset)
    return plain


def log_with(*hostile: dict[str, object], file_size: int = FILE_SIZE) -> PlainLog:
    """Sound messages around each hostile one."""
    plain = PlainLog(file_size)
    plain.append(**SOUND, queue_offset=0)
    for number, fields in enumerate(hostile, 1):
        plain.append(**fields)
        plain.append(**SOUND, queue_offset=number)
    return plain


def hostile_span(plain: PlainLog, number: int = 0) -> tuple[int, int]:
    """Where the hostile message of that number is in ``log_with``'s log."""
    return plain.spans[1 + 2 * number]


def put(plain: PlainLog, at: int, layout: str, value: int) -> None:
    """Overwrite a field."""
    plain.put(at, struct.pack(layout, value))


def dispatched(directory: Path, plain: PlainLog) -> SmallStore:
    """The store, dispatched and found to be what its bytes stand for."""
    store = SmallStore(directory, plain)
    store.output.start()
    store.check()
    return store


def regular_files(directory: Path) -> list[Path]:
    """The files of a directory and no links, sorted."""
    found = sorted(directory.iterdir())
    return [path for path in found if path.is_file() and not path.is_symlink()]


def sound_units(plain: PlainLog, store: SmallStore) -> int:
    """How many of the log's sound messages have their unit."""
    queue = store.output.root / "consumequeue" / "Sound" / "0"
    data = b"".join(path.read_bytes() for path in regular_files(queue))
    offsets = {struct.unpack_from(">q", data, at)[0] for at in range(0, len(data), 20)}
    found = [start for start, end in plain.spans if b"sound body" in plain.bytes_at((start, end))]
    return len(offsets & set(found))
