"""ConsumeQueueExt files: fields for which a 20-byte consume queue unit has no room.

OFFSET  SIZE  FIELD
     0     2  size of the unit, 20 + bitMapSize; -1 ends a file, 0 was never written
     2     8  tagsCode (tag hash, or due time of a delayed message)
    10     8  msgStoreTime, ms
    18     2  bitMapSize
    20     n  bit map of the SQL92 consumers that want the message
Everything is big-endian and signed. Files are named by the byte offset, have the same full length
from creation, zeros where nothing was written; the last 4 bytes of one are never a unit's. A queue
with units here holds their addresses as tagsCode: real offset + Long.MIN_VALUE, less than every tag
hash. Source: RocketMQ 5.3.3 ``ConsumeQueueExt``; formats.md §6.

Writer: one dispatcher, which owns the output, before it writes the queue's own units. No checksum.
After a crash the queue's last unit up to the watermark gives the end of the ext; later units are
cut (``truncate_by_max_address``) and rewritten from the log.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from reput.store.log.layout import struct_of
from reput.store.queue.mappedfilequeue import MappedFileQueue
from reput.store.queue.unsynced import UnsyncedFiles

END_BLANK_DATA_LENGTH = 4
MAX_EXT_UNIT_SIZE = 32767
MAX_ADDR = -(1 << 31) - 1
"""The greatest address; every tag hash is greater."""
MAX_REAL_OFFSET = MAX_ADDR + (1 << 63)
NO_ADDRESS = 1
"""Result of RocketMQ's put for a unit that it did not write."""

EXT_SIZE = struct.Struct(">h")
END_MARK = EXT_SIZE.pack(-1)
_FIELDS = [("size", ">i2"), ("tags_code", ">i8"), ("time", ">i8"), ("bit_map_size", ">i2")]
EXT_UNIT_DTYPE = np.dtype(_FIELDS)
"""A unit without its bit map."""
_UNIT = struct_of(EXT_UNIT_DTYPE)
MIN_EXT_UNIT_SIZE = EXT_UNIT_DTYPE.itemsize
if MIN_EXT_UNIT_SIZE != 20:
    raise ImportError("an ext unit without a bit map must have 20 bytes")


def is_ext_addr(tags_code: int) -> bool:
    """Whether a unit's tagsCode is the address of an ext unit."""
    return tags_code <= MAX_ADDR


def real_offset(address: int) -> int:
    """The byte offset that an address encodes (``unDecorate``)."""
    return address + (1 << 63)


@dataclass(frozen=True, slots=True)
class ExtUnit:
    """One unit as stored."""

    tags_code: int
    msg_store_time: int
    """ms."""
    bit_map: bytes | None
    """None if the message's topic had no filter."""

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return MIN_EXT_UNIT_SIZE + len(self.bit_map or b"")


@dataclass(frozen=True, slots=True)
class Placement:
    """Positions and bytes of units to write."""

    addresses: NDArray[np.int64]
    """int64[n], for the queue's units; NO_ADDRESS where a unit keeps its own tagsCode."""
    end: int
    """Byte offset after the last unit, where the next placement begins."""
    pieces: tuple[tuple[int, bytes], ...]
    """(byte offset, data), one for each file."""


