"""Removal of derived files whose messages the log no longer has at its front.

The removal is planned by reading only, with a function for each kind of file (RocketMQ 5.3.3
``MappedFileQueue.deleteExpiredFileByOffset``, ``ConsumeQueueExt.truncateByMinAddress``,
``ConsumeQueueStore.cleanExpired``, ``IndexService.deleteExpiredFile``; formats.md §5, §6, §8).
Files are removed oldest first, each durably before the next one, so a crash in between leaves a
shorter queue without a hole. A reader derives a queue's min offset from the log, not from the
files: ``ConsumeQueueFiles.min_offset_in_queue``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from reput.store import fsops
from reput.store.config import StoreSettings
from reput.store.files import CONSUME_QUEUE_DIRECTORY, CONSUME_QUEUE_EXT_DIRECTORY, INDEX_DIRECTORY
from reput.store.index.indexfile import IndexFiles, read_header
from reput.store.log.systemtopics import is_system_topic
from reput.store.queue.consumequeue import (
    CQ_STORE_UNIT_SIZE,
    ConsumeQueueFiles,
    QueueFiles,
    QueueKey,
    list_queues,
)
from reput.store.queue.consumequeueext import ConsumeQueueExtFiles
from reput.store.queue.kinds import QueueKind, open_all_queues, open_ext


@dataclass(frozen=True, slots=True)
class ExpiredFile:
    """One file to remove."""

    topic: str | None
    """None for an index file."""
    queue_id: int | None
    path: Path
    size: int
    """Bytes; files are sparse, so the disk may gain less."""


def expired_files(
    output: Path, settings: StoreSettings, log_min_offset: int, durable_end: int | None
) -> Iterator[ExpiredFile]:
    """Every derived file whose messages are all before the log, in the order of removal.

    ``durable_end`` is the watermark; None trusts every unit. Raises QueueFileError.
    """
    for _, key, files in open_all_queues(output, settings):
        # a queue keeps its last file, so one with a single file is not examined
        end = files.find_end(durable_end) if len(files.starts) > 1 else 0
        for start in expired_queue_files(files, end, log_min_offset):
            yield _expired(key, files.path(start), files.file_size)
        if not isinstance(files, ConsumeQueueFiles):
            continue
        ext = open_ext(output, key, settings)
        if len(ext.starts) > 1:
            end = end or files.find_end(durable_end)
            for start in expired_ext_files(ext, files, end, log_min_offset):
                yield _expired(key, ext.path(start), ext.file_size)
    yield from _expired_index_files(output, settings, log_min_offset)


def _expired_index_files(
    output: Path, settings: StoreSettings, log_min_offset: int
) -> Iterator[ExpiredFile]:
    """Leading files whose last message is before the log, but never the last file
    (``IndexService.deleteExpiredFile``)."""
    files = IndexFiles(output / INDEX_DIRECTORY, settings.index_layout)
    for path in files.paths()[:-1]:
        if read_header(path).end_phy_offset >= log_min_offset:
            return
        yield ExpiredFile(None, None, path, settings.index_layout.file_size)


def expired_queue_files(files: QueueFiles, end: int, log_min_offset: int) -> list[int]:
    """Starts of queue files to remove, oldest first; ``end`` is the position after the last unit.

    A file is removed while its last unit is before the log, but never the file of the queue's last
    unit, which determines the next position. A blank unit counts as the message before it, whereas
    RocketMQ takes it for one at offset 0. A hole is damage and ends the removal.
    """
    expired: list[int] = []
    for start in files.starts:
        file_end = start + files.file_size
        offset, size = files.last_unit(file_end) or (0, 1)
        if file_end >= end or size <= 0 or offset >= log_min_offset:
            break
        expired.append(start)
    return expired


def expired_ext_files(
    ext: ConsumeQueueExtFiles, files: ConsumeQueueFiles, end: int, log_min_offset: int
) -> list[int]:
    """Starts of ext files to remove.

    These end before the ext unit of the first message that is still in the log. A queue without
    such a message keeps all, as in RocketMQ.
    """
    first = files.min_offset_in_queue(end, log_min_offset)
    if first * CQ_STORE_UNIT_SIZE >= end:
        return []
    return ext.files_before(int(files.read(first, 1)[0]["tags_code"]))


def unused_queues(
    output: Path, settings: StoreSettings, log_min_offset: int, durable_end: int | None
) -> Iterator[QueueKey]:
    """Queues whose last message ends before the log, and those without a file or with an ext alone,
    as a power cut leaves them while they are removed. RocketMQ's own topics are never among them.
    """
    for key, files in QueueKind.CONSUME.each(output, settings):
        end = files.max_physic_offset(files.find_end(durable_end))
        has_file = bool(files.starts or files.empty)
        is_unused = not has_file if end < 0 else end < log_min_offset
        if is_unused and not is_system_topic(key.topic):
            yield key
    for key in list_queues(output / CONSUME_QUEUE_EXT_DIRECTORY):
        queue = output / CONSUME_QUEUE_DIRECTORY / key.relative_path
        if not queue.is_dir() and not is_system_topic(key.topic):
            yield key


def remove_files(files: Iterable[ExpiredFile]) -> int:
    """Durably remove planned files; return the bytes. Raises OutputError, SyncError."""
    size = 0
    for file in files:
        fsops.unlink(file.path)
        # each by itself: a power cut could undo one removal, and leave a later one as a hole
        fsops.sync_directory(file.path.parent)
        size += file.size
    return size


def remove_queue(output: Path, settings: StoreSettings, key: QueueKey) -> None:
    """Remove a queue with its directories (``ConsumeQueue.destroy``), the ext last: a queue must
    not lose what its units point to. Raises OutputError, SyncError."""
    queue = QueueKind.CONSUME.open(output, key, settings)
    for files in (queue, open_ext(output, key, settings)):
        files.remove_all()
        fsops.remove_directory(files.directory)
        fsops.remove_directory(files.directory.parent)


def _expired(key: QueueKey, path: Path, size: int) -> ExpiredFile:
    return ExpiredFile(key.topic, key.queue_id, path, size)
