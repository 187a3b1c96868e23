"""The demo's consumer, against a server that answers late."""

from __future__ import annotations

import json
import socket
import threading

from reput.serving.codes import RequestCode
from reput.serving.frame import RESPONSE, Frame, decode, encode, frame_length
from reput.workload.consumer import DemoConsumer
from reput.workload.messages import Workload

LATE_ANSWERS = 3


def _answer_routes(listening: socket.socket, queues: list[int]) -> None:
    """Answer each question for a route with the next of these numbers of queues, and no pull."""
    connection, _ = listening.accept()
    data = bytearray()
    with connection:
        while part := connection.recv(1 << 16):
            data += part
            while (length := frame_length(data)) is not None and len(data) >= length:
                asked = decode(bytes(data[:length]))
                del data[:length]
                if asked.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
                    route = {"queueDatas": [{"readQueueNums": queues.pop(0)}]}
                    body = json.dumps(route).encode()
                    connection.sendall(encode(Frame(0, asked.opaque, RESPONSE, body=body)))


def test_a_route_that_comes_after_the_end_is_waited_for() -> None:
    """All messages are dispatched before the server shows the last queue."""
    queues = [1] * LATE_ANSWERS + [2]
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = threading.Thread(target=_answer_routes, args=(listening, queues), daemon=True)
        server.start()
        consumer = DemoConsumer(Workload(1, 2, 100, 1))
        consumer.begin(listening.getsockname()[1])
        assert consumer.finish(0) == [0]
        server.join()
    assert queues == []
