"""The common part of the writers of both kinds of queue: open queues, the ledger, syncing.

Placing a message differs between the kinds and stays with each writer. What a writer has written is
durable only after ``sync``, and the caller moves the watermark after that.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np

from reput.store.queue.consumequeue import QueueKey, is_usual_topic, topic_directory
from reput.store.queue.unsynced import UnsyncedFiles
from reput.store.runs.dispatch import DispatchBatch, DispatchCounts, Run
from reput.store.state.ends import EntryEnd, EntryName
from reput.store.state.ledger import Ledger, LedgerEntry

Queue = TypeVar("Queue")
"""One queue as its files show it; it advances only after a successful write."""


class QueueWriter(ABC, Generic[Queue]):
    """The queues below one directory of an output; not thread-safe, one instance per output."""

    index_msg_timestamp = 0

    def __init__(
        self,
        output: Path,
        directory: str,
        ledger: Ledger,
        topic_begins: Mapping[str, int] | None = None,
    ) -> None:
        begins = (topic_begins or {}).items()
        self._topic_begins = {topic.encode(): offset for topic, offset in begins}
        self.root = output / directory
        self._output = output
        self._ledger = ledger
        self._queues: dict[tuple[bytes, int], Queue | None] = {}
        self._topics: set[bytes] = set()
        self._unsynced = UnsyncedFiles()

    def _runs_by_queue(self, batch: DispatchBatch) -> dict[tuple[bytes, int], list[Run]]:
        """The runs of a batch by queue, without messages before the begin of their topic."""
        found = batch.runs_by_queue()
        for identity in [one for one in found if one[0] in self._topic_begins]:
            begin = self._topic_begins[identity[0]]
            found[identity] = [run for one in found[identity] if (run := one.since(begin))]
            if not found[identity]:
                del found[identity]
        return found

    @abstractmethod
    def _open(self, key: QueueKey) -> Queue:
        """Read a queue from its files."""

    @abstractmethod
    def _end_of(self, queue: Queue) -> EntryEnd | None:
        """Where a queue ends; None if it has no unit."""

    def ends(self) -> Iterator[tuple[EntryName, EntryEnd]]:
        """Yield where the queues end that were opened (``IndexWriter.ends``)."""
        for (topic, queue_id), queue in self._queues.items():
            end = None if queue is None else self._end_of(queue)
            if end is not None:
                yield EntryName(self.root.name, topic.decode(), queue_id), end

    def _queue(self, topic: bytes, queue_id: int) -> Queue | None:
        """The queue, read from its files at first use; None if its name is unusable."""
        identity = (topic, queue_id)
        if identity not in self._queues:
            name = topic_directory(topic) if queue_id >= 0 else None
            self._queues[identity] = None if name is None else self._open(QueueKey(name, queue_id))
        return self._queues[identity]

    def _count_topic(self, topic: bytes, counts: DispatchCounts) -> None:
        """Count a topic that comes for the first time if its name is unusual."""
        if topic not in self._topics:
            self._topics.add(topic)
            counts.unusual_topics += not is_usual_topic(topic)

    def _list(
        self,
        unit: np.void,
        reason: str,
        queue: tuple[str, int],
        queue_offset: int,
        counts: DispatchCounts,
        detail: str | None = None,
    ) -> None:
        """List a message that gets no unit; ``queue`` is its escaped topic and queue id."""
        offset, size = int(unit["offset"]), int(unit["size"])
        self._ledger.add(LedgerEntry(offset, offset + size, reason, *queue, queue_offset, detail))
        counts.quarantined_messages += 1
        counts.quarantined_bytes += size

    def sync(self) -> None:
        """Make every written unit durable. Raises SyncError."""
        self._unsynced.sync()

    def close(self) -> None:
        """Close files that a failed batch has left open."""
        self._unsynced.close()


def unusable_reason(queue_id: int) -> str:
    """Why the messages of a queue that cannot exist get no unit."""
    return "queue_id" if queue_id < 0 else "topic_name"
