"""A consumer's filter, applied three times: to the queue, to the log, and to what arrived.

A broker applies the first two; the queue's units let it rule messages out without reading them. The
client applies the third and compares the texts whose hashes the broker compared. Source:
RocketMQ 5.3.3 ``ExpressionMessageFilter``, ``PullAPIWrapper.processPullResult``; formats.md §10.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from reput.filters import consumers, tags
from reput.filters.consumers import ConsumerFilter
from reput.store import configjson
from reput.store.errors import StoreError
from reput.store.files import CONSUMER_FILTER_FILE
from reput.store.log import properties
from reput.store.queue.consumequeueext import ExtUnit

if TYPE_CHECKING:
    from reput.filters import sql92


@dataclass(frozen=True, slots=True)
class MessageFilter:
    """One consumer's filter: tags, or an expression over properties."""

    tags: tags.TagFilter | None = None
    selector: sql92.Selector | None = None
    consumer: ConsumerFilter | None = None
    """The consumer that registered the expression; bit maps in the queue may cover it."""

    @classmethod
    def by_tags(cls, expression: str) -> MessageFilter:
        """Filter by tags joined by ``||``, or ``*``. Raises ValueError if RocketMQ refuses them."""
        return cls(tags=tags.parse(expression))

    @classmethod
    def by_sql(cls, expression: str) -> MessageFilter:
        """Filter by an SQL92 expression. Raises ``sql92.ExpressionError``, a ValueError."""
        from reput.filters import sql92  # noqa: PLC0415

        return cls(selector=sql92.parse(expression))

    @classmethod
    def of_consumer(cls, consumer: ConsumerFilter) -> MessageFilter:
        """Filter by a registered SQL92 expression; one that RocketMQ cannot use matches all."""
        return cls(selector=consumer.selector, consumer=consumer)

    @classmethod
    def registered(cls, root: Path, topic: str, group: str) -> MessageFilter | None:
        """The SQL92 filter that a group has registered with the broker of the store at ``root``;
        None without one. Raises StoreError where the broker's file cannot be used."""
        path = root / CONSUMER_FILTER_FILE
        try:
            registry = consumers.from_json(configjson.read(path))
        except consumers.FilterDataError as error:
            raise StoreError(f"cannot use {path}: {error}", path=path) from error
        if registry.problem:
            raise StoreError(f"cannot use {path}: {registry.problem}", path=path)
        consumer = registry.find(topic, group)
        return cls.of_consumer(consumer) if consumer else None

    @property
    def names(self) -> frozenset[str]:
        """Properties that the last two tests read."""
        names = self.selector.names if self.selector else frozenset()
        return names | {properties.TAGS.decode()} if self.tags and self.tags.tags else names

    def is_matched_by_consume_queue(self, tags_code: int | None, ext: ExtUnit | None) -> bool:
        """Whether a message may match, judged by its unit; only false is certain.

        ``tags_code`` is None if the unit holds the address of an ext unit that is gone.
        """
        if self.tags is not None and not self.tags.matches_code(tags_code):
            return False
        if self.consumer is None or ext is None:
            return True
        return self.consumer.may_match(ext.bit_map, ext.msg_store_time)

    def is_matched_by_commit_log(self, values: Mapping[str, str]) -> bool:
        """Whether a broker sends a message with these properties."""
        return self.selector is None or self.selector.matches(values)

    def is_delivered(self, values: Mapping[str, str]) -> bool:
        """Whether a client hands a message with these properties to its listener."""
        return self.tags is None or self.tags.matches_tags(values.get(properties.TAGS.decode()))
