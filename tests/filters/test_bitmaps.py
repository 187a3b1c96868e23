"""Bit maps of many messages: the plain ones of ``ConsumerFilters``, which RocketMQ's are held
against, whatever was asked before."""

from __future__ import annotations

import pickle
import random

import pytest

from reput.filters import bitmaps, consumers
from reput.filters.bitmaps import BitMapCalculator
from tests.filters.test_consumers import entry
from tests.support.selectors import Selectors


def random_filters(rng: random.Random, selectors: Selectors) -> consumers.ConsumerFilters:
    """Three topics, some expressions of which read the same properties; one reads none."""
    expressions = [selectors.expression() for _ in range(8)]
    topics = {
        topic: {
            "groupFilterData": {
                f"g{index}": entry(
                    expression=rng.choice(expressions),
                    bloomFilterData={"bitNum": 112, "bitPos": rng.sample(range(112), 3)},
                )
                for index in range(rng.randrange(1, 4))
            }
        }
        for topic in ("a", "b", "中文")
    }
    topics["none"] = {"groupFilterData": {"g": entry(expression="TRUE", bloomFilterData={
        "bitNum": 112, "bitPos": [0, 7, 8]})}}  # fmt: skip
    return consumers.from_json({"filterDataByTopic": topics})


def test_bit_maps_are_the_plain_ones(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random filters and messages, more than are remembered; only the named properties count."""
    monkeypatch.setattr(bitmaps, "MAX_REMEMBERED", 20)
    rng, selectors = random.Random(seed), Selectors(seed)
    found = set()
    for _ in range(10):
        filters = random_filters(rng, selectors)
        calculator = pickle.loads(pickle.dumps(BitMapCalculator(filters)))
        messages = [selectors.properties() for _ in range(60)]
        for topic in rng.choices((*filters.topics, "other"), k=300):
            properties = rng.choice(messages)
            expected = filters.bit_map(topic, properties)
            assert calculator.bit_map(topic, properties) == expected
            names = calculator.names(topic)
            assert names == filters.names(topic)
            named = {name: value for name, value in properties.items() if name in names}
            assert calculator.bit_map(topic, named) == expected
            found.add(expected)
        assert calculator.bit_map("none", {}) == b"\x81\x01" + bytes(12)
    assert None in found
    assert len(found) > 3  # the filters told messages apart


def test_what_is_remembered_tells_missing_from_present() -> None:
    """Two messages, of which one lacks the property: neither gets the other's bits."""
    document = {
        "filterDataByTopic": {"t": {"groupFilterData": {"g": entry(expression="a IS NULL")}}}
    }
    calculator = BitMapCalculator(consumers.from_json(document))
    for _ in range(2):
        assert calculator.bit_map("t", {"a": "None"}) == b"\0\0"
        assert calculator.bit_map("t", {"b": "x"}) == b"\x02\x02"


def test_what_is_remembered_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many values a topic's properties have, and for each topic by itself."""
    monkeypatch.setattr(bitmaps, "MAX_REMEMBERED", 100)
    topics = {
        topic: {"groupFilterData": {"g": entry(expression="a = 'x'")}} for topic in ("t", "u")
    }
    calculator = BitMapCalculator(consumers.from_json({"filterDataByTopic": topics}))
    sizes = []
    for number in range(10_000):
        assert calculator.bit_map("tu"[number % 2], {"a": f"{number:05}"}) == b"\0\0"
        if number % 200 == 199:
            sizes.append(len(pickle.dumps(calculator)))
    assert max(sizes) < 3 * min(sizes)
