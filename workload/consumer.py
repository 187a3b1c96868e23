"""A plain consumer over the wire, for the demo: it keeps a pull waiting for each queue, and
compares the messages with those that were appended."""

from __future__ import annotations

import json
import socket
import threading
import time

import numpy as np

from reput.serving.admission import FLAG_COMMIT, FLAG_SUBSCRIPTION, FLAG_SUSPEND
from reput.serving.codes import RequestCode, ResponseCode
from reput.serving.frame import Frame, FrameError, decode, encode, frame_length
from reput.store.errors import StoreError
from reput.store.log import record
from reput.workload.messages import Workload

GROUP = "reput-demo"
SUSPEND_MS = 15_000
SYS_FLAG = FLAG_COMMIT | FLAG_SUSPEND | FLAG_SUBSCRIPTION
POLL_SECONDS = 0.1
_BODY_POSITION = record.FIXED_LENGTH + 2 * record.HOST_V4_LENGTH
LONGEST_SECONDS = 60.0
"""Time without a message after which the consumer gives up."""


class DemoConsumer(threading.Thread):
    """Consumes every queue of a workload from offset 0 on."""

    def __init__(self, workload: Workload) -> None:
        super().__init__(name="reput-demo-consumer", daemon=True)
        self._workload = workload
        self._queues = [
            (topic_id, queue_id)
            for topic_id in range(len(workload.topics))
            for queue_id in range(workload.queue_count)
        ]
        self.consumed = [0] * len(self._queues)
        """Messages of each queue; each came once and in its order."""
        self._total: int | None = None
        self._failure: Exception | None = None
        self._buffer = bytearray()
        self._is_ready = threading.Event()

    def begin(self, port: int) -> None:
        """Consume from the server at this port of the loopback address."""
        self._port = port
        self.start()
        self._is_ready.set()

    def finish(self, total: int) -> list[int]:
        """Wait for ``total`` messages, and return the number of each topic's. Raises StoreError."""
        self._total = total
        if not self._is_ready.wait(LONGEST_SECONDS):
            raise StoreError("the demo's server was not ready, so nothing was consumed")
        self.join()
        if self._failure is not None:
            raise StoreError(f"the demo's consumer failed: {self._failure}") from self._failure
        counts = np.reshape(self.consumed, (-1, self._workload.queue_count))
        return [int(count) for count in counts.sum(axis=1)]

    def run(self) -> None:
        """Consume until ``finish`` has its messages."""
        try:
            address = ("127.0.0.1", self._port)
            with socket.create_connection(address, LONGEST_SECONDS) as self._socket:
                self._consume()
        except (OSError, FrameError, StoreError) as error:
            self._failure = error

    def _consume(self) -> None:
        for topic in self._workload.topics:
            self._await_queues(topic.decode())
        for number in range(len(self._queues)):
            self._pull(number)
        due = time.monotonic() + LONGEST_SECONDS
        while self._total is None or (count := sum(self.consumed)) < self._total:
            answer = self._received()
            if answer is not None:
                self._take(answer)
                due = time.monotonic() + LONGEST_SECONDS
            elif time.monotonic() > due and self._total is not None:
                raise StoreError(f"{count} of {self._total} messages came, and no more")

    def _await_queues(self, topic: str) -> None:
        """Ask for a topic's route until it has all queues. The end of a short demo may come before
        the first answer, and the server looks for new queues now and then."""
        due: float | None = None
        while True:
            self._send(RequestCode.GET_ROUTEINFO_BY_TOPIC, 0, {"topic": topic})
            while (answer := self._received()) is None:
                continue
            if answer.code == ResponseCode.SUCCESS:
                (queues,) = json.loads(bytes(answer.body))["queueDatas"]
                if queues["readQueueNums"] >= self._workload.queue_count:
                    return
            if self._total is not None:
                due = due or time.monotonic() + LONGEST_SECONDS
                if time.monotonic() > due:
                    raise StoreError(f"topic {topic} has no route to all of its queues")
            time.sleep(POLL_SECONDS)

    def _pull(self, number: int) -> None:
        topic_id, queue_id = self._queues[number]
        offset = self.consumed[number]
        ext = {
            "consumerGroup": GROUP, "topic": self._workload.topics[topic_id].decode(),
            "queueId": queue_id, "queueOffset": offset, "maxMsgNums": 32, "commitOffset": offset,
            "sysFlag": SYS_FLAG, "subscription": "*", "subVersion": 0,
            "suspendTimeoutMillis": SUSPEND_MS,
        }  # fmt: skip
        self._send(RequestCode.PULL_MESSAGE, number, ext)

    def _take(self, answer: Frame) -> None:
        """Check the messages of a pull, and pull what follows them."""
        if answer.code == ResponseCode.SUCCESS:
            self._check(answer.opaque, bytes(answer.body))
        elif answer.code not in (
            ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY,
        ):  # fmt: skip
            raise StoreError(f"a pull was answered with {answer.code}: {answer.remark}")
        self._pull(answer.opaque)

    def _check(self, number: int, data: bytes) -> None:
        """Compare records, which all have one size, with the messages that were appended."""
        (topic_id, queue_id), first = self._queues[number], self.consumed[number]
        size = int.from_bytes(data[: record.MAGIC_POSITION], "big")
        rows = np.frombuffer(data, np.uint8, len(data) // size * size).reshape(-1, size)
        expected = self._workload.queue_slice(topic_id, queue_id, first, len(rows))
        offsets = rows[:, record.QUEUE_OFFSET_POSITION : record.PHYSICAL_OFFSET_POSITION]
        bodies = rows[:, _BODY_POSITION : _BODY_POSITION + self._workload.body_size]
        if (
            rows.size != len(data)
            or not np.array_equal(bodies.ravel(), expected.bodies)
            or [*offsets.copy().view(">i8").ravel()] != [*range(first, first + len(rows))]
        ):
            topic = self._workload.topics[topic_id].decode()
            raise StoreError(
                f"from {topic} queue {queue_id} position {first} on, other messages came than "
                "were appended"
            )
        self.consumed[number] += len(rows)

    def _send(self, code: RequestCode, opaque: int, ext: dict[str, object]) -> None:
        fields = {key: str(value) for key, value in ext.items()}
        self._socket.sendall(encode(Frame(code, opaque, ext=fields)))

    def _received(self) -> Frame | None:
        """Return the next frame; None if none comes soon."""
        self._socket.settimeout(POLL_SECONDS)
        while (length := frame_length(self._buffer)) is None or len(self._buffer) < length:
            try:
                part = self._socket.recv(1 << 16)
            except TimeoutError:
                return None
            if not part:
                raise StoreError("the server closed the connection")
            self._buffer += part
        answer = decode(self._buffer[:length])
        del self._buffer[:length]
        return answer
