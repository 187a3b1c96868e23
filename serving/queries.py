"""Questions about single messages and units: by key, by id, by queue offset.

mqadmin and consoles ask them. They are answered in the thread that answers consumers, so each has a
bound of units and bytes.

Source: RocketMQ 5.3.3 ``QueryMessageProcessor``, ``AdminBrokerProcessor.queryConsumeQueue``.
"""

from __future__ import annotations

import base64

from reput.readers.indexreader import UNIQUE_KEY_MAX_COUNT
from reput.readers.messagestore import MessageStore
from reput.serving import requests
from reput.serving.codes import RequestCode, ResponseCode
from reput.serving.connection import Connection, Handler, Refused
from reput.serving.frame import Frame
from reput.serving.groups import Groups
from reput.serving.pulling import MAX_BODY_BYTES
from reput.serving.queues import ServedQueues
from reput.store.queue.view import CqUnit

MAX_UNITS = 1 << 14


class Queries:
    """Answers questions about one broker's messages."""

    def __init__(self, store: MessageStore, queues: ServedQueues, groups: Groups) -> None:
        self._store = store
        self._queues = queues
        self._groups = groups

    @property
    def handlers(self) -> dict[int, Handler]:
        """The requests that are answered here."""
        return {
            RequestCode.QUERY_MESSAGE: self.query_message,
            RequestCode.VIEW_MESSAGE_BY_ID: self.view_message,
            RequestCode.QUERY_CONSUME_QUEUE: self.query_consume_queue,
        }

    def query_message(self, _connection: Connection, request: Frame) -> Frame:
        """Answer with the records that the index finds for a key; the client compares the keys."""
        is_unique = request.ext.get("_UNIQUE_KEY_QUERY") == "true"
        topic = requests.text(request, "topic")
        self._store.refresh()
        max_count = UNIQUE_KEY_MAX_COUNT if is_unique else requests.number(request, "maxNum")
        result = self._store.index.query(
            topic,
            requests.text(request, "key"),
            max_count=max(max_count, 0),
            begin_ms=requests.number(request, "beginTimestamp"),
            end_ms=requests.number(request, "endTimestamp"),
        )
        records: list[bytes] = []
        size = 0
        for message in result.messages:
            if message.topic != topic:
                continue  # its hash is the same, which whoever may read this topic can choose
            size += message.size
            if records and size > MAX_BODY_BYTES:
                break
            records.append(self._store.log.stored_record(message))
        ext = {
            "indexLastUpdateTimestamp": str(result.index_last_update_timestamp),
            "indexLastUpdatePhyoffset": str(result.index_last_update_phyoffset),
        }
        if not records:
            text = "can not find message, maybe time range not correct"
            raise Refused(ResponseCode.QUERY_NOT_FOUND, text, ext)
        return request.answer(ResponseCode.SUCCESS, None, ext, b"".join(records))

    def view_message(self, _connection: Connection, request: Frame) -> Frame:
        """Answer with the record at a physical offset, which is part of the message's id."""
        offset = requests.number(request, "offset")
        self._store.refresh()
        message = self._store.log.message_at(offset)
        if message is None:
            text = f"can not find message by the offset, {offset}"
            raise Refused(ResponseCode.SYSTEM_ERROR, text)
        return request.answer(ResponseCode.SUCCESS, body=self._store.log.stored_record(message))

    def query_consume_queue(self, _connection: Connection, request: Frame) -> Frame:
        """Answer with units of a queue, and with what a group subscribes to."""
        topic, queue_id = requests.text(request, "topic"), requests.number(request, "queueId")
        index, count = requests.number(request, "index"), requests.number(request, "count")
        group = request.ext.get("consumerGroup")
        self._queues.topic(topic)
        if not self._queues.has_queue(topic, queue_id):
            raise Refused(ResponseCode.SYSTEM_ERROR, f"{queue_id}@{topic} is not exist!")
        body: dict[str, object] = {
            "maxQueueIndex": self._queues.max_offset(topic, queue_id),
            "minQueueIndex": self._queues.min_offset(topic, queue_id),
        }
        if group is not None:
            data = self._groups.subscription_data(group, topic)
            body["subscriptionData"] = data
            body["filterData"] = "null" if data else f"{group}@{topic} is not online!"
        units = self._store.queue(topic, queue_id).units(index, min(max(count, 0), MAX_UNITS))
        body["queueData"] = [_unit_json(unit) for unit in units]
        return request.answer(ResponseCode.SUCCESS, body=requests.to_json(body))


def _unit_json(unit: CqUnit) -> dict[str, object]:
    """ConsumeQueueData."""
    fields: dict[str, object] = {
        "physicOffset": unit.physical_offset,
        "physicSize": unit.size,
        "tagsCode": unit.tags_code or 0,
    }
    if unit.ext is not None:
        ext: dict[str, object] = {
            "msgStoreTime": unit.ext.msg_store_time,
            "size": unit.ext.size,
            "tagsCode": unit.ext.tags_code,
        }
        if unit.ext.bit_map is not None:
            ext = {"filterBitMap": base64.b64encode(unit.ext.bit_map).decode(), **ext}
            fields["bitMap"] = _bits_text(unit.ext.bit_map)
        fields["extendDataJson"] = requests.to_text(ext)
    elif unit.tags_code is None:
        fields["msg"] = "Cq extend not exist!"
    return fields


def _bits_text(bit_map: bytes) -> str:
    """``BitsArray.toString``: the last byte first, eight bytes a line."""
    texts = (f"{byte:08b}" + ("" if at % 8 else "\n") for at, byte in enumerate(bit_map))
    return "".join(reversed(list(texts)))
