"""A resident child that pulls queues as fast as it can: ``python -m bench.pull_worker``.

Both servers are measured with this client. As RocketMQ's clients do, it sends the next request for
a queue when it has the last answer; each queue has a connection of its own. It decodes only the
parts of an answer that it needs for the next request. Each line on stdin is a request
``{"address": HOST:PORT, "topic": TOPIC, "queues": COUNT, "max_msg_nums": N}``, which drains these
queues from their beginning; the answer is a line of JSON.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
from typing import Any, cast

from reput.serving.codes import RequestCode, ResponseCode
from reput.serving.frame import LENGTH_SIZE, Frame, encode
from reput.store.log.record import PHYSICAL_OFFSET_POSITION, QUEUE_OFFSET_POSITION

BUFFER_BYTES = 17 << 20
"""Larger than any frame."""
OFFSET_DIGITS = 19
_PREFIX_SIZE = 8
_HEADER_LENGTH = 0xFFFFFF
_CODE = re.compile(rb'"code":(-?[0-9]+)')
_NEXT = re.compile(rb'"nextBeginOffset":"([0-9]+)"')


def pull_request(topic: str, queue_id: int, max_msg_nums: int) -> tuple[bytes, bytes]:
    """Return a request for offset 0 in two parts, between which the digits of an offset belong."""
    ext = {
        "consumerGroup": "bench", "topic": topic, "queueId": str(queue_id),
        "queueOffset": "0" * OFFSET_DIGITS, "maxMsgNums": str(max_msg_nums), "sysFlag": "4",
        "commitOffset": "0", "suspendTimeoutMillis": "15000", "subscription": "*",
        "subVersion": "0",
    }  # fmt: skip
    data = encode(Frame(RequestCode.PULL_MESSAGE, 1, ext=ext, language="JAVA"))
    before, _, after = data.partition(b"0" * OFFSET_DIGITS)
    return before, after


class Puller(asyncio.BufferedProtocol):
    """Drains one queue over one connection."""

    def __init__(self, topic: str, queue_id: int, max_msg_nums: int) -> None:
        self._request = pull_request(topic, queue_id, max_msg_nums)
        self._buffer = memoryview(bytearray(BUFFER_BYTES))
        self._filled = 0
        self._offset = 0
        self._transport: asyncio.Transport | None = None
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.messages = self.frames = self.bytes = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio."""
        self._transport = cast(asyncio.Transport, transport)
        self._ask()

    def connection_lost(self, error: Exception | None) -> None:
        """Called by asyncio."""
        self._fail(f"the server closed the connection: {error}")

    def get_buffer(self, _size: int) -> memoryview:
        """Called by asyncio."""
        return self._buffer[self._filled :]

    def buffer_updated(self, count: int) -> None:
        """Take an answer when it is whole, and only then ask again. Called by asyncio."""
        self._filled += count
        if self._filled < _PREFIX_SIZE:
            return
        length = LENGTH_SIZE + int.from_bytes(self._buffer[:LENGTH_SIZE], "big")
        if self._filled >= length:
            self._filled = 0
            self._answered(length)

    def _answered(self, length: int) -> None:
        mark = int.from_bytes(self._buffer[LENGTH_SIZE:_PREFIX_SIZE], "big")
        body_at = _PREFIX_SIZE + (mark & _HEADER_LENGTH)
        header = bytes(self._buffer[_PREFIX_SIZE:body_at])
        code, following = _CODE.search(header), _NEXT.search(header)
        if code is None or following is None:
            return self._fail(f"the server answered {header!r}")
        if int(code[1]) == ResponseCode.PULL_NOT_FOUND:
            if not self.done.done():
                self.done.set_result(None)
            return None
        first = self._buffer[body_at + QUEUE_OFFSET_POSITION : body_at + PHYSICAL_OFFSET_POSITION]
        if int(code[1]) != ResponseCode.SUCCESS or int.from_bytes(first, "big") != self._offset:
            return self._fail(f"the server answered {header!r} for offset {self._offset}")
        self.messages += int(following[1]) - self._offset
        self.bytes += length - body_at
        self.frames += 1
        self._offset = int(following[1])
        return self._ask()

    def _ask(self) -> None:
        before, after = self._request
        if self._transport is not None:
            self._transport.write(b"%b%0*d%b" % (before, OFFSET_DIGITS, self._offset, after))

    def _fail(self, problem: str) -> None:
        if not self.done.done():
            self.done.set_exception(ConnectionError(problem))

    def close(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.abort()


async def drain(address: str, topic: str, queues: int, max_msg_nums: int) -> dict[str, Any]:
    """Pull the queues [0, queues) of a topic to their ends, all at once.

    Returns ``seconds``, ``cpu_seconds`` of this process, ``messages``, ``frames``, and ``bytes`` of
    records. Raises ConnectionError for an answer that is wrong.
    """
    loop = asyncio.get_running_loop()
    host, _, port = address.rpartition(":")
    pullers = [Puller(topic, queue_id, max_msg_nums) for queue_id in range(queues)]
    cpu, began = time.process_time(), time.monotonic()
    for puller in pullers:
        await loop.create_connection(lambda puller=puller: puller, host, int(port))  # type: ignore[misc]
    try:
        await asyncio.gather(*(puller.done for puller in pullers))
    finally:
        for puller in pullers:
            puller.close()
    return {
        "seconds": time.monotonic() - began,
        "cpu_seconds": time.process_time() - cpu,
        "messages": sum(puller.messages for puller in pullers),
        "frames": sum(puller.frames for puller in pullers),
        "bytes": sum(puller.bytes for puller in pullers),
    }


def main() -> None:
    """Answer requests until stdin ends."""
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        drained = drain(asked["address"], asked["topic"], asked["queues"], asked["max_msg_nums"])
        print(json.dumps(asyncio.run(drained)), flush=True)


if __name__ == "__main__":
    main()
