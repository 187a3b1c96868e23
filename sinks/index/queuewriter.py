"""The common part of the writers of both kinds of queue: open queues, the ledger, syncing.

Where a message belongs differs between the kinds (``store.runs.placing``, ``batchplacing``). What a
writer has written is durable only after ``sync``, and the caller moves the watermark after that.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Generic, TypeVar

from reput.store.queue.consumequeue import QueueKey, is_usual_topic, topic_directory
from reput.store.queue.unsynced import UnsyncedFiles
from reput.store.runs.dispatch import DispatchCounts
from reput.store.state.ends import EntryEnd, EntryName
from reput.store.state.ledger import Ledger, LedgerEntry

Queue = TypeVar("Queue")
"""One queue as its files show it; it advances only after a successful write."""


class QueueWriter(ABC, Generic[Queue]):
    """The queues below one directory of an output; not thread-safe, one instance per output."""

    index_msg_timestamp = 0

    def __init__(self, output: Path, directory: str, ledger: Ledger) -> None:
        self.root = output / directory
        self._output = output
        self._ledger = ledger
        self._queues: dict[tuple[bytes, int], Queue | None] = {}
        self._topics: set[bytes] = set()
        self._unsynced = UnsyncedFiles()

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

    def _list(self, entries: Iterable[LedgerEntry], counts: DispatchCounts) -> None:
        """List and count messages that get no unit."""
        for entry in entries:
            self._ledger.add(entry)
            counts.quarantined_messages += 1
            counts.quarantined_bytes += entry.end_physical_offset - entry.physical_offset

    @abstractmethod
    def _cut(self, end_offset: int) -> None:
        """Cut the files of every queue after the last message that ends at or before an offset."""

    def truncate(self, end_offset: int) -> None:
        """Cut every queue after the last message that ends at or before ``end_offset``."""
        # a file that is still open may be removed, and another may get its name
        self.sync()
        self._cut(end_offset)
        self._queues.clear()

    def sync(self) -> None:
        """Make every written unit durable. Raises SyncError."""
        self._unsynced.sync()

    def close(self) -> None:
        """Close files that a failed batch has left open."""
        self._unsynced.close()
