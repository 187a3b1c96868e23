"""Where a record stands in a queue: for comparing the units of a queue with the log."""

from __future__ import annotations

from store.log.commitlog import CommitLog
from store.log.lightqueues import light_queues
from store.log.record import Record, Status
from store.queue.consumequeue import QueueKey, topic_directory

NO_RECORD = (Status.BAD_MAGIC, Status.BLANK, Status.BAD_BLANK, Status.BAD_FILE_END)


def queue_offsets(found: Record, queue: QueueKey, enable_lmq: bool) -> list[int]:
    """The offsets of a record in a queue, its own or a light one that its properties name; they may
    name one twice."""
    queues = [(found.topic, found.queue_id, found.queue_offset)]
    queues += light_queues(found, enable_lmq) or ()
    return [
        queue_offset
        for topic, queue_id, queue_offset in queues
        if (topic_directory(topic), queue_id) == (queue.topic, queue.queue_id)
    ]


def queue_offsets_of_any_setting(found: Record, queue: QueueKey) -> tuple[list[int], list[int]]:
    """``queue_offsets`` without and with ``enableLmq``, since a queue may be from either."""
    return queue_offsets(found, queue, False), queue_offsets(found, queue, True)


def count_units(log: CommitLog, queue: QueueKey, physical_offset: int, size: int) -> int | None:
    """Return how many units of a queue the message at (physical offset, size) has; None where the
    log does not tell, since its file is gone or the record is damaged, and where the offset cannot
    be one that a power cut has torn."""
    if not log.may_be_torn(physical_offset):
        return None
    found = log.record_starting_at(physical_offset)
    if isinstance(found, Record):
        counts = map(len, queue_offsets_of_any_setting(found, queue))
        return max(counts) if found.total_size == size else 0
    # a damaged record has its unit; where none begins, no unit may lead
    return 0 if found.status in NO_RECORD else None
