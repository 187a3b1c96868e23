"""A program on a pseudo-terminal of its own, and what a terminal shows of what it sends (pyte)."""

from __future__ import annotations

import errno
import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from typing import Self

import pyte

from tests.support.cli import ROOT

LONGEST_SECONDS = 60.0
ALTERNATE_SCREEN = 1049 << 5
"""pyte's number of a private mode."""
KEYS = {
    "tab": b"\t", "back tab": b"\x1b[Z", "down": b"\x1b[B", "up": b"\x1b[A",
    "page down": b"\x1b[6~", "page up": b"\x1b[5~", "home": b"\x1b[H", "end": b"\x1b[F",
    "ctrl-c": b"\x03", "ctrl-z": b"\x1a",
}  # fmt: skip
_OWN_TERMINAL = (
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
    "os.execvp(sys.argv[1], sys.argv[1:])"
)
"""Makes the terminal the one of the session, so that its keys and its size become signals."""


class Screen:
    """One program and its terminal, in a ``with`` block."""

    def __init__(
        self, *command: object, columns: int = 80, lines: int = 24, **environment: str
    ) -> None:
        self._ours, theirs = pty.openpty()
        self._shown = pyte.Screen(columns, lines)
        self._stream = pyte.ByteStream(self._shown)
        self.sent = bytearray()
        """Everything that the program has sent."""
        self._set_size(columns, lines)
        self._before = termios.tcgetattr(theirs)
        self._theirs = theirs
        """Stays open, so that what the program leaves of the terminal can be seen."""
        self.process = subprocess.Popen(
            [sys.executable, "-c", _OWN_TERMINAL, *map(str, command)],
            stdin=theirs, stdout=theirs, stderr=theirs, cwd=ROOT, start_new_session=True,
            env={**os.environ, "TERM": "xterm-256color", "LC_ALL": "C.UTF-8", **environment},
        )  # fmt: skip

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._theirs)
        os.close(self._ours)

    @property
    def lines(self) -> list[str]:
        """The lines of the terminal, without blanks at their ends."""
        return [line.rstrip() for line in self._shown.display]

    @property
    def text(self) -> str:
        """All lines."""
        return "\n".join(self.lines)

    def standing_out(self, line: int) -> str:
        """The characters of a line that are shown in reverse."""
        cells = self._shown.buffer[line]
        return "".join(cells[at].data for at in range(self._shown.columns) if cells[at].reverse)

    def colours(self) -> set[str]:
        """The colours of all characters."""
        cells = [cell for line in self._shown.buffer.values() for cell in line.values()]
        return {cell.fg for cell in cells} | {cell.bg for cell in cells}

    def is_taken(self) -> bool:
        """Whether the program shows a screen of its own without a cursor, and gets single keys."""
        is_raw = termios.tcgetattr(self._theirs) != self._before
        found = {is_raw, self._shown.cursor.hidden, ALTERNATE_SCREEN in self._shown.mode}
        assert len(found) == 1, "the terminal is taken in part"
        return found.pop()

    def press(self, *keys: str) -> None:
        """Send keys, characters or names of ``KEYS``."""
        os.write(self._ours, b"".join(KEYS.get(key, key.encode()) for key in keys))

    def resize(self, columns: int, lines: int) -> None:
        """Give the terminal another size."""
        self._shown.resize(lines, columns)
        self._shown.erase_in_display(2)
        self._set_size(columns, lines)

    def wait(self, *wanted: str) -> re.Match[str]:
        """Wait until a whole picture of the terminal has each of these expressions, and return the
        last one's match."""
        deadline = time.monotonic() + LONGEST_SECONDS
        while True:
            found = [re.search(one, self.text, re.M) for one in wanted]
            if all(found) and self._is_whole():
                assert found[-1] is not None
                return found[-1]
            if not self._take(deadline - time.monotonic()):
                missing = [one for one, match in zip(wanted, found, strict=True) if not match]
                raise AssertionError(f"{missing} not in\n{self.text}")

    def exit_code(self) -> int:
        """Wait until the program has ended."""
        code = self.process.wait(LONGEST_SECONDS)
        self.drain()
        return code

    def drain(self) -> None:
        """Show what the program has sent already."""
        while self._take(0):
            pass

    def _take(self, seconds: float) -> bool:
        """Show what the program sends within this time; False if it sends nothing."""
        if not select.select([self._ours], [], [], max(0.0, seconds))[0]:
            return False
        try:
            data = os.read(self._ours, 1 << 16)
        except OSError as error:
            # how a terminal says that nobody is left on its other side
            if error.errno != errno.EIO:
                raise
            return False
        self.sent += data
        self._stream.feed(data)
        return bool(data)

    def _is_whole(self) -> bool:
        """Whether no part of a picture is still to come: each begins at the first line, and leaves
        the cursor at the end of the last one."""
        cursor = self._shown.cursor
        return (cursor.x, cursor.y) == (self._shown.columns, self._shown.lines - 1)

    def _set_size(self, columns: int, lines: int) -> None:
        size = struct.pack("HHHH", lines, columns, 0, 0)
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, size)
