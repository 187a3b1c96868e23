"""Keys and the size of a terminal, as a pseudo-terminal sends them."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import sys
import termios
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TextIO

import pytest

from reput.cli.terminal import END_OF_INPUT, Terminal


@dataclass
class Taken:
    """A terminal that this process has taken, and its other side."""

    terminal: Terminal
    ours: int
    theirs: int
    stdout: TextIO

    def pressed(self, data: bytes) -> list[str]:
        """The keys that the terminal makes of what a user's side sends at once."""
        os.write(self.ours, data)
        return self.terminal.pressed()

    def resize(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self.theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> Iterator[Taken]:
    ours, theirs = pty.openpty()
    monkeypatch.setenv("TERM", "xterm")
    with open(theirs, closefd=False) as stdin, open(theirs, "w", closefd=False) as stdout:
        monkeypatch.setattr(sys, "stdin", stdin)
        monkeypatch.setattr(sys, "stdout", stdout)
        with Terminal("x") as terminal:
            yield Taken(terminal, ours, theirs, stdout)
    os.close(theirs)
    os.close(ours)


def test_a_terminal_that_is_gone_is_the_end_of_its_input(taken: Taken) -> None:
    """Its window was closed. It can be given back no more, and nothing fails over it."""
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), taken.ours)
    assert taken.terminal.pressed() == [END_OF_INPUT]


@pytest.mark.parametrize(
    ("data", "keys"),
    [
        (b"q", ["q"]), (b"12?", ["1", "2", "?"]), ("é".encode(), ["é"]), (b"\t", ["tab"]),
        (b"\x1b[A\x1b[B", ["up", "down"]), (b"\x1bOA\x1bOB", ["up", "down"]),
        (b"\x1b[C\x1b[D\x1bOC\x1bOD", ["right", "left", "right", "left"]),
        (b"\x1b[H\x1bOH\x1b[1~", ["home"] * 3), (b"\x1b[F\x1bOF\x1b[4~", ["end"] * 3),
        (b"\x1b[5~\x1b[6~", ["page up", "page down"]), (b"\x1b[Z", ["back tab"]),
        (b"s\x1b[6~s", ["s", "page down", "s"]),
    ],
)  # fmt: skip
def test_keys_have_names(taken: Taken, data: bytes, keys: list[str]) -> None:
    """In both modes that a terminal may have for its cursor's keys."""
    assert taken.pressed(data) == keys


@pytest.mark.parametrize("key", [b"\x1b[A", b"\x1bOA"])
@pytest.mark.parametrize("cut", [1, 2])
def test_a_key_that_comes_in_two_parts_is_one(taken: Taken, key: bytes, cut: int) -> None:
    """A slow line may break it anywhere; none of its characters is a key of its own."""
    assert taken.pressed(b"s" + key[:cut]) == ["s"]
    assert taken.pressed(key[cut:] + b"q") == ["up", "q"]


def test_a_key_of_several_digits_that_comes_in_parts_is_one(taken: Taken) -> None:
    """An unknown one is no other key."""
    assert taken.pressed(b"\x1b[1") == []
    assert taken.pressed(b"5;5") == []
    assert taken.pressed(b"~") == ["\x1b[15;5~"]


def test_waking_is_no_key(taken: Taken) -> None:
    """However often, and nothing that is pressed meanwhile is lost."""
    for _ in range(3):
        taken.terminal.wake()
    assert taken.terminal.pressed() == []
    taken.terminal.wake()
    assert taken.pressed(b"q") == ["q"]


def test_the_size_is_the_window_s(taken: Taken, monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal that does not know its size, as a serial line, is taken for a usual one."""
    monkeypatch.setattr(sys, "stdout", taken.stdout)
    monkeypatch.setenv("COLUMNS", "7")
    monkeypatch.setenv("LINES", "7")
    for columns, lines, shown in (
        (132, 50, (132, 50)), (0, 0, (80, 24)), (0, 9, (80, 24)), (9, 0, (80, 24)),
    ):  # fmt: skip
        taken.resize(columns, lines)
        assert taken.terminal.size() == shown
