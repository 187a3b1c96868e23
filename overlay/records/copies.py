"""Records that are made from a copy: sent back, dead, and delivered after they waited.

A copy is a record of a message in some log. Every function is pure: it gets what it needs to know,
the time included, and returns a record for the end of a log, which sets offsets and store time.
``source`` says what the record is made from (``overlay.records.sources.Source.field``).
A broker writes 0 there.
"""

from __future__ import annotations

from dataclasses import dataclass

from reput.overlay.records import properties as names
from reput.overlay.records.drafts import HALF_TOPIC, Draft, draft_of
from reput.overlay.records.release import Refusal, Writer
from reput.store.errors import RefusedMessageError
from reput.store.log import java, properties, record
from reput.store.log.record import Record

DEFAULT_MAX_RECONSUME_TIMES = 16
FIRST_LEVEL = 3
"""The delay level of a first attempt that failed; each further one has the next level."""
_MAX_INT = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class SendBack:
    """A group's wish to get a copy again later (CONSUMER_SEND_MSG_BACK)."""

    group: bytes
    delay_level: int
    """The level to wait for, 0 for one that fits the attempts; below 0 for a dead letter now."""
    max_reconsume_times: int = DEFAULT_MAX_RECONSUME_TIMES
    retry_queue_id: int = 0
    """The queue of the retry topic; a broker takes any of them."""


def sent_back(copy: Record, asked: SendBack, writer: Writer, *, source: int, now_ms: int) -> Record:
    """The copy as it waits for its next delivery, or as a dead letter.

    ``AbstractSendMessageProcessor.consumerSendMsgBack``; 4.9 ``asyncConsumerSendMsgBack``. An empty
    body is accepted, although a broker refuses it for ever. Raises RefusedMessageError with
    SYSTEM_ERROR if the properties grow beyond a record's.
    """
    draft = draft_of(copy, writer, source)
    values = draft.properties
    is_dead = copy.reconsume_times >= asked.max_reconsume_times or asked.delay_level < 0
    if values.get(names.RETRY_TOPIC) is None:
        values.put(names.RETRY_TOPIC, copy.topic)
    values.put(names.WAIT, b"false")
    level = 0 if is_dead else asked.delay_level or FIRST_LEVEL + copy.reconsume_times
    values.put(properties.DELAY, str(min(level, _MAX_INT)).encode())
    if not (values.get(names.ORIGIN_MESSAGE_ID) or b"").strip():
        values.put(names.ORIGIN_MESSAGE_ID, message_id(copy))
    draft.render_text(writer)
    prefix = record.DLQ_GROUP_TOPIC_PREFIX if is_dead else record.RETRY_GROUP_TOPIC_PREFIX
    draft.topic = prefix + asked.group
    draft.queue_id = 0 if is_dead else asked.retry_queue_id
    draft.reconsume_times = min(copy.reconsume_times + 1, _MAX_INT)
    try:
        return draft.put(writer, now_ms)
    except RefusedMessageError as error:
        raise RefusedMessageError(Refusal.SYSTEM_ERROR, str(error)) from error


def message_id(copy: Record) -> bytes:
    """The id that leads to a copy: its store host and log position, in hexadecimal digits
    (``MessageDecoder.createMessageId``)."""
    place = record.encode_host(copy.store_host) + copy.physical_offset.to_bytes(8, "big")
    return place.hex().upper().encode()


def level_delivered(waiting: Record, writer: Writer, *, source: int) -> Record:
    """The message that waited for a delay level, in the queue to which it belongs.

    ``ScheduleMessageService.messageTimeUp``: DELAY, REAL_TOPIC and REAL_QID stay in the text.
    Raises RefusedMessageError for a record that cannot be delivered, which a broker passes over.
    """
    return _deliver(draft_of(waiting, writer, source), waiting, writer)


def timer_delivered(
    waiting: Record, writer: Writer, *, enqueued_ms: int, now_ms: int, source: int
) -> Record:
    """The message that waited for a time of its own, in the queue to which it belongs.

    ``TimerMessageStore.convert`` and ``convertMessage``. ``enqueued_ms`` is the second in which it
    was taken up, in ms. Raises RefusedMessageError for a record that cannot be delivered.
    """
    draft = draft_of(waiting, writer, source)
    draft.properties.put(names.TIMER_ENQUEUE_MS, str(enqueued_ms).encode())
    draft.properties.put(names.TIMER_DEQUEUE_MS, str(now_ms).encode())
    draft.render_text(writer)
    return _deliver(draft, waiting, writer)


def _deliver(draft: Draft, waiting: Record, writer: Writer) -> Record:
    """The record where it belongs; it does not wait again.

    A half that waited is none any more, since it has forgotten its topic: a broker drops it after a
    level, and makes it a half of the topic of halves after a time.
    """
    place = f"the message at {waiting.physical_offset} of {java.decode(waiting.topic)}"
    draft.return_home(place)
    if draft.topic == HALF_TOPIC:
        raise RefusedMessageError(
            Refusal.SYSTEM_ERROR, f"{place} is an open transaction's; it is left out"
        )
    return draft.as_record(writer)
