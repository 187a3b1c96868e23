"""The server: brokers, each at a port of its own, and the name server at all of these.

Clients know a connection by its address, and RocketMQ 4.9's do not say which broker a request is
for, so that several brokers cannot share a port.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any

from serving.broker import Broker
from serving.config import ServerConfig
from serving.connection import Budget, Listener
from serving.holds import Holds
from serving.namesrv import NameServer
from serving.stores import ServedStore
from store.errors import PASSING_ERRORS, StoreError, UsageError

BACKLOG = 1024
MAX_PORT = 65535


class Server:
    """Ports, and the brokers that are served there."""

    def __init__(self, config: ServerConfig, broker_count: int = 1) -> None:
        """Bind the ports; clients that connect are refused until ``run`` can answer. Raises
        UsageError, StoreError."""
        self._config = config
        self._tls = config.tls()
        self._sockets: list[socket.socket] = []
        last = config.port + broker_count - 1
        if config.port and last > MAX_PORT:
            raise UsageError(f"{broker_count} stores need ports up to {last}; give a smaller one")
        try:
            for number in range(broker_count):
                port = config.port + number if config.port else 0
                self._sockets.append(_bound(config.host, port))
        except BaseException:
            self.close()
            raise

    @property
    def ports(self) -> list[int]:
        """The port of each broker."""
        return [_port(bound) for bound in self._sockets]

    def close(self) -> None:
        """Give the ports up; after ``run`` they are."""
        for bound in self._sockets:
            bound.close()

    async def run(
        self, stores: Sequence[ServedStore], stop: asyncio.Event, on_ready: Callable[[], None]
    ) -> None:
        """Serve a store at each port until ``stop`` is set, and close everything.

        Raises UsageError, OwnershipError, StoreError.
        """
        async with AsyncExitStack() as opened:
            opened.callback(self.close)
            for store in stores:
                store.check_not_in_use()
            brokers, holds = [], Holds()
            for store, bound in zip(stores, self._sockets, strict=True):
                broker = Broker(store, self._config.first_position, _port(bound), holds)
                opened.push_async_callback(broker.close)
                brokers.append(broker)
            names, budget = NameServer(brokers, self._config.advertised_host), Budget()
            listeners = []
            for broker in brokers:
                listener = Listener(
                    {**names.handlers, **broker.handlers}, broker.connection_closed,
                    tls=self._tls, is_tls_required=self._config.is_tls_required,
                    budget=budget,
                )  # fmt: skip
                opened.push_async_callback(listener.stop)
                listeners.append(listener)
            # a client that came before would be connected, and give up before it is answered
            for listener, bound in zip(listeners, self._sockets, strict=True):
                self._listen(bound)
                listener.start(bound)
            on_ready()
            await _work(brokers, stop)

    def _listen(self, bound: socket.socket) -> None:
        """Let clients connect. A port that another process has bound too, before either of them
        listened, is taken by the one that listens first."""
        try:
            bound.listen(BACKLOG)
        except OSError as error:
            raise _cannot_listen(self._config.host, _port(bound), error) from error


async def _work(brokers: Sequence[Broker], stop: asyncio.Event) -> None:
    """Let brokers work until ``stop`` is set, or one of them fails."""
    work = [
        asyncio.ensure_future(stop.wait()),
        *(asyncio.ensure_future(broker.work()) for broker in brokers),
    ]
    try:
        done, _ = await asyncio.wait(work, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in work:
            task.cancel()
        await asyncio.gather(*work, return_exceptions=True)
    for task in done:
        _raise_failure(task)


def _bound(host: str, port: int) -> socket.socket:
    """Return a socket that is bound and does not listen. Raises UsageError, StoreError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        # a port that has connections of an earlier server is free
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        bound.bind((host, port))
    except OSError as error:
        bound.close()
        raise _cannot_listen(host, port, error) from error
    return bound


def _cannot_listen(host: str, port: int, error: OSError) -> StoreError | UsageError:
    # a name that cannot be resolved has a negative number, and a text of its own
    is_named = error.errno is not None and error.errno > 0
    reason = os.strerror(error.errno or 0) if is_named else error.strerror
    line = f"cannot listen at {host}:{port}: {reason}; give another address"
    return StoreError(line) if error.errno in PASSING_ERRORS else UsageError(line)


def _port(bound: socket.socket) -> int:
    return int(bound.getsockname()[1])


def _raise_failure(task: asyncio.Future[Any]) -> None:
    try:
        task.result()
    except ExceptionGroup as error:
        # a task group's: the first failure is the cause of the others' end
        raise error.exceptions[0] from error
