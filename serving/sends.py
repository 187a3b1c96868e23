"""Messages that clients send: to the overlay's retry topics, and nowhere else.

A client sends a message to its group's retry topic where it cannot send it back, and where an
orderly listener gives up. Source: RocketMQ 5.3.3 ``SendMessageProcessor``,
``SendMessageRequestHeaderV2``.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from reput.overlay.records.copies import message_id
from reput.overlay.records.sends import RetryGroup, Send, Target
from reput.serving import requests
from reput.serving.codes import RequestCode, ResponseCode
from reput.serving.connection import Connection, Handler, Refused
from reput.serving.durable import answer_when_durable, refusing
from reput.serving.frame import Frame
from reput.serving.grouppolicy import GroupPolicies
from reput.serving.topics import RETRY_PREFIX
from reput.store.log import properties
from reput.store.log.record import Record
from reput.store.names import is_group

if TYPE_CHECKING:
    from reput.overlay.overlay import Overlay  # brings the dispatcher along

_LONG_NAMES: Mapping[str, str] = MappingProxyType(
    {
        "b": "topic", "e": "queueId", "f": "sysFlag", "g": "bornTimestamp", "h": "flag",
        "i": "properties", "j": "reconsumeTimes", "l": "maxReconsumeTimes", "m": "batch",
    }
)  # fmt: skip
"""SEND_MESSAGE's names of the fields that SEND_MESSAGE_V2 and SEND_BATCH_MESSAGE shorten."""


class Sends:
    """Takes messages for one overlay."""

    def __init__(
        self, overlay: Overlay, policies: GroupPolicies, holds_lock: Callable[[str], bool]
    ) -> None:
        """``holds_lock`` says whether a member of a group has locked a queue, at any broker."""
        self._overlay = overlay
        self._policies = policies
        self._holds_lock = holds_lock

    @property
    def handlers(self) -> dict[int, Handler]:
        """The requests that are answered here."""
        return dict.fromkeys(
            (
                RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2,
                RequestCode.SEND_BATCH_MESSAGE,
            ),
            self.send,
        )  # fmt: skip

    def send(self, connection: Connection, request: Frame) -> Frame | None:
        """Answer when the message is durable."""
        fields = _Fields(request)
        topic = fields.text("b")
        group = topic.removeprefix(RETRY_PREFIX)
        if group == topic or not is_group(group):
            raise Refused(
                ResponseCode.NO_PERMISSION, f"the topic[{topic[:80]}] sending message is forbidden"
            )
        if request.code == RequestCode.SEND_BATCH_MESSAGE or fields.value("m") == "true":
            raise Refused(ResponseCode.MESSAGE_ILLEGAL, "a batch cannot be sent to a retry topic")
        policy = self._policies.find(group)
        queue_count = max(policy.retry_queue_nums, 1)
        asked = fields.number("e")
        max_attempts = fields.value("l")
        message = Send(
            topic=topic.encode(),
            queue_id=asked if asked >= 0 else random.randrange(queue_count),
            body=bytes(request.body),
            properties=(fields.value("i") or "").encode(),
            born_timestamp=fields.number("g"),
            born_host=connection.peer_address,
            flag=fields.number("h"),
            sys_flag=fields.number("f"),
            reconsume_times=fields.number("j", 0),
            max_reconsume_times=None if max_attempts is None else fields.number("l"),
        )
        target = Target(queue_count, RetryGroup(policy.retry_max_times, self._holds_lock(group)))
        with refusing(ResponseCode.SERVICE_NOT_AVAILABLE):
            future = self._overlay.send(message, target, uuid.uuid4().hex.upper().encode())
        answer_when_durable(
            connection, request, future,
            lambda stored: self._sent(connection, request, asked, stored),
            ResponseCode.SERVICE_NOT_AVAILABLE,
        )  # fmt: skip
        return None

    def _sent(
        self, connection: Connection, request: Frame, asked_queue: int, stored: Sequence[Record]
    ) -> Frame:
        """Answer with the queue that a producer asked for, and the place of the record as it was
        written, which may be in another queue (``SendMessageResponseHeader``)."""
        (record,) = stored
        if connection.is_open:
            self._overlay.answered(record)
        key = record.property_map.get(properties.UNIQ_KEY, b"")
        ext = {
            "msgId": message_id(record).decode(),
            "queueId": str(asked_queue),
            "queueOffset": str(record.queue_offset),
            "transactionId": key.decode(errors="replace"),
            "MSG_REGION": "DefaultRegion",
            "TRACE_ON": "true",
        }
        return request.answer(ResponseCode.SUCCESS, None, ext)


class _Fields:
    """The fields of a send, whichever way their names are written."""

    def __init__(self, request: Frame) -> None:
        self._request = request
        self._is_long = request.code == RequestCode.SEND_MESSAGE

    def _name(self, short: str) -> str:
        return _LONG_NAMES[short] if self._is_long else short

    def value(self, short: str) -> str | None:
        """A field; None without it."""
        return self._request.ext.get(self._name(short))

    def text(self, short: str) -> str:
        """A field. Raises Refused without it."""
        return requests.text(self._request, self._name(short))

    def number(self, short: str, default: int | None = None) -> int:
        """A field that is a number. Raises Refused for anything else."""
        return requests.number(self._request, self._name(short), default)
