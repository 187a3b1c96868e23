"""Bounds and times of a store's queues, and the requests that ask for them.

Clients ask for them before the first pull, and tools for every queue of a topic at once, so an
answer comes from a queue's ends where it can.

Source: RocketMQ 5.3.3 ``AdminBrokerProcessor``.
"""

from __future__ import annotations

from collections.abc import Callable

from reput.readers.messagestore import MessageStore
from reput.serving import requests
from reput.serving.codes import RequestCode, ResponseCode
from reput.serving.connection import Connection, Handler, Refused
from reput.serving.frame import Frame
from reput.serving.topics import TopicConfig, Topics
from reput.store.queue.consumequeue import BoundaryType

QueueName = tuple[str, int]
"""(topic, queue id)."""


class ServedQueues:
    """Bounds and times of one broker's queues."""

    def __init__(self, store: MessageStore, topics: Topics) -> None:
        self._store = store
        self._topics = topics

    @property
    def handlers(self) -> dict[int, Handler]:
        """The requests that are answered here."""
        return {
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: self.search_offset,
            RequestCode.GET_MIN_OFFSET: self._answering("offset", self.min_offset),
            RequestCode.GET_EARLIEST_MSG_STORETIME: self._answering(
                "timestamp", lambda *queue: self._store.queue(*queue).earliest_time()
            ),
            RequestCode.GET_TOPIC_CONFIG: self.topic_config,
        }

    def topic(self, name: str) -> TopicConfig:
        """A topic's configuration. Raises Refused for an unknown one."""
        config = self._topics.find(name)
        if config is None:
            raise Refused(ResponseCode.TOPIC_NOT_EXIST, f"topic[{name[:80]}] not exist")
        return config

    def has_queue(self, topic: str, queue_id: int) -> bool:
        """Whether routes tell clients of such a queue."""
        config = self._topics.find(topic)
        return config is not None and 0 <= queue_id < config.read_queue_nums

    def queue(self, request: Frame) -> tuple[str, int]:
        """Topic and id of the queue that a request names. Raises Refused if there is none."""
        topic, queue_id = requests.text(request, "topic"), requests.number(request, "queueId")
        self.topic(topic)
        if not self.has_queue(topic, queue_id):
            text = f"topic {topic} has no queue {queue_id}"
            raise Refused(ResponseCode.SYSTEM_ERROR, text)
        return topic, queue_id

    def min_offset(self, topic: str, queue_id: int) -> int:
        """Offset of the first message that is still in the log."""
        return self._store.queue(topic, queue_id).min_offset()

    def max_offset(self, topic: str, queue_id: int) -> int:
        """Offset after the last message, as of now."""
        self._store.refresh()
        return self._store.queue(topic, queue_id).max_offset()

    def store_time(self, topic: str, queue_id: int, offset: int) -> int:
        """Store time of a message, ms; 0 without one."""
        return max(self._store.queue(topic, queue_id).store_time(offset), 0) if offset >= 0 else 0

    def earliest_time(self) -> int:
        """Store time of the log's first message, ms; -1 without one."""
        return self._store.log.earliest_time()

    def begins_in_memory(self, topic: str, queue_id: int) -> bool:
        """Whether a queue begins at offset 0 with a message near the log's end."""
        self._store.refresh()
        return self._store.queue(topic, queue_id).begins_in_memory()

    def search_offset(self, _connection: Connection, request: Frame) -> Frame:
        """Answer with the offset of a store time."""
        topic, queue_id = self.queue(request)
        try:
            boundary = BoundaryType(request.ext.get("boundaryType", "LOWER").lower())
        except ValueError:
            boundary = BoundaryType.LOWER
        self._store.refresh()
        time_ms = requests.number(request, "timestamp")
        offset = self._store.queue(topic, queue_id).offset_by_time(time_ms, boundary)
        return request.answer(ResponseCode.SUCCESS, None, {"offset": str(offset)})

    def topic_config(self, _connection: Connection, request: Frame) -> Frame:
        """Answer with a topic's configuration."""
        config = self.topic(requests.text(request, "topic"))
        body = {
            "attributes": config.attributes or {},
            "order": config.is_ordered,
            "perm": config.perm,
            "readQueueNums": config.read_queue_nums,
            "topicFilterType": config.filter_type,
            "topicName": config.name,
            "topicSysFlag": config.sys_flag,
            "writeQueueNums": config.write_queue_nums,
        }
        return request.answer(ResponseCode.SUCCESS, body=requests.to_json(body))

    def _answering(self, name: str, question: Callable[[str, int], int]) -> Handler:
        """A handler that answers with one number about a queue."""

        def handle(_connection: Connection, request: Frame) -> Frame:
            topic, queue_id = self.queue(request)
            self._store.refresh()
            value = question(topic, queue_id)
            return request.answer(ResponseCode.SUCCESS, None, {name: str(value)})

        return handle
