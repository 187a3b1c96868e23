"""A proxy before a Kafka broker that passes requests on, and cuts the connection in place of one
answer."""

from __future__ import annotations

import collections
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from tests.interop.kafka import Kafka

APIS = {
    "Produce": 0, "Fetch": 1, "ListOffsets": 2, "Metadata": 3, "FindCoordinator": 10,
    "ApiVersions": 18, "CreateTopics": 19, "InitProducerId": 22, "AddPartitionsToTxn": 24,
    "EndTxn": 26, "CreatePartitions": 37, "DescribeTopicPartitions": 75,
}  # fmt: skip
"""Requests by their api key."""
_NAMES = {key: name for name, key in APIS.items()}


class LossyProxy:
    """Counts the answers of each kind."""

    def __init__(self, kafka: Kafka) -> None:
        self._kafka = kafka
        self._lock = threading.Lock()
        self.answers: collections.Counter[str] = collections.Counter()
        self.lost: tuple[str, int] | None = None
        """The answer that is lost: its kind and its number, from 1."""
        self.was_lost = False
        self.ends_with_it = False
        """Whether no connection is served once it was lost."""
        self._listening = socket.create_server(_address(kafka.proxy))
        self._open: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    @property
    def is_down(self) -> bool:
        """Whether the brokers cannot be reached."""
        return self.was_lost and self.ends_with_it

    def close(self) -> None:
        """Cut all connections."""
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._threads[0].join()
        for opened in self._open:
            _cut(opened)
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                if self.is_down:
                    client.close()
                    continue
                broker = socket.create_connection(_address(self._kafka.proxied))
                self._open += client, broker
                asked: collections.deque[str] = collections.deque()
                for target in (self._requests, self._answers):
                    thread = threading.Thread(target=target, args=(client, broker, asked))
                    self._threads.append(thread)
                    thread.start()

    def _requests(
        self, client: socket.socket, broker: socket.socket, asked: collections.deque[str]
    ) -> None:
        for frame in _frames(client):
            (key,) = struct.unpack(">h", frame[4:6])
            asked.append(_NAMES.get(key, str(key)))
            with suppress(OSError):
                broker.sendall(frame)
        _cut(broker)

    def _answers(
        self, client: socket.socket, broker: socket.socket, asked: collections.deque[str]
    ) -> None:
        # a broker answers the requests of a connection in their order
        for frame in _frames(broker):
            with self._lock:
                kind = asked.popleft()
                self.answers[kind] += 1
                if self.is_down:
                    break
                if self.lost == (kind, self.answers[kind]):
                    self.was_lost = True
                    break
            with suppress(OSError):
                client.sendall(frame)
        _cut(client)
        _cut(broker)


@contextmanager
def lossy_proxy(kafka: Kafka, kind: str = "", number: int = 0) -> Iterator[LossyProxy]:
    """One that loses the given answer."""
    proxy = LossyProxy(kafka)
    proxy.lost = kind, number
    try:
        yield proxy
    finally:
        proxy.close()


def _address(place: str) -> tuple[str, int]:
    host, _, port = place.partition(":")
    return host, int(port)


def _cut(opened: socket.socket) -> None:
    with suppress(OSError):
        opened.shutdown(socket.SHUT_RDWR)


def _frames(opened: socket.socket) -> Iterator[bytes]:
    """Yield frames, each with its length before it, until the connection ends."""
    with suppress(OSError), opened.makefile("rb") as file:
        while len(head := file.read(4)) == 4:
            yield head + file.read(struct.unpack(">i", head)[0])
