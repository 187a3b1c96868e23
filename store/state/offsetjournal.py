"""The journals of offsets that were committed since ``config/consumerOffset.json`` was replaced.

There are two, ``reput/serve/offsets.journal`` and ``offsets.journal.2``. Each line is a CRC-32 in
eight hex digits, a space, and JSON. The first line has the CRC-32 of the file to which the journal
belongs and, if the journal was begun while that file was still being written, the CRC-32 of the
file before it::

    {"file":CRC,"after":CRC}

The other lines are offsets as in the file's offsetTable. With two journals, commits need not wait
while the file is replaced: they go to the journal of the new file. A reader applies the journal of
the file that it finds, and then the journal that was begun after that file, each up to its first
torn line. It ignores a journal of any other file: either all its commits are in this file, or a
broker has written this file, and its offsets count.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from reput.store import fsops

_MARK_LENGTH = 9
"""A CRC-32 in hex digits, and a space."""


class Journal:
    """One journal for the process that writes it; methods raise OutputError."""

    def __init__(self, fd: int, path: Path) -> None:
        """``fd`` is the open file at ``path``; the caller closes it."""
        self._fd = fd
        self._path = path
        self._is_synced = False
        """An earlier process may have left lines that only the kernel knows."""
        self.size = 0
        """Bytes of the whole lines."""

    def clear(self) -> None:
        """Durably remove all lines."""
        self.size = 0
        self._cut()

    def begin(self, file_crc: int, after_crc: int | None = None) -> None:
        """Begin anew, for the file with ``file_crc``; while that is still being written,
        ``after_crc`` is the CRC of the file that it replaces."""
        self.clear()
        mark = {"file": file_crc}
        self.write(mark if after_crc is None else {**mark, "after": after_crc})

    def write(self, entry: Mapping[str, object]) -> None:
        """Append a line, which then survives a kill, and after ``sync`` a power cut."""
        data = _line(entry)
        self._cut()
        fsops.pwrite(self._fd, data, self.size, self._path)
        # set after the write: a sync that another thread begins before it does not cover it
        self._is_synced = False
        self.size += len(data)

    def _cut(self) -> None:
        """Durably remove what stands after the lines, as a killed process leaves it: a power cut
        must not bring it back after the line that is written next."""
        if os.fstat(self._fd).st_size > self.size:
            fsops.truncate(self._fd, self.size, self._path)
            fsops.sync(self._fd, self._path)

    def sync(self) -> None:
        """Make all lines durable; another thread may write meanwhile."""
        if not self._is_synced:
            # set before the sync, so that a write during it is synced by the next call
            self._is_synced = True
            fsops.sync(self._fd, self._path)


class JournalLines(NamedTuple):
    """The lines of a journal."""

    file_crc: object
    """None for a journal without a first line."""
    after_crc: object
    commits: list[object]
    size: int
    """Bytes of its whole lines."""


def read_journal(path: Path) -> JournalLines:
    """Return the lines before the first torn one; none if the journal is missing. Raises
    OSError."""
    entries: list[object] = []
    size = 0
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except (FileNotFoundError, NotADirectoryError):
        lines = []
    for line in lines:
        if not is_whole(line):
            break
        entries.append(entry_of(line))
        size += len(line)
    first = entries[0] if entries and isinstance(entries[0], dict) else {}
    return JournalLines(first.get("file"), first.get("after"), entries[1:], size)


def is_whole(line: bytes) -> bool:
    """Whether a line, with its end, is as it was written."""
    data = line[_MARK_LENGTH:-1]
    return line.endswith(b"\n") and line[:_MARK_LENGTH] == b"%08x " % zlib.crc32(data)


def entry_of(line: bytes) -> Any:
    """The entry of a whole line."""
    return json.loads(line[_MARK_LENGTH:])


def applying_to(file_crc: int, journals: Sequence[JournalLines]) -> list[int]:
    """Return the indices of the journals that apply to the file with ``file_crc``, in order."""
    of_file = [n for n, journal in enumerate(journals) if journal.file_crc == file_crc]
    return of_file + [n for n, journal in enumerate(journals) if journal.after_crc == file_crc]


def _line(entry: Mapping[str, object]) -> bytes:
    data = json.dumps(entry, separators=(",", ":")).encode()
    return b"%08x %s\n" % (zlib.crc32(data), data)
