"""A plain client of RocketMQ's remoting, and a server of ours in a thread."""

from __future__ import annotations

import asyncio
import json
import random
import re
import socket
import ssl
import struct
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from reput.serving.config import ServerConfig
from reput.serving.server import Server
from reput.serving.stores import BrokerIdentity, ServedStore
from reput.store.config import read_store_settings

TIMEOUT_SECONDS = 30.0


@dataclass
class Answer:
    """A frame as it came: a response, or a request of the server."""

    header: dict[str, Any]
    body: bytes

    @property
    def code(self) -> int:
        return int(self.header["code"])

    @property
    def opaque(self) -> int:
        return int(self.header["opaque"])

    @property
    def ext(self) -> dict[str, str]:
        return dict(self.header.get("extFields") or {})

    @property
    def json(self) -> Any:
        """The body, whose map keys may be objects: such a map becomes a list of pairs."""
        text = self.body.decode()
        pairs = re.sub(r'(\{"brokerName"[^}]*\}):(\{[^}]*\})', r"[\1,\2]", text)
        return json.loads(re.sub(r'\{(\[\{"brokerName".*\])\}', r"[\1]", pairs))


def framed(
    code: int, opaque: int, ext: Mapping[str, object], body: object = b"", flag: int = 0
) -> bytes:
    """A frame as RocketMQ's clients write it, in JSON without blanks; ``body`` may be JSON."""
    header = {
        "code": code, "language": "JAVA", "version": 479, "opaque": opaque, "flag": flag,
        "extFields": {key: str(value) for key, value in ext.items()},
        "serializeTypeCurrentRPC": "JSON",
    }  # fmt: skip
    data = json.dumps(header, separators=(",", ":")).encode()
    payload = body if isinstance(body, bytes) else json.dumps(body).encode()
    return struct.pack(">II", 4 + len(data) + len(payload), len(data)) + data + payload


def unframed(data: bytes | bytearray) -> Answer:
    """A whole frame in JSON, without its length."""
    size = struct.unpack_from(">I", data)[0] & 0xFFFFFF
    return Answer(json.loads(data[4 : 4 + size]), bytes(data[4 + size :]))


def take_frames(buffer: bytearray) -> Iterator[Answer]:
    """Take whole frames from the beginning of a buffer."""
    while len(buffer) >= 4:
        (length,) = struct.unpack_from(">I", buffer)
        if len(buffer) < 4 + length:
            return
        frame = unframed(buffer[4 : 4 + length])
        del buffer[: 4 + length]
        yield frame


@dataclass
class Client:
    """One connection; every frame in JSON."""

    port: int
    tls: ssl.SSLContext | None = None
    socket: socket.socket = field(init=False)
    opaque: int = 0

    def __enter__(self) -> Self:
        self.socket = socket.create_connection(("127.0.0.1", self.port), TIMEOUT_SECONDS)
        if self.tls is not None:
            self.socket = self.tls.wrap_socket(self.socket)
        return self

    def __exit__(self, *_error: object) -> None:
        self.socket.close()

    def send(
        self, code: int, ext: dict[str, object] | None = None, body: object = b"", flag: int = 0
    ) -> int:
        """Send a request; its opaque."""
        self.opaque += 1
        self._send(code, self.opaque, ext, body, flag)
        return self.opaque

    def respond(self, request: Answer, code: int, body: object = b"") -> None:
        """Answer a request of the server."""
        self._send(code, request.opaque, None, body, 1)

    def _send(
        self, code: int, opaque: int, ext: dict[str, object] | None, body: object, flag: int
    ) -> None:
        self.socket.sendall(framed(code, opaque, ext or {}, body, flag))

    def receive(self, timeout: float = TIMEOUT_SECONDS) -> Answer:
        """The next frame. Raises ConnectionError at the end, TimeoutError."""
        self.socket.settimeout(timeout)
        (length,) = struct.unpack(">I", self._exactly(4))
        return unframed(self._exactly(length))

    def ask(self, code: int, ext: dict[str, object] | None = None, body: object = b"") -> Answer:
        """Send a request and wait for its answer; the server's own requests are passed over."""
        opaque = self.send(code, ext, body)
        while True:
            found = self.receive()
            if found.header["flag"] & 1 and found.opaque == opaque:
                return found

    def is_closed(self) -> bool:
        """Wait for the end of the connection, or of patience."""
        self.socket.settimeout(TIMEOUT_SECONDS)
        try:
            return not self.socket.recv(1)
        except ConnectionError:
            return True

    def _exactly(self, size: int) -> bytes:
        found = bytearray()
        while len(found) < size:
            part = self.socket.recv(size - len(found))
            if not part:
                raise ConnectionError("the server closed the connection")
            found += part
        return bytes(found)


def heartbeat(client_id: str, group: str, *topics: str, **more: object) -> dict[str, object]:
    """A heartbeat of one group; a topic may be ``name:tags``."""
    subscriptions = [
        {
            "topic": topic.partition(":")[0], "subString": topic.partition(":")[2] or "*",
            "expressionType": more.get("kind", "TAG"), "tagsSet": [], "codeSet": [],
            "subVersion": more.get("version", 1), "classFilterMode": False,
        }
        for topic in topics
    ]  # fmt: skip
    consumer = {
        "groupName": group, "consumeType": "CONSUME_PASSIVELY",
        "messageModel": more.get("model", "CLUSTERING"),
        "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET", "unitMode": False,
        "subscriptionDataSet": subscriptions,
    }  # fmt: skip
    found = {"clientID": client_id, "consumerDataSet": [consumer], "producerDataSet": []}
    return {**found, "heartbeatFingerprint": 0, "withoutSub": more.get("without_sub", False)}


def free_ports(distances: Sequence[int]) -> int:
    """A port that is free, like those at these distances from it; no client's port is there. Tests
    that run at once have the same seed, so that it does not choose."""
    while True:
        first = random.SystemRandom().randrange(20_000, 30_000)
        with ExitStack() as opened:
            try:
                for distance in distances:
                    opened.enter_context(socket.create_server(("127.0.0.1", first + distance)))
            except OSError:
                continue
        return first


@contextmanager
def served(store: Path, output: Path | None = None, **options: Any) -> Iterator[int]:
    """A server of one store in a thread, until the block ends; its port."""
    with served_stores([(store, output or store)], **options) as (port,):
        yield port


@contextmanager
def served_stores(places: Sequence[tuple[Path, Path]], **options: Any) -> Iterator[tuple[int, ...]]:
    """A server of stores with their outputs in a thread, until the block ends; its ports.

    Options are the configuration's; ``port`` is the first broker's, if not any free one.
    """
    stores = []
    for root, output in places:
        settings = read_store_settings(root)
        stores.append(ServedStore(BrokerIdentity.of(settings), settings, output))
    config = ServerConfig("127.0.0.1", options.pop("port", 0), **options)
    started: list[Any] = []
    ready = threading.Event()

    async def serve() -> None:
        stop = asyncio.Event()
        server = Server(config, len(stores))

        def on_ready() -> None:
            started.extend((asyncio.get_running_loop(), stop, tuple(server.ports)))
            ready.set()

        await server.run(stores, stop, on_ready)

    errors: list[BaseException] = []

    def run() -> None:
        try:
            asyncio.run(serve())
        except BaseException as error:
            errors.append(error)
        finally:
            ready.set()

    thread = threading.Thread(target=run)
    thread.start()
    ready.wait()
    if not started:
        thread.join()
        raise errors[0]
    loop, stop, ports = started
    try:
        yield ports
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
    if errors:
        raise errors[0]
