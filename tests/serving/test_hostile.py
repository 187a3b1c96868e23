"""The server stays alive, serves others and bounds its memory, whatever clients send."""

from __future__ import annotations

import json
import random
import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from reput.serving.codes import RequestCode
from reput.serving.frame import Codec, Frame, encode
from tests.interop.clients import serving
from tests.serving.test_frame import mutated, texts
from tests.support.golden import unpack_golden
from tests.support.remoting import TIMEOUT_SECONDS, Client, heartbeat

FEW, MANY = 4_000, 100_000
AT_ONCE = 40
"""Frames of one connection."""
WARM_UP_SHARE = 0.25
GROWTH_BYTES = 32 << 20
PULL, GET_MAX_OFFSET, TOPICS = 11, 30, 206
UNEXPECTED = "Error("
"""In the log where a request met code that did not expect it, and got an exception's name."""
NUMBERS = ("0", "1", "4", "6", "7", "31", "-1", "65536", str(1 << 40), str(-1 << 63), "9" * 30)
GROUPS = ("group", "other", "%RETRY%group", "../group", "", "g" * 256)
NAMES = ("Topic_1", "Topic_5", "%RETRY%group", "Nowhere", "../plain", ".", "", "x" * 5000)
FIELDS = {
    "consumerGroup": GROUPS, "group": GROUPS, "topic": NAMES, "namespace": NAMES,
    "clientID": ("a", "b"), "producerGroup": GROUPS, "boundaryType": ("LOWER", "UPPER", "x"),
    "subscription": ("*", "A||B", "||", "a > 1", "a" * 3000, "((((", "a = 'x"),
    "expressionType": ("TAG", "SQL92", "x"), "setZeroIfNotFound": ("true", "false", "x"),
    **dict.fromkeys(
        (
            "queueId", "queueOffset", "maxMsgNums", "maxMsgBytes", "sysFlag", "commitOffset",
            "suspendTimeoutMillis", "subVersion", "timestamp", "offset",
        ),
        NUMBERS,
    ),
}  # fmt: skip


def fields(rng: random.Random) -> dict[str, str]:
    """Most of the ext fields that exist, each absent, sensible or odd."""
    found = {
        name: rng.choice((values[0], rng.choice(values)))
        for name, values in FIELDS.items()
        if rng.randrange(10)
    }
    if not rng.randrange(4):
        found[rng.choice(list(FIELDS))] = texts(rng, 40)
    return found


def body(rng: random.Random) -> bytes:
    """The body of some request, whole or mutated."""
    client_id = rng.choice(("a", "b", "c"))
    beat = heartbeat(
        client_id, rng.choice(GROUPS), *rng.choices(NAMES[:6], k=rng.randrange(3)),
        kind=rng.choice(("TAG", "SQL92", 7)), version=rng.choice((1, 2, "x", 1 << 70)),
        without_sub=rng.choice((True, False)),
    )  # fmt: skip
    queue = {"brokerName": "b", "queueId": rng.choice((0, "1", None)), "topic": rng.choice(NAMES)}
    lock = {"clientId": client_id, "consumerGroup": rng.choice(GROUPS), "mqSet": [queue, 7]}
    whole = json.dumps(rng.choice((beat, lock, {"subscriptionData": queue}, [], 7))).encode()
    match rng.randrange(8):
        case 0:
            return b""
        case 1:
            return rng.randbytes(rng.randrange(300))
        case 2:
            return rng.choice((b"[", b'{"a":', b'{"\\"')) * rng.randrange(1, 3000)
        case 3 | 4:
            return mutated(rng, whole)
    return whole


def frames(rng: random.Random) -> Iterator[bytes]:
    """Frames without end, most of them whole."""
    codes = [*RequestCode, 10, 310, 36, 200050]
    while True:
        codec = rng.choice(list(Codec))
        frame = Frame(
            rng.choice([code for code in codes if codec is Codec.JSON or code < 1 << 15]),
            rng.randrange(1 << 31), rng.choice((0, 0, 0, 2, 1)), None, fields(rng), body(rng),
            rng.choice(("JAVA", "OTHER")), rng.randrange(600), codec,
        )  # fmt: skip
        data = encode(frame)
        yield data if rng.randrange(30) else mutated(rng, data)


