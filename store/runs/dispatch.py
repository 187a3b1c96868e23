"""The data that crosses from the source to the sinks: packed runs and ranges (decision 0003).

A row per message through the JVM would limit throughput (about 1 M/s). So a scan of one chunk of
the log gives one row per (topic, queue id), with the chunk's complete 20-byte units as one value.
Besides runs there are two kinds of range rows: scanned ranges, by which the sink checks that the
pieces join without gap or overlap, and ranges that could not be dispatched, for the ledger.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from reput.store import jsontext
from reput.store.log.cursor import BadRange
from reput.store.state.ends import EntryEnd, EntryName

if TYPE_CHECKING:
    from reput.store.runs.manifest import QueueManifest

DETAIL_DTYPE = np.dtype(
    [
        ("store_timestamp", "<i8"),
        ("base_offset", "<i8"),
        ("batch_size", "<i2"),
        ("is_light", "<u1"),
    ]
)
"""Fields of a message that the ext and batch queues need besides its unit (formats.md §3).
msgBaseOffset and batchSize are the queue offset and 1 without an inner batch; ``is_light`` marks a
message's unit in a light queue (INNER_MULTI_DISPATCH), in contrast to that in its own queue."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Data to gather for a message besides its unit, as the indexes that are built need it."""

    index: bool = False
    """Hashes of its keys."""
    index_tags: bool = False
    """Hashes of its tags too."""
    details: bool = False
    """DETAIL_DTYPE."""
    bit_maps: bool = False
    """Bit maps (filterBitMaps), computed by the source; they need details."""
    multi_dispatch: bool = False
    """enableMultiDispatch: units in light queues."""
    lmq: bool = False
    """enableLmq."""
    batch_topics: frozenset[bytes] = frozenset()
    """Topics with batch queues, for which details are gathered; their messages go into no light
    queue."""

    def with_batch_topics(self, topics: frozenset[bytes]) -> Wanted:
        """The same for a batch with these topics."""
        if topics == self.batch_topics:
            return self
        return replace(self, batch_topics=topics, details=self.details or bool(topics))

    def to_text(self) -> str:
        """Encode for the source's option ``gather``."""
        topics = sorted(topic.decode() for topic in self.batch_topics)
        return json.dumps({**asdict(self), "batch_topics": topics})

    @classmethod
    def from_text(cls, text: str) -> Wanted:
        """Decode the result of ``to_text``. Raises ValueError."""
        try:
            values = jsontext.parse(text)
            topics = frozenset(topic.encode() for topic in values.pop("batch_topics", ()))
            return cls(**values, batch_topics=topics)
        except (AttributeError, TypeError, ValueError) as error:
            raise ValueError("must be the JSON of Wanted's fields") from error


UNITS_ONLY = Wanted()


@dataclass(frozen=True, slots=True)
class IndexEntries:
    """The index entries of one scanned chunk: an entry per key, in log order.

    PREPARED messages are included, ROLLBACK ones are not; a message without keys has no entry.
    """

    first_physical_offset: int
    """Offset of the chunk's first record that concerns the index, with or without keys."""
    offsets: NDArray[np.int64]
    """int64[n]: physical offset of the message."""
    hashes: NDArray[np.int32]
    """int32[n]: ``IndexFile.indexKeyHashMethod`` of topic#key, 0 or positive."""
    store_timestamps: NDArray[np.int64]
    """int64[n]: ms."""


INDEX_ENTRY_BYTES = 20
"""Bytes per entry of the three columns of IndexEntries together."""


@dataclass(slots=True)
class Run:
    """Messages of one queue, in log order, from one scanned chunk."""

    topic: bytes
    queue_id: int
    first_physical_offset: int
    first_queue_offset: int
    queue_offsets: NDArray[np.int64] | None
    """int64[n]; None if they increase by one from ``first_queue_offset``."""
    units: NDArray[np.void]
    """UNIT_DTYPE[n], exactly as in the queue file."""
    last_store_timestamp: int
    details: NDArray[np.void] | None = None
    """DETAIL_DTYPE[n]; None if neither an ext nor a batch queue is built."""
    bit_maps: NDArray[np.uint8] | None = None
    """uint8[n, size]: filterBitMap of each message; None if no filter of the topic has one."""

    def __len__(self) -> int:
        return len(self.units)

    def since(self, physical_offset: int) -> Run | None:
        """The messages at or beyond a physical offset; None without one."""
        first = int(np.searchsorted(self.units["offset"], physical_offset))
        if first == 0 or first == len(self):
            return self if len(self) and first == 0 else None
        rest, offsets = self.units[first:], self.queue_offsets
        return replace(
            self,
            units=rest,
            first_physical_offset=int(rest["offset"][0]),
            first_queue_offset=self.first_queue_offset + first
            if offsets is None
            else int(offsets[first]),
            queue_offsets=None if offsets is None else offsets[first:],
            details=None if self.details is None else self.details[first:],
            bit_maps=None if self.bit_maps is None else self.bit_maps[first:],
        )


