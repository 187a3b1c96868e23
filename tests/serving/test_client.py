"""The client of a broker, against a server of ours and one that answers nothing."""

from __future__ import annotations

import shutil
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from reput.overlay.records.sends import Send
from reput.serving.client import BrokerClient, only_broker
from reput.serving.frame import RESPONSE, Frame, encode
from reput.store.errors import RefusedMessageError, StoreError, UsageError
from reput.store.log.record import DEFAULT_DELAY_LEVELS_MS
from tests.readers.stores import SmallStore
from tests.support.golden import log_records
from tests.support.remoting import served, served_stores

HOST = "127.0.0.1"


@pytest.fixture
def small(tmp_path: Path) -> SmallStore:
    small = SmallStore(tmp_path / "store")
    small.append(properties=b"UNIQ_KEY\x01A\x02")
    small.append(properties=b"UNIQ_KEY\x01B\x02")
    small.write()
    return small


def message(topic: str, **more: int) -> Send:
    return Send(
        topic=topic.encode(), queue_id=0, body=b"\x00body\xff", properties=b"UNIQ_KEY\x01K\x02",
        born_timestamp=5, born_host=(HOST, 1), flag=7, reconsume_times=3, **more,
    )  # fmt: skip


@contextmanager
def answering(data: bytes) -> Iterator[int]:
    """A server that sends these bytes for any request and hangs up; its port."""
    with socket.create_server((HOST, 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1)
                connection.sendall(data)

        thread = threading.Thread(target=answer)
        thread.start()
        yield server.getsockname()[1]
        thread.join()


def test_a_send_arrives_as_it_is(small: SmallStore, tmp_path: Path) -> None:
    """It has an id then, which names its place; what is refused says why."""
    output = tmp_path / "output"
    shutil.copytree(small.root / "consumequeue", output / "consumequeue")
    with (
        served_stores([(small.root, output)], overlay=True) as ports,
        BrokerClient(HOST, ports[1]) as client,
    ):
        first = client.send(message("%RETRY%g", max_reconsume_times=16))
        assert client.send(message("%RETRY%g", max_reconsume_times=2)) != first
        with pytest.raises(RefusedMessageError, match=r"code 16, .*forbidden") as refused:
            client.send(message("Topic"))
        assert refused.value.code == 16
    retry, dead = log_records(output / "overlay")
    assert (retry.topic, dead.topic) == (b"%RETRY%g", b"%DLQ%g")
    assert int(first[16:], 16) == retry.physical_offset == 0
    for one in (retry, dead):
        assert (one.body, one.flag, one.born_timestamp) == (b"\x00body\xff", 7, 5)
        assert (one.reconsume_times, one.property_map[b"UNIQ_KEY"]) == (3, b"K")


def test_a_name_server_s_only_broker(small: SmallStore, tmp_path: Path) -> None:
    """Where it knows several the line names them."""
    with served(small.root) as port:
        assert only_broker(HOST, port) == f"{HOST}:{port}"
        with BrokerClient(HOST, port) as client:
            assert client.delay_levels_ms() == DEFAULT_DELAY_LEVELS_MS
    output = tmp_path / "output"
    shutil.copytree(small.root / "consumequeue", output / "consumequeue")
    with (
        served_stores([(small.root, output)], overlay=True) as ports,
        pytest.raises(UsageError, match=r"knows .* at .*, .*: name one with `broker=`"),
    ):
        only_broker(HOST, ports[0])


def test_the_only_broker_is_its_master() -> None:
    """A slave takes no messages, wherever the table has it."""
    addresses = '{"1":"10.0.0.2:10911","0":"10.0.0.1:10911","2":"10.0.0.3:10911"}'
    body = f'{{"brokerAddrTable":{{"b":{{"brokerAddrs":{addresses}}}}}}}'
    with answering(encode(Frame(0, 1, RESPONSE, body=body.encode()))) as port:
        assert only_broker(HOST, port) == "10.0.0.1:10911"


@pytest.mark.parametrize("code", [0, 10, 11, 12])
def test_a_send_that_a_slave_or_a_disk_got_late_is_stored(code: int) -> None:
    """SUCCESS, FLUSH_DISK_TIMEOUT, SLAVE_NOT_AVAILABLE and FLUSH_SLAVE_TIMEOUT: to send it again
    would double it."""
    answer = encode(Frame(code, 1, RESPONSE, ext={"msgId": "ID"}))
    with answering(answer) as port, BrokerClient(HOST, port) as client:
        assert client.send(message("%RETRY%g")) == "ID"


def test_a_broker_s_own_request_is_no_answer() -> None:
    """It may have the number of ours: each side counts its own."""
    data = encode(Frame(40, 1, ext={"msgId": "OTHER"})) + encode(
        Frame(0, 1, RESPONSE, ext={"msgId": "ID"})
    )
    with answering(data) as port, BrokerClient(HOST, port) as client:
        assert client.send(message("%RETRY%g")) == "ID"


@pytest.mark.parametrize("code", [2, 14])
def test_a_busy_broker_is_asked_later(code: int) -> None:
    """It refuses no message; whoever runs the command is told to run it again."""
    answer = encode(Frame(code, 1, RESPONSE, "no room"))
    with (
        answering(answer) as port,
        BrokerClient(HOST, port) as client,
        pytest.raises(StoreError, match=f"takes no messages now .code {code}, no room.: run"),
    ):
        client.send(message("%RETRY%g"))


@pytest.mark.parametrize(
    "data", [b"", b"\0\0", b"\xff\xff\xff\xff", b"\0\0\0\x06\0\0\0\x02{}", b"\0\0\0\x04\x07\0\0\0"]
)
def test_no_answer_is_no_broker(data: bytes) -> None:
    """Whoever runs the command is told to run it again."""
    with (
        answering(data) as port,
        BrokerClient(HOST, port) as client,
        pytest.raises(StoreError, match=f"{port} does not answer .*run the same command"),
    ):
        client.send(message("%RETRY%g"))