def attack(port: int, rng: random.Random, count: int) -> None:
    """Send this many frames over new connections again and again, while an honest client is
    answered."""
    hostile = frames(rng)
    with Client(port) as honest:
        for _ in range(-(-count // AT_ONCE)):
            with socket.create_connection(("127.0.0.1", port), TIMEOUT_SECONDS) as connection:
                with suppress(OSError):
                    for _ in range(AT_ONCE):
                        connection.sendall(next(hostile))
                    connection.shutdown(socket.SHUT_WR)
                    while connection.recv(1 << 20):
                        pass
                if rng.randrange(2):
                    # closed with a reset instead
                    linger = struct.pack("ii", 1, 0)
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            assert honest.ask(TOPICS).code == 0


def resident_bytes(pid: int) -> int:
    """The resident memory of a process, in bytes."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return 1024 * int(next(line.split()[1] for line in lines if line.startswith("VmRSS")))


def check_attack(store: Path, seed: int, count: int) -> int:
    """Attack a server and end it cleanly; return by how many bytes it grew after a warm-up."""
    rng = random.Random(seed)
    with serving(store) as server:
        port = int(server.namesrv.rpartition(":")[2])
        attack(port, rng, int(WARM_UP_SHARE * count))
        before = resident_bytes(server.process.pid)
        attack(port, rng, count - int(WARM_UP_SHARE * count))
        grown = resident_bytes(server.process.pid) - before
        assert server.stop() == 0
        assert UNEXPECTED not in server.stderr
        assert "Traceback" not in server.stderr
    return grown


HALF_OPEN, HELD = 200, 100


def test_slow_clients_cost_others_nothing(store: Path) -> None:
    """Clients send half a frame, or single bytes; they leave answers unread, or have large pulls
    wait. Others are answered meanwhile, and memory is bounded."""
    whole = encode(Frame(TOPICS, 1))
    pull = {
        "topic": "Topic_1", "consumerGroup": "g", "queueId": "0", "maxMsgNums": "32",
        "commitOffset": "0", "subscription": "*", "suspendTimeoutMillis": "60000",
    }  # fmt: skip
    with serving(store) as server, ExitStack() as held:
        port = int(server.namesrv.rpartition(":")[2])
        honest, trickling, deaf, waiting = (held.enter_context(Client(port)) for _ in range(4))
        assert honest.ask(TOPICS).code == 0
        before = resident_bytes(server.process.pid)
        for _ in range(HALF_OPEN):
            address = ("127.0.0.1", port)
            half = held.enter_context(socket.create_connection(address, TIMEOUT_SECONDS))
            half.sendall(struct.pack(">II", 8 << 20, 10) + bytes(1 << 15))
        end = honest.ask(GET_MAX_OFFSET, pull).ext["offset"]
        for _ in range(HELD):
            waiting.send(PULL, {**pull, "queueOffset": end, "sysFlag": 6}, bytes(1 << 20))
        deaf.socket.setblocking(False)
        with suppress(BlockingIOError):
            for _ in range(20_000):
                deaf.send(PULL, {**pull, "queueOffset": 0, "sysFlag": 4})
        for byte in whole:
            trickling.socket.sendall(bytes([byte]))
            assert honest.ask(PULL, {**pull, "queueOffset": 0, "sysFlag": 4}).code == 0
        assert trickling.receive().code == 0
        grown = resident_bytes(server.process.pid) - before
    print(f"grown by {grown:,} bytes")
    assert grown < 2 * GROWTH_BYTES


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Golden store plain."""
    return unpack_golden("plain", tmp_path)


def test_hostile_requests(store: Path, seed: int) -> None:
    """Some thousand requests; make test-slow sends many more."""
    check_attack(store, seed, FEW)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_hostile_requests_many(store: Path, seed: int) -> None:
    """A hundred thousand requests, after which the server has hardly grown."""
    grown = check_attack(store, seed, MANY)
    print(f"grown by {grown:,} bytes")
    assert grown < GROWTH_BYTES
