"""The lag of consumer groups: what a store still holds beyond their committed offsets.

Offsets are read from RocketMQ's own file, so no broker is asked. Each lag is exact: messages from
the queue's bounds, bytes from its units, and times from the record of the first unconsumed message.
What cannot be known is None, and a sum with it is None as well, because a zero lag looks healthy.

The lag is unknown in a queue with messages in which the group has committed nothing, since where it
begins is decided only then. It is also unknown if the group has committed beyond the queue's end,
as after it consumed from a broker whose messages are not in this queue. Filters are not applied:
messages that a group's tags or expression leave out count until it commits beyond them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from reput.readers.messagestore import MessageStore
from reput.store.errors import NotFoundError
from reput.store.files import CONSUMER_OFFSET_FILE
from reput.store.state.consumeroffset import Offsets, TopicGroup, read_committed, topics_of

UNITS_PER_READ = 1 << 16


@dataclass(frozen=True, slots=True)
class CommittedOffsets:
    """The committed offsets of a store, and the file that they were read from."""

    path: Path
    table: Offsets

    @classmethod
    def read(cls, store: Path, output: Path | None = None) -> Self:
        """Read the offsets below ``output`` if there are any, since consumers have then been served
        from it, otherwise the store's.

        Raises NotFoundError if there are none, StoreError if they are damaged.
        """
        roots = [root for root in (output, store) if root is not None]
        places = [root / CONSUMER_OFFSET_FILE for root in roots]
        for root, path in zip(roots, places, strict=True):
            table = read_committed(root)
            if table is not None:
                return cls(path, table)
        missing = " and no ".join(map(str, places))
        raise NotFoundError(
            f"there is no {missing}, so the offsets of consumer groups are not known; copy the "
            "file from the broker's store",
            path=places[0],
        )

    def groups(self) -> list[str]:
        """Names of the groups, sorted."""
        return sorted({key.group for key in self.table})

    def topics(self, group: str) -> list[str]:
        """Topics in which a group has committed, sorted."""
        return topics_of(self.table, group)


@dataclass(frozen=True, slots=True)
class Lag:
    """Messages that a group has not consumed, in one queue or in several."""

    messages: int | None
    """Queue offsets from the committed one, or from the queue's min offset, to the max offset."""
    bytes: int | None
    """Size of these messages' records in the log."""
    first_store_timestamp: int | None
    """When the oldest of them was stored, in ms; None also where there is none."""
    seconds: float | None
    """Age of the oldest of them."""


@dataclass(frozen=True, slots=True)
class QueueLag:
    """A group's committed offset and lag in one queue."""

    group: str
    topic: str
    queue_id: int
    min_offset: int
    max_offset: int
    """Exclusive."""
    committed: int | None
    """None if the group has committed nothing in this queue."""
    lag: Lag


NO_LAG = Lag(0, 0, None, 0.0)
UNKNOWN_LAG = Lag(None, None, None, None)


def queue_lags(
    store: MessageStore,
    committed: CommittedOffsets,
    now_ms: int,
    *,
    groups: Collection[str] | None = None,
    topics: Collection[str] | None = None,
) -> Iterator[QueueLag]:
    """Yield the lag of each queue of each topic in which a group has committed, sorted.

    ``groups`` and ``topics`` limit the answer. Raises NotFoundError for a group without offsets,
    UsageError for an unknown topic, StoreError if queues cannot be read.
    """
    for group in groups or ():
        if group not in committed.groups():
            raise NotFoundError(
                f"consumer group {group} has no offsets in {committed.path}; reput groups list "
                "shows those that have",
                path=committed.path,
            )
    for topic in topics or ():
        if not any(key.topic == topic for key in committed.table):
            store.check_topic(topic)
    for key in sorted(committed.table, key=lambda key: (key.group, key.topic)):
        if groups is not None and key.group not in groups:
            continue
        if topics is not None and key.topic not in topics:
            continue
        offsets = committed.table[key]
        for queue_id in sorted({*store.queue_ids(key.topic), *offsets}):
            yield _queue_lag(store, key, queue_id, offsets.get(queue_id), now_ms)


def total(lags: Iterable[Lag]) -> Lag:
    """Return the sum of lags; a figure that is unknown in one of them is unknown."""
    all_lags = list(lags)
    messages = [lag.messages for lag in all_lags if lag.messages is not None]
    sizes = [lag.bytes for lag in all_lags if lag.bytes is not None]
    ages = [lag.seconds for lag in all_lags if lag.seconds is not None]
    first = [lag.first_store_timestamp for lag in all_lags if lag.first_store_timestamp is not None]
    count = len(all_lags)
    return Lag(
        sum(messages) if len(messages) == count else None,
        sum(sizes) if len(sizes) == count else None,
        min(first, default=None) if len(ages) == count else None,
        max(ages, default=0.0) if len(ages) == count else None,
    )


def _queue_lag(
    store: MessageStore, key: TopicGroup, queue_id: int, committed: int | None, now_ms: int
) -> QueueLag:
    low, high = store.queue(key.topic, queue_id).bounds()
    if low == high and committed is None:
        lag = NO_LAG
    elif committed is None or committed > high:
        lag = UNKNOWN_LAG
    else:
        lag = _lag(store, key.topic, queue_id, max(committed, low), high, now_ms)
    return QueueLag(key.group, key.topic, queue_id, low, high, committed, lag)


def _lag(store: MessageStore, topic: str, queue_id: int, start: int, end: int, now_ms: int) -> Lag:
    """Return the lag of a group that consumes [start, end) of a queue next."""
    if start == end:
        return NO_LAG
    size, first, at = 0, None, start
    while at < end:
        part = store.queue(topic, queue_id).unit_columns(at, min(UNITS_PER_READ, end - at))
        if part is None:
            # a file of the queue is missing
            return Lag(end - start, None, None, None)
        units, at = part
        if first is None and len(units):
            first = int(units.physical_offsets[0])
        size += int(units.sizes.sum(dtype="int64"))
    # the whole record is checked, because a damaged one may state any time
    oldest = None if first is None else store.log.message_at(first)
    if oldest is None:
        return Lag(end - start, size, None, None)
    stored = oldest.record.store_timestamp
    return Lag(end - start, size, stored, max(0, now_ms - stored) / 1000)
