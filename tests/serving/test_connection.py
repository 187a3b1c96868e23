"""Connections: malformed bytes, slow clients, limits and TLS."""

from __future__ import annotations

import logging
import socket
import ssl
import struct
from contextlib import suppress
from pathlib import Path

import pytest

from serving import connection
from tests.support.certificates import make_certificate
from tests.support.remoting import Client, served

PULL = 11
NOBODY = {"topic": "Topic_1", "consumerGroup": "group", "queueId": 0, "queueOffset": 0,
          "maxMsgNums": 32, "sysFlag": 4, "commitOffset": 0, "subscription": "*"}  # fmt: skip


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        struct.pack(">II", 20, 10) + b"x" * 16,
        struct.pack(">I", 0),
        struct.pack(">I", 1 << 31),
        bytes([0x16, 3, 1, 0, 0]),
    ],
)
def test_bytes_that_are_no_frame_close_their_connection_only(
    port: int, data: bytes, request: pytest.FixtureRequest
) -> None:
    """One line is logged, except for TLS where there is no certificate."""
    said: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("reput").addHandler(handler)
    request.addfinalizer(lambda: logging.getLogger("reput").removeHandler(handler))
    with Client(port) as other, Client(port) as client:
        assert other.ask(206).code == 0
        client.socket.sendall(data)
        assert client.is_closed()
        assert other.ask(206).code == 0
    assert sum("malformed" in line for line in said) == (data[0] != 0x16)


def test_requests_that_are_not_answered(port: int) -> None:
    """Unknown requests are answered with 3, one-way requests never, even if they fail, and
    responses are ignored."""
    with Client(port) as client:
        answer = client.ask(310, {"a": "group"})
        assert (answer.code, answer.header["remark"]) == (3, " request type 310 not supported")
        client.send(15, {"consumerGroup": "group"}, flag=2)
        client.send(4711, flag=2)
        client.send(0, flag=1)
        assert client.ask(206).json["topicList"]
        with pytest.raises(TimeoutError):
            client.receive(timeout=0.2)


def test_frames_in_pieces_and_many_at_once(port: int) -> None:
    """A frame may arrive byte by byte, and answers come in the order of the requests."""
    with Client(port) as client:
        left, right = socket.socketpair()
        plain, client.socket = client.socket, left
        opaques = [client.send(206) for _ in range(3)]
        data = right.recv(1 << 16)
        client.socket = plain
        left.close()
        right.close()
        for byte in data[:-1]:
            plain.send(bytes([byte]))
        assert [client.receive().opaque for _ in opaques[:2]] == opaques[:2]
        plain.send(data[-1:])
        assert client.receive().opaque == opaques[2]
        opaques = [client.send(206) for _ in range(100)]
        assert [client.receive().opaque for _ in opaques] == opaques


def test_a_client_that_does_not_read_is_not_read_from(store: Path) -> None:
    """Its requests wait while others are served. When it reads, it gets every answer."""
    with served(store) as port, Client(port) as slow, Client(port) as other:
        slow.socket.setblocking(False)
        sent = 0
        with suppress(BlockingIOError):
            while sent < 50_000:
                slow.send(PULL, {**NOBODY, "padding": "x" * 4096})
                sent += 1
        # else the server would have gone on reading without end
        assert sent < 50_000
        assert other.ask(PULL, NOBODY).code == 0
        slow.socket.setblocking(True)
        answers = [slow.receive() for _ in range(sent)]
        assert [answer.opaque for answer in answers] == list(range(1, sent + 1))
        assert all(answer.code == 0 for answer in answers)


def test_memory_for_unfinished_requests_is_bounded(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection that holds too much of it is closed; small ones are served."""
    monkeypatch.setattr(connection.Budget.__init__, "__defaults__", (1 << 20,))
    with served(store) as port, Client(port) as small, Client(port) as large:
        large.socket.sendall(struct.pack(">II", 8 << 20, 10))
        with pytest.raises(OSError, match=r"reset|pipe"):
            # more than the buffers of both sockets take
            for _ in range(1000):
                large.socket.sendall(bytes(1 << 16))
        assert small.ask(206).code == 0


@pytest.mark.parametrize("is_required", [False, True])
def test_tls_is_told_by_the_first_byte(store: Path, is_required: bool, tmp_path: Path) -> None:
    """One port serves clients with and without TLS, unless TLS is required."""
    cert, key = make_certificate(tmp_path)
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusting.check_hostname = False
    trusting.verify_mode = ssl.CERT_NONE
    with served(store, tls_cert=cert, tls_key=key, is_tls_required=is_required) as port:
        with Client(port, trusting) as client:
            assert client.ask(PULL, NOBODY).code == 0
        with Client(port) as client:
            if is_required:
                client.send(206)
                assert client.is_closed()
            else:
                assert client.ask(PULL, NOBODY).code == 0


def test_idle_connections_end(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections without traffic are closed, as RocketMQ's are after two minutes."""
    monkeypatch.setattr(connection, "IDLE_SECONDS", 0.3)
    with served(store) as port, Client(port) as silent, Client(port) as unborn:
        assert silent.ask(206).code == 0
        assert silent.is_closed()
        assert unborn.is_closed()
