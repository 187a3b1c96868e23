"""Clients' connections: frames in, answers out, within bounds that one client cannot exceed.

Everything runs in one thread. A connection's requests are answered in their order, except pulls
that wait for messages. The server reads nothing from a client that does not read its answers, and
bounds the memory of all connections together. Answers to a lost connection are dropped; RocketMQ's
clients ask again.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable, Coroutine, Mapping
from typing import cast

from reput.serving.codes import RequestCode, ResponseCode
from reput.serving.frame import (
    ONE_WAY,
    Codec,
    Encoded,
    Frame,
    FrameError,
    Likeness,
    encode_head,
    take,
)
from reput.serving.refusals import Refusals
from reput.store.errors import error_text

logger = logging.getLogger("reput")

IDLE_SECONDS = 120.0
"""A connection without traffic for this time is closed, as RocketMQ's servers and clients do."""
UNREAD_HIGH_WATER_BYTES = 1 << 20
"""Limit of the answers that a client has not taken; beyond it, its requests wait."""
TOTAL_BYTES = 256 << 20
"""Limit of unparsed requests and unsent answers of all connections together."""
SMALL_BUFFER_BYTES = 64 << 10
"""A connection that buffers up to this much is not closed when the memory is spent."""
MAX_CONNECTIONS = 20_000
JOINED_BODY_BYTES = 64 << 10
"""A larger body is not copied to be written in one piece with its header."""
GATHERED_BYTES = 128 << 10
"""Answers to requests that came together are written in pieces of about this size."""
REQUESTS_AT_ONCE = 16
"""Requests of one connection that are answered before others get their turn."""
MAX_CALLS = 64
"""Limit of the requests of ours that one client has not answered."""


class Refused(Exception):  # noqa: N818
    """A request that is answered with an error code."""

    def __init__(self, code: ResponseCode, remark: str, ext: dict[str, str] | None = None) -> None:
        super().__init__(remark)
        self.code = code
        self.remark = remark
        self.ext = ext


class Budget:
    """The bytes that connections hold; ``limit`` is for all of them."""

    def __init__(self, limit: int = TOTAL_BYTES) -> None:
        self.limit = limit
        self.used = 0

    @property
    def is_spent(self) -> bool:
        """Whether nothing large may be buffered now."""
        return self.used > self.limit


Handler = Callable[["Connection", Frame], Frame | Encoded | None]
"""Answers a request; None if the answer comes later, or never. It may raise Refused."""

Check = Callable[["Connection", Frame], None]
"""Raises Refused for a request that its client may not make."""

OnAnswer = Callable[[Frame | None], None]
"""Gets a client's answer to a request of ours; None if none came."""


