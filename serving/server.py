"""The server: a name server and a broker on one port."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from serving.broker import Broker
from serving.connection import Connection, Listener
from serving.groups import Groups
from serving.namesrv import NameServer
from serving.positions import FirstPosition
from store.config import DEFAULT_BROKER_NAME, StoreSettings, read_properties
from store.errors import OwnershipError, UsageError
from store.state.brokerlock import broker_pid

DEFAULT_CLUSTER_NAME = "DefaultCluster"
EXPIRY_CHECK_SECONDS = 10.0
BACKLOG = 1024


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """How a store is served."""

    settings: StoreSettings
    output: Path
    """Root of the queues; positions are written below it."""
    host: str
    port: int
    """0 for any free one."""
    advertised_host: str | None = None
    """The address that clients are told; None for the one at which they reached us."""
    first_position: FirstPosition = FirstPosition.AS_ASKED
    tls: ssl.SSLContext | None = None
    is_tls_required: bool = False


class Server:
    """One store served at one port."""

    def __init__(self, config: ServerConfig) -> None:
        """Bind the port, then open the store. Raises UsageError, OwnershipError, OutputError."""
        _check_not_in_use(config)
        self._socket = _bound(config.host, config.port)
        try:
            self._open(config)
        except BaseException:
            self._socket.close()
            raise

    def _open(self, config: ServerConfig) -> None:
        _, values = read_properties(config.settings.root, None)
        self._groups = Groups(self._member_left)
        self._broker = Broker(
            values.get("brokerName", DEFAULT_BROKER_NAME), config.settings, config.output,
            self._groups, config.first_position, self.port,
        )  # fmt: skip
        cluster = values.get("brokerClusterName", DEFAULT_CLUSTER_NAME)
        names = NameServer(cluster, [self._broker], config.advertised_host)
        handlers = {**self._groups.handlers, **names.handlers, **self._broker.handlers}
        self._listener = Listener(
            handlers, self._closed, tls=config.tls, is_tls_required=config.is_tls_required
        )

    @property
    def port(self) -> int:
        """The port that clients connect to."""
        return int(self._socket.getsockname()[1])

    def _member_left(self, group: str, client_id: str, said: bool) -> None:
        self._broker.locks.owner_left(group, client_id, said=said)

    def _closed(self, connection: Connection) -> None:
        self._broker.connection_closed(connection)
        self._groups.connection_closed(connection)

    async def run(self, stop: asyncio.Event, on_ready: Callable[[], None]) -> None:
        """Serve until ``stop`` is set, and close everything. Raises StoreError."""
        try:
            self._listener.start(self._socket)
            on_ready()
            work = [
                asyncio.ensure_future(stop.wait()),
                asyncio.ensure_future(self._broker.work()),
                asyncio.ensure_future(self._expire()),
            ]
            try:
                done, _ = await asyncio.wait(work, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in work:
                    task.cancel()
                await asyncio.gather(*work, return_exceptions=True)
            for task in done:
                _raise_failure(task)
        finally:
            await self._listener.stop()
            self._socket.close()
            await self._broker.close()

    async def _expire(self) -> None:
        while True:
            await asyncio.sleep(EXPIRY_CHECK_SECONDS)
            self._groups.expire()


def _bound(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        # a name that cannot be resolved has a negative number, and a text of its own
        is_named = error.errno is not None and error.errno > 0
        reason = os.strerror(error.errno or 0) if is_named else error.strerror
        raise UsageError(
            f"cannot listen at {host}:{port}: {reason}; give another --listen"
        ) from error


def _raise_failure(task: asyncio.Future[Any]) -> None:
    try:
        task.result()
    except ExceptionGroup as error:
        # a task group's: the first failure is the cause of the others' end
        raise error.exceptions[0] from error


def _check_not_in_use(config: ServerConfig) -> None:
    """Refuse to keep positions in the store of a running broker, which writes the same file."""
    if config.output.resolve() != config.settings.root.resolve():
        return
    pid = broker_pid(config.output)
    if pid is not None:
        raise OwnershipError(
            f"a broker or dispatcher (process {pid}) writes {config.output}; "
            "give an output of your own for queues and positions with --output DIR"
        )
