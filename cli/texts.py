"""Numbers, times and values as texts for people.

A number that an option takes, such as an offset or a queue's id, is shown as the option takes it;
counts and sizes are grouped by thousands. Text from a message cannot act on a terminal: characters
that are not printable are shown as escapes.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime

from rich.cells import cell_len

_PIECE = re.compile(r"\\x[0-9a-f]{2}|\\u[0-9a-f]{4}|\\U[0-9a-f]{8}|\\.|.", re.DOTALL)
"""A character or an escape, within which no line is broken."""


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


def grouped(count: int | None) -> str:
    """Return a count such as ``2,000``; ``unknown`` for None."""
    return "unknown" if count is None else f"{count:,}"


def label(name: str) -> str:
    """Return a field's name in JSON as the words that people read: ``store timestamp``."""
    return name.replace("_", " ").replace(".", " ")


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
            return " ".join(f"{escaped(str(key))}={shown(item)}" for key, item in value.items())
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


def time_text(milliseconds: int | None) -> str:
    """Return ms since the epoch in ISO 8601 and UTC, as time options take it; ``unknown`` for None.
    A number beyond the calendar is returned as it is."""
    if milliseconds is None:
        return "unknown"
    try:
        moment = datetime.fromtimestamp(milliseconds // 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return str(milliseconds)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{milliseconds % 1000:03d}Z"


def moment_text(moment: str | None) -> str:
    """Return ``time_text`` of a time that a file holds in ISO 8601; ``unknown`` for None."""
    try:
        return known(moment and datetime.fromisoformat(moment))
    except ValueError:
        return known(moment)


def human_bytes(count: float | None) -> str:
    """Return a size such as ``512 B`` or ``1.5 GiB``, in units of 1,024 up to TiB; ``unknown`` for
    None."""
    if count is None:
        return "unknown"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def human_seconds(seconds: float | None) -> str:
    """Return a duration such as ``12.3 s``, ``4 min 10 s`` or ``3 h 20 min``; ``unknown`` for
    None."""
    if seconds is None:
        return "unknown"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def lag_words(lag_bytes: int | None, messages: int | None, seconds: float | None) -> str:
    """Return a lag in all of its units; ``unknown`` where it is not known."""
    if lag_bytes is None or seconds is None:
        return "unknown"
    count = "many messages" if messages is None else counted(messages, "message")
    return f"{human_seconds(seconds)}, {count}, {human_bytes(lag_bytes)}"
