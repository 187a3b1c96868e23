"""A terminal that a command takes for itself: a screen of its own, keys one by one, all given back.

rich draws on the terminal's second screen, each frame over the last one without erasing it, so that
nothing flickers. Whatever ends the command but SIGKILL, the terminal is as it was before; Ctrl-Z
gives it back for as long as the process is stopped.
"""

from __future__ import annotations

import os
import re
import select
import signal
import sys
import termios
import tty
from contextlib import suppress
from types import FrameType
from typing import Self

from rich.console import Console, RenderableType
from rich.live import Live

from reput.store.errors import UsageError

END_OF_INPUT = "end of input"
_SEQUENCE = re.compile(r"\x1b\[[0-9;]*[A-Za-z~]|\x1bO[A-Z]|[^\x1b]", re.DOTALL)
_UNFINISHED = re.compile(r"\x1b(?:\[[0-9;]*|O)?\Z")
_NAMES = {
    "\x1b[A": "up", "\x1bOA": "up", "\x1b[B": "down", "\x1bOB": "down",
    "\x1b[C": "right", "\x1bOC": "right", "\x1b[D": "left", "\x1bOD": "left",
    "\x1b[5~": "page up", "\x1b[6~": "page down",
    "\x1b[H": "home", "\x1bOH": "home", "\x1b[1~": "home",
    "\x1b[F": "end", "\x1bOF": "end", "\x1b[4~": "end",
    "\t": "tab", "\x1b[Z": "back tab",
}  # fmt: skip
"""The characters of a key that is none itself -> the key's name."""


class Terminal:
    """The terminal of standard input and output, in a ``with`` block."""

    def __init__(self, instead: str) -> None:
        """Raises UsageError where there is no terminal; ``instead`` says what to do then."""
        self._console = Console(force_terminal=True, force_interactive=True, highlight=False)
        is_terminal = sys.stdin.isatty() and sys.stdout.isatty()
        if not is_terminal or self._console.is_dumb_terminal:
            raise UsageError(f"this needs a terminal that can place its cursor; {instead}")
        self._input = sys.stdin.fileno()
        self._unfinished = ""
        self._is_suspended = False
        self._woken, self._waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def __enter__(self) -> Self:
        self._take()
        self._handlers = {
            number: signal.signal(number, handler)
            for number, handler in (
                (signal.SIGWINCH, self._note_size), (signal.SIGTSTP, self._note_suspension),
            )
        }  # fmt: skip
        return self

    def __exit__(self, *_error: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._give_back()
        os.close(self._woken)
        os.close(self._waker)

    def size(self) -> tuple[int, int]:
        """Return columns and lines, not those of COLUMNS and LINES, which follow no window."""
        with suppress(OSError):
            columns, lines = os.get_terminal_size(sys.stdout.fileno())
            if columns and lines:
                return columns, lines
        return 80, 24

    def draw(self, picture: RenderableType) -> None:
        """Show a picture of the terminal's size."""
        self._console.size = self.size()
        self._live.update(picture, refresh=True)

    def wake(self) -> None:
        """Let ``pressed`` return; any thread and any handler of a signal may call it."""
        with suppress(BlockingIOError):
            os.write(self._waker, b"\0")

    def pressed(self) -> list[str]:
        """Wait for keys, ``wake`` or another size, and return the keys, if any: a character, a name
        of ``_NAMES``, or END_OF_INPUT."""
        ready, _, _ = select.select([self._input, self._woken], [], [])
        if self._woken in ready:
            with suppress(BlockingIOError):
                os.read(self._woken, 1 << 10)
        if self._is_suspended:
            self._suspend()
            return []
        return self._typed() if self._input in ready else []

    def _typed(self) -> list[str]:
        try:
            data = os.read(self._input, 1 << 10)
        except OSError:
            data = b""
        if not data:
            return [END_OF_INPUT]
        text = self._unfinished + data.decode("utf-8", "ignore")
        # over a slow line a key's bytes may come in two parts
        rest = _UNFINISHED.search(text)
        self._unfinished = rest[0] if rest else ""
        sequences = _SEQUENCE.findall(text[: rest.start()] if rest else text)
        return [_NAMES.get(sequence, sequence) for sequence in sequences]

    def _take(self) -> None:
        self._before = termios.tcgetattr(self._input)
        # keys that were pressed before are not lost
        tty.setcbreak(self._input, termios.TCSADRAIN)
        self._live = Live(
            "", console=self._console, screen=True, auto_refresh=False,
            redirect_stdout=False, redirect_stderr=False,
        )  # fmt: skip
        self._live.start()

    def _give_back(self) -> None:
        # one whose window was closed takes nothing back
        with suppress(OSError, termios.error):
            try:
                self._live.stop()
            finally:
                termios.tcsetattr(self._input, termios.TCSADRAIN, self._before)

    def _note_size(self, _number: int, _frame: FrameType | None) -> None:
        self.wake()

    def _note_suspension(self, _number: int, _frame: FrameType | None) -> None:
        self._is_suspended = True
        self.wake()

    def _suspend(self) -> None:
        self._is_suspended = False
        self._give_back()
        os.kill(os.getpid(), signal.SIGSTOP)
        self._take()
