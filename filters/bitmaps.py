"""Bit maps of many messages: ``ConsumerFilters.bit_map`` with a cache.

A bit map depends only on the properties that the topic's expressions read, and their values
repeat. Source: RocketMQ 5.3.3 ``CommitLogDispatcherCalcBitMap``; formats.md §10.
"""

from __future__ import annotations

from collections.abc import Mapping

from reput.filters.consumers import ConsumerFilters

MAX_REMEMBERED = 1 << 16
"""The cache of a topic is cleared when it holds this many bit maps."""


class BitMapCalculator:
    """Computes bit maps from the consumer filters of one store; it is not thread-safe.

    The filters should be read with the broker's own Bloom settings (``consumers.from_json``):
    where the two disagree, RocketMQ uses no filter.
    """

    def __init__(self, consumer_filters: ConsumerFilters) -> None:
        self._filters = consumer_filters
        self._names = {
            topic: tuple(sorted(consumer_filters.names(topic))) for topic in consumer_filters.topics
        }
        self._answers: dict[str, dict[tuple[str | None, ...], bytes | None]] = {
            topic: {} for topic in consumer_filters.topics
        }

    def names(self, topic: str) -> frozenset[str]:
        """Properties that the topic's filters read; ``bit_map`` needs no others."""
        return frozenset(self._names.get(topic, ()))

    def bit_map(self, topic: str, properties: Mapping[str, str]) -> bytes | None:
        """Bit map of a message; None if the topic has no filter."""
        names = self._names.get(topic)
        if names is None:
            return None
        answers = self._answers[topic]
        values = tuple([properties.get(name) for name in names])
        if values not in answers:
            if len(answers) >= MAX_REMEMBERED:
                answers.clear()
            answers[values] = self._filters.bit_map(topic, properties)
        return answers[values]
