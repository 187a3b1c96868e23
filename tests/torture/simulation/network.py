"""Connections in memory, as asyncio's transports: slow, in pieces, full, cut, known to one side."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

SHORTEST_STEP = 1e-6
"""Time between two pieces: asyncio runs timers of one time in any order."""
KERNEL_BYTES = 1 << 10
"""Bytes on their way that do not count as written: buffers of both kernels."""
HIGH_WATER_BYTES = 2 << 10
"""In place of the limit that the server sets, which its answers here would never reach."""
LOW_WATER_BYTES = HIGH_WATER_BYTES // 4


@dataclass
class Weather:
    """The state of all connections of a history."""

    delay: float = 0.002
    """The longest usual delay of a piece, in seconds."""
    split: float = 0.2
    """How often a piece arrives in two parts."""


class Wire:
    """One direction of a connection; the bytes keep their order."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        rng: random.Random,
        weather: Weather,
        deliver: Callable[[bytes | None], None],
    ) -> None:
        """``deliver`` gets the pieces, and None at the end."""
        self._loop, self._rng, self._weather = loop, rng, weather
        self._deliver = deliver
        self._pieces: deque[tuple[float, bytes | None]] = deque()
        self._last = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self.is_read = True
        """Whether the receiver takes anything."""
        self.is_cut = False
        self.slow_until = 0.0
        self.size = 0
        """Bytes on their way."""
        self.on_taken: Callable[[], None] = lambda: None

    def send(self, data: bytes | None) -> None:
        """Send bytes, or the end."""
        if data is None:
            parts: list[bytes | None] = [None]
        elif len(data) > 1 and self._rng.random() < self._weather.split:
            at = self._rng.randrange(1, len(data))
            parts = [data[:at], data[at:]]
        else:
            parts = [data]
        for part in parts:
            delay = self._weather.delay * self._rng.random()
            if self._loop.time() < self.slow_until:
                delay += (self.slow_until - self._loop.time()) * self._rng.random()
            self._last = max(self._last + SHORTEST_STEP, self._loop.time() + delay)
            self._pieces.append((self._last, part))
            self.size += len(part or b"")
        self._go_on()

    def _go_on(self) -> None:
        if self._timer is None and self._pieces and self.is_read and not self.is_cut:
            when = max(self._pieces[0][0], self._loop.time())
            self._timer = self._loop.call_at(when, self._arrive)

    def _arrive(self) -> None:
        self._timer = None
        if not self.is_read or self.is_cut:
            return
        _, piece = self._pieces.popleft()
        self.size -= len(piece or b"")
        self._deliver(piece)
        self._go_on()
        self.on_taken()

    def read(self, is_read: bool) -> None:
        """Take what arrives, or leave it on the wire."""
        self.is_read = is_read
        self._go_on()

    def cut(self) -> None:
        """Deliver nothing any more."""
        self.is_cut = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class ServerTransport(asyncio.Transport):
    """The server's end of a connection."""

    def __init__(self, link: Link, protocol: asyncio.Protocol) -> None:
        super().__init__({"peername": ("10.0.0.1", link.number), "sockname": ("10.0.0.9", 1)})
        self._link = link
        self._protocol = protocol
        self._is_closing = False
        self._is_lost = False
        self._is_paused = False

    def is_closing(self) -> bool:
        """As asyncio says."""
        return self._is_closing

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """The limits are those of this module."""

    def get_write_buffer_size(self) -> int:
        """Bytes that no kernel has taken."""
        return max(self._link.down.size - KERNEL_BYTES, 0)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send to the client."""
        if self._is_closing or not data:
            return
        self._link.on_written(bytes(data))
        self._link.down.send(bytes(data))
        if not self._is_paused and self.get_write_buffer_size() > HIGH_WATER_BYTES:
            self._is_paused = True
            self._link.on_paused(True)
            self._protocol.pause_writing()

    def taken(self) -> None:
        """The client has taken something."""
        if self._is_paused and not self._is_lost and self.get_write_buffer_size() < LOW_WATER_BYTES:
            self._is_paused = False
            self._link.on_paused(False)
            self._protocol.resume_writing()

    def pause_reading(self) -> None:
        """Leave requests on the wire."""
        self._link.up.read(False)

    def resume_reading(self) -> None:
        """Take requests."""
        self._link.up.read(True)

    def abort(self) -> None:
        """Close at once."""
        if not self._is_closing:
            self._is_closing = True
            self._link.server_closed()
            self._link.loop.call_soon(self.lose)

    close = abort

    def received(self, data: bytes | None) -> None:
        """A piece of a request, or the client's end."""
        if self._is_closing:
            return
        if data is None:
            self._is_closing = True
            self.lose()
        else:
            self._protocol.data_received(data)

    def lose(self) -> None:
        """Tell the server that the connection is lost."""
        self._is_closing = True
        if not self._is_lost:
            self._is_lost = True
            self._link.on_lost()
            self._protocol.connection_lost(None)

    def die(self) -> None:
        """The server is gone, and is told nothing."""
        self._is_closing = self._is_lost = True


class Link:
    """One connection between a client and a server."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        rng: random.Random,
        weather: Weather,
        number: int,
        on_received: Callable[[bytes], None],
        on_end: Callable[[], None],
    ) -> None:
        """``on_received`` and ``on_end`` are the client's."""
        self.loop, self._rng, self.number = loop, rng, number
        self._on_received, self._on_end = on_received, on_end
        self.up = Wire(loop, rng, weather, self._to_server)
        self.down = Wire(loop, rng, weather, self._to_client)
        self.transport: ServerTransport | None = None
        self.is_open = True
        """Whether the client believes so."""
        self.is_cut = False
        self.on_written: Callable[[bytes], None] = lambda _: None
        self.on_paused: Callable[[bool], None] = lambda _: None
        self.on_lost: Callable[[], None] = lambda: None

    def accept(self, protocol: asyncio.Protocol) -> None:
        """The server takes the connection."""
        self.transport = ServerTransport(self, protocol)
        self.down.on_taken = self.transport.taken
        protocol.connection_made(self.transport)

    def _to_server(self, data: bytes | None) -> None:
        if self.transport is not None:
            self.transport.received(data)

    def _to_client(self, data: bytes | None) -> None:
        if data is None:
            self.end()
        elif self.is_open:
            self._on_received(data)

    def send(self, data: bytes) -> None:
        """Send a request."""
        self.up.send(data)

    def close(self) -> None:
        """The client closes the connection, after what it has sent."""
        if self.is_open:
            self.is_open = False
            self.down.read(True)
            self.up.send(None)

    def server_closed(self) -> None:
        """The server closes the connection: what is on its way is lost."""
        self.up.cut()
        if not self.is_cut:
            self.down.cut()
            self.loop.call_later(self._rng.random() * 0.01, self.end)

    def end(self) -> None:
        """Tell the client that the connection is lost."""
        if self.is_open:
            self.is_open = False
            self._on_end()

    def cut(self, server_seconds: float, client_seconds: float) -> None:
        """Let nothing pass any more; each side notices after so many seconds."""
        self.is_cut = True
        self.up.cut()
        self.down.cut()
        if self.transport is not None:
            self.loop.call_later(server_seconds, self.transport.lose)
        self.loop.call_later(client_seconds, self.end)

    def server_died(self, client_seconds: float) -> None:
        """The server is gone; the client notices after so many seconds."""
        if self.transport is not None:
            self.transport.die()
        self.cut(0.0, client_seconds)
