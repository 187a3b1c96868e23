"""Records of messages that clients send: one by one, in batches, and recalls of timer messages.

The functions are pure, as those of ``overlay.records.copies``. A message that is sent is made from
nothing, so its source is 0.
"""

from __future__ import annotations

from dataclasses import dataclass

from reput.overlay.records import properties as names
from reput.overlay.records.drafts import HALF_TOPIC, TIMER_TOPIC, Draft
from reput.overlay.records.properties import JavaProperties
from reput.overlay.records.release import Refusal, Writer
from reput.overlay.records.transactions import DISCARDED_TOPIC, OP_TOPIC, make_half
from reput.store import names as validators
from reput.store.errors import RefusedMessageError
from reput.store.log import innerbatch, java, properties, record
from reput.store.log.record import RETRY_GROUP_TOPIC_PREFIX, Record
from reput.store.log.sysflag import SysFlag

RESERVED_TOPICS = frozenset(
    (
        record.SCHEDULE_TOPIC, HALF_TOPIC, OP_TOPIC, DISCARDED_TOPIC, TIMER_TOPIC,
        b"SELF_TEST_TOPIC", b"OFFSET_MOVED_EVENT",
    )
)  # fmt: skip
"""Nobody may send there (``TopicValidator.isNotAllowedSendTopic``). A broker of 5.x takes messages
for TIMER_TOPIC."""
RECALL_TAG = b"_RECALL_TAG_"
RECALL_BODY = b"0"
_DEAD = b"-1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Send:
    """A message, or a batch, as a producer sends it (``SendMessageRequestHeader``)."""

    topic: bytes
    queue_id: int
    """A broker picks one where this is below 0, before a record is made."""
    body: bytes
    properties: bytes
    r"""``name \x01 value \x02`` repeated."""
    born_timestamp: int
    born_host: tuple[str, int]
    """The client's end of the connection."""
    flag: int = 0
    sys_flag: int = 0
    reconsume_times: int = 0
    max_reconsume_times: int | None = None
    """How many attempts a message gets that is sent to a retry topic; None for the group's."""


@dataclass(frozen=True, slots=True)
class RetryGroup:
    """The group of a retry topic, as far as it decides whether a message is a dead letter."""

    max_reconsume_times: int = 16
    """``retryMaxTimes``."""
    holds_lock: bool = False
    """Whether one of its members has locked a queue and the lock has not expired."""


@dataclass(frozen=True, slots=True)
class Target:
    """The topic to which a message is sent, as far as it decides about it."""

    queues: int
    """The larger one of the numbers of queues to read and to write."""
    group: RetryGroup | None = None
    """The group if this is its retry topic; None where no such group exists."""
    has_multi_tags: bool = False


def sent(
    message: Send, target: Target, writer: Writer, *, unique_key: bytes, now_ms: int
) -> Record:
    """The record of a message: in its queue, waiting, dead, or a half of a transaction.

    ``SendMessageProcessor.sendMessage``. A message without a UNIQ_KEY gets ``unique_key`` where the
    release makes one. Raises RefusedMessageError.
    """
    _check(message, target, writer)
    draft = _draft(message, target, writer)
    if message.topic.startswith(RETRY_GROUP_TOPIC_PREFIX):
        _bury(draft, message, target, writer)
    values = draft.properties
    if writer.release.marks_sends and values.get(properties.UNIQ_KEY) is None:
        values.put(properties.UNIQ_KEY, unique_key)
    values.put(names.CLUSTER, writer.cluster.encode())
    wait = None if writer.release.keeps_wait else values.get(names.WAIT)
    if wait is not None:
        values.remove(names.WAIT)
    draft.render_text(writer)
    if wait is not None:
        # a text that is made anew, because the message waits, has it
        values.put(names.WAIT, wait)
    is_old_retry = draft.reconsume_times > 0 and draft.delay_level > 0
    if (values.get(names.TRANSACTION_PREPARED) or b"").lower() == b"true" and not is_old_retry:
        make_half(draft, writer)
    return draft.put(writer, now_ms)


def sent_batch(message: Send, target: Target, writer: Writer) -> list[Record]:
    """The records of a batch, for consecutive offsets of one queue.

    ``SendMessageProcessor.sendBatchMessage``, ``MessageExtEncoder.encode`` of a
    MessageExtBatch. The text of each message stays as the client wrote it. Raises
    RefusedMessageError.
    """
    _check(message, target, writer)
    if message.topic.startswith(RETRY_GROUP_TOPIC_PREFIX):
        raise _illegal("a batch cannot be sent to a retry topic: send its messages one by one")
    draft = _draft(message, target, writer)
    if draft.delay_level > 0 or draft.sys_flag & SysFlag.TRANSACTION_MASK:
        raise _illegal("a batch can neither wait nor be part of a transaction")
    draft.properties.put(names.CLUSTER, writer.cluster.encode())
    draft.render_text(writer)
    common = draft.text if writer.release.appends_batch_properties else b""
    messages = innerbatch.inner_messages(message.body)
    if messages is None:
        raise _illegal("the batch is not whole")
    separator = properties.PROPERTY_SEPARATOR
    records = []
    for flag, body, text in messages:
        draft.flag, draft.body = flag, body
        between = separator if text and common and not text.endswith(separator) else b""
        draft.text = text + between + common
        records.append(draft.as_record(writer))
    return records


