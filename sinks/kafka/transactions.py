"""Transactions on Kafka that carry their own position.

One Kafka transaction holds messages and, in a compacted topic of one partition, a record with the
end of the log that they reach. Both are committed or neither is, so the last committed record of
that topic is the position, whichever process was killed at whatever moment. Each of these records
also names the instance that wrote it. Kafka fences an older instance by the transactional id, and
the older one reads in the record that it was replaced and must not take over again.

kafka-python is imported late, because it is an extra.
"""

from __future__ import annotations

import importlib.util
import json
import re
import secrets
import time
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from reput.sinks.kafka.positions import (
    POSITION_KEY,
    WAIT_SECONDS,
    Position,
    check_no_transaction,
    last_position,
)
from reput.sinks.kafka.records import KafkaRecords, RecordBatch
from reput.sinks.kafka.topics import OWN_PREFIX
from reput.store.errors import OwnershipError, StoreError, UsageError

DEFAULT_MAX_MESSAGE_BYTES = 32 << 20
"""Twice the largest body that is inflated."""
TRANSACTION_BYTES = 64 << 20
TRANSACTION_SECONDS = 10.0
"""A transaction is committed at this size or age; until then it occupies memory, and readers of
committed records wait for it."""
_REQUEST_MS = 10_000
_TRANSACTION_TIMEOUT_MS = 120_000
"""Longer than any transaction of this module; Kafka then aborts one whose writer is gone."""
_POLL_SECONDS = 0.05
_BATCH_BYTES = 256 << 10
"""Below the default limit of a topic; large enough that sending costs little per record, and small
enough that one batch is sent while the next is encoded."""
_BATCH_OVERHEAD_BYTES = 100
"""Upper bound for a batch's header and the fields of a record before its key."""
_STORE_ID = re.compile(r"[a-zA-Z0-9_-]{1,100}\Z")
_REFUSALS = (
    "MessageSizeTooLargeError", "RecordListTooLargeError", "InvalidTimestampError",
    "InvalidRecordError",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class KafkaSettings:
    """Address and settings of a target on Kafka. Raises UsageError."""

    bootstrap: str
    """``host:port``, several separated by commas."""
    store_id: str | None = None
    """The store's identity on Kafka, under which the position is kept; None takes the output's."""
    max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES
    """Limit of a message with key and headers; max.message.bytes of topics that are created."""
    client: Mapping[str, Any] = field(default_factory=dict)
    """Further settings of kafka-python's clients, such as ``security_protocol``."""

    def __post_init__(self) -> None:
        if importlib.util.find_spec("kafka") is None:
            raise UsageError("Kafka needs the package kafka-python: pip install 'reput[kafka]'")
        if self.store_id is not None and not _STORE_ID.match(self.store_id):
            raise UsageError(
                f"the identity of a store on Kafka is {self.store_id!r}; it must be 1 to 100 "
                "letters, digits, _ or -"
            )


@dataclass(slots=True)
class _Transaction:
    began: float = field(default_factory=time.monotonic)
    size: int = 0
    messages: int = 0
    sent: list[RecordBatch] = field(default_factory=list)
    """Batches handed to kafka-python."""
    filling: dict[tuple[str, int], RecordBatch] = field(default_factory=dict)
    """Unfinished batches by topic and partition."""


class KafkaTransactions:
    """The transactions of one follower.

    If brokers are unreachable, its methods raise kafka-python's errors after half a minute. After
    any error, call ``close`` and then ``recover``.
    """

    def __init__(self, settings: KafkaSettings, store_id: str, name: str) -> None:
        identity = settings.store_id or store_id
        self._settings = settings
        self._transactional_id = f"{OWN_PREFIX}{name}-{identity}"
        self.position_topic = f"{OWN_PREFIX}position-{name}-{identity}"
        self.messages = 0
        """Messages committed by this instance."""
        self._instance = secrets.token_hex(8)
        self._owned = False
        self._producer: Any = None
        self._transaction: _Transaction | None = None
        self._partitions: dict[str, int] = {}
        self._unanswered: tuple[int | None, int] | None = None
        """Position and messages of a commit of which it is not known whether it was made."""

    def recover(self) -> int | None:
        """Take over from any older writer and return the committed position, None if there is none.

        Raises OwnershipError if another instance has taken over from this one, and StoreError if
        the position is hidden or lost (``sinks.kafka.positions``).
        """
        self.close()
        self._partitions.clear()
        self.add_partitions({self.position_topic: 1})
        if self._owned:
            self._check_owned()
        self._start_producer()
        # read only now: a pending commit has ended, and any other transaction of ours is aborted
        check_no_transaction(self.position_topic, self._client())
        end = self._last_position().end
        if self._unanswered is not None and self._unanswered[0] == end:
            self.messages += self._unanswered[1]
        self._unanswered = None
        self.commit(end)
        self._owned = True
        return end

    def _check_owned(self) -> None:
        # no instance is named where the topic has lost its records
        if self._last_position().instance not in (None, self._instance):
            raise OwnershipError(
                f"another process has begun to write to Kafka as {self._transactional_id}; "
                "stop one of the two, or give it another `KafkaSettings.store_id=`"
            )

    def _last_position(self) -> Position:
        return last_position(self.position_topic, self._client())

    def lacks(self, partitions: Mapping[str, int]) -> bool:
        """Whether ``add_partitions`` must be called for topics with this many partitions."""
        return any(count > self._partitions.get(topic, 0) for topic, count in partitions.items())

    def add_partitions(self, partitions: Mapping[str, int]) -> None:
        """Create the topics and extend them to this many partitions; not within a transaction.

        Raises StoreError if Kafka refuses, OwnershipError as ``recover``.
        """
        targets = {
            topic: count
            for topic, count in partitions.items()
            if count > self._partitions.get(topic, 0)
        }
        # a producer that knows a topic notices further partitions only after minutes
        reopen = self._producer is not None and not self._partitions.keys().isdisjoint(targets)
        with closing(self._admin()) as admin:
            counts = {topic: len(leaders) for topic, leaders in _leaders(admin, targets).items()}
            missing = {
                topic: self._new_topic(topic, targets[topic]) for topic in targets.keys() - counts
            }
            if missing:
                _check_done(admin.create_topics(missing, raise_errors=False)["topics"])
            grown = {topic: targets[topic] for topic in counts if counts[topic] < targets[topic]}
            if grown:
                response = admin.create_partitions(grown, raise_errors=False)
                _check_done(response.to_dict()["results"])
            self._partitions |= _await_partitions(admin, targets)
        if reopen:
            self.close()
            # first, so that a newer writer is left alone; then, for one that has begun meanwhile
            self._check_owned()
            self._start_producer()
            self._check_owned()

    def _new_topic(self, topic: str, partitions: int) -> dict[str, Any]:
        if topic == self.position_topic:
            configs = {"cleanup.policy": "compact"}
        else:
            configs = {
                "max.message.bytes": str(self._settings.max_message_bytes),
                # the RocketMQ broker may have stored a message with a clock that is ahead
                "message.timestamp.after.max.ms": str((1 << 63) - 1),
            }
        return {"num_partitions": partitions, "configs": configs}

    def partition_for(self, topic: str, key: bytes) -> int:
        """The partition that kafka-python chooses by the key."""
        self._producer.partitions_for(topic)
        chosen: int = self._producer._partition(topic, None, key, None, key, None)
        return chosen

    def send(self, records: KafkaRecords) -> None:
        """Add messages to the transaction; the first ones begin it.

        Raises StoreError for one that is too large; then none was added.
        """
        if self._transaction is None:
            self._producer.begin_transaction()
            self._transaction = _Transaction()
        sizes = records.sizes
        too_large = sizes + _BATCH_OVERHEAD_BYTES > self._settings.max_message_bytes
        if too_large.any():
            row = int(too_large.argmax())
            cause = _errors().MessageSizeTooLargeError(
                f"it has {sizes[row]} bytes with key and headers"
            )
            topic, _ = records.places[records.codes[row]]
            offset, size = records.physical_offsets[row], records.value_sizes[row]
            raise self._refused(cause, topic, offset, size) from cause
        order = np.argsort(records.codes, kind="stable")
        codes = records.codes[order]
        for rows in np.split(order, np.flatnonzero(np.diff(codes)) + 1):
            self._fill(records, rows)
        self._transaction.messages += len(records)
        self._transaction.size += int(sizes.sum())

    def _fill(self, records: KafkaRecords, rows: np.ndarray) -> None:
        """Add messages of one partition to its batches."""
        place = records.places[records.codes[rows[0]]]
        while len(rows):
            batch = self._batch_for(place, int(records.timestamps_ms[rows[0]]))
            rows = rows[batch.add(records, rows, _BATCH_BYTES) :]
            if len(rows):
                self._hand_over(batch)

    def _batch_for(self, place: tuple[str, int], timestamp_ms: int) -> RecordBatch:
        assert self._transaction is not None
        filling = self._transaction.filling
        if place not in filling:
            # this call waits until the topic is known
            self._producer.partitions_for(place[0])
            filling[place] = RecordBatch(*place, timestamp_ms)
        return filling[place]

    def _hand_over(self, batch: RecordBatch) -> None:
        assert self._transaction is not None
        del self._transaction.filling[batch.topic, batch.partition]
        self._transaction.sent.append(batch)
        batch.hand_over(self._producer)

    def flush(self) -> None:
        """Wait until Kafka holds all sent messages. Raises kafka-python's errors if it does not."""
        assert self._transaction is not None
        deadline = time.monotonic() + WAIT_SECONDS
        for batch in list(self._transaction.filling.values()):
            self._hand_over(batch)
        with suppress(_errors().UnknownError):
            # kafka-python raises it for a batch that was split in two
            self._producer.flush(WAIT_SECONDS)
        for batch in self._transaction.sent:
            # without this check kafka-python commits a transaction whose records expired
            batch.wait(max(deadline - time.monotonic(), 0.0))

    @property
    def in_transaction(self) -> bool:
        """Whether a message was sent since the last commit."""
        return self._transaction is not None

    @property
    def commit_is_due(self) -> bool:
        """Whether the transaction is large or old enough."""
        open_one = self._transaction
        return open_one is not None and (
            open_one.size >= TRANSACTION_BYTES
            or time.monotonic() - open_one.began >= TRANSACTION_SECONDS
        )

    def commit(self, end: int | None) -> None:
        """Atomically make the sent messages visible and ``end`` the position."""
        value = json.dumps(asdict(Position(end, self._instance))).encode()
        position = KafkaRecords.of(
            [(self.position_topic, 0)],
            np.zeros(1, np.int64),
            pa.array([POSITION_KEY]),
            pa.array([value]),
            np.array([time.time() * 1000], np.int64),
            np.array([-1]),
        )
        self.send(position)
        self.flush()
        assert self._transaction is not None
        count = self._transaction.messages - 1
        self._unanswered = end, count
        self._end_transaction()
        self.messages += count
        self._transaction = self._unanswered = None

    def _end_transaction(self) -> None:
        """``commit_transaction`` with a time limit; kafka-python waits forever for brokers."""
        result = self._producer._transaction_manager.begin_commit()
        self._producer._sender.wakeup()
        if not result.wait(timeout_ms=WAIT_SECONDS * 1000):
            raise _errors().KafkaTimeoutError(f"no answer to a commit in {WAIT_SECONDS:.0f} s")

    def explained(self, error: BaseException) -> BaseException:
        """Return the cause of ``error``: the message that Kafka refuses, if there is one."""
        for batch in self._transaction.sent if self._transaction is not None else []:
            for cause, offset, size in batch.failures():
                if type(cause).__name__ in _REFUSALS:
                    return self._refused(cause, batch.topic, offset, size)
        return error

    def _refused(self, cause: BaseException, topic: str, offset: int, size: int) -> StoreError:
        return StoreError(
            f"Kafka refuses the message at physical offset {offset} for topic {topic}, "
            f"{size} bytes: {cause}; raise `KafkaSettings.max_message_bytes=` "
            f"({self._settings.max_message_bytes}), and max.message.bytes of the topic",
            physical_offset=int(offset),
        )

    def close(self) -> None:
        """Close the connection; an open transaction will be aborted."""
        producer, self._producer, self._transaction = self._producer, None, None
        if producer is None:
            return
        # close() alone would first try to send pending records
        producer._sender.force_close()
        producer._sender.join(_REQUEST_MS / 1000)
        with suppress(_errors().KafkaTimeoutError):
            producer.close(timeout=0)

    def _start_producer(self) -> None:
        from kafka import KafkaProducer  # noqa: PLC0415

        self._producer = KafkaProducer(
            **self._client(),
            transactional_id=self._transactional_id,
            transaction_timeout_ms=_TRANSACTION_TIMEOUT_MS,
            max_request_size=self._settings.max_message_bytes,
            batch_size=_BATCH_BYTES,
            delivery_timeout_ms=WAIT_SECONDS * 1000,
            max_block_ms=WAIT_SECONDS * 1000,
            allow_auto_create_topics=False,
            metrics_enabled=False,
        )
        self._producer.init_transactions()

    def _admin(self) -> Any:
        from kafka import KafkaAdminClient  # noqa: PLC0415

        return KafkaAdminClient(**self._client())

    def _client(self) -> dict[str, Any]:
        return {
            "bootstrap_servers": self._settings.bootstrap.split(","),
            "client_id": self._transactional_id,
            "request_timeout_ms": _REQUEST_MS,
            "bootstrap_timeout_ms": _REQUEST_MS,
            **self._settings.client,
        }


def _errors() -> Any:
    import kafka.errors  # noqa: PLC0415

    return kafka.errors


def _leaders(admin: Any, topics: Mapping[str, int]) -> dict[str, list[bool]]:
    """For each partition of each existing topic, whether it has a leader; one may be down."""
    return {
        topic["name"]: [part["leader_id"] >= 0 for part in topic["partitions"]]
        for topic in admin.describe_topics(list(topics))
        if topic["error_code"] == 0
    }


def _await_partitions(admin: Any, targets: Mapping[str, int]) -> dict[str, int]:
    """Wait until topics have the wanted partitions with leaders; return their counts."""
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        counts = {topic: sum(leaders) for topic, leaders in _leaders(admin, targets).items()}
        if all(counts.get(topic, 0) >= count for topic, count in targets.items()):
            return counts
        if time.monotonic() > deadline:
            raise _errors().KafkaTimeoutError(f"topics are not ready: {', '.join(sorted(targets))}")
        time.sleep(_POLL_SECONDS)


def _check_done(results: list[dict[str, Any]]) -> None:
    errors = _errors()
    # another process may have created it meanwhile
    fine = (0, errors.TopicAlreadyExistsError.errno)
    for result in results:
        if result["error_code"] not in fine:
            kind = errors.for_code(result["error_code"])
            raise StoreError(
                f"Kafka refuses to create or extend the topic {result['name']}: "
                f"{result['error_message'] or kind.__name__}"
            )
