"""The server: brokers, each at a port of its own, and the name server at all of these.

Clients know a connection by its address, and RocketMQ 4.9's do not say which broker a request is
for, so that several brokers cannot share a port.

A broker also listens two ports before its own, at the port of the VIP channel: a Java client with
``vipChannelEnabled=true`` sends everything but pulls and heartbeats there. Source: RocketMQ 5.3.3
``MixAll.brokerVIPChannel``, ``BrokerController.initializeRemotingServer``.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any

from reput.serving.acl.guard import AccessRules, Guard
from reput.serving.broker import Broker
from reput.serving.config import ServerConfig
from reput.serving.connection import Budget, Listener
from reput.serving.holds import Holds
from reput.serving.namesrv import NameServer
from reput.serving.stores import ServedStore
from reput.store.errors import PASSING_ERRORS, StoreError, UsageError

logger = logging.getLogger("reput")

BACKLOG = 1024
MAX_PORT = 65535
VIP_DISTANCE = 2
"""The port of the VIP channel is that much lower than the broker's."""


class Server:
    """Ports, and the brokers that are served there."""

    def __init__(self, config: ServerConfig, broker_count: int = 1) -> None:
        """Bind the ports; clients that connect are refused until ``run`` can answer. Raises
        UsageError, StoreError."""
        config.check_protection()
        self._config = config
        self._rules = AccessRules(config.acl) if config.acl is not None else None
        self._tls = config.tls()
        self._sockets: list[socket.socket] = []
        self._vip_sockets: dict[int, socket.socket] = {}
        """By the port of the broker whose VIP channel it is."""
        port_count = broker_count * (2 if config.overlay else 1)
        last = config.port + port_count - 1
        if config.port and last > MAX_PORT:
            raise UsageError(f"{broker_count} stores need ports up to {last}; give a smaller one")
        try:
            for number in range(port_count):
                port = config.port + number if config.port else 0
                self._sockets.append(self._bound(port))
            if config.port > VIP_DISTANCE:
                self._bind_vip_channels()
        except BaseException:
            self.close()
            raise

    @property
    def ports(self) -> list[int]:
        """The port of each broker: those of the stores, then those of their overlays."""
        return [_port(bound) for bound in self._sockets]

    @property
    def overlay_ports(self) -> list[int]:
        """The ports of the overlays, in the order of their stores; none without them."""
        ports = self.ports
        return ports[len(ports) // 2 :] if self._config.overlay else []

    def close(self) -> None:
        """Give the ports up; after ``run`` they are."""
        for bound in (*self._sockets, *self._vip_sockets.values()):
            bound.close()

    def _bind_vip_channels(self) -> None:
        """Bind what is free of the brokers' second ports; of others, the log says so."""
        for port in self.ports:
            vip = port - VIP_DISTANCE
            if vip in self.ports:
                _note_no_vip_channel(port, "another store is served there")
                continue
            try:
                self._vip_sockets[port] = _bind(self._config.host, vip)
            except OSError as error:
                _note_no_vip_channel(port, _reason(error))

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
            brokers = self._brokers(stores, opened)
            names, budget = NameServer(brokers, self._config.advertised_host), Budget()
            listeners = []
            for broker in brokers:
                guard = Guard(self._rules, broker.topic_at) if self._rules else None
                if guard is not None:
                    broker.protect_checks(guard.may_publish)
                listener = Listener(
                    {**names.handlers, **broker.handlers}, broker.connection_closed,
                    tls=self._tls, is_tls_required=self._config.refuses_plain,
                    budget=budget, check=guard.check if guard else None,
                )  # fmt: skip
                opened.push_async_callback(listener.stop)
                listeners.append(listener)
            # a client that came before would be connected, and give up before it is answered
            for listener, bound in zip(listeners, self._sockets, strict=True):
                self._listen(bound)
                listener.start(bound, *self._listening_vip(_port(bound)))
            on_ready()
            await work(brokers, stop, self._rules)

    def _brokers(self, stores: Sequence[ServedStore], opened: AsyncExitStack) -> list[Broker]:
        """Open a broker for each store, and one for each overlay after them."""
        first, holds, ports = self._config.first_position, Holds(), self.ports
        bases, twins = [], []
        for number, store in enumerate(stores):
            if not self._config.overlay:
                bases.append(Broker(store, first, ports[number], holds))
                opened.push_async_callback(bases[-1].close)
                continue
            # it brings the dispatcher along, which takes a while
            from reput.serving.overlays import open_overlay  # noqa: PLC0415

            port = ports[len(stores) + number]
            overlay, served = open_overlay(store, self._config.own_host(), port)
            opened.push_async_callback(asyncio.to_thread, overlay.__exit__)
            base = Broker(store, first, ports[number], holds, overlay)
            opened.push_async_callback(base.close)
            bases.append(base)
            twins.append(Broker(served, first, port, holds, overlay, base))
            opened.push_async_callback(twins[-1].close)
        return bases + twins

    def _bound(self, port: int) -> socket.socket:
        try:
            return _bind(self._config.host, port)
        except OSError as error:
            raise self._cannot_listen(port, error) from error

    def _cannot_listen(self, port: int, error: OSError) -> StoreError | UsageError:
        line = (
            f"cannot listen at {self._config.host}:{port}: {_reason(error)}; give another address"
        )
        return StoreError(line) if error.errno in PASSING_ERRORS else UsageError(line)

    def _listen(self, bound: socket.socket) -> None:
        """Let clients connect. A port that another process has bound too, before either of them
        listened, is taken by the one that listens first."""
        try:
            bound.listen(BACKLOG)
        except OSError as error:
            raise self._cannot_listen(_port(bound), error) from error

    def _listening_vip(self, port: int) -> list[socket.socket]:
        """Let clients connect to the VIP channel of the broker at a port, if it has one."""
        vip = self._vip_sockets.get(port)
        try:
            if vip is not None:
                vip.listen(BACKLOG)
        except OSError as error:
            _note_no_vip_channel(port, _reason(error))
            return []
        return [vip] if vip is not None else []


async def work(brokers: Sequence[Broker], stop: asyncio.Event, rules: AccessRules | None) -> None:
    """Let brokers work until ``stop`` is set, or one of them fails."""

    def rules_changed() -> None:
        for broker in brokers:
            broker.rules_changed()

    tasks = [
        asyncio.ensure_future(stop.wait()),
        *(asyncio.ensure_future(broker.work()) for broker in brokers),
    ]
    if rules is not None:
        tasks.append(asyncio.ensure_future(rules.watch(rules_changed)))
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        _raise_failure(task)


def _bind(host: str, port: int) -> socket.socket:
    """Return a socket that is bound and does not listen. Raises OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        # a port that has connections of an earlier server is free
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        bound.bind((host, port))
    except OSError:
        bound.close()
        raise
    return bound


def _reason(error: OSError) -> str:
    # a name that cannot be resolved has a negative number, and a text of its own
    is_named = error.errno is not None and error.errno > 0
    return os.strerror(error.errno or 0) if is_named else str(error.strerror)


def _note_no_vip_channel(port: int, reason: str) -> None:
    logger.warning(
        "the VIP channel of the broker at port %d is not served: port %d: %s; clients of this "
        "broker need vipChannelEnabled=false, which is their default",
        port, port - VIP_DISTANCE, reason,
    )  # fmt: skip


def _port(bound: socket.socket) -> int:
    return int(bound.getsockname()[1])


def _raise_failure(task: asyncio.Future[Any]) -> None:
    try:
        task.result()
    except ExceptionGroup as error:
        # a task group's: the first failure is the cause of the others' end
        raise error.exceptions[0] from error
