"""Tables, fields, numbers and times for people.

A number that an option takes, such as an offset, is printed as the option takes it; only counts in
sentences are grouped by thousands. Text from a message cannot act on a terminal: it is not read as
markup, and characters that are not printable are shown as escapes.

rich counts the cells of a text and prints nothing here: its tables and console take a tenth of the
time of a short command to load.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

import typer
from rich.cells import cell_len, set_cell_size

SHOWN_LINES = 12
"""Lines of a terminal that one value may take; the rest is counted, not shown."""
_BETWEEN = 2
"""Characters between a table's columns."""
_UNBROKEN = 1 << 16
_DUMB_WIDTH = 80
"""Columns of a terminal that cannot say how many it has."""
_PIECE = re.compile(r"\\x[0-9a-f]{2}|\\u[0-9a-f]{4}|\\U[0-9a-f]{8}|\\.|.", re.DOTALL)
"""A character or an escape, within which no line is broken."""


def is_terminal() -> bool:
    """Whether stdout is a terminal that knows styles and can place its cursor."""
    return sys.stdout.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown")


def _width() -> int:
    """Return the width of a line, which is broken on a terminal only."""
    if not sys.stdout.isatty():
        return _UNBROKEN
    return shutil.get_terminal_size().columns if is_terminal() else _DUMB_WIDTH


def _print(text: str, rest: str = "", *, bold: bool = False, italic: bool = False) -> None:
    """Print a line that begins with ``text`` in a style, which only a terminal shows."""
    if (bold or italic) and is_terminal():
        text = typer.style(text, bold=bold or None, italic=italic or None)
    typer.echo(text + rest)


def _print_wrapped(text: str, *, bold: bool = False, italic: bool = False) -> None:
    for line in folded(text, _width(), _UNBROKEN):
        _print(line, bold=bold, italic=italic)


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table on stdout if it fits; otherwise a block per record with a line per field."""
    texts = [[shown(value) for value in row] for row in rows]
    widths = [max(map(cell_len, column)) for column in zip(columns, *texts, strict=True)]
    if title:
        _print_wrapped(escaped(title), italic=True)
    width = sum(widths) + _BETWEEN * (len(widths) - 1)
    if width > _width():
        for number, row in enumerate(texts, 1):
            _print(f"[{number}]", bold=True)
            _print_fields(dict(zip(columns, row, strict=True)))
        return
    _print(_row(columns, widths), bold=True)
    _print(("─" if (sys.stdout.encoding or "").lower().startswith("utf") else "-") * width)
    for row in texts:
        _print(_row(row, widths))


def _row(texts: Sequence[str], widths: Sequence[int]) -> str:
    cells = [set_cell_size(text, width) for text, width in zip(texts, widths, strict=True)]
    return (" " * _BETWEEN).join(cells).rstrip()


def print_fields(title: str, fields: Mapping[str, object]) -> None:
    """Print one record on stdout with a line per field, and a line per entry of a mapping."""
    _print_wrapped(escaped(title), italic=True)
    flat: dict[str, str] = {}
    for name, value in fields.items():
        if isinstance(value, Mapping):
            flat |= {f"{name} {escaped(str(key))}": shown(one) for key, one in value.items()}
        else:
            flat[name] = shown(value)
    _print_fields(flat)


def _print_fields(fields: Mapping[str, str]) -> None:
    name_width = min(max(map(cell_len, fields), default=0), _width() // 2) + _BETWEEN
    room = max(_width() - name_width, 1)
    for name, value in fields.items():
        first = f"{set_cell_size(name, name_width - _BETWEEN)}{' ' * _BETWEEN}"
        for line in folded(value, room, SHOWN_LINES):
            _print(first, line, bold=True)
            first = " " * name_width


def print_entry(heading: str, body: str | None, lines: int) -> None:
    """Print an entry of a list: its heading, and up to ``lines`` lines of its text below it."""
    _print_wrapped(escaped(heading), bold=True)
    if body:
        for line in folded(escaped(body), _width() - _BETWEEN, lines):
            _print(" " * _BETWEEN + line)


def print_line(line: str) -> None:
    """Print a sentence on stdout, broken between words where the terminal ends."""
    _print_wrapped(escaped(line))


def folded(text: str, width: int, most: int) -> list[str]:
    """Return ``text`` in lines of up to ``width`` cells, at least one and up to ``most``, and a
    line that counts the characters beyond them. A line ends between words where it can."""
    lines: list[str] = []
    at = 0
    while at < len(text) and len(lines) < most:
        end = _line_end(text, at, width)
        lines.append(text[at:end].rstrip())
        at = end
    if at < len(text):
        lines.append(f"... ({len(text) - at:,} more characters)")
    return lines or [""]


def _line_end(text: str, begin: int, width: int) -> int:
    end, cells, space = begin, 0, begin
    for piece in _PIECE.finditer(text, begin):
        cells += cell_len(piece[0])
        # the first piece is taken however narrow the terminal is, a space where it ends the line
        if cells > width and end > begin and piece[0] != " ":
            break
        end = piece.end()
        if piece[0] == " " and 2 * cells > width:
            space = end
    else:
        return end
    return space if space > begin else end


def counted(count: int, noun: str, plural: str | None = None) -> str:
    """Return ``1 file`` or ``2,000 files``; ``plural`` is for a noun that takes more than an s."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def shown(value: object) -> str:
    """Return a value as text for people: None as ``none``, a bool as ``yes`` or ``no``, a time in
    ISO 8601 and UTC, bytes as escaped UTF-8, lists and mappings with blanks between items."""
    match value:
        case None:
            return "none"
        case bool():
            return "yes" if value else "no"
        case datetime():
            return time_text(round(value.timestamp() * 1000))
        case bytes():
            return escaped(value.decode("utf-8", "backslashreplace"))
        case list() | tuple():
            return " ".join(map(shown, value))
        case dict():
            return " ".join(f"{escaped(str(key))}={shown(one)}" for key, one in value.items())
        case _:
            return escaped(str(value))


def known(value: object) -> str:
    """Return ``shown`` of a value, or ``unknown`` for None."""
    return "unknown" if value is None else shown(value)


def escaped(text: str) -> str:
    """Return ``text`` made harmless on a terminal: control characters, line feeds, characters that
    turn the direction of writing and others that are not printable become escapes."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def time_text(milliseconds: int) -> str:
    """Return ms since the epoch in ISO 8601 and UTC, as time options take it; a number beyond the
    calendar is returned as it is."""
    try:
        moment = datetime.fromtimestamp(milliseconds // 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return str(milliseconds)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{milliseconds % 1000:03d}Z"


def human_bytes(count: float) -> str:
    """Return a size such as ``512 B`` or ``1.5 GiB``, in units of 1,024 up to TiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def human_seconds(seconds: float) -> str:
    """Return a duration such as ``12.3 s``, ``4 min 10 s`` or ``3 h 20 min``."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def lag_text(lag_bytes: int | None) -> str:
    """Return a lag in bytes as ``human_bytes``; ``unknown`` for None."""
    return "unknown" if lag_bytes is None else human_bytes(lag_bytes)


def print_sides(heading: str, sides: Mapping[str, str]) -> None:
    """Print one difference: a heading that says where, and below it what each side has."""
    _print_wrapped(escaped(heading), bold=True)
    _print_fields({f"  {escaped(name)}": text for name, text in sides.items()})
