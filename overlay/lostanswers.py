"""Copies that were taken back while their clients may not know it, because the answer was lost.

A client that gets no answer to CONSUMER_SEND_MSG_BACK sends the message to its group's retry topic,
and without an answer to that sends it once more, with no attempts. A broker takes each for another
failure, and the message comes back twice or begins anew. Here it is the same one where its values
are those of a record that waits, or is a dead letter, and whose sender cannot have been told of it.
Each such record is recognised once, so that of two equal messages one more is written rather than
none.

A message that was compressed is not recognised: a client sends back what it has inflated.

Source of the rules: RocketMQ 5.3.3 ``MQClientAPIImpl.consumerSendMessageBack``,
``DefaultMQPushConsumerImpl.sendMessageBackAsNormalMessage``,
``DefaultMQProducerImpl.sendKernelImpl`` (which clears the attempts at the first try).
"""

from __future__ import annotations

from typing import NamedTuple

from reput.overlay.records import properties as names
from reput.overlay.records.sources import source_of
from reput.store.log.properties import UNIQ_KEY
from reput.store.log.record import (
    DLQ_GROUP_TOPIC_PREFIX,
    RETRY_GROUP_TOPIC_PREFIX,
    Record,
    body_crc,
)

KEPT_MS = 60_000
"""A client asks again within seconds; equal values are another failure after this time."""


class _Message(NamedTuple):
    """The values that a copy taken back and the same one sent have in common."""

    retry_topic: bytes
    """The group's."""
    topic: bytes
    """RETRY_TOPIC: where the message was first."""
    unique_key: bytes
    body_crc: int


class _Successor(NamedTuple):
    message: _Message
    reconsume_times: int
    time: int
    """When it was stored, in ms."""


class LostAnswers:
    """The records of the last minute that wait for a retry or are dead letters, and whose senders
    were not answered; not thread-safe."""

    def __init__(self) -> None:
        self._successors: dict[int, _Successor] = {}
        """By physical offset, in the order of the log."""
        self._places: dict[_Message, list[int]] = {}

    def note(self, record: Record, now: int) -> None:
        """Take a record of the overlay's log in; ``now`` is in ms."""
        self._forget_before(now - KEPT_MS)
        source, message = source_of(record), _message_of(record)
        if record.topic == message.retry_topic:
            if source is not None and not source.is_base:
                # what has come back may fail again
                self.answered(source.physical_offset)
        elif message.retry_topic and record.store_timestamp > now - KEPT_MS:
            self._successors[record.physical_offset] = _Successor(
                message, record.reconsume_times, record.store_timestamp
            )
            self._places.setdefault(message, []).append(record.physical_offset)

    def answered(self, physical_offset: int) -> None:
        """Forget a record whose sender has been answered."""
        successor = self._successors.pop(physical_offset, None)
        if successor is not None:
            places = self._places[successor.message]
            places.remove(physical_offset)
            if not places:
                del self._places[successor.message]

    def take(self, sent: Record, now: int) -> int | None:
        """Return the physical offset of the record that a client sends once more as ``sent``, and
        forget it; None where this is another failure.

        A client that could not send it either counts one attempt more; a second try has none.
        """
        self._forget_before(now - KEPT_MS)
        for place in self._places.get(_message_of(sent), ()):
            times = self._successors[place].reconsume_times
            if sent.reconsume_times in (0, times, times + 1):
                self.answered(place)
                return place
        return None

    def _forget_before(self, time: int) -> None:
        while self._successors:
            place, successor = next(iter(self._successors.items()))
            if successor.time > time:
                return
            self.answered(place)


def _message_of(record: Record) -> _Message:
    """The values of a record that waits, is a dead letter, or was delivered at once."""
    values = record.property_map
    if record.topic.startswith(DLQ_GROUP_TOPIC_PREFIX):
        group = record.topic.removeprefix(DLQ_GROUP_TOPIC_PREFIX)
        retry_topic = RETRY_GROUP_TOPIC_PREFIX + group
    else:
        retry_topic = values.get(names.REAL_TOPIC, record.topic)
    if not retry_topic.startswith(RETRY_GROUP_TOPIC_PREFIX):
        retry_topic = b""
    return _Message(
        retry_topic, values.get(names.RETRY_TOPIC, b""), values.get(UNIQ_KEY, b""),
        body_crc(record.body),
    )  # fmt: skip
