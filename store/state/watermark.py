"""The watermark: everything before it is dispatched and durable, so readers trust all of it.

One file of two 4096-byte slots, written in turn, so that a torn write leaves the other whole. The
valid slot with the higher sequence counts.

OFFSET  SIZE  FIELD
     0     8  magic ``REPUTWM1``
     8    16  identity of the output, a uuid made at its first start; Spark's offsets carry it
    24     8  epoch: each owner adds 1, or 2 if it found that the log was cut
    32     8  sequence of writes
    40     8  the watermark: every message before it is dispatched and durable
    48     8  start of the last record before it; -1 if unknown
    56     4  CRC-32 of that record's first 88 bytes, which shows a log that was cut and rewritten
    60     8  storeTimestamp of the last dispatched message, ms
    68     8  physical offset from which on every key is in the index; -1 if unknown
    76     4  CRC-32 of the 76 bytes before
Everything is big-endian.

Writer: the output's owner (``checkpoints.watermark``); this module only reads it.
"""

from __future__ import annotations

import os
import struct
import zlib
from dataclasses import dataclass, replace
from pathlib import Path

from reput.store.files import WATERMARK_FILE

SLOT_SIZE = 4096
_MAGIC = b"REPUTWM1"
_FIELDS = struct.Struct(">8s16sqqqqIqq")
_CRC = struct.Struct(">I")
USED_SIZE = _FIELDS.size + _CRC.size
"""Bytes of a slot; the rest of it is zero."""


@dataclass(frozen=True, slots=True)
class Watermark:
    """One durable position."""

    store_id: str
    """uuid as 32 hex digits."""
    end_offset: int
    """Exclusive: the physical offset after the last dispatched byte of the log."""
    epoch: int = 0
    sequence: int = 0
    last_record_offset: int = -1
    last_record_crc: int = 0
    last_store_timestamp: int = 0
    index_begin: int = -1

    def moved_to(self, end_offset: int) -> Watermark:
        """The position at another offset, where the record before it is not known."""
        return replace(self, end_offset=end_offset, last_record_offset=-1, last_record_crc=0)

    def pack(self) -> bytes:
        """Encode the used bytes of a slot."""
        fields = _FIELDS.pack(
            _MAGIC,
            bytes.fromhex(self.store_id),
            self.epoch,
            self.sequence,
            self.end_offset,
            self.last_record_offset,
            self.last_record_crc,
            self.last_store_timestamp,
            self.index_begin,
        )
        return fields + _CRC.pack(zlib.crc32(fields))

    @classmethod
    def unpack(cls, data: bytes) -> Watermark | None:
        """The watermark in a slot; None if it is torn, damaged or was never written."""
        if len(data) < _FIELDS.size + _CRC.size:
            return None
        fields = data[: _FIELDS.size]
        if _CRC.unpack_from(data, _FIELDS.size)[0] != zlib.crc32(fields):
            return None
        magic, store_id, epoch, sequence, end, last, crc, timestamp, begin = _FIELDS.unpack(fields)
        if magic != _MAGIC:
            return None
        return cls(store_id.hex(), end, epoch, sequence, last, crc, timestamp, begin)


def read_watermark(directory: Path) -> Watermark | None:
    """The watermark of an output's state directory; None if there is no valid one."""
    return WatermarkReader(directory).read()


class WatermarkReader:
    """Reads the watermark again and again; bytes that did not change are not decoded again.

    It compares bytes instead of the file's times: two writes may have the same time.
    """

    def __init__(self, directory: Path) -> None:
        self._path = str(directory / WATERMARK_FILE)
        self._data = b""
        self._watermark: Watermark | None = None

    def read(self) -> Watermark | None:
        """The watermark as of now; None if there is no valid one. Raises OSError."""
        data = read_bytes(self._path, SLOT_SIZE + USED_SIZE)
        if data != self._data:
            slots = (Watermark.unpack(data[at : at + SLOT_SIZE]) for at in (0, SLOT_SIZE))
            valid = [slot for slot in slots if slot is not None]
            self._watermark = max(valid, key=lambda slot: slot.sequence, default=None)
            self._data = data
        return self._watermark


def read_bytes(path: str, size: int) -> bytes:
    """Return up to ``size`` bytes of a file of positions; none if there is no file. Raises OSError:
    queues whose watermark cannot be read must not pass for a broker's."""
    try:
        # no Path and no file object: servers look a hundred times a second
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.pread(fd, size, 0)
        finally:
            os.close(fd)
    except (FileNotFoundError, NotADirectoryError):
        return b""