@dataclass(frozen=True, slots=True)
class BatchSettings:
    """Settings that determine bytes but may change while the log is followed.

    They are fixed for a batch and the same for all its partitions and for the driver.
    """

    batch_topics: frozenset[bytes]
    """Topics with batch queues."""
    delay_levels_ms: tuple[int, ...]
    """messageDelayLevel."""

    def to_text(self) -> str:
        """Encode for a row of the packed form."""
        topics = sorted(topic.decode() for topic in self.batch_topics)
        return json.dumps([topics, self.delay_levels_ms])

    @classmethod
    def from_text(cls, text: str) -> BatchSettings:
        """Decode the result of ``to_text``."""
        topics, levels = json.loads(text)
        return cls(frozenset(topic.encode() for topic in topics), tuple(levels))


@dataclass(frozen=True, slots=True)
class ScannedRange:
    """The range [start, end) of the log that one partition read."""

    start: int
    end: int
    """Actual end of the last record."""
    planned_end: int
    """Planned end: smaller if a record crosses it, because it was then no record start."""
    message_count: int
    """Sound records of every transaction type."""
    last_record_offset: int
    """Start of the last sound record; -1 if there is none."""
    settings: BatchSettings
    unit_count: int
    """Units of all runs, those of light queues too."""


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
    """Sorted by first physical offset; empty if no index is built."""
    batch_topics: frozenset[bytes] = frozenset()
    """Topics that had batch queues when the batch was scanned."""
    queues: Sequence[QueueManifest] = ()
    """Sorted by first physical offset: queues that executors have written, in place of runs."""

    def runs_by_queue(
        self, topic_begins: Mapping[str, int] | None = None
    ) -> dict[tuple[bytes, int], list[Run]]:
        """(topic, queue id) -> its runs, in log order, without messages before the physical offset
        at which a topic begins."""
        begins = {topic.encode(): offset for topic, offset in (topic_begins or {}).items()}
        queue_runs: dict[tuple[bytes, int], list[Run]] = {}
        for each in self.runs:
            run = each.since(begins[each.topic]) if each.topic in begins else each
            if run is not None:
                queue_runs.setdefault((run.topic, run.queue_id), []).append(run)
        return queue_runs

    @property
    def last_store_timestamp(self) -> int:
        """storeTimestamp of the last dispatched message in ms; 0 if there is none."""
        if self.queues:
            return max(self.queues, key=lambda q: q.end_physical_offset).last_store_timestamp
        last = max(self.runs, key=lambda run: run.units[-1].item(), default=None)
        return last.last_store_timestamp if last else 0


@dataclass(slots=True)
class DispatchCounts:
    """Counts of an index writer; they add up over batches."""

    messages: int = 0
    """Messages passed to the writer, duplicates included."""
    duplicates: int = 0
    """Duplicates, which were built before: offset + size <= maxPhysicOffset."""
    gaps: int = 0
    """Places where queue offsets jump forward."""
    quarantined_messages: int = 0
    """Sound messages that got no entry; each is in the ledger."""
    quarantined_bytes: int = 0
    """Bytes of the log that got no entry, damage included; each range is in the ledger."""
    unusual_topics: int = 0
    """Topics with characters that RocketMQ's brokers do not allow."""

    def add(self, other: DispatchCounts) -> None:
        """Add another count to this one."""
        self.messages += other.messages
        self.duplicates += other.duplicates
        self.gaps += other.gaps
        self.quarantined_messages += other.quarantined_messages
        self.quarantined_bytes += other.quarantined_bytes
        self.unusual_topics += other.unusual_topics


class IndexWriter(Protocol):
    """The writer of one index on the driver; RocketMQ's ``CommitLogDispatcher``, in batches.

    After a failure, a kill or a rewind, ``write`` may be called again with messages that it has
    already written. Existing entries are then left untouched.
    """

    name: str
    index_msg_timestamp: int
    """For StoreCheckpoint, ms; 0 for all but index files."""

    def write(self, batch: DispatchBatch) -> DispatchCounts:
        """Write the batch; if a write fails, raises OutputError without having advanced."""

    def sync(self) -> None:
        """Make all written entries durable; raises SyncError."""

    def truncate(self, end_offset: int) -> None:
        """Cut all entries derived from bytes of the log at and after ``end_offset``."""

    def ends(self) -> Iterator[tuple[EntryName, EntryEnd]]:
        """Yield where the entries end that this writer has opened or written."""

    def close(self) -> None:
        """Close files; raises SyncError."""
