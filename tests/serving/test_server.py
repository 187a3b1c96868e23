"""When a server can be reached, and at which ports."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

import pytest

from reput.cli.clientoptions import address
from reput.serving import server as module
from reput.serving.broker import Broker
from reput.serving.config import ServerConfig
from reput.serving.server import Server
from reput.serving.stores import BrokerIdentity, ServedStore
from reput.store.config import read_store_settings
from reput.store.errors import StoreError, UsageError
from tests.support.golden import unpack_golden
from tests.support.remoting import Client, free_ports, heartbeat, served_stores

HOST, ROUTE, SUCCESS = "127.0.0.1", 105, 0


def is_refused(port: int) -> bool:
    """Whether nobody listens at a port."""
    try:
        socket.create_connection((HOST, port), 10).close()
    except ConnectionRefusedError:
        return True
    return False


def test_clients_are_refused_until_they_are_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No port of several stores takes a connection before all of them answer."""
    stores = [unpack_golden(name, tmp_path) for name in ("plain", "lmq")]
    ports, found = list[int](), list[bool]()

    class Watched(Broker):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            ports.append(self.port)
            found.extend(is_refused(port) for port in ports)

    monkeypatch.setattr(module, "Broker", Watched)
    with served_stores([(store, store) for store in stores]) as served:
        assert (found, list(served)) == ([True] * 3, ports)
        for port in served:
            with Client(port) as client:
                assert client.ask(ROUTE, {"topic": "Topic_0"}).code == SUCCESS


def test_a_port_that_is_bound_is_refused_already() -> None:
    """The port is known and kept from the start, and nobody is connected yet."""
    server = Server(ServerConfig(HOST, 0))
    try:
        (port,) = server.ports
        assert is_refused(port)
    finally:
        server.close()


def test_every_port_up_to_the_last_can_be_given() -> None:
    """It is the largest number of 16 bits; an overlay needs one port more."""
    last = (1 << 16) - 1
    server = Server(ServerConfig(HOST, last))
    try:
        assert server.ports == [last]
    finally:
        server.close()
    with pytest.raises(UsageError, match=f"need ports up to {last + 1}"):
        Server(ServerConfig(HOST, last, overlay=True))
    assert address("--listen", f"{HOST}:{last}") == (HOST, last)
    with pytest.raises(UsageError, match="must be HOST:PORT"):
        address("--listen", f"{HOST}:{last + 1}")


def test_a_port_that_was_taken_in_between(tmp_path: Path) -> None:
    """Linux lets two processes bind a port while neither listens; the second one to listen says
    what one that comes later says."""
    store = unpack_golden("plain", tmp_path)
    settings = read_store_settings(store)
    served = ServedStore(BrokerIdentity.of(settings), settings, store)
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind((HOST, 0))
        config = ServerConfig(HOST, other.getsockname()[1])
        server = Server(config)
        other.listen()
        line = f"cannot listen at {HOST}:{config.port}: Address already in use; give another"

        async def run() -> None:
            await server.run([served], asyncio.Event(), lambda: pytest.fail("it is not ready"))

        with pytest.raises(StoreError, match=line):
            asyncio.run(run())
        with pytest.raises(StoreError, match=line):
            Server(config)


def test_the_vip_channel_is_served(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A broker answers alike at both of its ports. The third store's second
    port is the first store's own, which keeps its own answers."""
    stores = [unpack_golden(name, tmp_path) for name in ("plain", "lmq", "broker")]
    first = free_ports(range(-2, 3))
    place: dict[str, object] = {"consumerGroup": "group", "topic": "Topic_0", "queueId": 0}
    with served_stores([(store, store) for store in stores], port=first) as ports:
        assert ports == (first, first + 1, first + 2)
        for number, port in enumerate(ports[:2]):
            with Client(port) as client, Client(port - 2) as vip:
                assert client.ask(34, {}, heartbeat("c", "group", "Topic_0")).code == SUCCESS
                assert vip.ask(38, {"consumerGroup": "group"}).json["consumerIdList"] == ["c"]
                assert vip.ask(15, {**place, "commitOffset": 5 + number}).code == SUCCESS
                assert client.ask(14, place).ext == {"offset": str(5 + number)}
    (text,) = [text for text in caplog.messages if "VIP" in text]
    assert f"at port {first + 2} is not served: port {first}: another store is served" in text


def test_a_taken_vip_channel_ends_no_server(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One line says so, whether it is taken at the start or in between; that of another store is
    served."""
    store, second = (unpack_golden(name, tmp_path) for name in ("plain", "lmq"))
    port = free_ports((-2, -1, 0, 1))
    line = f"at port {port} is not served: port {port - 2}: Address already in use; clients"
    with socket.create_server((HOST, port - 2)):
        stores = [(store, store), (second, second)]
        with served_stores(stores, port=port), Client(port) as client, Client(port - 1) as vip:
            for one in (client, vip):
                assert one.ask(ROUTE, {"topic": "Topic_0"}).code == SUCCESS
        assert [line in text for text in caplog.messages if "VIP" in text] == [True]
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind((HOST, port - 2))
        server = Server(ServerConfig(HOST, port))
        try:
            other.listen()
            assert server._listening_vip(port) == []
        finally:
            server.close()
    assert [line in text for text in caplog.messages if "VIP" in text] == [True, True]
