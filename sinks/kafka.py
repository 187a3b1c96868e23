"""Followers that write to Kafka: a mirror of the messages, and notices of their arrival.

Delivery: exactly once, by ``sinks.kafkatransactions``. Unit of work: a range of the log, one after
the other, in one thread. Only messages that consumers of RocketMQ get are sent. Left out are
PREPARED and ROLLBACK records, damaged ranges, which the ledger lists, and RocketMQ's own topics
unless they are selected.
"""

from __future__ import annotations

import json
import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from sinks.innerbatches import unwrapped
from sinks.kafkarecords import (
    KafkaRecord,
    count_values,
    header,
    header_column,
    join_columns,
    join_lists,
    with_lengths,
)
from sinks.kafkatopics import OWN_PREFIX, TopicNames, TopicSelection, check_topic
from sinks.kafkatransactions import KafkaSettings, KafkaTransactions
from store.config import StoreSettings
from store.log import java, properties
from store.log.compression import MAX_INFLATED_BYTES, inflate
from store.log.lightqueues import listed_queues

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
    "reconsumeTimes", "bornHost",
)  # fmt: skip
_COMPRESSION_HEADER = f"{HEADER_PREFIX}bodyCompression"
_SENT_COLUMNS = ("topic", "queueId", "physicalOffset", "body", "bodyCompression")

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

    def write(self, start: int, end: int, rows: Iterator[pa.RecordBatch]) -> None:  # noqa: ARG002
        """Send [start, end).

        Raises StoreError for a message that Kafka refuses, kafka-python's errors otherwise.
        """
        sending: KafkaRecord | None = None
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
                for sending in self._records(messages):
                    # a position cannot lie between the messages of an inner batch
                    if to.commit_is_due and sending.physical_offset != sent_offset:
                        to.commit(sending.physical_offset)
                    to.send(sending)
                    sent_offset = sending.physical_offset
                sending = None
            to.commit(end)
        except BaseException as error:
            explained = to.explained(error, sending)
            to.close()
            if explained is error:
                raise
            raise explained from error

    def truncate(self, end: int) -> None:
        """Move the position back to ``end`` if it is past it; messages after it stay in Kafka,
        which cannot remove them."""
        held = self._transactions.recover()
        if held is not None and held > end:
            logger.warning(
                "the log was cut at %d, but Kafka keeps the messages up to %d (%s)",
                end, held, self._transactions.position_topic,
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
        delivered = pc.is_in(batch["transactionType"], _DELIVERED)
        return batch.filter(pc.and_(delivered, pc.is_null(batch["corruptReason"])))

    @abstractmethod
    def _partitions(self, messages: pa.RecordBatch) -> Mapping[str, int]:
        """Number of partitions that each Kafka topic of these messages needs."""

    @abstractmethod
    def _records(self, messages: pa.RecordBatch) -> Iterator[KafkaRecord]:
        """Yield the records for messages, one at a time, because an inflated body may be large."""


class KafkaMirror(KafkaFollower):
    """The follower of a KafkaMirrorTarget.

    The value is the inflated body; the key is KEYS, or else UNIQ_KEY. The timestamp is the store
    time, which increases along a queue as Kafka's search by time expects; the born time comes from
    each producer's clock. Headers are the properties, then the message's other fields under
    HEADER_PREFIX. An inner batch is sent as its messages, each with its own queue offset.
    """

    def __init__(
        self, transactions: KafkaTransactions, chosen: TopicSelection, names: TopicNames
    ) -> None:
        super().__init__(transactions, chosen)
        self._names = names
        self._known: dict[str, str] = {}

    def _messages(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        messages = super()._messages(batch)
        found = pc.unique(messages["topic"]).to_pylist()
        chosen = pa.array([topic for topic in found if topic in self._chosen], pa.string())
        return messages.filter(pc.is_in(messages["topic"], chosen))

    def _topic(self, topic: str) -> str:
        if topic not in self._known:
            self._known[topic] = self._names.of(topic)
        return self._known[topic]

    def _partitions(self, messages: pa.RecordBatch) -> Mapping[str, int]:
        counts: dict[str, int] = {}
        queues = zip(messages["topic"].to_pylist(), messages["queueId"].to_pylist(), strict=True)
        for topic, queue_id in set(queues):
            name = self._topic(topic)
            counts[name] = max(counts.get(name, 0), queue_id % MAX_PARTITIONS + 1)
        return counts

    def _records(self, messages: pa.RecordBatch) -> Iterator[KafkaRecord]:
        for rows in unwrapped(messages):
            yield from self._records_of(rows)

    def _records_of(self, messages: pa.RecordBatch) -> Iterator[KafkaRecord]:
        headers, header_counts = _headers(messages)
        columns = (messages[name].to_pylist() for name in _SENT_COLUMNS)
        times = _milliseconds(messages, "storeTimestamp").to_pylist()
        for topic, queue_id, offset, stored_body, codec, stored_ms, key, encoded, count in zip(
            *columns, times, _keys(messages), headers, header_counts, strict=True
        ):
            body, compression = _plain(stored_body, codec)
            kept = b"" if compression is None else header(_COMPRESSION_HEADER, compression)
            yield KafkaRecord(
                topic=self._topic(topic),
                partition=queue_id % MAX_PARTITIONS,
                key=key,
                value=body,
                headers=encoded + kept,
                header_count=count + bool(kept),
                timestamp_ms=max(stored_ms or 0, 0),
                physical_offset=offset,
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

    def _partitions(self, messages: pa.RecordBatch) -> Mapping[str, int]:
        return {self._topic: 1} if messages.num_rows else {}

    def _records(self, messages: pa.RecordBatch) -> Iterator[KafkaRecord]:
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
                yield KafkaRecord(
                    topic=self._topic,
                    partition=None,
                    key=f"{topic}-{queue_id}".encode(),
                    value=json.dumps(notice, ensure_ascii=False, separators=(",", ":")).encode(),
                    headers=b"",
                    header_count=0,
                    timestamp_ms=max(stored_ms or 0, 0),
                    physical_offset=position,
                )

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


def _headers(messages: pa.RecordBatch) -> tuple[list[bytes], list[int]]:
    """(encoded headers of each message, number of them), properties first."""
    own = [header_column(HEADER_PREFIX + name, messages[name]) for name in _HEADER_COLUMNS]
    for name in ("bornTimestamp", "storeTimestamp"):
        own.append(header_column(HEADER_PREFIX + name, _milliseconds(messages, name)))
    found = messages["properties"]
    names = found.keys
    prefixed = pc.binary_join_element_wise(PROPERTY_PREFIX, names, "")
    names = pc.if_else(pc.starts_with(names, HEADER_PREFIX), prefixed, names)
    pairs = join_columns([with_lengths(names), with_lengths(found.items)])
    property_counts = pc.subtract(found.offsets[1:], found.offsets[:-1])
    encoded = join_columns([join_lists(found.offsets, pairs), *own])
    counts = pc.add(property_counts, count_values(own))
    return encoded.to_pylist(), counts.to_pylist()


def _keys(messages: pa.RecordBatch) -> list[bytes | None]:
    keys = messages["keys"]
    given = pc.if_else(pc.equal(keys, ""), None, keys)
    unique = pc.map_lookup(messages["properties"], pa.scalar(_UNIQ_KEY), "first")
    found: list[bytes | None] = pc.coalesce(given, unique).cast(pa.binary()).to_pylist()
    return found


def _plain(body: bytes, compression: str | None) -> tuple[bytes, str | None]:
    inflated = None if compression is None else inflate(body, compression, MAX_INFLATED_BYTES)
    return (body, compression) if inflated is None else (inflated, None)


def _milliseconds(batch: pa.RecordBatch, name: str) -> pa.Array:
    return pc.divide(batch[name].cast(pa.int64()), 1000)
