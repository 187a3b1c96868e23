"""Moves the visible end; ``store.state.visible`` specifies the file and reads it.

Everything before the new end must be written when ``show`` is called; nothing needs to be durable.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from reput.store import fsops
from reput.store.files import VISIBLE_FILE
from reput.store.state.visible import (
    VISIBLE_SLOT_SIZE,
    EndReader,
    pack_slot,
    read_boot_id,
    read_slots,
)
from reput.store.state.watermark import Watermark


class VisibleFile:
    """Writes visible ends; only the owner of the output may use it."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / VISIBLE_FILE
        self._fd = fsops.open_for_writing(self._path, 2 * VISIBLE_SLOT_SIZE)
        self._boot_id = read_boot_id()
        self.current = EndReader(directory).read()
        """The end that readers are shown; None without a watermark."""
        # the next write spares the slot that was written last
        written = read_slots(str(self._path), self._boot_id)
        self._sequence = max((slot.sequence for slot in written), default=0)

    def show(self, position: Watermark) -> None:
        """Let readers of this machine read up to a position, unless they may read further. Where a
        boot has no name, they follow the watermark. Raises OutputError."""
        before = self.current
        if before and before.epoch == position.epoch and before.end_offset >= position.end_offset:
            return
        self._sequence += 1
        shown = replace(position, sequence=self._sequence)
        if self._boot_id:
            at = self._sequence % 2 * VISIBLE_SLOT_SIZE
            fsops.pwrite(self._fd, pack_slot(self._boot_id, shown), at, self._path)
        self.current = shown

    def forget(self) -> None:
        """Bring readers back to the watermark. Raises OutputError."""
        fsops.pwrite(self._fd, bytes(2 * VISIBLE_SLOT_SIZE), 0, self._path)
        self.current = None

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)
