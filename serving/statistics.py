"""Statistics that mqadmin shows: bounds of queues, and how far a group has come.

Source: RocketMQ 5.3.3 ``AdminBrokerProcessor``.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from reput.serving import requests
from reput.serving.codes import RequestCode, ResponseCode
from reput.serving.connection import Connection, Handler
from reput.serving.frame import Frame
from reput.serving.groups import Group, Groups
from reput.serving.offsets import ConsumerOffsets
from reput.serving.queues import ServedQueues
from reput.serving.topics import Topics

_RUNTIME_VERSION = "V5_3_3"


@dataclass(frozen=True, slots=True)
class _Consumed:
    """How far a group has come in one queue (``OffsetWrapper``)."""

    topic: str
    queue_id: int
    broker: int
    """The queue's max offset."""
    consumer: int
    """The committed offset; 0 without one."""
    pulled: int
    last_time: int
    """Store time of the last consumed message, ms; 0 without one."""


class Statistics:
    """Answers about one broker's queues."""

    def __init__(
        self,
        broker_name: str,
        topics: Topics,
        queues: ServedQueues,
        groups: Groups,
        offsets: ConsumerOffsets,
    ) -> None:
        self._broker_name = broker_name
        self._topics = topics
        self._queues = queues
        self._groups = groups
        self._offsets = offsets

    @property
    def handlers(self) -> dict[int, Handler]:
        """The requests that are answered here."""
        return {
            RequestCode.GET_TOPIC_STATS_INFO: self.topic_stats,
            RequestCode.GET_CONSUME_STATS: self.consume_stats,
            RequestCode.GET_BROKER_CONSUME_STATS: self.broker_consume_stats,
            RequestCode.QUERY_CONSUME_TIME_SPAN: self.consume_time_span,
            RequestCode.GET_BROKER_RUNTIME_INFO: self.runtime_info,
        }

    def topic_stats(self, _connection: Connection, request: Frame) -> Frame:
        """Answer with the bounds of a topic's queues and the time of each last message."""
        topic = requests.text(request, "topic")
        entries = {}
        for queue_id in range(self._queues.topic(topic).read_queue_nums):
            high = self._queues.max_offset(topic, queue_id)
            entries[requests.queue_json(self._broker_name, queue_id, topic)] = requests.to_text(
                {
                    "lastUpdateTimestamp": self._queues.store_time(topic, queue_id, high - 1),
                    "maxOffset": high,
                    "minOffset": self._queues.min_offset(topic, queue_id),
                }
            )
        body = requests.keyed_json(entries, "offsetTable", topicPutTps=0.0)
        return request.answer(ResponseCode.SUCCESS, body=body.encode())

    def consume_stats(self, _connection: Connection, request: Frame) -> Frame:
        """Answer with committed and end offsets of every queue that a group consumes."""
        group, topic = requests.group(request), request.ext.get("topic")
        queues = self._consumed(group, [topic] if topic else self._offsets.topics_of(group))
        return request.answer(ResponseCode.SUCCESS, body=self._stats_json(queues).encode())

    def broker_consume_stats(self, _connection: Connection, request: Frame) -> Frame:
        """Answer with the offsets of all groups, topic by topic."""
        is_ordered_only = request.ext.get("isOrder") == "true"
        groups, total, inflight = [], 0, 0
        for group in sorted({*self._offsets.groups(), *self._groups.names()}):
            tables = []
            for topic in self._offsets.topics_of(group):
                config = self._topics.find(topic)
                if is_ordered_only and not (config and config.is_ordered):
                    continue
                queues = self._consumed(group, [topic])
                total += sum(queue.broker - queue.consumer for queue in queues)
                inflight += sum(queue.pulled - queue.consumer for queue in queues)
                tables.append(self._stats_json(queues))
            groups.append(f"{{{requests.to_text(group)}:[{','.join(tables)}]}}")
        totals = f'"totalDiff":{total},"totalInflightDiff":{inflight}'
        body = f'{{"consumeStatsList":[{",".join(groups)}],{totals}}}'
        return request.answer(ResponseCode.SUCCESS, body=body.encode())

    def consume_time_span(self, _connection: Connection, request: Frame) -> Frame:
        """Answer with store times of each queue of a topic: of its first and last message, of the
        last that a group has consumed, and the age of the next one."""
        topic, group = requests.text(request, "topic"), requests.group(request, "group")
        self._queues.topic(topic)
        spans = [self._time_span(queue) for queue in self._consumed(group, [topic])]
        body = requests.to_json({"consumeTimeSpanSet": spans})
        return request.answer(ResponseCode.SUCCESS, body=body)

    def _time_span(self, queue: _Consumed) -> dict[str, object]:
        """QueueTimeSpan; times are -1 without a message."""
        topic, queue_id = queue.topic, queue.queue_id
        offsets = (self._queues.min_offset(topic, queue_id), queue.broker - 1, queue.consumer)
        first, last, following = (
            self._queues.store_time(topic, queue_id, offset) or -1 for offset in offsets
        )
        now = time.time_ns() // 1_000_000
        return {
            "consumeTimeStamp": queue.last_time or first,
            "delayTime": now - following if queue.consumer < queue.broker else 0,
            "maxTimeStamp": last,
            "messageQueue": {"brokerName": self._broker_name, "queueId": queue_id, "topic": topic},
            "minTimeStamp": first,
        }

    def _consumed(self, group: str, topics: Sequence[str]) -> list[_Consumed]:
        """Each queue of the topics that a group consumes."""
        members = self._groups.get(group)
        return [
            self._queue(group, config.name, queue_id)
            for config in map(self._topics.find, topics)
            if config is not None and _subscribes(members, config.name)
            for queue_id in range(config.read_queue_nums)
        ]

    def _queue(self, group: str, topic: str, queue_id: int) -> _Consumed:
        committed = max(self._offsets.committed(topic, group, queue_id), 0)
        return _Consumed(
            topic,
            queue_id,
            broker=self._queues.max_offset(topic, queue_id),
            consumer=committed,
            pulled=max(committed, self._offsets.pulled(topic, group, queue_id)),
            last_time=self._queues.store_time(topic, queue_id, committed - 1),
        )

    def _stats_json(self, queues: Iterable[_Consumed]) -> str:
        """ConsumeStats."""
        entries = {
            requests.queue_json(self._broker_name, queue.queue_id, queue.topic): requests.to_text(
                {
                    "brokerOffset": queue.broker,
                    "consumerOffset": queue.consumer,
                    "lastTimestamp": queue.last_time,
                    "pullOffset": queue.pulled,
                }
            )
            for queue in queues
        }
        return requests.keyed_json(entries, "offsetTable", consumeTps=0.0)

    def runtime_info(self, _connection: Connection, request: Frame) -> Frame:
        """Answer with the few values that mqadmin's clusterList prints."""
        table = {
            "brokerVersionDesc": _RUNTIME_VERSION,
            "putTps": "0.0",
            "getTransferedTps": "0.0",
            "getTransferredTps": "0.0",
            "sendThreadPoolQueueSize": "0",
            "pullThreadPoolQueueSize": "0",
            "sendThreadPoolQueueHeadWaitTimeMills": "0",
            "pullThreadPoolQueueHeadWaitTimeMills": "0",
            "ackThreadPoolQueueSize": "0",
            "ackThreadPoolQueueHeadWaitTimeMills": "0",
            "pageCacheLockTimeMills": "0",
            "earliestMessageTimeStamp": str(self._queues.earliest_time()),
            "commitLogDiskRatio": "0.0",
            "timerReadBehind": "0",
            "timerOffsetBehind": "0",
            "timerCongestNum": "0",
            "timerEnqueueTps": "0.0",
            "timerDequeueTps": "0.0",
            "brokerActive": "true",
        }
        return request.answer(ResponseCode.SUCCESS, body=requests.to_json({"table": table}))


def _subscribes(group: Group | None, topic: str) -> bool:
    """Whether a group takes a topic, as far as its members say so."""
    if group is None or not any(member.subscriptions for member in group.members.values()):
        return True
    return any(topic in member.subscriptions for member in group.members.values())