class Connection(asyncio.Protocol):
    """One client's connection."""

    def __init__(
        self,
        handlers: Mapping[int, Handler],
        budget: Budget,
        on_close: Callable[[Connection], None],
        check: Check | None = None,
    ) -> None:
        """``check`` comes before every handler."""
        self._handlers = handlers
        self._budget = budget
        self._on_close = on_close
        self._check = check
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._held_bytes = 0
        self._gathered: list[bytes | memoryview] = []
        """Answers to requests that came together, until they are written."""
        self._gathered_bytes = 0
        self._is_gathering = False
        self._is_writable = True
        self._is_scheduled = False
        self._opaque = 0
        self._calls: dict[int, tuple[OnAnswer, asyncio.TimerHandle]] = {}
        """By the opaque of each request of ours that is not answered yet."""
        self._codec = Codec.JSON
        self._likely: Likeness | None = None
        """The last pull's likeness."""
        self._loop = asyncio.get_running_loop()
        self.last_active = self._loop.time()
        self.peer_address = ("0.0.0.0", 0)
        self.peer = ""
        """Address and port of the client."""
        self.peer_host = ""
        """Address of the client."""
        self.local_host = ""
        """The address at which the client reached us."""
        self.on_writable: Callable[[], None] | None = None

    @property
    def is_open(self) -> bool:
        """Whether answers can still be sent."""
        return self._transport is not None and not self._transport.is_closing()

    @property
    def is_memory_spent(self) -> bool:
        """Whether nothing large may be sent now, on any connection."""
        return self._budget.is_spent

    @property
    def is_writable(self) -> bool:
        """Whether the client takes its answers."""
        return self._is_writable

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=UNREAD_HIGH_WATER_BYTES)
        peer = self._transport.get_extra_info("peername")
        self.peer, self.peer_host = _address_text(peer), _host(peer)
        if isinstance(peer, tuple):
            self.peer_address = str(peer[0]), int(peer[1])
        self.local_host = _host(self._transport.get_extra_info("sockname"))

    def connection_lost(self, _error: Exception | None) -> None:
        """Called by asyncio."""
        self._transport = None
        self._buffer.clear()
        self._account()
        self._on_close(self)
        for opaque in list(self._calls):
            self._end_call(opaque, None)

    def data_received(self, data: bytes) -> None:
        """Called by asyncio."""
        self.last_active = self._loop.time()
        if self._buffer:
            self._buffer += data
            self._serve(self._buffer)
        else:
            # mostly this is one whole request
            self._serve(data)
        if len(self._buffer) > SMALL_BUFFER_BYTES and self._budget.is_spent:
            self._drop("no memory is left for its unfinished request")

    def pause_writing(self) -> None:
        """Called by asyncio when the client does not read."""
        self._is_writable = False
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        """Called by asyncio when the client has read."""
        self._is_writable = True
        self.last_active = self._loop.time()
        self._account()
        self._schedule()
        if self.on_writable is not None:
            self.on_writable()

    def send(self, frame: Frame | Encoded) -> None:
        """Send a frame, or nothing if the connection is lost."""
        if self._transport is None or self._transport.is_closing():
            return
        encoded = self._encoded(frame) if isinstance(frame, Frame) else frame
        self._gathered.append(encoded.head)
        if len(encoded.body) < JOINED_BODY_BYTES:
            self._gathered.append(encoded.body)
            self._gathered_bytes += len(encoded.body)
            if not self._is_gathering or self._gathered_bytes >= GATHERED_BYTES:
                self._write_gathered()
        else:
            self._write_gathered()
            self._transport.write(encoded.body)
            self._account()

    def _write_gathered(self) -> None:
        """Write them in one piece: every write wakes the client, which then takes the processor."""
        if self._transport is not None and self._gathered:
            self._transport.write(b"".join(self._gathered))
            self._account()
        self._gathered.clear()
        self._gathered_bytes = 0

    def _encoded(self, frame: Frame) -> Encoded:
        try:
            return Encoded(encode_head(frame), frame.body)
        except FrameError as error:
            logger.warning("an answer to %s cannot be sent: %s", self.peer, error)
            remark = f"the answer cannot be sent: {error}"
            codec = frame.codec
            frame = Frame(ResponseCode.SYSTEM_ERROR, frame.opaque, frame.flag, remark, codec=codec)
            return Encoded(encode_head(frame), frame.body)

    def notify(self, code: RequestCode, ext: dict[str, str], body: bytes = b"") -> None:
        """Send a request of ours that needs no answer."""
        self._opaque += 1
        self.send(Frame(code, self._opaque, ONE_WAY, None, ext, body, codec=self._codec))

    def call(
        self,
        code: RequestCode,
        ext: dict[str, str],
        seconds: float,
        on_answer: OnAnswer,
        body: bytes = b"",
    ) -> None:
        """Send a request of ours; ``on_answer`` is called once, after ``seconds`` at the latest.

        Raises Refused if the client leaves too many unanswered.
        """
        if len(self._calls) >= MAX_CALLS:
            raise Refused(ResponseCode.SYSTEM_BUSY, f"the client {self.peer} does not answer")
        self._opaque += 1
        opaque = self._opaque
        timer = self._loop.call_later(seconds, self._end_call, opaque, None)
        self._calls[opaque] = on_answer, timer
        self.send(Frame(code, opaque, 0, None, ext, body, codec=self._codec))

    def _end_call(self, opaque: int, answer: Frame | None) -> None:
        if opaque in self._calls:
            on_answer, timer = self._calls.pop(opaque)
            timer.cancel()
            on_answer(answer)

    def close(self) -> None:
        """Close at once; unsent answers are lost."""
        if self._transport is not None:
            self._transport.abort()

    def _serve(self, data: bytes | bytearray) -> None:
        """Answer whole requests in ``data`` and keep the rest; go on later if there are many."""
        position, served = 0, 0
        self._is_gathering = True
        try:
            while (
                position < len(data)
                and served < REQUESTS_AT_ONCE
                and self._is_writable
                and self.is_open
            ):
                frame_and_end = take(data, position, self._likely)
                if frame_and_end is None:
                    break
                request, position = frame_and_end
                self._likely = request.likeness or self._likely
                served += 1
                self._answer(request)
        except FrameError as error:
            self._write_gathered()
            self._drop(f"malformed frame: {error}")
            return
        finally:
            self._is_gathering = False
        self._write_gathered()
        if data is self._buffer:
            del self._buffer[:position]
            self._account()
        elif position < len(data):
            self._buffer += data[position:]
            self._account()
        if served == REQUESTS_AT_ONCE:
            self._schedule()
        elif self._is_writable and self._transport is not None:
            self._transport.resume_reading()

    def _schedule(self) -> None:
        """Go on after other connections had their turn; until then, read nothing more."""
        if self._transport is not None and not self._is_scheduled:
            self._transport.pause_reading()
            self._is_scheduled = True
            self._loop.call_soon(self._continue)

    def _continue(self) -> None:
        self._is_scheduled = False
        if self._transport is not None:
            self._serve(self._buffer)

    def _answer(self, request: Frame) -> None:
        if request.is_response:
            self._end_call(request.opaque, request)
            return
        self._codec = request.codec
        answer: Frame | Encoded | None
        try:
            if self._check is not None:
                self._check(self, request)
            handler = self._handlers.get(request.code)
            if handler is None:
                raise Refused(
                    ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
                    f" request type {request.code} not supported",
                )
            answer = handler(self, request)
        except Refused as refused:
            answer = request.answer(refused.code, refused.remark, refused.ext)
        except Exception as error:
            # no request may end the server
            text = error_text(error)
            logger.error("request %d of %s failed: %s", request.code, self.peer, text)
            answer = request.answer(ResponseCode.SYSTEM_ERROR, text)
        if answer is not None and not request.is_one_way:
            self.send(answer)

    def _account(self) -> None:
        """Tell the budget what this connection holds."""
        size = len(self._buffer)
        if self._transport is not None:
            size += self._transport.get_write_buffer_size()
        self._budget.used += size - self._held_bytes
        self._held_bytes = size

    def _drop(self, reason: str) -> None:
        if self.is_open:
            logger.warning("connection of %s closed: %s", self.peer, reason)
        self.close()


