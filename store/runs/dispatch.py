"""What crosses from the source to the sinks: packed runs and ranges (decision 0003).

A row per message through the JVM is the limit of everything (about 1 M/s); so a scan of one chunk
of log gives one row per (topic, queue id), with the chunk's ready 20-byte units as one value.
Beside runs there are two kinds of range rows: what was scanned (so that the sink can check that
the pieces join without gap or overlap) and what could not be dispatched (for the ledger).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from enum import IntEnum
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from store.log.cursor import BadRange


class RowKind(IntEnum):
    """What a row of the packed form is."""

    RUN = 0
    SCANNED = 1
    BAD = 2
    INDEX = 3


PACKED_COLUMNS: tuple[tuple[str, str], ...] = (
    ("kind", "int not null"),
    ("topic", "binary"),
    ("queueId", "int"),
    ("messageCount", "bigint not null"),
    ("firstPhysicalOffset", "bigint not null"),
    ("endPhysicalOffset", "bigint not null"),
    ("firstQueueOffset", "bigint"),
    ("queueOffsets", "binary"),
    ("units", "binary"),
    ("bytesPerMessage", "int"),
    ("spoolName", "string"),
    ("spoolPosition", "bigint"),
    ("lastStoreTimestamp", "bigint"),
    ("plannedEndOffset", "bigint"),
    ("lastRecordOffset", "bigint"),
    ("status", "int"),
)
"""(name, Spark type) of the packed form. Internal: it changes with the sinks. ``queueOffsets`` is
int64 little-endian, null where they count up by one from ``firstQueueOffset``; ``units`` are all
columns of the run one after the other, ``bytesPerMessage`` wide together: units, details, bit maps;
of an INDEX row those of IndexEntries, of a SCANNED row the text of its BatchSettings. They are in
the row or, from ``spoolPosition`` on, in a file of the spool (``store.runs.spool``). ``status`` is
the ``store.log.record.Status`` of a BAD range."""


DETAIL_DTYPE = np.dtype(
    [
        ("store_timestamp", "<i8"),
        ("base_offset", "<i8"),
        ("batch_size", "<i2"),
        ("is_light", "<u1"),
    ]
)
"""What of a message the ext and batch queues want besides its unit (formats.md §3): msgBaseOffset
and batchSize are the queue offset and 1 without an inner batch; ``is_light`` marks a unit that a
message has in a light queue (INNER_MULTI_DISPATCH), beside the one in its own."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is gathered of a message besides its unit, for the dispatchers that are on."""

    index: bool = False
    """Hashes of its keys."""
    index_tags: bool = False
    """And of its tags."""
    details: bool = False
    """DETAIL_DTYPE."""
    bit_maps: bool = False
    """filterBitMaps, by the source; they need details."""
    multi_dispatch: bool = False
    """enableMultiDispatch: units in light queues."""
    lmq: bool = False
    """enableLmq."""
    batch_topics: frozenset[bytes] = frozenset()
    """They have batch queues, for which details are gathered; their messages go into no light
    queue."""

    def with_batch_topics(self, topics: frozenset[bytes]) -> Wanted:
        """The same for a batch with these topics."""
        return replace(self, batch_topics=topics, details=self.details or bool(topics))

    def to_text(self) -> str:
        """For the source's option ``gather``."""
        topics = sorted(topic.decode() for topic in self.batch_topics)
        return json.dumps({**asdict(self), "batch_topics": topics})

    @classmethod
    def from_text(cls, text: str) -> Wanted:
        """What ``to_text`` gave. Raises ValueError."""
        try:
            values = json.loads(text)
            topics = frozenset(topic.encode() for topic in values.pop("batch_topics", ()))
            return cls(**values, batch_topics=topics)
        except (AttributeError, TypeError, ValueError) as error:
            raise ValueError("must be the JSON of Wanted's fields") from error


UNITS_ONLY = Wanted()


@dataclass(frozen=True, slots=True)
class IndexEntries:
    """What the index holds of one scanned chunk: an entry a key, in log order.

    PREPARED messages are among them, ROLLBACK not; a message without keys has none.
    """

    first_physical_offset: int
    """Of the chunk's first record that the index is shown, with or without keys."""
    offsets: NDArray[np.int64]
    """int64[n]: physical offset of the message."""
    hashes: NDArray[np.int32]
    """int32[n]: ``IndexFile.indexKeyHashMethod`` of topic#key, 0 or positive."""
    store_timestamps: NDArray[np.int64]
    """int64[n]: ms."""


INDEX_ENTRY_BYTES = 20
"""Of the three columns of IndexEntries together."""


