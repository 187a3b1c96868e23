"""Light queues: additional queues of a message, named by its properties.

Rule: ``MultiDispatchUtils.checkMultiDispatchQueue`` and ``ConsumeQueue.multiDispatchLmqQueue`` of
RocketMQ 5.3.3 (formats.md §5). This is the plain twin of the code in ``store.runs.scankernel``.
"""

from __future__ import annotations

from reput.store.log import java, properties, record
from reput.store.log.record import Record

LMQ_QUEUE_ID = 0


def light_queues(
    message: Record, enable_lmq: bool, batch_topics: frozenset[bytes] = frozenset()
) -> list[tuple[bytes, int, int]] | None:
    """(topic, queue id, queue offset) of each light queue that a message goes into.

    None if its lists cannot be used: RocketMQ skips lists of unequal length, and never gets beyond
    a message whose offset is not a number. With ``enable_lmq``, names that begin with %LMQ% have
    one queue. Messages of ``batch_topics`` go into no light queue.
    """
    if not message.dispatched_to_queue or message.topic in batch_topics:
        return []
    values = message.property_map
    names = values.get(properties.INNER_MULTI_DISPATCH, b"")
    offsets = values.get(properties.INNER_MULTI_QUEUE_OFFSET, b"")
    return listed_queues(message.topic, message.queue_id, names, offsets, enable_lmq)


def listed_queues(
    topic: bytes, queue_id: int, names: bytes, offsets: bytes, enable_lmq: bool
) -> list[tuple[bytes, int, int]] | None:
    """The result of ``light_queues`` for a message of this queue, whose properties
    INNER_MULTI_DISPATCH and INNER_MULTI_QUEUE_OFFSET are ``names`` and ``offsets``."""
    if (
        topic.startswith((record.RETRY_GROUP_TOPIC_PREFIX, record.SYSTEM_TOPIC_PREFIX))
        or topic == record.SCHEDULE_TOPIC
        or _is_blank(names)
        or _is_blank(offsets)
    ):
        return []
    parts, numbers = _split(names), _split(offsets)
    if len(parts) != len(numbers):
        return None
    queues = []
    for name, number in zip(parts, numbers, strict=True):
        if b"/" in name:
            continue
        queue_offset = java.parse_integer(number, 64)
        if queue_offset is None:
            return None
        is_lmq = enable_lmq and name.startswith(record.LMQ_PREFIX)
        queues.append((name, LMQ_QUEUE_ID if is_lmq else queue_id, queue_offset))
    return queues


def _is_blank(value: bytes) -> bool:
    return not value.strip(bytes(range(0x21)))


def _split(value: bytes) -> list[bytes]:
    """Java's ``split(",")``: no empty strings at the end."""
    stripped = value.rstrip(b",")
    return stripped.split(b",") if stripped else []
