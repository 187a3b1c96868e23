"""A resident child that is all members of a consumer group: ``python -m bench.group_worker``.

Each member is a client on a connection of its own, which does what RocketMQ's push consumers do:
heartbeat, route and member list of every topic, its share of the queues, the position of each, and
then a pull for each queue, which the server may hold, and the next one after its answer. A notice
of a change in the group makes the member share the queues anew.
The first line on stdin is ``{"address": HOST:PORT, "topics": [TOPIC, ...], "members": COUNT}``; the
answer comes when every queue is read by exactly one member. The members go on until stdin ends.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, cast

from reput.readers.allocation import AllocateAveragely, MessageQueue, assigned_queues
from reput.serving.codes import RequestCode, ResponseCode
from reput.serving.frame import Frame, decode, encode, frame_length

GROUP = "bench"
HEARTBEAT_SECONDS = 30.0
LOOK_SECONDS = 0.02
SUSPEND_MS = 15_000
PULL_MAX_MSG_NUMS = 32
FLAG_SUSPEND = 2


class Connection(asyncio.Protocol):
    """One connection; an answer belongs to the request with its opaque."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._waiting: dict[int, asyncio.Future[Frame]] = {}
        self._opaque = 0
        self.requests = 0
        self.noticed = asyncio.Event()
        """Set when the server says that the group's members changed."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio."""
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, error: Exception | None) -> None:
        """Called by asyncio."""
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(ConnectionError(f"the server closed: {error}"))

    def data_received(self, data: bytes) -> None:
        """Called by asyncio."""
        self._buffer += data
        position = 0
        while length := frame_length(self._buffer[position : position + 4]):
            if position + length > len(self._buffer):
                break
            self._received(decode(bytes(self._buffer[position : position + length])))
            position += length
        del self._buffer[:position]

    def _received(self, frame: Frame) -> None:
        if not frame.is_response:
            self.noticed.set()
        elif (waiting := self._waiting.pop(frame.opaque, None)) and not waiting.done():
            waiting.set_result(frame)

    async def ask(self, code: int, ext: Mapping[str, object], body: bytes = b"") -> Frame:
        """Send a request and return its answer, whatever its code is. Raises ConnectionError."""
        self._opaque += 1
        self.requests += 1
        waiting: asyncio.Future[Frame] = asyncio.get_running_loop().create_future()
        self._waiting[self._opaque] = waiting
        texts = {name: str(value) for name, value in ext.items()}
        frame = Frame(code, self._opaque, ext=texts, body=body, language="JAVA")
        cast(asyncio.Transport, self._transport).write(encode(frame))
        return await waiting


