"""The order of Java's HashMap, against the JDK and a plain model."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from reput.overlay.records.properties import DEFAULT_CAPACITY, JavaProperties
from reput.store.log import java
from tests.support.jdk import run_java

PROGRAM = """
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.Map;

public class Maps {
    static String text(String hex) {
        return new String(HexFormat.of().parseHex(hex), StandardCharsets.UTF_8);
    }

    public static void main(String[] args) throws Exception {
        StringBuilder out = new StringBuilder();
        for (String line : Files.readAllLines(Path.of(args[0]), StandardCharsets.US_ASCII)) {
            String[] steps = line.split(" ");
            Map<String, String> map = new HashMap<>(Integer.parseInt(steps[0]));
            for (int i = 1; i < steps.length; i++) {
                String name = text(steps[i].substring(1));
                if (steps[i].charAt(0) == '+') {
                    map.put(name, String.valueOf(i));
                } else {
                    map.remove(name);
                }
            }
            for (Map.Entry<String, String> entry : map.entrySet()) {
                byte[] name = entry.getKey().getBytes(StandardCharsets.UTF_8);
                out.append(HexFormat.of().formatHex(name)).append('=').append(entry.getValue());
                out.append(' ');
            }
            out.append('\\n');
        }
        Files.writeString(Path.of(args[1]), out);
    }
}
"""

KNOWN = (
    (
        "UNIQ_KEY KEYS TAGS WAIT DELAY CLUSTER MSG_REGION TRACE_ON REAL_TOPIC REAL_QID "
        "RETRY_TOPIC ORIGIN_MESSAGE_ID MIN_OFFSET MAX_OFFSET RECONSUME_TIME MAX_RECONSUME_TIMES "
        "TRAN_MSG PGROUP __transactionId__ TIMER_OUT_MS TIMER_DELIVER_MS größe 订单 😀 a b c"
    )
    .encode()
    .split()
)
SAME_HASH = [
    "".join(parts).encode()
    for parts in (("Aa", "Aa", "Aa", "Aa"), ("Aa", "Aa", "Aa", "BB"), ("Aa", "Aa", "BB", "Aa"),
                  ("Aa", "Aa", "BB", "BB"), ("Aa", "BB", "Aa", "Aa"), ("Aa", "BB", "Aa", "BB"),
                  ("Aa", "BB", "BB", "Aa"), ("Aa", "BB", "BB", "BB"), ("BB", "Aa", "Aa", "Aa"))
]  # fmt: skip
"""Nine names in one bucket of any map."""

Step = tuple[str, bytes]


def steps(rng: random.Random) -> list[Step]:
    """Puts and removals of few names, or of enough to let the map grow twice."""
    names = KNOWN + [b"user%d" % number for number in range(rng.choice((0, 5, 60, 150)))]
    chosen = rng.sample(names, rng.randrange(1, len(names)))
    return [(rng.choice("+++-"), rng.choice(chosen)) for _ in range(rng.randrange(1, 250))]


def ours(capacity: int, taken: list[Step]) -> list[tuple[bytes, bytes]]:
    """The map after the steps; a value is the number of its step."""
    values = JavaProperties(capacity)
    for number, (sign, name) in enumerate(taken, 1):
        if sign == "+":
            values.put(name, str(number).encode())
        else:
            values.remove(name)
    return [(name, values.get(name) or b"") for name in values]


def plainly(capacity: int, taken: list[Step]) -> list[tuple[bytes, bytes]]:
    """A table of buckets, as in a textbook."""
    table: list[list[list[bytes]]] = [[] for _ in range(capacity)]

    def bucket(name: bytes) -> list[list[bytes]]:
        value = 0
        encoded = name.decode().encode("utf-16-be")
        for at in range(0, len(encoded), 2):
            value = (31 * value + int.from_bytes(encoded[at : at + 2], "big")) % 2**32
        return table[(value ^ (value >> 16)) % len(table)]

    def grow() -> None:
        nonlocal table
        old = [entry for entries in table for entry in entries]
        table = [[] for _ in range(2 * len(table))]
        for entry in old:
            bucket(entry[0]).append(entry)

    for number, (sign, name) in enumerate(taken, 1):
        place = bucket(name)
        found = [entry for entry in place if entry[0] == name]
        if sign == "-":
            place[:] = [entry for entry in place if entry[0] != name]
        elif found:
            found[0][1] = str(number).encode()
        else:
            place.append([name, str(number).encode()])
            if len(place) > 8 and len(table) < 64:
                grow()
            if 4 * sum(map(len, table)) > 3 * len(table):
                grow()
    return [(name, value) for entries in table for name, value in entries]


def test_the_order_is_a_plain_table_s(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(300):
        capacity, taken = rng.choice((16, 128)), steps(rng)
        assert ours(capacity, taken) == plainly(capacity, taken)


def test_the_order_is_the_jdk_s(seed: int, tmp_path: Path) -> None:
    """Seeded puts and removals, and nine names of one bucket, which make a small map grow."""
    rng = random.Random(seed)
    cases = [(rng.choice((16, 128)), steps(rng)) for _ in range(2_000)]
    crowded = [("+", name) for name in [*KNOWN[:4], *SAME_HASH]]
    cases.append((16, crowded))
    asked, answered = tmp_path / "asked", tmp_path / "answered"
    asked.write_text(
        "".join(
            f"{capacity} " + " ".join(sign + name.hex() for sign, name in taken) + "\n"
            for capacity, taken in cases
        )
    )
    run_java(tmp_path, "Maps", PROGRAM, str(asked), str(answered))
    lines = answered.read_text().split("\n")[:-1]
    assert len(lines) == len(cases)
    for line, (capacity, taken) in zip(lines, cases, strict=True):
        pairs = (pair.split("=") for pair in line.split())
        theirs = [(bytes.fromhex(name), value.encode()) for name, value in pairs]
        assert ours(capacity, taken) == theirs


def test_a_crowded_bucket_lets_a_small_map_grow() -> None:
    taken: list[Step] = [("+", name) for name in [*KNOWN[:3], *SAME_HASH]]
    assert len({java.hash_code(name) for name in SAME_HASH}) == 1
    assert len(taken) <= 12, "a map of 16 buckets would grow for the number of its names"
    assert ours(16, taken) == plainly(16, taken)
    assert [name for name, _ in ours(16, taken)] == [name for name, _ in ours(32, taken)]


def test_a_text_of_many_names_lets_a_large_map_grow() -> None:
    """At 64 buckets or more only the number of names does so: three quarters are not too many."""
    for count in (96, 97, 150):
        names = [b"user%d" % number for number in range(count)]
        text = b"\x02".join(name + b"\x01x" for name in names)
        order = [name for name, _ in plainly(128, [("+", name) for name in names])]
        assert [*JavaProperties.parse(text, 128)] == order
        assert (order == [*JavaProperties.parse(text, 256)]) == (count > 96)


@pytest.mark.parametrize("capacity", (16, 128))
def test_of_equal_names_the_last_value_counts_at_the_first_place(capacity: int) -> None:
    """The names share a bucket."""
    first, second, *_ = SAME_HASH
    values = JavaProperties.parse(
        b"\x02".join((first + b"\x011", second + b"\x012", first + b"\x013")), capacity
    )
    text = first + b"\x013\x02" + second + b"\x012"
    assert values.text(ends_with_separator=False) == text
    assert values.text(ends_with_separator=True) == text + b"\x02"
    values.remove(first)
    values.put(first, b"4")
    assert [*values] == [second, first]


def test_texts_without_properties_and_malformed_ones() -> None:
    """An empty value can be put and is written, but not parsed again."""
    empty = JavaProperties(DEFAULT_CAPACITY)
    assert empty.text(ends_with_separator=True) == empty.text(ends_with_separator=False) == b""
    empty.put(b"a", b"")
    assert empty.text(ends_with_separator=True) == b"a\x01\x02"
    assert [*JavaProperties.parse(b"a\x01\x02\x01x\x02none\x02", 16)] == []
    broken = JavaProperties.parse(b"a\xff\x01\xed\xa0\x80\x02a\xfe\x01b", 16)
    assert broken.get("a\ufffd".encode()) == b"b", "two names that are one as text"
    assert [*broken] == ["a\ufffd".encode()]
