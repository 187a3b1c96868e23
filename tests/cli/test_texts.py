"""Numbers, times and values as people read them, at the borders of their units."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from reput.cli import texts
from reput.cli.verify import _place
from reput.upkeep.verify.difference import Damage, Difference


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "unknown"), (0, "0.0 s"), (12.34, "12.3 s"), (59.9, "59.9 s"),
        (60, "1 min 0 s"), (250, "4 min 10 s"), (3599.4, "59 min 59 s"), (3599.6, "1 h 0 min"),
        (3600, "1 h 0 min"), (12_000, "3 h 20 min"), (100 * 3600, "100 h 0 min"),
    ],
)  # fmt: skip
def test_durations(seconds: float | None, text: str) -> None:
    """In the two greatest units that they fill."""
    assert texts.human_seconds(seconds) == text


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (None, "unknown"), (0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (-2048, "-2.0 KiB"),
        (1 << 20, "1.0 MiB"), (3 << 29, "1.5 GiB"), (1 << 40, "1.0 TiB"), (1 << 51, "2048.0 TiB"),
    ],
)  # fmt: skip
def test_sizes(size: int | None, text: str) -> None:
    """In units of 1,024; there is none beyond TiB."""
    assert texts.human_bytes(size) == text


def test_counts() -> None:
    """One of a thing is one; no count is not zero."""
    assert [texts.counted(count, "file") for count in (0, 1, 2, 2000)] == [
        "0 files", "1 file", "2 files", "2,000 files",
    ]  # fmt: skip
    found = [texts.counted(count, "index entry", "index entries") for count in (1, 1000)]
    assert found == ["1 index entry", "1,000 index entries"]
    assert (texts.grouped(0), texts.grouped(None)) == ("0", "unknown")


@pytest.mark.parametrize(
    ("lag", "text"),
    [
        ((None, 5, 1.0), "unknown"), ((5, 5, None), "unknown"),
        ((0, 0, 0.0), "0.0 s, 0 messages, 0 B"), ((1024, 1, 61.0), "1 min 1 s, 1 message, 1.0 KiB"),
        ((1024, None, 61.0), "1 min 1 s, many messages, 1.0 KiB"),
    ],
)  # fmt: skip
def test_a_lag(lag: tuple[int | None, int | None, float | None], text: str) -> None:
    """It is known without its messages, which are only counted up to a bound."""
    assert texts.lag_words(*lag) == text


def test_times() -> None:
    """Milliseconds before the epoch, too; what no calendar has stays a number."""
    assert texts.time_text(-1) == "1969-12-31T23:59:59.999Z"
    assert texts.time_text(5) == "1970-01-01T00:00:00.005Z"
    assert texts.time_text(1 << 62) == str(1 << 62)
    assert texts.time_text(None) == "unknown"
    assert texts.moment_text("2026-01-31T20:00:00.25+08:00") == "2026-01-31T12:00:00.250Z"
    assert texts.moment_text("soon\x1b") == "soon\\x1b"
    assert texts.moment_text(None) == "unknown"


def test_values() -> None:
    """By their kind, and harmless on a terminal within lists and mappings."""
    east = datetime(2026, 1, 31, 20, tzinfo=timezone(timedelta(hours=8)))
    for value, text in (
        (None, "none"), (True, "yes"), (False, "no"), (0, "0"), (b"\xff\x1bA", "\\xff\\x1bA"),
        ((1, None, True), "1 none yes"), ({"k\n": ["\x1b"], "n": 2}, "k\\n=\\x1b n=2"),
        (east, "2026-01-31T12:00:00.000Z"), (datetime(1970, 1, 1, tzinfo=UTC), texts.time_text(0)),
    ):  # fmt: skip
        assert texts.shown(value) == text
    assert (texts.known(None), texts.known(0), texts.known(False)) == ("unknown", "0", "no")


@pytest.mark.parametrize(
    ("text", "width", "most", "lines"),
    [
        ("", 5, 3, [""]),
        ("abcdef", 3, 2, ["abc", "def"]),
        ("abcdefg", 3, 2, ["abc", "def", "... (1 more characters)"]),
        ("a" * 2006, 3, 2, ["aaa", "aaa", "... (2,000 more characters)"]),
        ("hello world", 8, 9, ["hello", "world"]),
        ("hello worlds", 5, 9, ["hello", "world", "s"]),
        ("a bcdefghij", 8, 9, ["a bcdefg", "hij"]),
        ("ab\\x1bcd", 4, 9, ["ab", "\\x1b", "cd"]),
        ("\\u202e", 2, 9, ["\\u202e"]),
        ("订单订", 4, 9, ["订单", "订"]),
        ("订单", 1, 9, ["订", "单"]),
    ],
)
def test_lines_end_between_words(text: str, width: int, most: int, lines: list[str]) -> None:
    """Where the word would leave half of the line empty, within it; an escape is never broken, nor
    a character that is wider than the line. What is not shown is counted."""
    assert texts.folded(text, width, most) == lines


@pytest.mark.parametrize(
    ("count", "offset", "text"),
    [
        (1, 0, "unit 7 in q, byte 140, message at physical offset 0"),
        (2, 90, "unit 7 in q, byte 140, 2 one after the other, message at physical offset 90"),
        (1, None, "unit 7 in q, byte 140"), (1, -1, "unit 7 in q, byte 140"),
        (0, None, "unit in q, byte 140"),
    ],
)  # fmt: skip
def test_the_place_of_a_difference(count: int, offset: int | None, text: str) -> None:
    """The log's first message has the physical offset 0; -1 is that of none."""
    difference = Difference(
        "consumequeue", Damage.UNIT, "q", 140, "T", 0, 7, count, offset, expected=None, found=None
    )
    assert _place(difference) == text
