"""Requests of ``mqadmin``: administrators ask about consumer groups and change them.

Offsets are moved by the rules of ``readers.offsetreset``; members that consume are sent to the new
offsets. Source: RocketMQ 5.3.3 ``AdminBrokerProcessor``, ``Broker2Client``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from reput.readers import offsetreset
from reput.readers.messages import decode_message_id
from reput.readers.messagestore import MessageStore
from reput.readers.offsetreset import OffsetChange
from reput.serving import requests
from reput.serving.codes import RequestCode, ResponseCode
from reput.serving.connection import Connection, Handler, Refused
from reput.serving.frame import Frame
from reput.serving.groups import Groups
from reput.serving.offsets import ConsumerOffsets
from reput.serving.pulling import Pulling
from reput.serving.queues import ServedQueues
from reput.store.errors import StoreError, UsageError
from reput.store.state.consumeroffset import TopicGroup

logger = logging.getLogger("reput")

MAX_LONG = (1 << 63) - 1
CALL_SECONDS = 10.0
"""Time for a client to answer a request of ours (``Broker2Client.callClient``)."""


class Admin:
    """Answers administrators of one broker's groups."""

    def __init__(
        self,
        broker_name: str,
        store: MessageStore,
        queues: ServedQueues,
        groups: Groups,
        offsets: ConsumerOffsets,
        pulling: Pulling,
        is_known_group: Callable[[str], bool],
    ) -> None:
        self._broker_name = broker_name
        self._store = store
        self._queues = queues
        self._groups = groups
        self._offsets = offsets
        self._pulling = pulling
        self._is_known_group = is_known_group

    @property
    def handlers(self) -> dict[int, Handler]:
        """The requests that are answered here."""
        return {
            RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: self.reset_offset,
            RequestCode.CLONE_GROUP_OFFSET: self.clone_group_offset,
            RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: self.query_topic_consume_by_who,
            RequestCode.QUERY_TOPICS_BY_CONSUMER: self.query_topics_by_consumer,
            RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: self.query_subscription_by_consumer,
            RequestCode.QUERY_CORRECTION_OFFSET: self.query_correction_offset,
            RequestCode.GET_CONSUMER_RUNNING_INFO: self.consumer_running_info,
            RequestCode.CONSUME_MESSAGE_DIRECTLY: self.consume_message_directly,
        }

    def reset_offset(self, connection: Connection, request: Frame) -> Frame:
        """Move a group by time, or beyond everything for a negative time; or to one queue's offset.

        The answer has the new offsets.
        """
        topic, group = requests.text(request, "topic"), requests.group(request, "group")
        queue_id = requests.number(request, "queueId", -1)
        offset = requests.number(request, "offset", -1)
        time_ms = requests.number(request, "timestamp")
        self._queues.topic(topic)
        if not self._is_known_group(group):
            raise Refused(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {group} does not exist"
            )
        self._store.refresh()
        table = self._offsets.table
        with _refused():
            if queue_id >= 0 and offset >= 0:
                changes = offsetreset.reset_to_offset(
                    self._store, table, group, topic, queue_id, offset
                )
            elif time_ms < 0:
                changes = offsetreset.skip(self._store, table, group, [topic])
            else:
                changes = offsetreset.reset_to_time(self._store, table, group, topic, time_ms)
        if queue_id >= 0:
            changes = [change for change in changes if change.queue_id == queue_id]
        self._change(connection, changes)
        entries = {
            requests.queue_json(self._broker_name, change.queue_id, topic): str(change.after)
            for change in changes
        }
        body = requests.keyed_json(entries, "offsetTable")
        return request.answer(ResponseCode.SUCCESS, body=body.encode())

    def clone_group_offset(self, connection: Connection, request: Frame) -> Frame:
        """Give a group the offsets of another, in one topic or in all."""
        source = requests.group(request, "srcGroup")
        target = requests.group(request, "destGroup")
        topic = request.ext.get("topic")
        with _refused():
            changes = offsetreset.clone(
                self._offsets.table, source, target, [topic] if topic else None
            )
        self._change(connection, changes)
        return request.answer(ResponseCode.SUCCESS)

    def _change(self, connection: Connection, changes: list[OffsetChange]) -> None:
        for change in changes:
            logger.info(
                "%s moves group %s from %s to %s in queue %d of topic %s",
                connection.peer, change.group, change.before, change.after, change.queue_id,
                change.topic,
            )  # fmt: skip
        self._offsets.change(changes)
        self._pulling.end_reset(changes)

    def query_topic_consume_by_who(self, _connection: Connection, request: Frame) -> Frame:
        """Answer with the groups that consume a topic now, or have committed offsets in it."""
        topic = requests.text(request, "topic")
        groups = self._groups.subscribers(topic) | self._offsets.groups_of(topic)
        body = requests.to_json({"groupList": sorted(groups)})
        return request.answer(ResponseCode.SUCCESS, body=body)

    def query_topics_by_consumer(self, _connection: Connection, request: Frame) -> Frame:
        """Answer with the topics in which a group has committed offsets."""
        topics = self._offsets.topics_of(requests.group(request, "group"))
        return request.answer(ResponseCode.SUCCESS, body=requests.to_json({"topicList": topics}))

    def query_subscription_by_consumer(self, _connection: Connection, request: Frame) -> Frame:
        """Answer with a group's subscription to a topic, as one of its members has sent it."""
        group, topic = requests.group(request, "group"), requests.text(request, "topic")
        body: dict[str, object] = {"group": group, "topic": topic}
        if data := self._groups.subscription_data(group, topic):
            body["subscriptionData"] = data
        return request.answer(ResponseCode.SUCCESS, body=requests.to_json(body))

    def query_correction_offset(self, _connection: Connection, request: Frame) -> Frame:
        """Answer with the least committed offset of each queue, over all groups but those in
        ``filterGroups`` (RocketMQ removes the offsets of these).

        A queue in which ``compareGroup`` lags that offset is answered with the greatest number.
        """
        topic = requests.text(request, "topic")
        left_out = {name.strip() for name in request.ext.get("filterGroups", "").split(",")}
        corrections: dict[int, int] = {}
        for key, queues in self._offsets.table.items():
            if key.topic != topic or key.group in left_out:
                continue
            for queue_id, offset in queues.items():
                if offset >= self._queues.min_offset(topic, queue_id):
                    corrections[queue_id] = min(offset, corrections.get(queue_id, offset))
        compared = TopicGroup(topic, request.ext.get("compareGroup", ""))
        for queue_id, offset in self._offsets.table.get(compared, {}).items():
            if corrections.get(queue_id, 0) > offset:
                corrections[queue_id] = MAX_LONG
        entries = {str(queue_id): str(offset) for queue_id, offset in sorted(corrections.items())}
        body = requests.keyed_json(entries, "correctionOffsets")
        return request.answer(ResponseCode.SUCCESS, body=body.encode())

    def consumer_running_info(self, connection: Connection, request: Frame) -> None:
        """Ask a member for its state, and return its answer later."""
        self._ask_member(connection, request, request.ext)

    def consume_message_directly(self, connection: Connection, request: Frame) -> None:
        """Have a member consume one message, whatever it subscribes to, and return its answer
        later."""
        message_id = requests.text(request, "msgId")
        self._store.refresh()
        decoded = decode_message_id(message_id)
        message = decoded and self._store.log.message_at(decoded[1])
        if not message:
            text = f"can not find message by the id, {message_id[:80]}"
            raise Refused(ResponseCode.SYSTEM_ERROR, text)
        ext = {**request.ext, "brokerName": self._broker_name}
        self._ask_member(connection, request, ext, self._store.log.stored_record(message))

    def _ask_member(
        self, connection: Connection, request: Frame, ext: dict[str, str], body: bytes = b""
    ) -> None:
        """Pass a request on to the member that it names; the answer follows later."""
        name, client_id = requests.group(request), requests.text(request, "clientId")
        group = self._groups.get(name)
        member = group.members.get(client_id) if group else None
        if member is None:
            text = f"The Consumer <{name}> <{client_id}> not online"
            raise Refused(ResponseCode.SYSTEM_ERROR, text)

        def relay(answer: Frame | None) -> None:
            if answer is None:
                code, text = ResponseCode.CONSUME_MSG_TIMEOUT, "Timeout, or its connection ended"
                connection.send(request.answer(code, f"consumer <{name}> <{client_id}> {text}"))
            else:
                connection.send(request.answer(answer.code, answer.remark, answer.ext, answer.body))

        member.connection.call(RequestCode(request.code), ext, CALL_SECONDS, relay, body)


@contextmanager
def _refused() -> Iterator[None]:
    """Answer a change that the rules do not allow with an error code."""
    try:
        yield
    except (UsageError, StoreError) as error:
        raise Refused(ResponseCode.SYSTEM_ERROR, str(error)) from error