def _host(name: object) -> str:
    return str(name[0]) if isinstance(name, tuple) else ""


def _address_text(name: object) -> str:
    if not isinstance(name, tuple):
        return "unknown"
    return f"[{name[0]}]:{name[1]}" if ":" in str(name[0]) else f"{name[0]}:{name[1]}"


_TLS_HANDSHAKE = b"\x16"
_WITHOUT_TLS = (
    "the client uses TLS, and this server has no certificate; let the client connect without TLS, "
    "or start the server with `tls_cert=FILE` `tls_key=FILE`"
)
_TLS_REQUIRED = (
    "the client does not use TLS, which `is_tls_required=` or `tls_client_ca=` asks for; let it "
    "use TLS (Java: the system property tls.enable=true), or start the server without "
    "`is_tls_required=` and `tls_client_ca=`"
)


class Listener:
    """The listening ports of one broker; every connection gets the same handlers."""

    def __init__(
        self,
        handlers: Mapping[int, Handler],
        on_close: Callable[[Connection], None],
        *,
        tls: ssl.SSLContext | None = None,
        is_tls_required: bool = False,
        budget: Budget | None = None,
        check: Check | None = None,
    ) -> None:
        self._handlers = handlers
        self._on_close = on_close
        self._check = check
        self._tls = tls
        self._is_tls_required = is_tls_required
        self._budget = budget or Budget()
        self._refusals = Refusals("connection")
        self._connections: dict[Connection, None] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, *listening: socket.socket) -> None:
        """Accept connections of sockets that listen, which stay the caller's."""
        for each in listening:
            each.setblocking(False)
            self._spawn(self._accept(each))
        self._spawn(self._close_idle())

    async def stop(self) -> None:
        """Close all connections."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for connection in list(self._connections):
            connection.close()
        # connections learn of their end in the loop's next round
        await asyncio.sleep(0)

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, peer = await loop.sock_accept(listening)
            except OSError as error:
                logger.error("no connection can be accepted now: %s", error.strerror)
                await asyncio.sleep(1)
                continue
            if len(self._connections) >= MAX_CONNECTIONS:
                logger.warning("connection refused: there are %d already", MAX_CONNECTIONS)
                accepted.close()
                continue
            accepted.setblocking(False)
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._spawn(self._admit(accepted, peer))

    async def _admit(self, accepted: socket.socket, peer: object) -> None:
        """Choose between TLS and plain text by the first byte, which stays in the socket."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(IDLE_SECONDS):
                first = await _peek(accepted)
                is_tls = first == _TLS_HANDSHAKE
                refusal = self._refusal(is_tls=is_tls) if first else None
                if refusal is not None:
                    self._refusals.note(peer, refusal)
                if not first or refusal is not None:
                    accepted.close()
                    return
                await loop.connect_accepted_socket(
                    self.connection, accepted, ssl=self._tls if is_tls else None
                )
        except (OSError, TimeoutError) as error:
            reason = str(error) or f"the client sent nothing for {IDLE_SECONDS:.0f} s"
            self._refusals.note(peer, f"it ended before its first request: {reason}")
            accepted.close()
        except asyncio.CancelledError:
            accepted.close()
            raise

    def _refusal(self, *, is_tls: bool) -> str | None:
        """The reason why a client is not served, and what to do; None if it is."""
        if is_tls:
            return _WITHOUT_TLS if self._tls is None else None
        return _TLS_REQUIRED if self._is_tls_required else None

    def connection(self) -> Connection:
        """The protocol of a connection that begins."""
        connection = Connection(self._handlers, self._budget, self._closed, self._check)
        self._connections[connection] = None
        return connection

    def _closed(self, connection: Connection) -> None:
        self._connections.pop(connection, None)
        self._on_close(connection)

    async def _close_idle(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(IDLE_SECONDS / 12)
            oldest = loop.time() - IDLE_SECONDS
            for connection in [c for c in self._connections if c.last_active < oldest]:
                connection.close()


async def _peek(accepted: socket.socket) -> bytes:
    """The first byte that a client sends, left in the socket; empty if it closes instead."""
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(accepted, readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(accepted)
    return accepted.recv(1, socket.MSG_PEEK)
