"""Open transactions of a base at rest: producers are asked how they ended, and say so.

Only the base's port asks, and takes the answers: their places are those of the base's log, and a
client sends its answer to the address from which it was asked, by another connection where routes
name that host otherwise. Source: RocketMQ 5.3.3 ``Broker2Client.checkProducerTransactionState``,
``AbstractTransactionalMessageCheckListener``, ``ProducerManager``, ``EndTransactionProcessor``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import replace

from reput.overlay.base.halves import HalfPlace
from reput.overlay.checks import End, OpenTransactions
from reput.overlay.records import properties as names
from reput.overlay.records.copies import message_id
from reput.serving import requests
from reput.serving.codes import RequestCode, ResponseCode
from reput.serving.connection import Connection, Handler, Refused
from reput.serving.durable import answer_when_durable, refusing
from reput.serving.fastjson import as_objects, as_text
from reput.serving.frame import Frame
from reput.serving.groups import EXPIRY_SECONDS, Groups
from reput.store.log import java, properties, record
from reput.store.log.record import Record
from reput.store.log.systemtopics import HALF_TOPIC

LOOK_SECONDS = 0.5
AT_ONCE = 200
"""Checks of one look: so much that a client has not taken yet is kept for it at most."""
_ENDS = {8: True, 12: False}
"""commitOrRollback of a commit and of a rollback."""
_UNKNOWN = 0
MayPublish = Callable[[Connection, Frame, Iterable[str]], bool]
"""Whether the sender of a request may publish all of some topics."""


class Transactions:
    """Asks the producers that are connected to one broker, and ends their transactions."""

    def __init__(self, broker_name: str, open_ones: OpenTransactions, groups: Groups) -> None:
        self._broker_name = broker_name
        self._open = open_ones
        self._groups = groups
        self._topics = {
            java.decode(group): [*map(java.decode, topics)]
            for group, topics in open_ones.topics.items()
        }
        """The topics of what was open, by producer group."""
        self._producers: dict[str, dict[Connection, float]] = {group: {} for group in self._topics}
        """The time of each connection's last heartbeat, by group; the next to be asked first."""
        self.may_publish: MayPublish = lambda *_: True
        """Only who may publish a topic is asked about its transactions: a check has the message."""

    @property
    def handlers(self) -> dict[int, Handler]:
        """The requests that are answered here. Heartbeats of groups are answered by ``groups``,
        which ignores producers."""
        return {
            RequestCode.HEART_BEAT: self.heart_beat,
            RequestCode.UNREGISTER_CLIENT: self.unregister,
            RequestCode.END_TRANSACTION: self.end,
        }

    def heart_beat(self, connection: Connection, request: Frame) -> Frame:
        """Note which producers of open transactions the sender has."""
        answer = self._groups.heart_beat(connection, request)
        if len(self._open):
            now = asyncio.get_running_loop().time()
            data = requests.field(requests.json_body(request), "producerDataSet", as_objects)
            for producer in data:
                group = requests.field(producer, "groupName", as_text)
                if group in self._producers:
                    self._note(group, connection, request, now)
        return answer

    def _note(self, group: str, connection: Connection, request: Frame, now: float) -> None:
        if self.may_publish(connection, request, self._topics[group]):
            self._producers[group][connection] = now
        else:
            self._producers[group].pop(connection, None)

    def unregister(self, connection: Connection, request: Frame) -> Frame:
        """Forget a producer that leaves."""
        self._producers.get(request.ext.get("producerGroup", ""), {}).pop(connection, None)
        return self._groups.unregister(connection, request)

    def connection_closed(self, connection: Connection) -> None:
        """Forget the producers of a lost connection."""
        for connections in self._producers.values():
            connections.pop(connection, None)

    def end(self, connection: Connection, request: Frame) -> Frame | None:
        """Commit or roll back; answer, where an answer is wanted, when that is durable."""
        outcome = requests.number(request, "commitOrRollback")
        if outcome == _UNKNOWN:
            return request.answer(ResponseCode.SUCCESS)
        if outcome not in _ENDS:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"{outcome} is no end of a transaction")
        topic = request.ext.get("topic")
        asked = End(
            requests.text(request, "producerGroup").encode(),
            HalfPlace(
                requests.number(request, "commitLogOffset"),
                requests.number(request, "tranStateTableOffset"),
            ),
            _ENDS[outcome],
            None if topic is None else topic.encode(),
        )
        with refusing(ResponseCode.SYSTEM_ERROR):
            future = self._open.end(asked)
        if future is None:
            return request.answer(ResponseCode.SUCCESS)
        answer_when_durable(
            connection, request, future,
            lambda _: request.answer(ResponseCode.SUCCESS), ResponseCode.SYSTEM_ERROR,
        )  # fmt: skip
        return None

    async def ask(self) -> None:
        """Ask about what is due, and give up what was asked about often enough, until cancelled, or
        until nothing is open."""
        loop = asyncio.get_running_loop()
        start = loop.time()
        while len(self._open):
            await asyncio.sleep(LOOK_SECONDS)
            self._open.leave_if_broker_runs()
            elapsed_ms = int((loop.time() - start) * 1000)
            for group, connections in self._producers.items():
                for _ in range(AT_ONCE):
                    if not self._ask_one(group, connections, elapsed_ms):
                        break
            self._open.give_up(elapsed_ms)

    def _ask_one(self, group: str, connections: dict[Connection, float], elapsed_ms: int) -> bool:
        """Ask a producer of a group about one transaction; False where none is due, or nobody is
        there."""
        oldest = asyncio.get_running_loop().time() - EXPIRY_SECONDS
        connection = next(
            (
                one
                for one, last_beat in connections.items()
                if one.is_open and one.is_writable and last_beat >= oldest
            ),
            None,
        )
        if connection is None:
            return False
        half = self._open.next_check(group.encode(), elapsed_ms)
        if half is None:
            return False
        # the next check is another connection's
        connections[connection] = connections.pop(connection)
        code, fields = RequestCode.CHECK_TRANSACTION_STATE, check_fields(half, self._broker_name)
        connection.notify(code, fields, check_body(half))
        return True


def check_fields(half: Record, broker_name: str) -> dict[str, str]:
    """The fields of a check (``CheckTransactionStateRequestHeader``)."""
    key = java.decode(half.property_map.get(properties.UNIQ_KEY, b""))
    return {
        "topic": HALF_TOPIC,
        "tranStateTableOffset": str(half.queue_offset),
        "commitLogOffset": str(half.physical_offset),
        "msgId": key,
        "transactionId": key,
        "offsetMsgId": message_id(half).decode(),
        "bname": broker_name,
    }


def check_body(half: Record) -> bytes:
    """The half as its producer gets it: with the topic and queue for which it was sent."""
    topic = half.property_map.get(names.REAL_TOPIC, b"")
    queue_id = java.parse_integer(half.property_map.get(names.REAL_QUEUE_ID, b""), 32)
    return record.encode(
        replace(half, topic=topic, queue_id=queue_id or 0, magic=record.magic_for(topic))
    )
