"""Consumer filters: RocketMQ's own file read, its bit maps recomputed, its two tests repeated."""

from __future__ import annotations

import pickle
import random
from collections.abc import Mapping
from typing import Any

import pytest

from reput.filters import consumers
from reput.filters.bloom import BloomFilter
from reput.filters.consumers import ConsumerFilters, FilterDataError
from reput.store import configjson
from tests.filters.test_sql92 import hexed, properties_word
from tests.interop import rocketmq
from tests.support.selectors import Selectors

TOPICS = ("Topic_0", "%RETRY%g_t", "中文", "none")
GROUPS = ("g1", "group-2", "DEFAULT_CONSUMER", "消费者", "g5")
FIRST = ("a IS NOT NULL", "b CONTAINS '5' OR TAGS > 0", "NULL", "", "")
MESSAGES = 1500


@pytest.mark.usefixtures("release")
def test_bit_maps_and_matches_are_those_of_rocketmq(seed: int) -> None:
    """A broker's manager registers random consumers and writes its file; what we make of that file
    equals what the broker's dispatcher and message filter say, bit for bit."""
    rng, selectors = random.Random(seed), Selectors(seed)
    lines = [
        f"register {hexed(topic)} {hexed(group)} {hexed(text)}"
        for topic in TOPICS[:3]
        for group, first in zip(GROUPS, FIRST, strict=True)
        # the first sound expression stays
        for text in (first, *(selectors.expression() for _ in range(4)))
        if text
    ]
    registered = len(lines)
    lines.append("encode")
    messages = [(rng.choice(TOPICS), selectors.properties()) for _ in range(MESSAGES)]
    lines += [f"bits {hexed(topic)} {properties_word(found)}" for topic, found in messages]
    answers = rocketmq.ask_filters(lines)
    document = bytes.fromhex(answers[registered]).decode()
    filters = consumers.from_json(configjson.parse(document), BloomFilter.create_by_fn(20, 64))
    assert answers[:registered].count("true") >= sum(map(len, filters.topics.values())) >= 9
    maps = [filters.bit_map(topic, found) for topic, found in messages]
    assert ["-" if bits is None else bits.hex() for bits in maps] == answers[registered + 1 :]
    assert len(set(maps)) > 6
    # the second run registers the same, and asks for both tests of a pull
    asked = []
    for topic, found in messages:
        for consumer in filters.topics.get(topic, ()):
            bits = rng.choice((*maps[:50], b"", bytes(14), b"\xff" * 27))
            asked.append((consumer, rng.choice((-1, 0, 1, 1000)), bits, found))
    more = [
        f"match {hexed(consumer.topic)} {hexed(consumer.group)} {later} "
        f"{bits.hex() if bits else '-'} {properties_word(found)}"
        for consumer, later, bits, found in asked
    ]
    answers = rocketmq.ask_filters(lines[:registered] + more)[registered:]
    # an ext unit without bits has no map
    told = [
        (consumer.may_match(bits or None, consumer.born_time + later), consumer.matches(found))
        for consumer, later, bits, found in asked
    ]
    assert [f"{first} {second}".lower() for first, second in told] == answers
    assert {first for first, _ in told} == {second for _, second in told} == {True, False}


def entry(**changes: Any) -> dict[str, Any]:
    bloom = {"bitNum": 16, "bitPos": [1, 9]}
    return {
        "bloomFilterData": bloom, "bornTime": 100, "deadTime": 0, "expression": "a = 'x'",
        "expressionType": "SQL92",
    } | changes  # fmt: skip


def document(**groups: Mapping[str, Any] | None) -> dict[str, Any]:
    return {"filterDataByTopic": {"t": {"groupFilterData": groups, "topic": "t"}}}


def test_names_and_consumers_of_a_topic() -> None:
    filters = consumers.from_json(
        document(g=entry(), h=entry(expression="b > 1", deadTime=7), gone=None)
    )
    assert filters.names("t") == {"a", "b"}
    assert filters.names("other") == frozenset()
    found = filters.find("t", "h")
    assert found is not None
    assert (found.topic, found.group, found.expression) == ("t", "h", "b > 1")
    assert (found.expression_type, found.born_time, found.dead_time) == ("SQL92", 100, 7)
    assert (found.bit_count, found.positions, found.problem) == (16, (1, 9), "")
    assert filters.find("other", "h") is None
    assert filters.find("t", "gone") is None
    assert pickle.loads(pickle.dumps(filters)).bit_map("t", {"a": "x"}) == b"\x02\x02"


def test_a_filter_that_cannot_be_compiled_sets_no_bit_and_stops_nothing() -> None:
    """As RocketMQ goes on with a file whose expression it cannot parse."""
    for broken in (entry(expression="a = "), entry(expressionType="TAG"), entry(expression=None)):
        filters = consumers.from_json(document(g=broken, h=entry(expression="TRUE")))
        assert filters.bit_map("t", {"a": "x"}) == b"\x02\x02"
        found = filters.find("t", "g")
        assert found is not None
        assert found.problem
        assert found.matches({})
        assert found.may_match(b"\0\0", 1000)


def test_one_filter_of_another_shape_drops_all() -> None:
    """A broker whose Bloom settings were changed ignores the file, and we say so."""
    other = entry(bloomFilterData={"bitNum": 24, "bitPos": [1, 9]})
    for filters in (
        consumers.from_json(document(g=entry(), h=other)),
        consumers.from_json(document(g=entry()), BloomFilter.create_by_fn()),
        consumers.from_json(document(g=entry(bloomFilterData=None))),
    ):
        assert filters.topics == {}
        assert "RocketMQ then drops all" in filters.problem
        assert filters.bit_map("t", {"a": "x"}) is None


@pytest.mark.parametrize("nothing", [None, {}, {"filterDataByTopic": None}, document()])
def test_no_filters(nothing: object) -> None:
    assert consumers.from_json(nothing) == ConsumerFilters()


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ([], "consumer filters: expected an object"),
        ({"filterDataByTopic": {"t": 5}}, "t: expected an object"),
        (document(g=entry(bornTime="x")), "t/g: bornTime must be a whole number"),
        (document(g=entry(expression=5)), "t/g: expression must be a text"),
        (document(g=entry(bloomFilterData={"bitNum": 8, "bitPos": [8]})), "t/g: bitPos"),
        *(
            (document(g=entry(bloomFilterData={"bitNum": 16, "bitPos": [1, wrong]})), "t/g: bitPos")
            for wrong in (-1, 16, True, 2.0, "3", None)
        ),
        (document(g=entry(bloomFilterData={"bitNum": 16, "bitPos": {"1": 9}})), "t/g: bitPos"),
        (document(g=entry(bloomFilterData={"bitNum": 9, "bitPos": [1]})), "t/g: bitNum"),
        (document(g=entry(bloomFilterData={"bitNum": -16, "bitPos": []})), "t/g: bitNum"),
        (document(g=entry(deadTime=1.5)), "t/g: deadTime must be a whole number"),
        (document(g=entry(bornTime=True)), "t/g: bornTime must be a whole number"),
        (document(g=entry(expressionType=0)), "t/g: expressionType must be a text"),
    ],
)
def test_what_no_broker_writes_is_refused_with_its_place(wrong: object, words: str) -> None:
    with pytest.raises(FilterDataError, match=words):
        consumers.from_json(wrong)
