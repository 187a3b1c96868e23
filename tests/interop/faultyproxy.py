"""A proxy before a REST catalog that passes requests on, and harms a change when it is told to: a
commit, or one that makes a table or a namespace."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

ANSWER_SECONDS = 60.0
_OWN_HEADERS = {"connection", "transfer-encoding", "content-length", "host", "keep-alive"}
"""Headers of one connection, which each side has for itself."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Harm that is done to a change."""

    sent: int
    """How often the catalog gets the request before the client gets its answer."""
    ending: str = "answer"
    """``answer``, or what the client gets in its place: the number of a status, ``cut`` for an end
    of the connection, ``half`` for one within the answer, ``short`` for half of an answer that
    looks whole, ``hang`` for nothing at all."""
    is_late: bool = False
    """Whether the catalog gets the request only once it has answered the next change."""


FAULTS: Mapping[str, Fault] = {
    "answer lost": Fault(1, "cut"),
    "request lost": Fault(0, "cut"),
    "answer cut": Fault(1, "half"),
    "answer shortened": Fault(1, "short"),
    "request sent twice": Fault(2),
    "request late": Fault(0, "cut", is_late=True),
    "hung after taking": Fault(1, "hang"),
    "hung before taking": Fault(0, "hang"),
    "500 after taking": Fault(1, "500"),
    "502 after taking": Fault(1, "502"),
    "503 after taking": Fault(1, "503"),
    "504 after taking": Fault(1, "504"),
    "502 before taking": Fault(0, "502"),
    "503 before taking": Fault(0, "503"),
}


@dataclass(frozen=True, slots=True)
class _Request:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def is_change(self) -> bool:
        """Whether it is one of the catalog: reports of measures are posted, too."""
        return self.method == "POST" and not urlsplit(self.path).path.endswith("/metrics")


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    headers: list[tuple[str, str]]
    body: bytes


class FaultyProxy:
    """Listens on a free port of 127.0.0.1."""

    def __init__(self, uri: str) -> None:
        self._catalog = urlsplit(uri).netloc
        self._lock = threading.Lock()
        self._fault: Fault | None = None
        self._late: list[_Request] = []
        self._open: list[socket.socket] = []
        self.closing = threading.Event()
        self.taken = 0
        """The number of changes that the catalog made."""
        self.refused = 0
        """The number of those that it did not."""
        self._server = ThreadingHTTPServer(
            ("127.0.0.1", 0), lambda *given: _Connection(self, *given)
        )
        # its end waits for the threads
        self._server.daemon_threads = False
        self.uri = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def close(self) -> None:
        """Cut all connections."""
        self.closing.set()
        self._server.shutdown()
        self._thread.join()
        with self._lock:
            for opened in self._open:
                cut(opened)
        self._server.server_close()

    def harm_next(self, fault: Fault | None) -> None:
        """Harm the next change, or none."""
        with self._lock:
            self._fault = fault

    def take_fault(self) -> Fault:
        """The harm for a change that is asked for."""
        with self._lock:
            fault, self._fault = self._fault, None
            return fault or Fault(1)

    def note(self, opened: socket.socket) -> None:
        """A client has connected."""
        with self._lock:
            self._open.append(opened)

    def delay(self, request: _Request) -> None:
        """Send a change after the next one."""
        with self._lock:
            self._late.append(request)

    def send_late(self) -> None:
        """Send those that were delayed."""
        with self._lock:
            late, self._late = self._late, []
        for request in late:
            self.ask(request)

    def ask(self, request: _Request) -> _Answer:
        """Have the catalog answer."""
        connection = HTTPConnection(self._catalog, timeout=ANSWER_SECONDS)
        try:
            connection.request(request.method, request.path, request.body, request.headers)
            response = connection.getresponse()
            headers = [one for one in response.getheaders() if one[0].lower() not in _OWN_HEADERS]
            answer = _Answer(response.status, headers, response.read())
        finally:
            connection.close()
        if request.is_change:
            with self._lock:
                is_taken = answer.status == 200
                self.taken, self.refused = self.taken + is_taken, self.refused + (not is_taken)
        return answer


class _Connection(BaseHTTPRequestHandler):
    """A connection of a client."""

    protocol_version = "HTTP/1.1"

    def __init__(self, proxy: FaultyProxy, *given: Any) -> None:
        self._proxy = proxy
        proxy.note(given[0])
        with suppress(ConnectionError):
            super().__init__(*given)

    def log_message(self, *_given: Any) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        headers = {k: v for k, v in self.headers.items() if k.lower() not in _OWN_HEADERS}
        # half of an answer is to be half of its text
        headers.pop("Accept-Encoding", None)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        request = _Request(self.command, self.path, headers, body)
        if request.is_change:
            self._change(request)
        else:
            self._answer(self._proxy.ask(request))

    do_HEAD = do_POST = do_DELETE = do_GET  # noqa: N815

    def _change(self, request: _Request) -> None:
        fault, answer = self._proxy.take_fault(), None
        for _ in range(fault.sent):
            answer = self._proxy.ask(request)
        if fault.is_late:
            self._proxy.delay(request)
        else:
            self._proxy.send_late()
        if fault.ending.isdecimal():
            headers = [("Content-Type", "text/html")]
            self._answer(_Answer(int(fault.ending), headers, b"<p>no answer</p>"))
        elif fault.ending == "hang":
            self._proxy.closing.wait()
        elif answer is not None and fault.ending != "cut":
            self._answer(answer, fault.ending)
        if fault.ending in ("hang", "cut", "half"):
            self.close_connection = True
            cut(self.connection)

    def _answer(self, answer: _Answer, ending: str = "answer") -> None:
        half = answer.body[: len(answer.body) // 2]
        self.send_response(answer.status)
        for name, value in answer.headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(half if ending == "short" else answer.body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body if ending == "answer" else half)


def cut(opened: socket.socket) -> None:
    """End a connection."""
    with suppress(OSError):
        opened.shutdown(socket.SHUT_RDWR)


@contextmanager
def faulty_proxy(uri: str) -> Iterator[FaultyProxy]:
    """One before the catalog at ``uri``."""
    proxy = FaultyProxy(uri)
    try:
        yield proxy
    finally:
        proxy.close()