class Member:
    """One member of the group, with a connection of its own."""

    def __init__(self, client_id: str, topics: Sequence[str]) -> None:
        self.client_id = client_id
        self.connection = Connection()
        self.known_members: dict[str, int] = {}
        """Number of the group's members by topic, as last asked."""
        self.reading: set[MessageQueue] = set()
        """Queues of which a first pull was answered."""
        self._topics = topics
        self._queues: dict[str, list[MessageQueue]] = {}
        self._tasks: dict[MessageQueue, asyncio.Task[None]] = {}

    async def run(self, host: str, port: int) -> None:
        """Join the group, and read this member's queues until cancelled. A lost connection, or an
        answer that no pull should get, raises ConnectionError."""
        loop = asyncio.get_running_loop()
        await loop.create_connection(lambda: self.connection, host, port)
        async with asyncio.TaskGroup() as tasks:
            await self._beat()
            tasks.create_task(self._go_on_beating())
            for topic in self._topics:
                self._queues[topic] = await self._route(topic)
            self.connection.noticed.set()
            while True:
                await self.connection.noticed.wait()
                self.connection.noticed.clear()
                for topic in self._topics:
                    await self._share(topic, tasks)

    async def _go_on_beating(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_SECONDS)
            await self._beat()

    async def _beat(self) -> None:
        data = [
            {"topic": topic, "subString": "*", "expressionType": "TAG", "subVersion": 1}
            for topic in self._topics
        ]
        consumer = {
            "groupName": GROUP, "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING",
            "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET", "subscriptionDataSet": data,
        }  # fmt: skip
        body = {"clientID": self.client_id, "consumerDataSet": [consumer]}
        await self.connection.ask(RequestCode.HEART_BEAT, {}, json.dumps(body).encode())

    async def _route(self, topic: str) -> list[MessageQueue]:
        answer = await self.connection.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
        (queues,) = json.loads(bytes(answer.body))["queueDatas"]
        name = queues["brokerName"]
        return [MessageQueue(topic, name, n) for n in range(queues["readQueueNums"])]

    async def _share(self, topic: str, tasks: asyncio.TaskGroup) -> None:
        """Take up the queues that are this member's now, and leave the others."""
        answer = await self.connection.ask(
            RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": GROUP}
        )
        members = json.loads(bytes(answer.body))["consumerIdList"]
        strategy = AllocateAveragely()
        mine = set(assigned_queues(strategy, self.client_id, self._queues[topic], members))
        self.known_members[topic] = len(members)
        for queue in [queue for queue in self._tasks if queue.topic == topic]:
            if queue not in mine:
                self._tasks.pop(queue).cancel()
                self.reading.discard(queue)
        for queue in mine - self._tasks.keys():
            self._tasks[queue] = tasks.create_task(self._read(queue))

    async def _read(self, queue: MessageQueue) -> None:
        place = {"consumerGroup": GROUP, "topic": queue.topic, "queueId": queue.queue_id}
        answer = await self.connection.ask(RequestCode.QUERY_CONSUMER_OFFSET, place)
        offset = int(answer.ext.get("offset", 0))
        while True:
            pull = {
                **place, "queueOffset": offset, "maxMsgNums": PULL_MAX_MSG_NUMS,
                "sysFlag": FLAG_SUSPEND, "commitOffset": 0, "subVersion": 1,
                "suspendTimeoutMillis": SUSPEND_MS,
            }  # fmt: skip
            answer = await self.connection.ask(RequestCode.PULL_MESSAGE, pull)
            if answer.code not in (ResponseCode.SUCCESS, ResponseCode.PULL_NOT_FOUND):
                raise ConnectionError(f"a pull of {queue} got {answer.code}: {answer.remark}")
            self.reading.add(queue)
            offset = int(answer.ext["nextBeginOffset"])


def is_balanced(members: Sequence[Member], topics: Sequence[str], queue_count: int) -> bool:
    """Whether every member knows all members, and every queue is read by one of them."""
    count = len(members)
    if any(member.known_members.get(topic) != count for member in members for topic in topics):
        return False
    queues = [queue for member in members for queue in member.reading]
    return len(queues) == queue_count == len(set(queues))


async def balance(asked: dict[str, Any]) -> None:
    """Start the members, print when the queues are shared, and go on until stdin ends. The line has
    ``seconds`` until then and the number of ``requests``."""
    host, _, port = asked["address"].rpartition(":")
    topics: list[str] = asked["topics"]
    members = [Member(f"client@{n:04}", topics) for n in range(asked["members"])]
    began = time.monotonic()
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(member.run(host, int(port))) for member in members]
        while not is_balanced(members, topics, asked["queues"]):
            await asyncio.sleep(LOOK_SECONDS)
        seconds = time.monotonic() - began
        requests = sum(member.connection.requests for member in members)
        print(json.dumps({"seconds": seconds, "requests": requests}), flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
        for task in running:
            task.cancel()


def main() -> None:
    """Answer the one request of stdin, and end when stdin does."""
    print(json.dumps({"ready": True}), flush=True)
    asyncio.run(balance(json.loads(sys.stdin.readline())))


if __name__ == "__main__":
    main()
