"""Where a record stands in a queue: for comparing the units of a queue with the log.

Those who compare ask different questions. ``checkpoints.agreement`` asks what units say of the
records that they point to, ``store.state.coverage`` which records have no unit, and
``checkpoints.presence`` only whether the last unit of each queue is still the recorded one.
``upkeep.shadow`` holds the units of two writers against each other, and asks no record.
"""

from __future__ import annotations

from reput.store.log.commitlog import CommitLog
from reput.store.log.cursor import Window, walk
from reput.store.log.lightqueues import light_queues
from reput.store.log.record import Record
from reput.store.log.status import Status
from reput.store.queue.consumequeue import QueueKey, topic_directory


def queue_offsets(record: Record, queue: QueueKey, enable_lmq: bool) -> list[int]:
    """The offsets of a record in a queue, its own or a light one that its properties name. The
    properties may name a queue twice."""
    queues = [(record.topic, record.queue_id, record.queue_offset)]
    queues += light_queues(record, enable_lmq) or ()
    return [
        queue_offset
        for topic, queue_id, queue_offset in queues
        if (topic_directory(topic), queue_id) == (queue.topic, queue.queue_id)
    ]


def queue_offsets_of_any_setting(record: Record, queue: QueueKey) -> tuple[list[int], list[int]]:
    """``queue_offsets`` without and with ``enableLmq``, since a queue may be from either."""
    return queue_offsets(record, queue, False), queue_offsets(record, queue, True)


def unit_queue_offset(
    log: CommitLog, enable_lmq: bool, queue: QueueKey, physical_offset: int, size: int
) -> int | None:
    """The offset in a queue of the unit that the record at (physical offset, size) has there: the
    first, where its properties name the queue twice, since the second looks like a repetition. None
    where there is no such record, or it is not of that queue."""
    result = log.record_at(physical_offset, size)
    offsets = queue_offsets(result, queue, enable_lmq) if isinstance(result, Record) else ()
    return offsets[0] if offsets else None


def count_units(log: CommitLog, queue: QueueKey, physical_offset: int, size: int) -> int | None:
    """Return how many units of a queue the message at (physical offset, size) has; 0 if no record
    of that size begins there.

    None where the log does not tell, since its file is gone or the record there is damaged, and for
    an offset that a power cut cannot have torn.
    """
    if not log.may_be_torn(physical_offset):
        return None
    result = log.record_starting_at(physical_offset)
    if isinstance(result, Record):
        counts = map(len, queue_offsets_of_any_setting(result, queue))
        return max(counts) if result.total_size == size else 0
    if result.status in (Status.BLANK, Status.BAD_FILE_END):
        return 0
    # a damaged record has its unit; no unit leads into another record
    return 0 if is_inside_a_record(log, physical_offset) else None


def is_inside_a_record(log: CommitLog, offset: int) -> bool:
    """Whether a sound record begins before ``offset`` and ends after it."""
    segment = log.segments.at(offset)
    return segment is not None and walk(log, Window(log), segment.start, offset).offset < offset