@dataclass(frozen=True, slots=True)
class Run:
    """Messages of one queue, in log order, out of one scanned chunk."""

    topic: bytes
    queue_id: int
    first_physical_offset: int
    first_queue_offset: int
    queue_offsets: NDArray[np.int64] | None
    """int64[n]; None where they count up by one from ``first_queue_offset``."""
    units: NDArray[np.void]
    """UNIT_DTYPE[n], as they stand in the queue file."""
    last_store_timestamp: int
    details: NDArray[np.void] | None = None
    """DETAIL_DTYPE[n]; None where neither an ext nor a batch queue is built."""
    bit_maps: NDArray[np.uint8] | None = None
    """uint8[n, size]: filterBitMap of each message; None where no filter of the topic has one."""

    def __len__(self) -> int:
        return len(self.units)


@dataclass(frozen=True, slots=True)
class BatchSettings:
    """What of a store's settings may change while its log is followed and decides bytes: fixed for
    a batch, the same for all its partitions and for the driver."""

    batch_topics: frozenset[bytes]
    """Those that have batch queues."""
    delay_levels_ms: tuple[int, ...]
    """messageDelayLevel."""

    def to_text(self) -> str:
        """For a row of the packed form."""
        topics = sorted(topic.decode() for topic in self.batch_topics)
        return json.dumps([topics, self.delay_levels_ms])

    @classmethod
    def from_text(cls, text: str) -> BatchSettings:
        """What ``to_text`` gave."""
        topics, levels = json.loads(text)
        return cls(frozenset(topic.encode() for topic in topics), tuple(levels))


@dataclass(frozen=True, slots=True)
class ScannedRange:
    """One partition read [start, end) of the log."""

    start: int
    end: int
    """Where the last record really ended."""
    planned_end: int
    """Where it should have: smaller if a record crosses it, so that it was no record start."""
    message_count: int
    """Sound records of every transaction type."""
    last_record_offset: int
    """Start of the last sound record; -1 if there is none."""
    settings: BatchSettings


@dataclass(frozen=True, slots=True)
class DispatchBatch:
    """Everything between two positions of the log, runs sorted by first physical offset."""

    start: int
    end: int
    runs: Sequence[Run]
    bad: Sequence[BadRange]
    message_count: int
    """Sound records of every transaction type."""
    last_record_offset: int
    """Start of the last sound record; -1 if there is none."""
    index_entries: Sequence[IndexEntries] = ()
    """By first physical offset; empty where no index is built."""
    batch_topics: frozenset[bytes] = frozenset()
    """Those that have batch queues, as the batch was scanned."""

    def runs_by_queue(self) -> dict[tuple[bytes, int], list[Run]]:
        """(topic, queue id) -> its runs, in log order."""
        found: dict[tuple[bytes, int], list[Run]] = {}
        for run in self.runs:
            found.setdefault((run.topic, run.queue_id), []).append(run)
        return found

    @property
    def last_store_timestamp(self) -> int:
        """storeTimestamp of the last dispatched message in ms; 0 if there is none."""
        last = max(self.runs, key=lambda run: int(run.units["offset"][-1]), default=None)
        return last.last_store_timestamp if last else 0


@dataclass(slots=True)
class DispatchCounts:
    """What a dispatcher did; adds up over batches."""

    messages: int = 0
    """Messages given to the dispatcher, duplicates included."""
    duplicates: int = 0
    """Of these, built before: offset + size <= maxPhysicOffset."""
    gaps: int = 0
    """Places where queue offsets jump forward."""
    quarantined_messages: int = 0
    """Sound messages that got no entry; each is in the ledger."""
    quarantined_bytes: int = 0
    """Bytes of the log that got no entry, damage included; each range is in the ledger."""
    unusual_topics: int = 0
    """Topics outside of the alphabet that RocketMQ's brokers check."""

    def add(self, other: DispatchCounts) -> None:
        """Add another count to this one."""
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class CommitLogDispatcher(Protocol):
    """One derived index of the log (RocketMQ's ``CommitLogDispatcher``), written by the driver.

    ``dispatch`` may be called again with a batch that it has seen, wholly or in part: after a
    failure, a kill or a rewind. It must then change nothing that is right already.
    """

    name: str
    index_msg_timestamp: int
    """For StoreCheckpoint, ms; 0 where it is not the index."""

    def dispatch(self, batch: DispatchBatch) -> DispatchCounts:
        """Write the batch; raises OutputError without having advanced where a write fails."""

    def sync(self) -> None:
        """Make all that was dispatched durable; raises SyncError."""

    def truncate(self, end_offset: int) -> None:
        """The log now ends at ``end_offset``: cut what was derived from bytes behind it."""

    def close(self) -> None:
        """Let go of files; raises SyncError."""
