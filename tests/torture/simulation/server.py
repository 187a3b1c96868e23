"""A server from its start to its end: the real broker and connections, on what is simulated."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from reput.serving import broker as broker_module
from reput.serving import lockfile, offsetwriter
from reput.serving.arrivals import NotifiedArrivals
from reput.serving.broker import Broker
from reput.serving.config import FirstPosition
from reput.serving.connection import Connection, Handler, Listener, Refused
from reput.serving.frame import Encoded, Frame
from reput.serving.holds import Holds
from reput.serving.locks import Locks
from reput.serving.namesrv import NameServer
from reput.serving.server import work
from reput.serving.stores import BrokerIdentity, ServedStore
from reput.store import filetimes, fsops
from reput.store.config import StoreSettings
from tests.support.power_cuts import Power
from tests.support.remoting import Answer, take_frames
from tests.torture.simulation.history import Event, History, Kind, Reply
from tests.torture.simulation.lanes import Lanes
from tests.torture.simulation.network import Link
from tests.torture.simulation.store import Queues, SimulatedStore

BROKER_NAME = "broker-a"
PORT = 10911
GROWING = ("allocate", "pwrite", "rename")
"""The operations for which a full disk may have no space."""


class Place:
    """Where servers run, one after another: the loop, the disk, and the queues."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, rng: random.Random, disk: Power, output: Path,
        queues: Queues, history: History,
    ) -> None:  # fmt: skip
        self.loop, self.rng, self.disk, self.output = loop, rng, disk, output
        self.queues, self.history = queues, history
        self.server: Server | None = None
        """The one that runs, starts or ends."""
        self.failures: list[BaseException] = []
        """Errors with which servers ended that nobody killed."""
        self._fullness = 0.0
        """The part of all writes for which there is no space."""

    def note(self, kind: Kind, number: int = 0, opaque: int = 0, what: Any = None) -> None:
        """Something happens now."""
        self.history.events.append(Event(self.loop.time(), kind, number, opaque, what))

    def fill(self, fullness: float) -> None:
        """From now on a part of all writes finds no space."""
        self._fullness = fullness
        self.note(Kind.FULL)

    def free(self) -> None:
        """There is space again."""
        if self._fullness:
            self._fullness = 0.0
            self.note(Kind.FREED)

    def _reach(self, operation: str, path: str) -> bool:
        """In place of ``fsops._failpoints.reach``, which is called before each operation."""
        assert self.server is not None
        self.server.lanes.reach(operation)
        if operation in GROWING and self._fullness and self.rng.random() < self._fullness:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        return False

    @contextmanager
    def simulated(self) -> Iterator[None]:
        """The product runs on what is simulated."""
        loop, queues = self.loop, self.queues

        async def report(_served: ServedStore, *, has_overlay: bool) -> None:
            """The content of the store is not there."""

        def lanes() -> Lanes:
            assert self.server is not None
            return self.server.lanes

        failpoints = SimpleNamespace(reach=self._reach)
        clocks = SimpleNamespace(monotonic=loop.time, time_ns=time.time_ns)
        with pytest.MonkeyPatch.context() as patch:
            for module in (offsetwriter, lockfile):
                patch.setattr(module, "ThreadPoolExecutor", lambda *given: lanes().executor(*given))
            patch.setattr(fsops, "_failpoints", failpoints)
            patch.setattr(fsops, "sync", lambda *given: lanes().sync(*given))
            patch.setattr(filetimes, "time", clocks)
            patch.setattr(broker_module, "Locks", partial(Locks, loop.time))
            patch.setattr(broker_module, "MessageStore", lambda *_, **__: SimulatedStore(queues))
            patch.setattr(broker_module, "report", report)
            yield

    def start(self) -> Server:
        """Start a server; it answers once its files are read and written."""
        self.server = Server(self)
        return self.server


