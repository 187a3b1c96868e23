"""When a server can be reached, and at which ports."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

import pytest

from serving import server as module
from serving.broker import Broker
from serving.config import ServerConfig
from serving.server import Server
from serving.stores import BrokerIdentity, ServedStore
from store.config import read_store_settings
from store.errors import StoreError
from tests.support.golden import unpack_golden
from tests.support.remoting import Client, served_stores

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
