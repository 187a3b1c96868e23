"""Bloom shapes and positions against RocketMQ's BloomFilter."""

from __future__ import annotations

import random

import pytest

from reput.filters.bloom import BloomFilter, has_bits, set_bits
from tests.interop import rocketmq

LETTERS = "abcXYZ019_-%|中é😀 "


@pytest.mark.usefixtures("release")
def test_shapes_and_positions_are_those_of_rocketmq(seed: int) -> None:
    """Every error rate with several numbers of consumers, and a random group and topic for each."""
    rng = random.Random(seed)
    cases = []
    for error_rate in range(-1, 102):
        for consumers in (0, 1, 2, 7, 32, 64, 100, rng.randrange(1, 5000)):
            group, topic = ("".join(rng.choices(LETTERS, k=rng.randrange(12))) for _ in "ab")
            cases.append((error_rate, consumers, group, topic))
    answers = rocketmq.ask_filters(
        [f"bloom {rate} {count} {f'{group}#{topic}'.encode().hex()}"
         for rate, count, group, topic in cases]
    )  # fmt: skip
    assert [describe(*case) for case in cases] == answers


def describe(error_rate: int, consumers: int, group: str, topic: str) -> str:
    """As the harness says it."""
    try:
        found = BloomFilter.create_by_fn(error_rate, consumers)
    except ValueError:
        return "REFUSED"
    numbers = (found.hash_count, found.bit_count, *found.positions(group, topic))
    return " ".join(map(str, numbers))


def test_a_broker_without_settings_has_112_bits() -> None:
    """20 percent and 32 consumers, RocketMQ's defaults."""
    assert BloomFilter.create_by_fn() == BloomFilter(bit_count=112, hash_count=3)
    with pytest.raises(ValueError, match="1 to 99 percent"):
        BloomFilter.create_by_fn(100, 32)


def test_bits_are_set_from_the_low_end_of_each_byte() -> None:
    """Bit p is byte p/8, mask 1 << p%8 (``BitsArray``)."""
    bit_map = bytearray(3)
    set_bits(bit_map, (0, 9, 23))
    assert bit_map.hex() == "010280"
    assert has_bits(bytes(bit_map), (9, 0))
    assert not has_bits(bytes(bit_map), (9, 8))
