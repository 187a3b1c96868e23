"""Reads a queue plainly: whole files, units by struct, records by the plain decoder."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from reput.store.log import java, properties, record
from reput.store.log.record import Record
from tests.support.wire import UNIT

_BATCH_UNIT = struct.Struct(">qiqqqhii")
_EXT_UNIT = struct.Struct(">hqqh")
_PRE_BLANK_SIZE = 2147483647


@dataclass(frozen=True)
class PlainMessage:
    """One message of a queue."""

    queue_offset: int
    """Its place in the queue."""
    tags_code: int
    record: Record

    @property
    def has_tag_hash(self) -> bool:
        """Whether the queue has the hash of its tag, so that a consumer can filter by it; a delayed
        message's tagsCode is a time."""
        tags = self.record.property_map.get(properties.TAGS, b"")
        return self.tags_code == java.hash_code(tags)

    @property
    def values(self) -> dict[str, str]:
        """Decoded."""
        found = self.record.property_map
        return {java.decode(name): java.decode(value) for name, value in found.items()}


def queue_directories(store: Path) -> list[Path]:
    """The contents of all queues with messages, of both kinds."""
    found = (*store.glob("consumequeue/*/*"), *store.glob("batchconsumequeue/*/*"))
    return sorted(path for path in found if plain_units(path))


def plain_units(directory: Path) -> list[tuple[int, int, int, int]]:
    """(queue offset, physical offset, size, tagsCode) of each message of one queue."""
    is_batch = directory.parts[-3] == "batchconsumequeue"
    layout = _BATCH_UNIT if is_batch else UNIT
    found = []
    for path in sorted(directory.iterdir()):
        data = path.read_bytes()
        for at in range(0, len(data) - layout.size + 1, layout.size):
            offset, size, tags_code, *rest = layout.unpack_from(data, at)
            if size == 0:
                return found
            queue_offset = rest[1] if is_batch else (int(path.name) + at) // layout.size
            if size != _PRE_BLANK_SIZE:
                found.append((queue_offset, offset, size, tags_code))
    return found


def plain_queue(store: Path, directory: Path) -> Iterator[PlainMessage]:
    """Every message of one queue."""
    files = {int(path.name): path.read_bytes() for path in (store / "commitlog").iterdir()}
    size_of_file = len(next(iter(files.values())))
    ext = _ext_tags_codes(store / "consumequeue_ext" / Path(*directory.parts[-2:]))
    for queue_offset, offset, size, tags_code in plain_units(directory):
        start = offset - offset % size_of_file
        data = files[start][offset - start :][:size]
        found = record.decode(data, offset, start + size_of_file)
        assert isinstance(found, Record)
        yield PlainMessage(queue_offset, ext.get(tags_code, tags_code), found)


def _ext_tags_codes(directory: Path) -> dict[int, int]:
    """The ext units of a queue, by address."""
    found = {}
    for path in sorted(directory.iterdir()) if directory.is_dir() else ():
        data, at = path.read_bytes(), 0
        while at + _EXT_UNIT.size <= len(data):
            size, tags_code, _, _ = _EXT_UNIT.unpack_from(data, at)
            if size <= 0:
                break
            found[int(path.name) + at - (1 << 63)] = tags_code
            at += size
    return found
