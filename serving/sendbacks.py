"""Messages that a listener could not consume and sends back (CONSUMER_SEND_MSG_BACK).

The copy is read from the log of the broker at whose port the request came, and what becomes of it
is written to the overlay. RocketMQ takes any record of its log for the copy; here it must be the
one that the client means. Source: RocketMQ 5.3.3
``AbstractSendMessageProcessor.consumerSendMsgBack``.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

from reput.overlay.records.copies import DEFAULT_MAX_RECONSUME_TIMES, SendBack, message_id
from reput.overlay.records.properties import RETRY_TOPIC
from reput.readers.messagestore import MessageStore
from reput.serving import requests
from reput.serving.codes import RequestCode, ResponseCode
from reput.serving.connection import Connection, Handler, Refused
from reput.serving.durable import answer_when_durable, refusing
from reput.serving.frame import Frame
from reput.serving.grouppolicy import GroupPolicies
from reput.serving.groups import Groups
from reput.store.log import java, properties
from reput.store.log.innerbatch import is_inner_batch
from reput.store.log.record import Record, body_crc_is_right
from reput.store.log.systemtopics import WAITING_TOPICS

if TYPE_CHECKING:
    from reput.overlay.overlay import Overlay  # brings the dispatcher along


class SendBacks:
    """Takes back messages of one broker's store."""

    def __init__(
        self,
        store: MessageStore,
        overlay: Overlay,
        groups: Groups,
        policies: GroupPolicies,
        *,
        is_base: bool,
    ) -> None:
        """``store`` is the base's, or the overlay's own."""
        self._store = store
        self._overlay = overlay
        self._groups = groups
        self._policies = policies
        self._is_base = is_base

    @property
    def handlers(self) -> dict[int, Handler]:
        """The requests that are answered here."""
        return {RequestCode.CONSUMER_SEND_MSG_BACK: self.send_back}

    def send_back(self, connection: Connection, request: Frame) -> Frame | None:
        """Answer when the successor of a copy is durable."""
        group = requests.group(request, "group")
        queue_count = self._policies.find(group).retry_queue_nums
        if queue_count <= 0:
            # as a broker: such a group wants no retries
            return request.answer(ResponseCode.SUCCESS)
        asked = SendBack(
            group.encode(),
            requests.number(request, "delayLevel", 0),
            requests.number(request, "maxReconsumeTimes", DEFAULT_MAX_RECONSUME_TIMES),
            random.randrange(queue_count),
        )
        copy = self._copy(request, group)
        with refusing(ResponseCode.SYSTEM_ERROR):
            future = self._overlay.send_back(copy, asked, is_of_base=self._is_base)
        if future is None:
            return request.answer(ResponseCode.SUCCESS)
        answer_when_durable(
            connection, request, future,
            lambda stored: self._taken_back(connection, request, stored), ResponseCode.SYSTEM_ERROR,
        )  # fmt: skip
        return None

    def _taken_back(
        self, connection: Connection, request: Frame, stored: Sequence[Record]
    ) -> Frame:
        if connection.is_open:
            self._overlay.answered(stored[0])
        return request.answer(ResponseCode.SUCCESS)

    def _copy(self, request: Frame, group: str) -> Record:
        """The record that a request means. Raises Refused where the log has another one there."""
        offset = requests.number(request, "offset")
        self._store.refresh()
        message = self._store.log.message_at(offset)
        if message is None or not body_crc_is_right(message.record):
            raise _refused(f"look message by offset failed, {offset}")
        copy = message.record
        topic = java.decode(copy.property_map.get(RETRY_TOPIC, copy.topic))
        asked = request.ext.get("originTopic", topic)
        if topic != asked or java.decode(copy.topic) in WAITING_TOPICS:
            raise _refused(f"the message at {offset} is none of topic {asked[:80]}")
        own_id, unique_key = message_id(copy).decode(), properties.UNIQ_KEY.decode()
        ids = (own_id, message.properties.get(unique_key, ""))
        if request.ext.get("originMsgId", own_id) not in ids:
            raise _refused(f"the message at {offset} has another id")
        if is_inner_batch(copy.sys_flag):
            raise _refused(f"the message at {offset} is one of an inner batch, which stays whole")
        if not self._reads(group, message.topic):
            raise _refused(f"group {group} does not read topic {message.topic}")
        return copy

    def _reads(self, group: str, topic: str) -> bool:
        """Whether some member subscribes to a topic. After a start of the server nobody has said
        yet what it subscribes to."""
        return self._groups.get(group) is None or group in self._groups.subscribers(topic)


def _refused(remark: str) -> Refused:
    return Refused(ResponseCode.SYSTEM_ERROR, remark)
