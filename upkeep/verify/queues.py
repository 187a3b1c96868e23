"""Compares all queues of one kind with the log (``upkeep.verify.comparedqueue``)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Generic, TypeVar

from reput.store.config import StoreSettings
from reput.store.errors import QueueFileError
from reput.store.queue.consumequeue import QueueFiles, QueueKey, list_queues, topic_directory
from reput.store.runs.dispatch import DispatchBatch, Run
from reput.store.state.ledger import Ledger, LedgerEntry
from reput.upkeep.verify.comparedfiles import ComparedFiles
from reput.upkeep.verify.comparedqueue import ComparedQueue
from reput.upkeep.verify.difference import Counts, Difference, Extent, LogRange, first_offset

Compared = TypeVar("Compared", bound=ComparedQueue)


class QueueVerifier(ABC, Generic[Compared]):
    """Compares every queue of one kind in an output (``upkeep.verify.difference.Verifier``)."""

    is_of_batch_topics: bool

    def __init__(
        self,
        output: Path,
        settings: StoreSettings,
        log: LogRange,
        ledger: Ledger,
        compared: type[Compared],
        file_size: int,
    ) -> None:
        """``settings`` are those with which the queues were built. Raises QueueFileError where no
        file has ``file_size`` bytes, which is not damage."""
        self._output = output
        self._settings = settings
        self._log = log
        self._ledger = ledger
        self._root = output / compared.directory_name
        self._file_size = file_size
        self._queues: dict[QueueKey, Compared] = {}
        self._check_file_size(compared.writable)

    def _check_file_size(self, files: type[QueueFiles]) -> None:
        wrong = None
        for key in list_queues(self._root):
            directory = self._root / key.relative_path
            try:
                if files(directory, self._file_size).starts:
                    return
            except QueueFileError as error:
                found = ComparedFiles(directory, self._file_size, self._log)
                if self._file_size in found.sizes.values():
                    return
                wrong = error
        if wrong is not None:
            raise wrong

    @abstractmethod
    def _open(self, directory: Path, first: Run | None) -> Compared:
        """Open the queue in ``directory``, to be compared from its ``first`` run on."""

    def compare(self, batch: DispatchBatch) -> None:
        """Compare the next batch of the log. Raises QueueGapError."""
        for (topic, queue_id), runs in batch.runs_by_queue(self._settings.topic_begins).items():
            if (topic in batch.batch_topics) is not self.is_of_batch_topics:
                continue
            name = topic_directory(topic) if queue_id >= 0 else None
            key = None if name is None else QueueKey(name, queue_id)
            if key is not None and key not in self._queues:
                self._queues[key] = self._open(self._root / key.relative_path, runs[0])
            self._compare_queue(None if key is None else self._queues[key], runs)

    @abstractmethod
    def _compare_queue(self, queue: Compared | None, runs: list[Run]) -> None:
        """Compare the next messages of a queue; None where its name is unusable."""

    def _list(self, entries: Iterable[LedgerEntry]) -> None:
        for entry in entries:
            self._ledger.add(entry)

    def pass_damaged(self) -> None:
        """Let every queue go on after its units of messages in damaged ranges of the log."""
        for files in self._queues.values():
            files.pass_damaged()

    def finish(self, last_record_offset: int) -> list[Difference]:  # noqa: ARG002
        """Check everything that no batch covers, and return every difference, by queue."""
        for key in self._keys():
            if key not in self._queues:
                self._queues[key] = self._open(self._root / key.relative_path, None)
        for files in self._queues.values():
            files.finish()
        return self._differences()

    def gone_extents(self) -> Iterator[Extent]:
        """Yield the bytes of units of messages before the log's start."""
        for files in self._queues.values():
            yield from files.gone_extents()

    def _keys(self) -> Iterable[QueueKey]:
        return list_queues(self._root)

    def _differences(self) -> list[Difference]:
        return [difference for files in self._by_key() for difference in files.differences]

    def _by_key(self) -> list[Compared]:
        keys = sorted(self._queues, key=lambda key: (key.topic, key.queue_id))
        return [self._queues[key] for key in keys]

    @property
    def counts(self) -> Counts:
        """The queues that were checked, and their units."""
        files = self._queues.values()
        return Counts(
            queues=len(files),
            units=sum(queue.compared for queue in files),
            unseen_units=sum(queue.unseen for queue in files),
        )

    @property
    def replay_from(self) -> int | None:
        """Return the start of the first message that lacks a unit."""
        return first_offset(self._differences())

    def remove_strays(self) -> None:
        """Heal damage that costs no message."""
        for files in self._by_key():
            if files.differences:
                files.remove_strays(self._output)

    def cut(self) -> None:
        """Cut queues at their first wrong units."""
        for files in self._by_key():
            files.cut()