class Server:
    """One server."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self.lanes = Lanes(
            place.loop, random.Random(place.rng.random()), place.history.slowest_sync
        )
        self.started = asyncio.Event()
        self.arrivals = NotifiedArrivals(place.loop)
        self._stop = asyncio.Event()
        self._broker: Broker | None = None
        self._listener: Listener | None = None
        self._numbers: dict[Connection, int] = {}
        self._links: list[Link] = []
        self._is_dead = False
        self._task = place.loop.create_task(self._run())
        self._task.add_done_callback(self._ended)

    @property
    def is_listening(self) -> bool:
        """Whether clients can connect."""
        return self.started.is_set() and not self._stop.is_set() and not self._task.done()

    async def _run(self) -> None:
        place = self._place
        async with AsyncExitStack() as opened:
            opening = self.lanes.executor(1, "start")
            broker = await place.loop.run_in_executor(opening, self._open)
            opened.push_async_callback(broker.close)
            handlers = {**NameServer([broker], None).handlers, **broker.handlers}
            noted = {code: self._noted(handler) for code, handler in handlers.items()}
            self._listener = Listener(noted, broker.connection_closed)
            opened.push_async_callback(self._listener.stop)
            self._listener.start()
            place.note(Kind.STARTED)
            self.started.set()
            await work([broker], self._stop, None)

    def _open(self) -> Broker:
        place = self._place
        root = place.output.parent / "store"
        settings = StoreSettings(root, (root,))
        identity = BrokerIdentity(BROKER_NAME, "cluster")
        served = ServedStore(identity, settings, place.output, self.arrivals)
        holds = Holds(place.loop.time)
        self._broker = Broker(served, FirstPosition.AS_ASKED, PORT, holds)
        return self._broker

    def _noted(self, handler: Handler) -> Handler:
        note = self._place.note

        def handle(connection: Connection, request: Frame) -> Frame | Encoded | None:
            number = self._numbers[connection]
            note(Kind.TAKEN, number, request.opaque)
            try:
                answer = handler(connection, request)
            except Refused as refused:
                reply = Reply(int(refused.code), refused.remark, refused.ext or {}, b"")
                note(Kind.HANDLED, number, request.opaque, reply)
                raise
            note(Kind.HANDLED, number, request.opaque, _reply(answer))
            return answer

        return handle

    def connect(self, link: Link) -> None:
        """Take a client's connection."""
        assert self._listener is not None
        note, written = self._place.note, bytearray()

        def on_written(data: bytes) -> None:
            written.extend(data)
            for frame in take_frames(written):
                note(Kind.WROTE, link.number, frame.opaque, reply_of(frame))

        def on_lost() -> None:
            note(Kind.LOST, link.number)
            self._links.remove(link)

        link.on_written, link.on_lost = on_written, on_lost
        link.on_paused = lambda is_paused: note(
            Kind.PAUSED if is_paused else Kind.RESUMED, link.number
        )
        protocol = self._listener.connection()
        self._numbers[protocol] = link.number
        self._links.append(link)
        note(Kind.OPENED, link.number)
        link.accept(protocol)

    def stop(self) -> asyncio.Task[None]:
        """Let it end."""
        self._place.note(Kind.STOPPING)
        self._stop.set()
        return self._task

    def kill(self, *, by_power_cut: bool) -> None:
        """End it as it stands. What it wrote stays; a power cut leaves of it what the disk may."""
        if self._task.done():
            return
        self._is_dead = True
        place = self._place
        self.lanes.kill()
        for link in self._links:
            link.server_died(place.rng.random() * place.rng.choice((0.01, 10.0)))
        if by_power_cut:
            place.disk.fail(place.rng, self._close_files)
        else:
            self._close_files()
        place.note(Kind.POWER_CUT if by_power_cut else Kind.KILLED)
        self._task.cancel()

    def _close_files(self) -> None:
        if self._broker is not None:
            self._broker._writer._opened.close()

    def _ended(self, task: asyncio.Task[None]) -> None:
        if self._is_dead:
            task.cancelled() or task.exception()
            return
        error = task.exception()
        if error is not None:
            self._place.failures.append(error)
        self._place.note(Kind.STOPPED)


def reply_of(frame: Answer) -> Reply:
    """A frame of the wire."""
    is_answer = bool(frame.header["flag"] & 1)
    return Reply(frame.code, frame.header.get("remark"), frame.ext, frame.body, is_answer)


def _reply(answer: Frame | Encoded | None) -> Reply | None:
    if isinstance(answer, Encoded):
        (frame,) = take_frames(bytearray(answer.head) + bytes(answer.body))
        return reply_of(frame)
    if answer is None:
        return None
    return Reply(int(answer.code), answer.remark, dict(answer.ext), bytes(answer.body))
