"""Tag expressions against RocketMQ's FilterAPI, and both of a pull's tests."""

from __future__ import annotations

import random

import pytest

from reput.filters import tags
from reput.filters.java import hash_code
from reput.store.log import java
from tests.interop import rocketmq

PARTS = ("TagA", "TagB", "", " ", "||", "|", "*", "\t x", "中文", "é😀", "\u00a0y", "\x01z", "a b")


@pytest.mark.usefixtures("release")
def test_subscriptions_are_those_of_rocketmq(seed: int) -> None:
    """Random expressions: all, refused, or the same set of hashes."""
    rng = random.Random(seed)
    texts: list[str | None] = [None, "", "*", "||", "||||", "|||", " ", " || ", "TagA||TagB"]
    for _ in range(1500):
        separator = rng.choice(("||", " || ", "|"))
        texts.append(separator.join(rng.choices(PARTS, k=rng.randrange(1, 5))))
    asked = ["-" if text is None else text.encode().hex() or "." for text in texts]
    answers = rocketmq.ask_filters([f"tags {word}" for word in asked])
    assert [describe(text) for text in texts] == answers


def describe(text: str | None) -> str:
    """As the harness says it."""
    try:
        found = tags.parse(text)
    except ValueError:
        return "REFUSED"
    if found.takes_all:
        return "ALL"
    return "CODES " + " ".join(map(str, sorted(found.codes)))


def test_codes_are_compared_by_their_low_half() -> None:
    """A unit's i64, negative hashes and delayed messages' times included; no unit matches."""
    found = tags.parse("TagA || polygenelubricants")
    assert hash_code("polygenelubricants") == -(1 << 31)
    for code in (2598919, -(1 << 31), (1 << 31), 2598919 + (1 << 40), None):
        assert found.matches_code(code), code
    for code in (0, 2598918, -1, 1 << 32):
        assert not found.matches_code(code), code
    assert tags.parse("*").matches_code(5)
    assert not tags.parse(" ").matches_code(0)


def test_texts_remove_collisions() -> None:
    """AaBB hashes like BBAa; the client compares whole texts."""
    found = tags.parse("AaBB")
    assert found.matches_code(hash_code("BBAa"))
    assert found.matches_tags("AaBB")
    assert not found.matches_tags("BBAa")
    assert not found.matches_tags(None)
    assert tags.parse(None).matches_tags(None)


def test_hashes_are_those_of_the_store() -> None:
    """Two modules hash, one bytes and one texts: the same strings give the same codes."""
    for text in ("", "TagA", "中文", "é😀", "\x01"):
        assert hash_code(text) == java.hash_code(text.encode())


def test_separators_alone_are_refused_with_advice() -> None:
    with pytest.raises(ValueError, match="names no tag; give \\* for all"):
        tags.parse("||")
