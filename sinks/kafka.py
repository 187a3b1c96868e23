"""Followers whose target is Kafka: the mirror of messages, and notices of their arrival.

Exactly once: ``sinks.kafkatarget``. Only what consumers of RocketMQ get is sent: no PREPARED and
ROLLBACK, which are no messages, no damaged ranges, which the ledger lists, and, unless chosen, no
topics of RocketMQ's own.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping

import pyarrow as pa

from sinks.kafkatarget import KafkaRecord, KafkaSettings, KafkaTarget
from sinks.kafkatopics import OWN_PREFIX, TopicNames, TopicSelection
from store import properties

DEFAULT_ARRIVALS_TOPIC = f"{OWN_PREFIX}arrivals"
MAX_PARTITIONS = 1024
"""Of a topic: a damaged queue id must not make a billion of them."""
HEADER_PREFIX = "rocketmq."
PROPERTY_PREFIX = f"{HEADER_PREFIX}property."
"""In front of a property whose own name begins with HEADER_PREFIX."""
_DELIVERED = ("none", "commit")
_UNIQ_KEY = properties.UNIQ_KEY.decode()


class KafkaFollower(ABC):
    """A LogFollower; a write may take several transactions, each of which moves the position."""

    def __init__(self, name: str, settings: KafkaSettings, chosen: TopicSelection) -> None:
        self.name = name
        self.messages = 0
        """Sent and committed by this instance."""
        self._chosen = chosen
        self._target = KafkaTarget(settings, name)

    def position(self) -> int | None:
        """End of what is committed in Kafka. Fences whoever wrote under this name before; raises
        OwnershipError where another has done so to this one."""
        return self._target.recover()

    def write(self, start: int, end: int, rows: Iterator[pa.RecordBatch]) -> None:
        """Send [start, end). Raises StoreError for a message that Kafka refuses, kafka-python's
        errors otherwise."""
        sending: KafkaRecord | None = None
        reached, sent = start, 0
        try:
            for batch in rows:
                records = list(self._records(batch))
                partitions = self._partitions(records)
                if self._target.lacks(partitions):
                    self._target.commit(reached)
                    self._target.add_partitions(partitions)
                for sending in records:
                    self._target.send(sending)
                sending = None
                sent += len(records)
                reached = _end_of(batch)
                if self._target.commit_is_due:
                    self._target.commit(reached)
            self._target.commit(end)
        except BaseException as error:
            explained = self._target.explained(error, sending)
            self._target.abandon()
            if explained is error:
                raise
            raise explained from error
        self.messages += sent

    def close(self) -> None:
        """Let go of the connection."""
        self._target.abandon()

    def _records(self, batch: pa.RecordBatch) -> Iterator[KafkaRecord]:
        wanted = [
            transaction in _DELIVERED and reason is None and topic in self._chosen
            for transaction, reason, topic in zip(
                batch["transactionType"].to_pylist(), batch["corruptReason"].to_pylist(),
                batch["topic"].to_pylist(), strict=True,
            )
        ]  # fmt: skip
        return self._of(batch.filter(pa.array(wanted, pa.bool_())))

    @abstractmethod
    def _of(self, batch: pa.RecordBatch) -> Iterator[KafkaRecord]:
        """What is sent for messages."""

    @abstractmethod
    def _partitions(self, records: list[KafkaRecord]) -> Mapping[str, int]:
        """How many partitions their topics need."""


class KafkaMirror(KafkaFollower):
    """Every message in the topic and partition of its own topic and queue, in their order.

    Value: the body, inflated where the rows are. Key: KEYS, or else UNIQ_KEY. Timestamp: the
    store's, which grows along a queue as Kafka's search by time expects; the born one is of each
    producer's clock. Headers: the properties, then what else a message has, under HEADER_PREFIX.
    """

    def __init__(
        self,
        settings: KafkaSettings,
        chosen: TopicSelection | None = None,
        names: TopicNames | None = None,
        name: str = "kafka",
    ) -> None:
        super().__init__(name, settings, chosen or TopicSelection())
        self._names = names or TopicNames()
        self._known: dict[str, str] = {}

    def _of(self, batch: pa.RecordBatch) -> Iterator[KafkaRecord]:
        columns = [batch[name].to_pylist() for name in _MIRRORED]
        store_times, born_times = (
            _milliseconds(batch, "storeTimestamp"),
            _milliseconds(batch, "bornTimestamp"),
        )
        for values, store_ms, born_ms in zip(
            zip(*columns, strict=True), store_times, born_times, strict=True
        ):
            row = dict(zip(_MIRRORED, values, strict=True))
            found = dict(row["properties"])
            key = found.get(properties.KEYS.decode()) or found.get(_UNIQ_KEY)
            yield KafkaRecord(
                topic=self._topic(row["topic"]),
                partition=row["queueId"] % MAX_PARTITIONS,
                key=key.encode() if key is not None else None,
                value=row["body"],
                headers=_headers(found, row, born_ms, store_ms),
                timestamp_ms=max(store_ms or 0, 0),
                physical_offset=row["physicalOffset"],
            )

    def _topic(self, topic: str) -> str:
        if topic not in self._known:
            self._known[topic] = self._names.of(topic)
        return self._known[topic]

    def _partitions(self, records: list[KafkaRecord]) -> Mapping[str, int]:
        counts: dict[str, int] = {}
        for record in records:
            assert record.partition is not None
            counts[record.topic] = max(counts.get(record.topic, 0), record.partition + 1)
        return counts


_HEADER_COLUMNS = (
    "topic", "queueId", "queueOffset", "physicalOffset", "tags", "tagsCode", "sysFlag", "flag",
    "reconsumeTimes", "bornHost", "bodyCompression",
)  # fmt: skip
_MIRRORED = (*_HEADER_COLUMNS, "properties", "body")


def _headers(
    found: Mapping[str, str], row: Mapping[str, object], born_ms: int | None, store_ms: int | None
) -> list[tuple[str, bytes]]:
    headers = [
        (PROPERTY_PREFIX + name if name.startswith(HEADER_PREFIX) else name, value.encode())
        for name, value in found.items()
    ]
    own = [(name, row[name]) for name in _HEADER_COLUMNS]
    own += [("bornTimestamp", born_ms), ("storeTimestamp", store_ms)]
    headers += [
        (HEADER_PREFIX + name, str(value).encode()) for name, value in own if value is not None
    ]
    return headers


class KafkaArrivals(KafkaFollower):
    """A small record for every message, as RocketMQ tells its message-arriving listener.

    Key: topic and queue id; value: JSON with topic, queueId, maxOffset (exclusive), tagsCode and
    storeTimestamp (ms). All of a queue are in one partition, in order.
    """

    def __init__(
        self,
        settings: KafkaSettings,
        chosen: TopicSelection | None = None,
        topic: str = DEFAULT_ARRIVALS_TOPIC,
        name: str = "kafka-arrivals",
    ) -> None:
        super().__init__(name, settings, chosen or TopicSelection())
        self._topic = topic

    def _of(self, batch: pa.RecordBatch) -> Iterator[KafkaRecord]:
        columns = [batch[name].to_pylist() for name in _NOTIFIED]
        times = _milliseconds(batch, "storeTimestamp")
        for (topic, queue_id, offset, code, position), store_ms in zip(
            zip(*columns, strict=True), times, strict=True
        ):
            notice = {
                "topic": topic,
                "queueId": queue_id,
                "maxOffset": offset + 1,
                "tagsCode": code,
                "storeTimestamp": store_ms,
            }
            yield KafkaRecord(
                topic=self._topic,
                partition=None,
                key=f"{topic}-{queue_id}".encode(),
                value=json.dumps(notice, ensure_ascii=False, separators=(",", ":")).encode(),
                headers=[],
                timestamp_ms=max(store_ms or 0, 0),
                physical_offset=position,
            )

    def _partitions(self, records: list[KafkaRecord]) -> Mapping[str, int]:
        return {self._topic: 1} if records else {}


_NOTIFIED = ("topic", "queueId", "queueOffset", "tagsCode", "physicalOffset")


def _milliseconds(batch: pa.RecordBatch, name: str) -> list[int | None]:
    return [
        None if value is None else value // 1000
        for value in batch[name].cast(pa.int64()).to_pylist()
    ]


def _end_of(batch: pa.RecordBatch) -> int:
    """End (exclusive) of the last record or damaged range of a batch that is not empty."""
    return int(batch["physicalOffset"][-1].as_py() + batch["storeSize"][-1].as_py())
