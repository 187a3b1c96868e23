"""Followers that write to Kafka: a mirror of the messages, and notices of their arrival.

Delivery: exactly once, by ``sinks.kafka.transactions``. Unit of work: a range of the log, one after
the other, in one thread. Damaged ranges, which the ledger lists, are not sent.
"""

from __future__ import annotations

import itertools
import json
import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from reput.sinks.innerbatches import unwrapped
from reput.sinks.kafka.records import Headers, KafkaRecords
from reput.sinks.kafka.topics import OWN_PREFIX, TopicNames, TopicSelection, check_topic
from reput.sinks.kafka.transactions import KafkaSettings, KafkaTransactions
from reput.store.config import StoreSettings
from reput.store.log import java, properties
from reput.store.log.lightqueues import listed_queues
from reput.store.rows.rowform import RowForm

DEFAULT_ARRIVALS_TOPIC = f"{OWN_PREFIX}arrivals"
MAX_PARTITIONS = 1024
"""Limit per topic, so that a damaged queue id does not create a billion partitions."""
HEADER_PREFIX = "rocketmq."
PROPERTY_PREFIX = f"{HEADER_PREFIX}property."
"""Put before a property whose own name begins with HEADER_PREFIX."""
_DELIVERED = pa.array(["none", "commit"])
_UNIQ_KEY = properties.UNIQ_KEY.decode()
_LIGHT_LISTS = tuple(
    name.decode() for name in (properties.INNER_MULTI_DISPATCH, properties.INNER_MULTI_QUEUE_OFFSET)
)
_HEADER_COLUMNS = (
    "topic", "queueId", "queueOffset", "physicalOffset", "tags", "tagsCode", "sysFlag", "flag",
    "reconsumeTimes", "bornHost", "bornTimestamp", "storeTimestamp", "bodyCompression",
)  # fmt: skip
_TIMES = ("bornTimestamp", "storeTimestamp")
SLICE_BYTES = 2 << 20
SLICE_ROWS = 1 << 13
"""About as many bytes of values, and messages, are sent at a time: enough that a message costs
little, and few enough that transactions end when they should."""

logger = logging.getLogger("reput")


@dataclass(frozen=True, slots=True)
class KafkaMirrorTarget:
    """Copies every message to the Kafka topic and partition of its topic and queue, in order."""

    settings: KafkaSettings
    chosen: TopicSelection = field(default_factory=TopicSelection)
    names: TopicNames = field(default_factory=TopicNames)
    name: str = "kafka"
    interval_seconds: float = 0.25
    local_path: None = None
    position_is_apart: bool = True

    @property
    def description(self) -> str:
        """Address and topic names for log lines and messages."""
        return f"{self.settings.bootstrap} {self.names.template}"

    def open(self, store_id: str, settings: StoreSettings) -> KafkaMirror:  # noqa: ARG002
        """Create the follower, not connected yet."""
        transactions = KafkaTransactions(self.settings, store_id, self.name)
        return KafkaMirror(transactions, self.chosen, self.names)


@dataclass(frozen=True, slots=True)
class KafkaArrivalsTarget:
    """Publishes a small record per message and queue that it goes into, light queues included, like
    the calls of RocketMQ's message-arriving listener."""

    settings: KafkaSettings
    chosen: TopicSelection = field(default_factory=TopicSelection)
    topic: str = DEFAULT_ARRIVALS_TOPIC
    name: str = "kafka-arrivals"
    interval_seconds: float = 0.1
    local_path: None = None
    position_is_apart: bool = True

    def __post_init__(self) -> None:
        check_topic(self.topic)

    @property
    def description(self) -> str:
        """Address and topic for log lines and messages."""
        return f"{self.settings.bootstrap} {self.topic}"

    def open(self, store_id: str, settings: StoreSettings) -> KafkaArrivals:
        """Create the follower, not connected yet."""
        transactions = KafkaTransactions(self.settings, store_id, self.name)
        enable_lmq = settings.enable_lmq if settings.enable_multi_dispatch else None
        return KafkaArrivals(transactions, self.chosen, self.topic, enable_lmq)


