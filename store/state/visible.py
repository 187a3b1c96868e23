"""The visible end: how far the readers of this machine may read, up to a second beyond the
watermark.

Entries before it are written and not yet durable. Nothing is lost by that: a power cut takes the
end together with the boot that it belongs to, and the entries are derived from the log again, byte
for byte and at the same places (docs/decisions/0002-watermark-is-the-truth.md).

One file of two slots of 128 bytes, written in turn and never synced, so that a reader who meets a
write finds the other slot whole. A slot counts under the boot that wrote it, and for the owner
whose watermark stands, since each owner has an epoch of its own.

OFFSET  SIZE  FIELD
     0    16  boot id of the machine, a uuid
    16    80  the position, as in a slot of the watermark, with its CRC; its sequence is of these
              slots
Everything is big-endian.

Writer: the output's owner (``checkpoints.visible``); this module only reads it.
"""

from __future__ import annotations

import uuid
from pathlib import Path

from reput.store.files import VISIBLE_FILE
from reput.store.state.watermark import USED_SIZE, Watermark, WatermarkReader, read_bytes

VISIBLE_SLOT_SIZE = 128
BOOT_ID_FILE = Path("/proc/sys/kernel/random/boot_id")
_BOOT_SIZE = 16


def read_boot_id() -> bytes:
    """Return the 16 bytes by which Linux names this boot; nothing where there is no such name."""
    try:
        return uuid.UUID(BOOT_ID_FILE.read_text("ascii").strip()).bytes
    except (OSError, ValueError):
        return b""


def pack_slot(boot_id: bytes, position: Watermark) -> bytes:
    """Encode the used bytes of a slot."""
    return boot_id + position.pack()


def _unpack_slot(boot_id: bytes, data: bytes) -> Watermark | None:
    """Return the position in a slot; None if it is of another boot, torn or was never written."""
    if not boot_id or not data.startswith(boot_id):
        return None
    return Watermark.unpack(data[_BOOT_SIZE : _BOOT_SIZE + USED_SIZE])


def read_slots(path: str, boot_id: bytes) -> list[Watermark]:
    """Return the positions in the valid slots of a file. Raises OSError."""
    return _slots(read_bytes(path, 2 * VISIBLE_SLOT_SIZE), boot_id)


def _slots(data: bytes, boot_id: bytes) -> list[Watermark]:
    slots = (data[at : at + VISIBLE_SLOT_SIZE] for at in (0, VISIBLE_SLOT_SIZE))
    found = (_unpack_slot(boot_id, slot) for slot in slots)
    return [position for position in found if position is not None]


class EndReader:
    """Reads again and again how far readers may read; bytes that did not change are not decoded
    again."""

    def __init__(self, directory: Path) -> None:
        """``directory`` is the state directory of an output."""
        self._watermark = WatermarkReader(directory)
        self._path = str(directory / VISIBLE_FILE)
        self._boot_id = read_boot_id()
        self._data = b""
        self._slots: list[Watermark] = []

    def read(self) -> Watermark | None:
        """Return the visible end, or the watermark where none is beyond it; None without a valid
        watermark. Raises OSError."""
        durable = self._watermark.read()
        while durable is not None:
            visible = self._visible(durable)
            if visible is not None:
                return visible if visible.end_offset > durable.end_offset else durable
            # a new owner may have taken over between the two reads
            before, durable = durable, self._watermark.read()
            if durable == before:
                break
        return durable

    def _visible(self, durable: Watermark) -> Watermark | None:
        """Return the position of the watermark's owner that was written last."""
        data = read_bytes(self._path, 2 * VISIBLE_SLOT_SIZE)
        if data != self._data:
            self._slots, self._data = _slots(data, self._boot_id), data
        owner = durable.store_id, durable.epoch
        ours = [slot for slot in self._slots if (slot.store_id, slot.epoch) == owner]
        return max(ours, key=lambda slot: slot.sequence, default=None)


def read_end(directory: Path) -> Watermark | None:
    """Return how far readers may read now (``EndReader.read``)."""
    return EndReader(directory).read()