def place(
    end: int,
    file_size: int,
    tags_codes: NDArray[np.int64],
    store_times: NDArray[np.int64],
    bit_maps: NDArray[np.uint8],
) -> Placement:
    """Place units from byte ``end`` on (``ConsumeQueueExt.put``, one for each).

    The arrays are int64[n], int64[n] and uint8[n, bytes per map], with width 0 for messages of a
    topic without filters.

    A unit that would leave fewer than 4 bytes of its file goes to the next one, and an end mark is
    written instead. A unit that fits in no file has no address and writes nothing, whereas RocketMQ
    leaves three empty marked files for each.
    """
    count, width = bit_maps.shape
    size = MIN_EXT_UNIT_SIZE + width
    room = file_size - END_BLANK_DATA_LENGTH
    addresses = np.full(count, NO_ADDRESS, np.int64)
    if size > min(MAX_EXT_UNIT_SIZE, room):
        return Placement(addresses, end, ())
    units = np.zeros(count, [*_FIELDS, ("bit_map", "u1", (width,))])
    units["size"], units["bit_map_size"] = size, width
    units["tags_code"], units["time"], units["bit_map"] = tags_codes, store_times, bit_maps
    data = units.tobytes()
    pieces: list[tuple[int, bytes]] = []
    done = 0
    while done < count and end + size <= MAX_REAL_OFFSET:
        wrote = end % file_size
        fitting = min(count - done, (room - wrote) // size, (MAX_REAL_OFFSET - end) // size)
        if fitting > 0:
            offsets = end + size * np.arange(fitting, dtype=np.int64)
            addresses[done : done + fitting] = offsets + np.iinfo(np.int64).min
            pieces.append((end, data[done * size : (done + fitting) * size]))
            end, done = end + fitting * size, done + fitting
        else:
            # a file is never left empty, because each has room for a unit
            start, before = pieces.pop() if pieces else (end, b"")
            pieces.append((start, before + END_MARK))
            end += file_size - wrote
    return Placement(addresses, end, tuple(pieces))


class ConsumeQueueExtFiles(MappedFileQueue):
    """The ext files of one queue: offsets are bytes in it, ends exclusive. Not thread-safe."""

    kind = "consume queue ext"
    setting = "mappedFileSizeConsumeQueueExt"

    def read(self, address: int) -> ExtUnit | None:
        """The unit at an address; None if there is none, or its file is gone.

        For real offset 0 RocketMQ then returns the first file's first unit, of another message.
        """
        if not is_ext_addr(address):
            return None
        start = real_offset(address) // self.file_size * self.file_size
        if not self._has(start):
            return None
        position = real_offset(address) - start
        return decode_unit(self._span(start, position, position), 0)

    def read_many(self, addresses: NDArray[np.int64]) -> list[ExtUnit | None]:
        """``read`` for each of int64[n]; the addresses should be close together."""
        units: list[ExtUnit | None] = [None] * len(addresses)
        which = np.flatnonzero(addresses <= MAX_ADDR)
        offsets = addresses[which] - np.iinfo(np.int64).min
        starts = offsets // self.file_size * self.file_size
        for start in map(int, np.unique(starts)):
            if not self._has(start):
                continue
            in_file = starts == start
            positions = offsets[in_file] - start
            first, last = int(positions.min()), int(positions.max())
            data = self._span(start, first, last)
            places = zip(which[in_file].tolist(), positions.tolist(), strict=True)
            for index, position in places:
                units[index] = decode_unit(data, position - first)
        return units

    def _has(self, start: int) -> bool:
        """Whether a file starts there; one after those that are known may have come since."""
        if not self.starts or start > self.starts[-1]:
            self.refresh()
        return start in self.starts

    def _span(self, start: int, first: int, last: int) -> bytes:
        """Bytes of the file that starts at ``start``, from one unit's position to the end of
        another."""
        size = last - first + MIN_EXT_UNIT_SIZE
        with self.path(start).open("rb", buffering=0) as file:
            data = os.pread(file.fileno(), size, first)
            if len(data) == size:
                rest = EXT_SIZE.unpack_from(data, last - first)[0] - MIN_EXT_UNIT_SIZE
                data += os.pread(file.fileno(), max(0, rest), first + size)
        return data

    def units(self, start: int) -> Iterator[tuple[int, ExtUnit]]:
        """(byte offset, unit) of the file that starts at ``start``, up to its end or the first
        bytes that are not a unit."""
        data = self.path(start).read_bytes()
        position = 0
        while (unit := decode_unit(data, position)) is not None:
            yield start + position, unit
            position += unit.size

    def find_end(self) -> int:
        """Byte offset after the last unit of the last file (``ConsumeQueueExt.recover``)."""
        if not self.starts:
            return 0
        end = self.starts[-1]
        for offset, unit in self.units(end):
            end = offset + unit.size
        return end

    def write(self, placement: Placement, root: Path, unsynced: UnsyncedFiles) -> None:
        """Write placed units (``write_pieces``)."""
        self.write_pieces(placement.pieces, root, unsynced)

    def truncate_by_max_address(self, address: int) -> int:
        """Cut after the unit at ``address``, the last one in the queue; returns the new end.

        Later files are removed and later bytes zeroed, whereas RocketMQ leaves the bytes. As in
        RocketMQ, a tagsCode that is not an address cuts nothing, nor does an address without a
        unit.
        """
        unit = self.read(address)
        if unit is None:
            return self.find_end()
        end = real_offset(address) + unit.size
        self.clear_from(end)
        return end

    def files_before(self, address: int) -> list[int]:
        """Starts of the files that end before the unit at ``address``; empty without an address."""
        if not is_ext_addr(address):
            return []
        minimum = real_offset(address)
        return [start for start in self.starts if start + self.file_size < minimum]


def decode_unit(data: bytes, position: int) -> ExtUnit | None:
    """The unit at ``position`` of ``data``; None for an end mark, zeros, or a truncated unit."""
    if position + MIN_EXT_UNIT_SIZE > len(data):
        return None
    size, tags_code, store_time, map_size = _UNIT.unpack_from(data, position)
    if size != MIN_EXT_UNIT_SIZE + map_size or map_size < 0 or position + size > len(data):
        return None
    start = position + MIN_EXT_UNIT_SIZE
    return ExtUnit(tags_code, store_time, data[start : start + map_size] if map_size else None)
