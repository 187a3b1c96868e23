"""Connections: malformed bytes, slow clients, limits and TLS."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import struct
from contextlib import closing, suppress
from pathlib import Path

import pytest

from reput.serving import connection, refusals
from reput.serving.codes import ResponseCode
from reput.serving.frame import Frame
from tests.support.certificates import make_certificate
from tests.support.processes import became
from tests.support.remoting import Client, framed, served, take_frames

PULL = 11
NOBODY = {"topic": "Topic_1", "consumerGroup": "group", "queueId": 0, "queueOffset": 0,
          "maxMsgNums": 32, "sysFlag": 4, "commitOffset": 0, "subscription": "*"}  # fmt: skip


@pytest.fixture
def said(request: pytest.FixtureRequest) -> list[str]:
    """The warnings of the test, as they come."""
    lines: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("reput").addHandler(handler)
    request.addfinalizer(lambda: logging.getLogger("reput").removeHandler(handler))
    return lines


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
    port: int, data: bytes, said: list[str]
) -> None:
    """One line is logged, which says so where it is TLS."""
    with Client(port) as other, Client(port) as client:
        assert other.ask(206).code == 0
        client.socket.sendall(data)
        assert client.is_closed()
        assert other.ask(206).code == 0
    assert len(said) == 1
    assert ("uses TLS" if data[0] == 0x16 else "malformed") in said[0]


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


def test_what_lost_connections_held_is_given_back(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of clients that were killed within a request: a large one of others is served, once the
    server has learnt of their ends."""
    monkeypatch.setattr(connection.Budget.__init__, "__defaults__", (1 << 20,))

    def is_served() -> bool:
        with Client(port) as client, suppress(OSError):
            return client.ask(PULL, NOBODY, bytes(1 << 19)).code == 0
        return False

    with served(store) as port:
        for _ in range(8):
            with Client(port) as lost, suppress(OSError):
                lost.socket.sendall(struct.pack(">II", 8 << 20, 10) + bytes(3 << 18))
        assert became(is_served, 30)


