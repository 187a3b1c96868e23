"""Java's string rules against the JDK itself.

One program, run by ``java Facts.java``, prints what the JDK makes of seeded byte strings: the
UTF-16 units of ``new String(bytes, UTF_8)``, its hashCode, and what the number parsers say.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from reput.store.log import java
from tests.support.jdk import run_java

PROGRAM = """
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HexFormat;
import java.util.function.Function;

public class Facts {
    static String number(String text, Function<String, Object> parser) {
        try {
            return parser.apply(text).toString();
        } catch (NumberFormatException e) {
            return "-";
        }
    }

    public static void main(String[] args) throws Exception {
        StringBuilder out = new StringBuilder();
        for (String line : Files.readAllLines(Path.of(args[0]), StandardCharsets.US_ASCII)) {
            String text = new String(HexFormat.of().parseHex(line), StandardCharsets.UTF_8);
            out.append(text.length()).append(' ').append(text.hashCode()).append(' ');
            text.chars().forEach(unit -> out.append(String.format("%04x", unit)));
            out.append("| ").append(number(text, Short::valueOf));
            out.append(' ').append(number(text, Integer::valueOf));
            out.append(' ').append(number(text, Long::valueOf)).append('\\n');
        }
        Files.writeString(Path.of(args[1]), out);
    }
}
"""

Ask = Callable[[list[bytes]], list[list[str]]]

# first bytes at the borders of every case of the decoder, and what may follow them
LEADS = bytes.fromhex("007f80bfc0c1c2c3dfe0e1ecedeeeff0f1f3f4f5f7f8ff")
FOLLOWERS = bytes.fromhex("41808f909fa0bfc2e0")


@pytest.fixture
def ask(tmp_path: Path) -> Ask:
    """The JDK's answers about byte strings: [length, hashCode, units, short, int, long] each."""

    def run(strings: list[bytes]) -> list[list[str]]:
        asked, answered = tmp_path / "asked", tmp_path / "answered"
        asked.write_text("".join(one.hex() + "\n" for one in strings))
        run_java(tmp_path, "Facts", PROGRAM, str(asked), str(answered))
        lines = answered.read_text().split("\n")[:-1]
        return [line.replace("|", "").split(" ") for line in lines]

    return run


def malformed(rng: random.Random) -> bytes:
    pieces = [
        rng.choice(
            (
                bytes([rng.choice(LEADS)]),
                bytes([rng.choice(LEADS), rng.choice(FOLLOWERS)]),
                bytes([rng.choice(LEADS), rng.choice(FOLLOWERS), rng.choice(FOLLOWERS)]),
                bytes([rng.choice(FOLLOWERS)]),
                rng.choice("aZ9é订🙂\U0010ffff\ufffd").encode(),
                rng.randbytes(2),
            )
        )
        for _ in range(rng.randrange(9))
    ]
    return b"".join(pieces)


def number(rng: random.Random) -> bytes:
    edges = [str(edge + by) for bits in (15, 31, 63) for edge in (1 << bits, -(1 << bits))
             for by in (-1, 0, 1)]  # fmt: skip
    digits = "".join(rng.choices("0123456789", k=rng.randrange(21)))
    text = rng.choice((digits, rng.choice(edges), "0" * rng.choice((12, 60, 5000)) + digits))
    text = (
        rng.choice(("", "", "+", "-", "+-", " ")) + text + rng.choice(("", "", "", " ", "x", "."))
    )
    return text.encode()


def test_strings_and_numbers_are_what_the_jdk_makes_of_them(ask: Ask, seed: int) -> None:
    """All strings of two bytes, seeded malformed ones of up to 27, and number-like text."""
    rng = random.Random(seed)
    strings = [bytes((first, second)) for first in range(256) for second in range(256)]
    strings += [malformed(rng) for _ in range(20_000)]
    strings += [number(rng) for _ in range(3_000)]
    answers = ask(strings)
    assert len(answers) == len(strings)
    numbers_seen = 0
    for text, (length, hash_code, units, *parsed) in zip(strings, answers, strict=True):
        ours = java.utf16_units(text)
        assert len(ours) == int(length), text
        assert "".join(f"{unit:04x}" for unit in ours) == units, text
        assert java.hash_code(text) == int(hash_code), text
        assert java.decode(text).encode("utf-16-be").hex() == units, text
        if text.isascii():  # other scripts' digits are refused on purpose
            for bits, theirs in zip((16, 32, 64), parsed, strict=True):
                expected = None if theirs == "-" else int(theirs)
                assert java.parse_integer(text, bits) == expected, (text, bits)
                numbers_seen += expected is not None
    assert numbers_seen > 1000


def test_hashes_that_format_md_states() -> None:
    """Values from formats.md §3 and §8, so that something is checked without a JDK too."""
    assert java.hash_code(b"TagA") == 2598919
    assert java.hash_code(b"polygenelubricants") == -(1 << 31)
    assert java.hash_code(b"") == 0
    # an encoded lone surrogate is one U+FFFD for its three bytes
    assert java.utf16_units(b"\xed\xa0\x80") == [0xFFFD]
    assert java.decode(b"a\xed\xbf\xbfb") == "a\ufffdb"


def test_numbers_in_other_scripts_are_refused() -> None:
    """Java would take Arabic digits; no broker writes them, and we call them damage."""
    assert java.parse_integer("٣".encode(), 32) is None
    assert java.parse_integer("３".encode(), 32) is None
