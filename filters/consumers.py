"""The SQL92 consumers of a store, read from ``config/consumerFilter.json``.

A broker records there the expression that each consumer group has on each topic. The expressions
determine the bit map that a message gets when it is dispatched (``CommitLogDispatcherCalcBitMap``)
and both tests that a message passes before a consumer gets it (``ExpressionMessageFilter``): the
cheap test of the bit map and the exact test of the expression. Source: RocketMQ 5.3.3
``ConsumerFilterManager``, ``ConsumerFilterData``; formats.md §10.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from reput.filters.bloom import BloomFilter, has_bits, set_bits

if TYPE_CHECKING:
    from reput.filters import sql92

SQL92 = "SQL92"


class FilterDataError(ValueError):
    """The file holds something that no broker writes; the text names the place."""


@dataclass(frozen=True, slots=True)
class ConsumerFilter:
    """One consumer group's filter on one topic."""

    topic: str
    group: str
    expression: str | None
    expression_type: str | None
    bit_count: int
    positions: tuple[int, ...]
    """The group's bits, each less than ``bit_count``."""
    born_time: int
    """ms; bit maps of messages stored up to this time do not include this consumer."""
    dead_time: int
    """ms, 0 while the consumer is registered; dead consumers get bits too."""
    selector: sql92.Selector | None = None
    problem: str = ""
    """Why there is no selector; without one a filter sets no bit and stops no message."""

    def may_match(self, bit_map: bytes | None, store_time: int) -> bool:
        """Test a message by its ext unit (``isMatchedByConsumeQueue``); only false is certain.

        ``store_time`` is in ms, as in the unit; a message without a unit may always match.
        """
        if self.selector is None or bit_map is None or store_time <= self.born_time:
            return True
        return len(bit_map) * 8 != self.bit_count or has_bits(bit_map, self.positions)

    def matches(self, properties: Mapping[str, str]) -> bool:
        """Test a message by its properties (``isMatchedByCommitLog``)."""
        return self.selector is None or self.selector.matches(properties)


@dataclass(frozen=True, slots=True)
class ConsumerFilters:
    """All filters of a store."""

    topics: Mapping[str, tuple[ConsumerFilter, ...]] = field(default_factory=dict)
    problem: str = ""
    """Why the filters are not used; RocketMQ then uses none of them."""

    def find(self, topic: str, group: str) -> ConsumerFilter | None:
        """The filter of a consumer group on a topic."""
        return next(
            (consumer for consumer in self.topics.get(topic, ()) if consumer.group == group), None
        )

    def names(self, topic: str) -> frozenset[str]:
        """Properties that the topic's filters read; no others need decoding."""
        selectors = (consumer.selector for consumer in self.topics.get(topic, ()))
        return frozenset[str]().union(*(selector.names for selector in selectors if selector))

    def bit_map(self, topic: str, properties: Mapping[str, str]) -> bytes | None:
        """Bit map of a message, ``bit_count / 8`` bytes; None if the topic has no filter."""
        consumers = self.topics.get(topic)
        if not consumers:
            return None
        bit_map = bytearray(consumers[0].bit_count // 8)
        for consumer in consumers:
            if consumer.selector is not None and consumer.selector.matches(properties):
                set_bits(bit_map, consumer.positions)
        return bytes(bit_map)


def from_json(document: object, bloom: BloomFilter | None = None) -> ConsumerFilters:
    """Read the filters of a parsed ``consumerFilter.json`` (``ConsumerFilterManager.decode``).

    ``bloom`` gives the broker's own settings; None takes the shape of the first filter found. If
    any filter has another shape, RocketMQ drops all of them. Raises FilterDataError.
    """
    topics: dict[str, tuple[ConsumerFilter, ...]] = {}
    for topic, data in _mapping(_mapping(document, "", "filterDataByTopic"), "").items():
        consumers = []
        for group, entry in _mapping(_mapping(data, topic, "groupFilterData"), topic).items():
            if entry is None:
                continue
            consumer = _consumer(topic, group, _mapping(entry, topic), f"{topic}/{group}")
            shape = BloomFilter(consumer.bit_count, len(consumer.positions))
            bloom = bloom or shape
            if shape != bloom or not consumer.positions:
                return ConsumerFilters(
                    problem=f"the filter of group {group} on topic {topic} has "
                    f"{shape.hash_count} of {shape.bit_count} bits, the settings or the filter "
                    f"before it {bloom.hash_count} of {bloom.bit_count}; RocketMQ then drops all"
                )
            consumers.append(consumer)
        if consumers:
            topics[topic] = tuple(consumers)
    return ConsumerFilters(topics)


def _consumer(topic: str, group: str, entry: Mapping[str, object], place: str) -> ConsumerFilter:
    bloom = _mapping(entry, place, "bloomFilterData")
    bit_count = _number(bloom, "bitNum", place)
    if bit_count < 0 or bit_count % 8:
        raise FilterDataError(f"{place}: bitNum must be a multiple of 8")
    positions = bloom.get("bitPos") or []
    if not isinstance(positions, list) or not all(
        type(position) is int and 0 <= position < bit_count for position in positions
    ):
        raise FilterDataError(f"{place}: bitPos must be numbers from 0 to {bit_count - 1}")
    expression, kind = _text(entry, "expression", place), _text(entry, "expressionType", place)
    selector, problem = None, ""
    if kind != SQL92 or expression is None:
        problem = f"no {SQL92} expression"
    else:
        from reput.filters import sql92  # noqa: PLC0415

        try:
            selector = sql92.parse(expression)
        except sql92.ExpressionError as error:
            problem = str(error)
    return ConsumerFilter(
        topic, group, expression, kind, bit_count, tuple(positions),
        _number(entry, "bornTime", place), _number(entry, "deadTime", place), selector, problem,
    )  # fmt: skip


def _mapping(value: object, place: str, key: str | None = None) -> Mapping[str, object]:
    """Return an object, or the one under its ``key``; an absent or null one is empty."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise FilterDataError(f"{place or 'consumer filters'}: expected an object")
    return value if key is None else _mapping(value.get(key), f"{place} {key}".strip())


def _number(entry: Mapping[str, object], key: str, place: str) -> int:
    value = entry.get(key, 0)
    if type(value) is not int:
        raise FilterDataError(f"{place}: {key} must be a whole number")
    return value


def _text(entry: Mapping[str, object], key: str, place: str) -> str | None:
    value = entry.get(key)
    if value is not None and not isinstance(value, str):
        raise FilterDataError(f"{place}: {key} must be a text")
    return value