class KafkaFollower(ABC):
    """A LogFollower; a large write takes several transactions, and each moves the position."""

    def __init__(self, transactions: KafkaTransactions, chosen: TopicSelection) -> None:
        self._transactions = transactions
        self._chosen = chosen

    def position(self) -> int | None:
        """End of the log range committed in Kafka.

        This fences any older writer under the same name. Raises OwnershipError if another writer
        has fenced this one.
        """
        return self._transactions.recover()

    def row_form(self) -> RowForm:
        """The form that is configured; Kafka keeps what it has."""
        return self._chosen.form

    def write(self, start: int, end: int, rows: Iterator[pa.RecordBatch]) -> None:  # noqa: ARG002
        """Send [start, end).

        Raises StoreError for a message that Kafka refuses, kafka-python's errors otherwise.
        """
        sent_offset = -1
        to = self._transactions
        try:
            for batch in rows:
                messages = self._messages(batch)
                partitions = self._partitions(messages)
                if to.lacks(partitions):
                    if to.in_transaction:
                        to.commit(batch["physicalOffset"][0].as_py())
                    to.add_partitions(partitions)
                for records in self._records(messages):
                    first, last = (int(records.physical_offsets[row]) for row in (0, -1))
                    # a position lies neither between messages of an inner batch nor between
                    # notices of one message
                    if to.commit_is_due and first != sent_offset:
                        to.commit(first)
                    to.send(records)
                    sent_offset = last
            to.commit(end)
        except BaseException as error:
            explained = to.explained(error)
            to.close()
            if explained is error:
                raise
            raise explained from error

    def truncate(self, end: int) -> None:
        """Move the position back to ``end`` if it is beyond it; messages after it stay in Kafka,
        which cannot remove them."""
        position = self._transactions.recover()
        if position is not None and position > end:
            logger.warning(
                "the log was cut at %d, but Kafka keeps the messages up to %d (%s)",
                end, position, self._transactions.position_topic,
            )  # fmt: skip
            self._transactions.commit(end)

    def counts(self) -> Mapping[str, int]:
        """Number of messages sent and committed."""
        return {"messages": self._transactions.messages}

    def close(self) -> None:
        """Close the connection."""
        self._transactions.close()

    def _messages(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows of a batch that may be sent."""
        return _filtered(batch, pc.is_null(batch["corruptReason"]))

    @abstractmethod
    def _partitions(self, messages: pa.RecordBatch) -> Mapping[str, int]:
        """Number of partitions that each Kafka topic of these messages needs."""

    @abstractmethod
    def _records(self, messages: pa.RecordBatch) -> Iterator[KafkaRecords]:
        """Yield the records for messages, a slice at a time."""


class KafkaMirror(KafkaFollower):
    """The follower of a KafkaMirrorTarget.

    The value is the body of the row; the key is KEYS, or else UNIQ_KEY. The timestamp is the store
    time, which increases along a queue as Kafka's search by time expects; the born time comes from
    each producer's clock. Headers are the properties, then the message's other fields under
    HEADER_PREFIX. An inner batch is sent as its messages, each with its own queue offset.
    """

    def __init__(
        self, transactions: KafkaTransactions, chosen: TopicSelection, names: TopicNames
    ) -> None:
        super().__init__(transactions, chosen)
        self._names = names
        self._kafka_topics: dict[str, str] = {}

    def _messages(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        messages = super()._messages(batch)
        names = pc.unique(messages["topic"]).to_pylist()
        chosen = pa.array([topic for topic in names if topic in self._chosen], pa.string())
        return _filtered(messages, pc.is_in(messages["topic"], chosen))

    def _topic(self, topic: str) -> str:
        if topic not in self._kafka_topics:
            self._kafka_topics[topic] = self._names.of(topic)
        return self._kafka_topics[topic]

    def _places(self, messages: pa.RecordBatch) -> tuple[list[tuple[str, int]], np.ndarray]:
        """Topics and partitions, and the number of each message's place among them."""
        topics = messages["topic"].dictionary_encode()
        queues = messages["queueId"].to_numpy() % MAX_PARTITIONS
        pairs = pa.array(topics.indices.to_numpy() * MAX_PARTITIONS + queues).dictionary_encode()
        names = [self._topic(topic) for topic in topics.dictionary.to_pylist()]
        places = (divmod(pair, MAX_PARTITIONS) for pair in pairs.dictionary.to_pylist())
        return [(names[topic], queue) for topic, queue in places], pairs.indices.to_numpy()

    def _partitions(self, messages: pa.RecordBatch) -> Mapping[str, int]:
        counts: dict[str, int] = {}
        for name, partition in self._places(messages)[0]:
            counts[name] = max(counts.get(name, 0), partition + 1)
        return counts

    def _records(self, messages: pa.RecordBatch) -> Iterator[KafkaRecords]:
        for rows in unwrapped(messages):
            for part in _slices(rows):
                stored_ms = pc.fill_null(_milliseconds(part, "storeTimestamp"), 0).to_numpy()
                yield KafkaRecords.of(
                    *self._places(part),
                    _keys(part),
                    part["body"],
                    np.maximum(stored_ms, 0),
                    part["physicalOffset"].to_numpy(),
                    _headers(part),
                )


class KafkaArrivals(KafkaFollower):
    """The follower of a KafkaArrivalsTarget.

    The key is topic and queue id; the value is JSON with topic, queueId, maxOffset (exclusive),
    tagsCode and storeTimestamp (ms). All records of a queue are in one partition, in order.
    ``enable_lmq`` is the broker's enableLmq, or None if it builds no light queues
    (enableMultiDispatch).
    """

    def __init__(
        self,
        transactions: KafkaTransactions,
        chosen: TopicSelection,
        topic: str,
        enable_lmq: bool | None,
    ) -> None:
        super().__init__(transactions, chosen)
        self._topic = topic
        self._enable_lmq = enable_lmq

    def _messages(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        # PREPARED and ROLLBACK records go into no queue
        messages = super()._messages(batch)
        return _filtered(messages, pc.is_in(messages["transactionType"], _DELIVERED))

    def _partitions(self, messages: pa.RecordBatch) -> Mapping[str, int]:
        return {self._topic: 1} if messages.num_rows else {}

    def _records(self, messages: pa.RecordBatch) -> Iterator[KafkaRecords]:
        notices = self._notices(messages)
        while part := list(itertools.islice(notices, SLICE_ROWS)):
            keys, values, times, offsets = zip(*part, strict=True)
            different = pa.array(keys, pa.binary()).dictionary_encode()
            partitions = [
                self._transactions.partition_for(self._topic, key)
                for key in different.dictionary.to_pylist()
            ]
            places = {partition: code for code, partition in enumerate(dict.fromkeys(partitions))}
            codes = np.array([places[partition] for partition in partitions])
            yield KafkaRecords.of(
                [(self._topic, partition) for partition in places],
                codes[different.indices],
                pa.array(keys, pa.binary()),
                pa.array(values, pa.binary()),
                np.array(times, np.int64),
                np.array(offsets, np.int64),
            )

    def _notices(self, messages: pa.RecordBatch) -> Iterator[tuple[bytes, bytes, int, int]]:
        """Key, value, time and physical offset of each record."""
        columns = (messages[name].to_pylist() for name in ("tagsCode", "physicalOffset"))
        stored = _milliseconds(messages, "storeTimestamp").to_pylist()
        for queues, code, position, stored_ms in zip(
            self._queues(messages), *columns, stored, strict=True
        ):
            for topic, queue_id, offset in queues:
                if topic not in self._chosen:
                    continue
                notice = {
                    "topic": topic, "queueId": queue_id, "maxOffset": offset + 1, "tagsCode": code,
                    "storeTimestamp": stored_ms,
                }  # fmt: skip
                value = json.dumps(notice, ensure_ascii=False, separators=(",", ":"))
                key = f"{topic}-{queue_id}"
                yield key.encode(), value.encode(), max(stored_ms or 0, 0), position

    def _queues(self, messages: pa.RecordBatch) -> Iterator[list[tuple[str, int, int]]]:
        """(topic, queue id, queue offset) of each message in its own queue, then in its light
        queues (``DefaultMessageStore.notifyMessageArrive4MultiQueue``)."""
        own = zip(
            *(messages[name].to_pylist() for name in ("topic", "queueId", "queueOffset")),
            strict=True,
        )
        if self._enable_lmq is None:
            yield from ([queue] for queue in own)
            return
        lists = (
            pc.fill_null(pc.map_lookup(messages["properties"], pa.scalar(name), "first"), "")
            for name in _LIGHT_LISTS
        )
        listed = zip(*(column.to_pylist() for column in lists), strict=True)
        for (topic, queue_id, offset), (names, offsets) in zip(own, listed, strict=True):
            light = listed_queues(
                topic.encode(), queue_id, names.encode(), offsets.encode(), self._enable_lmq
            )
            yield [
                (topic, queue_id, offset),
                *((java.decode(name), number, at) for name, number, at in light or ()),
            ]


def _filtered(batch: pa.RecordBatch, chosen: pa.Array) -> pa.RecordBatch:
    """The chosen rows, copied only where there are others."""
    return batch if pc.all(chosen, min_count=0).as_py() else batch.filter(chosen)


def _slices(messages: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield slices of the rows that end with the value that fills them."""
    ends = np.cumsum(pc.binary_length(messages["body"]).to_numpy(), dtype=np.int64)
    start = 0
    while start < messages.num_rows:
        before = ends[start - 1] if start else 0
        full = int(np.searchsorted(ends, before + SLICE_BYTES)) + 1
        end = min(full, start + SLICE_ROWS, messages.num_rows)
        yield messages.slice(start, end - start)
        start = end


def _headers(messages: pa.RecordBatch) -> Headers:
    fields = {
        HEADER_PREFIX + name: _milliseconds(messages, name) if name in _TIMES else messages[name]
        for name in _HEADER_COLUMNS
    }
    return Headers.of(messages["properties"], fields, HEADER_PREFIX, PROPERTY_PREFIX)


def _keys(messages: pa.RecordBatch) -> pa.Array:
    """KEYS of each message, or else UNIQ_KEY; null without both."""
    keys = messages["keys"]
    given = pc.if_else(pc.equal(keys, ""), None, keys)
    if not given.null_count:
        return given
    unique = pc.map_lookup(messages["properties"], pa.scalar(_UNIQ_KEY), "first")
    return pc.coalesce(given, unique)


def _milliseconds(batch: pa.RecordBatch, name: str) -> pa.Array:
    return pc.divide(batch[name].cast(pa.int64()), 1000)