def test_as_many_clients_are_connected_as_may(
    store: Path, monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    """The next one is refused with a line, also where more are there than may be; whoever is
    connected is served, and leaves its place."""

    def is_refused() -> bool:
        with Client(port) as client, suppress(ConnectionError):
            return client.ask(206).code != 0
        return True

    with served(store) as port, Client(port) as first:
        with Client(port) as second:
            for limit in (2, 1):
                assert [first.ask(206).code, second.ask(206).code] == [0, 0]
                monkeypatch.setattr(connection, "MAX_CONNECTIONS", limit)
                assert is_refused()
                assert said.pop() == f"connection refused: there are {limit} already"
        assert first.ask(206).code == 0
        monkeypatch.setattr(connection, "MAX_CONNECTIONS", 2)
        while is_refused():
            pass  # the server has not learnt of the end yet


def trusting() -> ssl.SSLContext:
    """A client's TLS that takes any certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


@pytest.mark.parametrize("is_required", [False, True])
def test_tls_is_told_by_the_first_byte(
    store: Path, is_required: bool, tmp_path: Path, said: list[str]
) -> None:
    """One port serves clients with and without TLS, unless TLS is required: the log says then what
    to do, once."""
    cert, key = make_certificate(tmp_path)
    with served(store, tls_cert=cert, tls_key=key, is_tls_required=is_required) as port:
        with Client(port, trusting()) as client:
            assert client.ask(PULL, NOBODY).code == 0
        for _ in range(2):
            with Client(port) as client:
                if is_required:
                    client.send(206)
                    assert client.is_closed()
                else:
                    assert client.ask(PULL, NOBODY).code == 0
    if is_required:
        (line,) = said
        assert line.startswith("connection of 127.0.0.1 refused: the client does not use TLS")
        assert "without `is_tls_required=`" in line
        said.clear()
        with served(store, tls_cert=cert, tls_key=key) as port, Client(port) as client:
            assert client.ask(PULL, NOBODY).code == 0
    assert said == []


def test_a_client_with_tls_at_a_server_without(
    store: Path, tmp_path: Path, said: list[str]
) -> None:
    """The log says so once, however often the client comes, and what it advises helps."""
    with served(store) as port:
        for _ in range(3):
            with pytest.raises((ssl.SSLError, ConnectionError)), Client(port, trusting()):
                pass
        with Client(port) as client:
            assert client.ask(PULL, NOBODY).code == 0
    (line,) = said
    assert line.startswith("connection of 127.0.0.1 refused: the client uses TLS")
    assert "`tls_cert=FILE` `tls_key=FILE`" in line
    cert, key = make_certificate(tmp_path)
    with served(store, tls_cert=cert, tls_key=key) as port, Client(port, trusting()) as client:
        assert client.ask(PULL, NOBODY).code == 0
    assert len(said) == 1


def test_a_client_that_does_not_trust_the_certificate(
    store: Path, tmp_path: Path, said: list[str]
) -> None:
    """Each such client is named by its address, once a minute."""
    cert, key = make_certificate(tmp_path)
    strict = ssl.create_default_context()
    strict.check_hostname = False
    with served(store, tls_cert=cert, tls_key=key) as port:
        for _ in range(2):
            with pytest.raises(ssl.SSLError), Client(port, strict):
                pass
        # the handshakes end before this one's
        with Client(port, trusting()) as client:
            assert client.ask(PULL, NOBODY).code == 0
    assert len(said) == 1
    assert said[0].startswith("connection of 127.0.0.1 refused: it ended before its first request")


def test_refusals_are_logged_once_a_minute(
    said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """For each address and reason, and only so many in a minute."""
    monkeypatch.setattr(refusals, "MAX_LINES", 3)
    now = [0.0]
    refused = refusals.Refusals("connection", lambda: now[0])
    for host, reason in (("a", "x"), ("a", "x"), ("b", "x"), ("a", "y"), ("c", "x")):
        refused.note((host, 1), reason)
    assert [line.split()[2] for line in said] == ["a", "b", "a"]
    now[0] = 59.9
    refused.note(("a", 2), "x")
    assert len(said) == 3
    now[0] = 60.0
    for host in ("a", "c", "d", "e"):
        refused.note((host, 3), "x")
    assert [line.split()[2] for line in said[3:]] == ["a", "c", "d"]


def test_idle_connections_end(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections without traffic are closed, as RocketMQ's are after two minutes."""
    monkeypatch.setattr(connection, "IDLE_SECONDS", 0.3)
    with served(store) as port, Client(port) as silent, Client(port) as unborn:
        assert silent.ask(206).code == 0
        assert silent.is_closed()
        assert unborn.is_closed()


class OwnTimeLoop(asyncio.SelectorEventLoop):
    """A loop whose clock is set by the test alone."""

    now = 0.0

    def time(self) -> float:
        return self.now


async def talk(loop: OwnTimeLoop) -> None:
    """One client takes a long answer in two parts, 100 s apart; another one says nothing."""
    listener = connection.Listener({}, lambda _: None)
    pairs = [socket.socketpair() for _ in range(2)]
    reading, silent = [
        (await loop.connect_accepted_socket(listener.connection, ours))[1] for ours, _ in pairs
    ]
    client = pairs[0][1]
    client.setblocking(False)
    reading.send(Frame(0, 1, 1, None, {}, bytes(8 << 20)))
    assert not reading.is_writable
    loop.now += 100.0
    while not reading.is_writable:
        assert await loop.sock_recv(client, 1 << 20)
    loop.now += 100.0
    listener.start()
    while silent.is_open:
        await asyncio.sleep(0)
        loop.now += 0.25
    assert reading.is_open
    loop.now += connection.IDLE_SECONDS
    while reading.is_open:
        await asyncio.sleep(0)
        loop.now += 1.0
    await listener.stop()
    for pair in pairs:
        pair[1].close()


def test_a_client_that_takes_a_long_answer_is_not_idle() -> None:
    """It need not ask for anything meanwhile; it is closed two minutes after it took the last."""
    with closing(OwnTimeLoop()) as loop:
        loop.run_until_complete(talk(loop))


async def answers_to_many(count: int, body_size: int) -> tuple[list[str], int]:
    """One client sends so many requests in one piece, and another one sends its only request while
    the first of them is served. Whose request was served in the end, in this order; and how many
    before anyone took an answer."""
    loop, order = asyncio.get_running_loop(), list[str]()
    pairs = [socket.socketpair() for _ in range(2)]
    (_, many), (_, single) = pairs

    def handle(asking: connection.Connection, request: Frame) -> Frame:
        if not order:
            single.sendall(framed(PULL, 0, {}))
        order.append("many" if asking is opened[0] else "single")
        return request.answer(ResponseCode.SUCCESS, body=bytes(body_size))

    listener = connection.Listener({PULL: handle}, lambda _: None)
    opened = [
        (await loop.connect_accepted_socket(listener.connection, ours))[1] for ours, _ in pairs
    ]
    many.sendall(b"".join(framed(PULL, opaque, {}) for opaque in range(count)))
    while "single" not in order:
        await asyncio.sleep(0)
    untaken, received, opaques = order.count("many"), bytearray(), list[int]()
    many.setblocking(False)
    while len(opaques) < count:
        received += await loop.sock_recv(many, 1 << 20)
        opaques += [answer.opaque for answer in take_frames(received)]
    assert opaques == list(range(count))
    await listener.stop()
    for pair in pairs:
        pair[1].close()
    return order, untaken


def test_many_requests_of_one_client_leave_others_their_turn() -> None:
    """At most two turns of the one come before the other, whose request came during the first."""
    order, _ = asyncio.run(answers_to_many(5 * connection.REQUESTS_AT_ONCE, 0))
    assert order.index("single") <= 2 * connection.REQUESTS_AT_ONCE


def test_requests_wait_for_answers_to_those_that_came_with_them() -> None:
    """Nobody takes the answers: those beyond the limit are not made, however few the requests."""
    count, size = 8, connection.UNREAD_HIGH_WATER_BYTES
    _, untaken = asyncio.run(answers_to_many(count, size))
    assert 1 <= untaken <= 2 < count <= connection.REQUESTS_AT_ONCE
