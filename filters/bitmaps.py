"""Bit maps of many messages: ``ConsumerFilters.bit_map``, its answers remembered.

A bit map depends on nothing but the properties that the topic's expressions read, whose values
repeat. Source: RocketMQ 5.3.3 ``CommitLogDispatcherCalcBitMap``; formats.md §10.
"""

from __future__ import annotations

from collections.abc import Mapping

from filters.consumers import ConsumerFilters

MAX_REMEMBERED = 1 << 16
"""Answers of one topic; then they are forgotten, all at once."""


class BitMapCalculator:
    """Bit maps by the consumer filters of one store; not thread-safe.

    The filters should be read with the broker's own Bloom settings (``consumers.from_json``): where
    they do not agree RocketMQ uses none.
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
        """Properties that the topic's filters read: ``bit_map`` needs no others."""
        return frozenset(self._names.get(topic, ()))

    def bit_map(self, topic: str, properties: Mapping[str, str]) -> bytes | None:
        """A message's bit map; None where the topic has no filter."""
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
