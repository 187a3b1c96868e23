"""Moves the watermark; ``store.state.watermark`` specifies the file and reads it.

Everything before the new position must be durable when ``advance`` is called; the position is
durable when it returns. A torn write leaves the older slot whole.
"""

from __future__ import annotations

import os
import uuid
from dataclasses import replace
from pathlib import Path

from reput.store import fsops
from reput.store.errors import OwnershipError
from reput.store.files import WATERMARK_FILE
from reput.store.state.watermark import SLOT_SIZE, Watermark, WatermarkReader


def new_store_id() -> str:
    """Return a fresh identity, 32 hex digits."""
    return uuid.uuid4().hex


class WatermarkFile:
    """Writes watermarks; only the owner of the output may use it."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / WATERMARK_FILE
        self._fd = fsops.open_for_writing(self._path, 2 * SLOT_SIZE)
        self._reader = WatermarkReader(directory)
        self.current = self._reader.read()

    def check_owned(self) -> None:
        """Raises OwnershipError where the file is not as this process left it.

        A process that stood still may have lost its locks, because the file system let them go; and
        another host may not have seen them (decision 0004).
        """
        stored = self._reader.read()
        if stored is self.current:
            return
        if stored != self.current:
            raise OwnershipError(
                f"{self._path} has changed under this run, which left it at "
                f"{_position(self.current)} and finds {_position(stored)}: another dispatcher has "
                "taken over, or the file is damaged; this run writes nothing more: start one "
                "again, then run reput verify, which finds what both may have written",
                path=self._path,
            )
        # the next look at the same bytes finds the same object
        self.current = stored

    def advance(self, watermark: Watermark) -> Watermark:
        """Make a watermark durable. Raises OwnershipError as ``check_owned``, OutputError or
        SyncError, after which the old one counts."""
        self.check_owned()
        sequence = self.current.sequence + 1 if self.current else 1
        written = replace(watermark, sequence=sequence)
        fsops.pwrite(self._fd, written.pack(), sequence % 2 * SLOT_SIZE, self._path)
        fsops.sync(self._fd, self._path)
        self.current = written
        # nobody may be told of a position that does not count
        self.check_owned()
        return written

    def take_over(self, watermark: Watermark) -> Watermark:
        """Advance as a new owner, in both slots. An earlier owner that stood still between its
        check and its write reaches one of them, with a sequence that then counts no more."""
        self.advance(watermark)
        return self.advance(watermark)

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)


def _position(watermark: Watermark | None) -> str:
    if watermark is None:
        return "nothing"
    return f"epoch={watermark.epoch} end={watermark.end_offset}"
