"""Statistics that mqadmin shows: bounds of queues, and how far a group has come.

Source: RocketMQ 5.3.3 ``AdminBrokerProcessor``.
"""

from __future__ import annotations

from serving import requests
from serving.codes import RequestCode, ResponseCode
from serving.connection import Connection, Handler
from serving.frame import Frame
from serving.groups import Group, Groups
from serving.positions import Positions
from serving.queues import ServedQueues
from serving.topics import Topics

_RUNTIME_VERSION = "V5_3_3"


class Statistics:
    """Answers about one broker's queues."""

    def __init__(
        self,
        broker_name: str,
        topics: Topics,
        queues: ServedQueues,
        groups: Groups,
        positions: Positions,
    ) -> None:
        self._broker_name = broker_name
        self._topics = topics
        self._queues = queues
        self._groups = groups
        self._positions = positions

    @property
    def handlers(self) -> dict[int, Handler]:
        """The requests that are answered here."""
        return {
            RequestCode.GET_TOPIC_STATS_INFO: self.topic_stats,
            RequestCode.GET_CONSUME_STATS: self.consume_stats,
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
        return request.answer(ResponseCode.SUCCESS, body=body)

    def consume_stats(self, _connection: Connection, request: Frame) -> Frame:
        """Answer with committed and end offsets of every queue that a group consumes."""
        name = requests.group(request)
        group, wanted = self._groups.get(name), request.ext.get("topic")
        entries = {}
        for topic in [wanted] if wanted else self._positions.topics_of(name):
            config = self._topics.find(topic)
            if config is None or not _subscribes(group, topic):
                continue
            for queue_id in range(config.read_queue_nums):
                key = requests.queue_json(self._broker_name, queue_id, topic)
                entries[key] = self._consumed(topic, name, queue_id)
        body = requests.keyed_json(entries, "offsetTable", consumeTps=0.0)
        return request.answer(ResponseCode.SUCCESS, body=body)

    def _consumed(self, topic: str, group: str, queue_id: int) -> str:
        committed = max(self._positions.committed(topic, group, queue_id), 0)
        return requests.to_text(
            {
                "brokerOffset": self._queues.max_offset(topic, queue_id),
                "consumerOffset": committed,
                "lastTimestamp": self._queues.store_time(topic, queue_id, committed - 1),
                "pullOffset": max(committed, self._positions.pulled(topic, group, queue_id)),
            }
        )

    def runtime_info(self, _connection: Connection, request: Frame) -> Frame:
        """Answer with the few values that mqadmin's clusterList prints."""
        table = {
            "brokerVersionDesc": _RUNTIME_VERSION,
            "putTps": "0.0",
            "getTransferedTps": "0.0",
            "sendThreadPoolQueueSize": "0",
            "pullThreadPoolQueueSize": "0",
            "sendThreadPoolQueueHeadWaitTimeMills": "0",
            "pullThreadPoolQueueHeadWaitTimeMills": "0",
            "pageCacheLockTimeMills": "0",
            "earliestMessageTimeStamp": "0",
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
