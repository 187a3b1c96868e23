"""The server: a name server and a broker on one port."""

from __future__ import annotations

import asyncio
import logging
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
from store.config import StoreSettings, read_properties
from store.errors import OwnershipError, UsageError
from store.state.brokerlock import broker_pid

logger = logging.getLogger("reput")

DEFAULT_BROKER_NAME = "broker-a"
DEFAULT_CLUSTER_NAME = "DefaultCluster"
EXPIRY_CHECK_SECONDS = 10.0


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
    """One store behind one port."""

    def __init__(self, config: ServerConfig) -> None:
        """Open the store. Raises UsageError, OwnershipError, OutputError."""
        self._config = config
        _check_not_in_use(config)
        _, values = read_properties(config.settings.root, None)
        self._groups = Groups(self._member_left)
        self._broker = Broker(
            values.get("brokerName", DEFAULT_BROKER_NAME), config.settings, config.output,
            self._groups, config.first_position,
        )  # fmt: skip
        cluster = values.get("brokerClusterName", DEFAULT_CLUSTER_NAME)
        names = NameServer(cluster, [self._broker], config.advertised_host)
        handlers = {**self._groups.handlers, **names.handlers, **self._broker.handlers}
        self._listener = Listener(
            handlers, self._closed, tls=config.tls, is_tls_required=config.is_tls_required
        )

    def _member_left(self, group: str, client_id: str, said: bool) -> None:
        self._broker.locks.owner_left(group, client_id, said=said)

    def _closed(self, connection: Connection) -> None:
        self._broker.connection_closed(connection)
        self._groups.connection_closed(connection)

    async def run(self, stop: asyncio.Event, on_ready: Callable[[int], None]) -> None:
        """Serve until ``stop`` is set; ``on_ready`` is told the port. Raises StoreError."""
        try:
            self._listen()
            on_ready(self._listener.port)
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
            await self._broker.close()

    def _listen(self) -> None:
        host, port = self._config.host, self._config.port
        try:
            self._listener.start(host, port)
        except OSError as error:
            raise UsageError(
                f"cannot listen at {host}:{port}: {error.strerror}; give another --listen"
            ) from error
        self._broker.port = self._listener.port

    async def _expire(self) -> None:
        while True:
            await asyncio.sleep(EXPIRY_CHECK_SECONDS)
            self._groups.expire()


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
