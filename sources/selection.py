"""The part of the queues that a query needs, by its options and by filters that Spark pushed down.

It is a hint that saves reading: a selection never takes fewer messages than the filters, and Spark
evaluates each filter again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from reput.filters.java import hash_code
from reput.filters.tags import TagFilter
from reput.store.queue.consumequeue import QueueKey
from reput.store.rows.rowform import AS_STORED, RowForm

MAX_QUEUE_OFFSET = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class QueueSelection:
    """Conditions that all must hold for a message; None accepts all."""

    topics: frozenset[str] | None = None
    topic_pattern: str | None = None
    queue_ids: frozenset[int] | None = None
    first_offset: int = 0
    end_offset: int = MAX_QUEUE_OFFSET
    """The end of the queue offsets, exclusive."""
    tag_filters: tuple[TagFilter, ...] = ()
    form: RowForm = AS_STORED
    """Whether queues of RocketMQ's own topics are wanted."""

    def takes(self, key: QueueKey) -> bool:
        """Return whether messages of a queue may be wanted."""
        pattern = self.topic_pattern
        return (
            self.form.takes_topic(key.topic)
            and (self.topics is None or key.topic in self.topics)
            and (self.queue_ids is None or key.queue_id in self.queue_ids)
            and (pattern is None or re.fullmatch(pattern, key.topic) is not None)
        )

    def matches_codes(self, tags_codes: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return bool[n]: which tagsCodes of units (int64[n]) may belong to wanted tags."""
        matches = np.ones(len(tags_codes), np.bool_)
        low_bits = tags_codes.astype(np.int32)
        for tag_filter in self.tag_filters:
            if not tag_filter.takes_all:
                matches &= np.isin(low_bits, np.array(sorted(tag_filter.codes), np.int32))
        return matches

    def narrowed(self, filters: Iterable[Filter]) -> QueueSelection:
        """Return this selection narrowed by those of Spark's filters that it understands; the rest
        is left to Spark."""
        selection = self
        for each in filters:
            if isinstance(each, EqualTo | In):
                values = each.value if isinstance(each, In) else (each.value,)
                value_set = frozenset(value for value in values if value is not None)
                selection = selection._with_values(each.attribute, value_set)
            elif isinstance(each, GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual):
                selection = selection._with_bound(each)
        return selection

    def _with_values(self, column: tuple[str, ...], values: frozenset[Any]) -> QueueSelection:
        match column:
            case ("topic",):
                return replace(self, topics=_both(self.topics, values))
            case ("queueId",):
                return replace(self, queue_ids=_both(self.queue_ids, values))
            case ("queueOffset",) if values:
                return self._within(min(values), max(values) + 1)
            case ("tags",):
                tag_filter = TagFilter(False, values, frozenset(map(hash_code, values)))
                return replace(self, tag_filters=(*self.tag_filters, tag_filter))
        return self

    def _with_bound(
        self, bound: GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual
    ) -> QueueSelection:
        if bound.attribute != ("queueOffset",):
            return self
        match bound:
            case GreaterThan():
                return self._within(bound.value + 1, MAX_QUEUE_OFFSET)
            case GreaterThanOrEqual():
                return self._within(bound.value, MAX_QUEUE_OFFSET)
            case LessThan():
                return self._within(0, bound.value)
        return self._within(0, bound.value + 1)

    def _within(self, first: int, end: int) -> QueueSelection:
        return replace(
            self,
            first_offset=max(self.first_offset, first),
            end_offset=min(self.end_offset, end),
        )


def _both(former: frozenset[Any] | None, other: frozenset[Any]) -> frozenset[Any]:
    return other if former is None else former & other