@dataclass(frozen=True, slots=True)
class Recall:
    """A wish that a timer message be not delivered, from its handle (``RecallMessageHandle``)."""

    producer_group: bytes
    topic: bytes
    unique_key: bytes
    due_ms: int


def recalled(recall: Recall, writer: Writer, *, born_host: tuple[str, int], now_ms: int) -> Record:
    """The record that waits beside a timer message and takes it away when it is due.

    ``RecallMessageProcessor.buildMessage``. Raises RefusedMessageError for a time that has passed
    or is too far.
    """
    if not writer.release.has_timers:
        raise RefusedMessageError(
            Refusal.REQUEST_CODE_NOT_SUPPORTED,
            f"RocketMQ {writer.release.name} recalls no messages",
        )
    if not 0 < recall.due_ms - now_ms < writer.max_timer_delay_ms:
        raise RefusedMessageError(
            Refusal.ILLEGAL_OPERATION,
            "recall failed, timestamp invalid: the message is no more due",
        )
    key = recall.unique_key
    values = JavaProperties()
    values.put(properties.TAGS, RECALL_TAG)
    deleted = recall.topic + b"+" + key if writer.release.names_recalled_topic else key
    values.put(names.TIMER_DELETED_KEY, deleted)
    values.put(properties.UNIQ_KEY, key)
    values.put(names.TIMER_DELIVER_MS, str(recall.due_ms).encode())
    values.put(names.BORN_TIMESTAMP, str(now_ms).encode())
    values.put(names.TRACE_CONTEXT, b"")
    values.put(names.PRODUCER_GROUP, recall.producer_group)
    draft = Draft(
        topic=recall.topic,
        queue_id=0,
        properties=values,
        body=RECALL_BODY,
        born_timestamp=now_ms,
        born_host=born_host,
    )
    draft.render_text(writer)
    return draft.put(writer, now_ms)


def _illegal(line: str) -> RefusedMessageError:
    return RefusedMessageError(Refusal.MESSAGE_ILLEGAL, line)


def _check(message: Send, target: Target, writer: Writer) -> None:
    """``AbstractSendMessageProcessor.msgCheck`` and ``HookUtils.checkBeforePutMessage``, in their
    order. A retry topic may have any group's name, although a broker takes 127 bytes."""
    topic = java.decode(message.topic)
    group = topic.removeprefix(RETRY_GROUP_TOPIC_PREFIX.decode())
    if not (validators.is_topic(topic) or (group != topic and validators.is_group(group))):
        raise RefusedMessageError(
            writer.release.wrong_target, f"{topic!r:.60} is no name of a topic"
        )
    if message.topic in RESERVED_TOPICS:
        raise RefusedMessageError(
            Refusal.NO_PERMISSION, f"Sending message to topic[{topic}] is forbidden."
        )
    if not 0 <= message.queue_id < target.queues:
        raise RefusedMessageError(
            writer.release.wrong_target,
            f"request queueId[{message.queue_id}] is illegal, topic [{topic}] has {target.queues}",
        )
    if not message.body:
        raise _illegal("a message needs a body")
    if len(message.body) > writer.max_message_size:
        raise _illegal(
            f"the body has {len(message.body)} bytes, the limit is {writer.max_message_size}"
        )


def _draft(message: Send, target: Target, writer: Writer) -> Draft:
    """The message, with the properties that a broker adds as the request comes in
    (``AbstractSendMessageProcessor.buildMsgContext``)."""
    capacity = writer.release.properties_capacity
    values = JavaProperties.parse(message.properties, capacity)
    if writer.release.marks_sends:
        values.put(names.MSG_REGION, writer.region.encode())
        values.put(names.TRACE_ON, b"true")
        values.remove(names.POP_CHECKPOINT)
        text = values.text(ends_with_separator=writer.release.ends_with_separator)
        values = JavaProperties.parse(text, capacity)
    return Draft(
        topic=message.topic,
        queue_id=message.queue_id,
        properties=values,
        body=message.body,
        flag=message.flag,
        sys_flag=message.sys_flag | (SysFlag.MULTI_TAGS if target.has_multi_tags else 0),
        born_timestamp=message.born_timestamp,
        born_host=message.born_host,
        reconsume_times=message.reconsume_times,
    )


def _bury(draft: Draft, message: Send, target: Target, writer: Writer) -> None:
    """``SendMessageProcessor.handleRetryAndDLQ``: a retry that has had its attempts is a dead
    letter.

    In 4.9 its delay level stays, and it waits before it is dead (RocketMQ's issue 2724). Since 5.1
    a group that holds a lock consumes in order, so what it sends has been given up: its clients up
    to 4.9.8 send as many attempts as the limit, later ones one more.
    """
    group = java.decode(message.topic.removeprefix(RETRY_GROUP_TOPIC_PREFIX))
    if target.group is None:
        raise RefusedMessageError(
            Refusal.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group not exist, {group}"
        )
    limit = message.max_reconsume_times
    if limit is None:
        limit = target.group.max_reconsume_times
    if writer.release.dead_letters_at_max:
        is_dead = message.reconsume_times >= limit
    else:
        is_dead = message.reconsume_times > limit or target.group.holds_lock
        if is_dead:
            draft.properties.put(properties.DELAY, _DEAD)
    if is_dead:
        draft.topic, draft.queue_id = record.DLQ_GROUP_TOPIC_PREFIX + group.encode(), 0
