"""Takes in the queues that executors have written, in place of the writers of queues.

Delivery: the queues of a batch come as manifests (``store.runs.manifest``). Each is checked against
the files that its task attempt left, and these are moved into the output. What any other attempt
left is named by no manifest and is removed with the epoch. Unit of work: one queue.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from reput.store import fsops
from reput.store.errors import StoreError
from reput.store.names import escaped
from reput.store.queue.consumequeue import is_usual_topic
from reput.store.runs.dispatch import DispatchBatch, DispatchCounts
from reput.store.runs.manifest import QueueManifest, WrittenFile
from reput.store.state.ends import EntryEnd, EntryName
from reput.store.state.ledger import Ledger


class ExecutorQueues:
    """The queues of an output that executors build; the output has none before."""

    name = "executorqueues"
    index_msg_timestamp = 0

    def __init__(self, output: Path, ledger: Ledger) -> None:
        self._output = output
        self._ledger = ledger
        self._has_moved = False

    def write(self, batch: DispatchBatch) -> DispatchCounts:
        """Check the batch's queues, move their files in and list what got no unit.

        Raises StoreError, with nothing moved, where two tasks have a queue or a file is not as it
        was written; raises OutputError.
        """
        queues = batch.queues
        owners: dict[tuple[bytes, int], QueueManifest] = {}
        for queue in queues:
            other = owners.setdefault((queue.topic, queue.queue_id), queue)
            if other is not queue:
                raise StoreError(
                    f"topic {escaped(queue.topic)} queue {queue.queue_id} was written twice, in "
                    f"{other.attempt} and {queue.attempt}: nothing is replaced",
                    path=queue.attempt,
                )
            _check_files(queue)
        counts = DispatchCounts()
        for queue in queues:
            for path in dict.fromkeys(Path(file.path).parent for file in queue.files):
                fsops.create_directories(self._output / path.parent, self._output)
                fsops.rename(queue.attempt / path, self._output / path, durable=False)
                self._has_moved = True
            for entry in queue.ledger:
                self._ledger.add(entry)
            counts.add(queue.counts)
        # several tasks may have met a topic
        topics = {queue.topic for queue in queues}
        counts.unusual_topics = sum(not is_usual_topic(topic) for topic in topics)
        return counts

    def sync(self) -> None:
        """Make the new names durable; the files are. Raises SyncError."""
        if self._has_moved:
            fsops.sync_file_system_of(self._output)
            self._has_moved = False

    def truncate(self, end_offset: int) -> None:
        """Do nothing: an output is cut when it is taken over, which is before queues come here."""

    def ends(self) -> Iterator[tuple[EntryName, EntryEnd]]:
        """Yield nothing: an output that executors build is observed from its files."""
        return iter(())

    def close(self) -> None:
        """Do nothing: no file stays open."""


def _check_files(queue: QueueManifest) -> None:
    """Raises StoreError where this process does not read what the queue's writer wrote."""
    for file in queue.files:
        try:
            seen_file = WrittenFile.read(Path(queue.attempt), file.path)
        except OSError as error:
            raise StoreError(
                f"cannot read {queue.attempt}/{file.path}, which an executor has written: "
                f"{error.strerror}; the output must lie on a file system that all nodes share",
                path=f"{queue.attempt}/{file.path}",
            ) from error
        if seen_file != file:
            raise StoreError(
                f"{queue.attempt}/{file.path} is not as an executor has written it: {seen_file}, "
                f"not {file}; nothing is replaced, look at the file system and start again",
                path=f"{queue.attempt}/{file.path}",
            )
