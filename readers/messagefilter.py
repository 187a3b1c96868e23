"""What a consumer wants, asked three times: of the queue, of the log, and of what arrived.

The first two are a broker's: by what stands in the queue it rules messages out without reading
them. The third is the client's, which compares the texts whose hashes the broker compared. Source:
RocketMQ 5.3.3 ``MessageFilter``, ``ExpressionMessageFilter``, ``PullAPIWrapper``; format.md §10.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from filters import sql92, tags
from filters.consumers import ConsumerFilter
from store import properties
from store.consumequeueext import ExtUnit


class MessageFilter(Protocol):
    """One consumer's wish."""

    def is_matched_by_consume_queue(self, tags_code: int | None, ext: ExtUnit | None) -> bool:
        """Whether a message may be wanted, by its unit; false is certain.

        ``tags_code`` is None where the queue holds the address of an ext unit that is gone.
        """
        ...

    def is_matched_by_commit_log(self, values: Mapping[str, str]) -> bool:
        """Whether a broker sends a message with these properties."""
        ...

    def is_delivered(self, values: Mapping[str, str]) -> bool:
        """Whether a client hands a message with these properties to its listener."""
        ...


class TagFilter:
    """Tags joined by ``||``, or ``*``."""

    def __init__(self, expression: str) -> None:
        """Raises ValueError for an expression that RocketMQ refuses (``filters.tags``)."""
        self._filter = tags.parse(expression)

    def is_matched_by_consume_queue(self, tags_code: int | None, ext: ExtUnit | None) -> bool:
        """By hash."""
        return self._filter.matches_code(tags_code)

    def is_matched_by_commit_log(self, values: Mapping[str, str]) -> bool:
        """A broker does not look again."""
        return True

    def is_delivered(self, values: Mapping[str, str]) -> bool:
        """By text."""
        return self._filter.matches_tags(values.get(properties.TAGS.decode()))


class SqlFilter:
    """An SQL92 expression over properties."""

    def __init__(self, expression: str) -> None:
        """Of somebody whom the store does not know: no bit map says anything about it.

        Raises ``filters.sql92.ExpressionError``, a ValueError.
        """
        self._selector = sql92.parse(expression)

    def is_matched_by_consume_queue(self, tags_code: int | None, ext: ExtUnit | None) -> bool:
        """Any message may be."""
        return True

    def is_matched_by_commit_log(self, values: Mapping[str, str]) -> bool:
        """By the expression."""
        return self._selector.matches(values)

    def is_delivered(self, values: Mapping[str, str]) -> bool:
        """A client does not look again."""
        return True


class ConsumerGroupFilter:
    """The SQL92 expression that a consumer group registered with the store's broker."""

    def __init__(self, consumer: ConsumerFilter) -> None:
        self._consumer = consumer

    def is_matched_by_consume_queue(self, tags_code: int | None, ext: ExtUnit | None) -> bool:
        """By the bit map in the unit's ext."""
        return ext is None or self._consumer.may_match(ext.bit_map, ext.msg_store_time)

    def is_matched_by_commit_log(self, values: Mapping[str, str]) -> bool:
        """By the expression."""
        return self._consumer.matches(values)

    def is_delivered(self, values: Mapping[str, str]) -> bool:
        """A client does not look again."""
        return True
