"""The two kinds of queues: where an output has those of each, and how their files are opened."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path

from reput.store.config import StoreSettings
from reput.store.files import (
    BATCH_CONSUME_QUEUE_DIRECTORY,
    CONSUME_QUEUE_DIRECTORY,
    CONSUME_QUEUE_EXT_DIRECTORY,
)
from reput.store.queue.batchconsumequeue import BatchConsumeQueueFiles
from reput.store.queue.consumequeue import ConsumeQueueFiles, QueueFiles, QueueKey, list_queues
from reput.store.queue.consumequeueext import ConsumeQueueExtFiles


class QueueKind(StrEnum):
    """A kind of queues, by the name of its directory in a store or another output."""

    CONSUME = CONSUME_QUEUE_DIRECTORY
    BATCH = BATCH_CONSUME_QUEUE_DIRECTORY

    @property
    def files(self) -> type[QueueFiles]:
        """The class of a queue's files."""
        return BatchConsumeQueueFiles if self is QueueKind.BATCH else ConsumeQueueFiles

    def open(self, output: Path, key: QueueKey, settings: StoreSettings) -> QueueFiles:
        """The files of one queue. Raises QueueFileError for files of another size."""
        return self.files(output / self / key.relative_path, settings.file_size(self))

    def each(self, output: Path, settings: StoreSettings) -> Iterator[tuple[QueueKey, QueueFiles]]:
        """The files of every queue, sorted. Raises QueueFileError as ``open``."""
        return self.files.each(output / self, settings.file_size(self))


def kind_of(output: Path, topic: str) -> QueueKind:
    """The kind of a topic's queues, as their directories show it."""
    is_batch = (output / QueueKind.BATCH / topic).is_dir()
    return QueueKind.BATCH if is_batch else QueueKind.CONSUME


def list_all_queues(output: Path) -> list[tuple[QueueKey, QueueKind]]:
    """Every queue of both kinds, sorted by topic and queue."""
    queues = [(key, kind) for kind in QueueKind for key in list_queues(output / kind)]
    return sorted(queues, key=lambda each: (each[0].topic, each[0].queue_id))


def open_all_queues(
    output: Path, settings: StoreSettings
) -> Iterator[tuple[QueueKind, QueueKey, QueueFiles]]:
    """Every queue of both kinds, one kind after the other; each is sorted."""
    for kind in QueueKind:
        for key, files in kind.each(output, settings):
            yield kind, key, files


def open_ext(output: Path, key: QueueKey, settings: StoreSettings) -> ConsumeQueueExtFiles:
    """The ext files of one queue. Raises QueueFileError for files of another size."""
    directory = output / CONSUME_QUEUE_EXT_DIRECTORY / key.relative_path
    return ConsumeQueueExtFiles(directory, settings.mapped_file_size_consume_queue_ext)
