"""Serves one page over HTTP, in a process of its own that the run's work cannot delay.

A run holds Python's lock, and every core, for tens of milliseconds at a time, and for longer while
it loads packages: a thread of its process would answer late. This file is therefore run as a
program (``metricsserver``) by an interpreter that imports nothing else. It inherits the
listening socket and reads pages from its stdin, each after its length in eight bytes; the last one
is the answer. With the first one it says on stdout that it answers. It ends with its stdin, which
is its parent's end at the latest.
"""

from __future__ import annotations

import socket
import sys
import threading
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import BinaryIO

LENGTH_BYTES = 8
STALE_SECONDS = 30.0
"""The age from which a page says nothing of the run any more: it hangs, or its disk does."""
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Page:
    """The last page that came, and when."""

    def __init__(self) -> None:
        self.content: bytes | None = None
        self.came = time.monotonic()

    def read_one(self, pages: BinaryIO) -> bool:
        """Take over the next page; return False at their end."""
        length = pages.read(LENGTH_BYTES)
        if len(length) == LENGTH_BYTES:
            self.content = pages.read(int.from_bytes(length, "big"))
            self.came = time.monotonic()
        return len(length) == LENGTH_BYTES

    def fresh(self) -> bytes | None:
        """Return the page; None if it is too old."""
        return self.content if time.monotonic() - self.came <= STALE_SECONDS else None


class _Handler(BaseHTTPRequestHandler):
    """Answers a request for the metrics; a client that stays silent is left."""

    page: Page
    timeout = 10.0

    def do_GET(self) -> None:
        if self.path.partition("?")[0] not in ("/", "/metrics"):
            self.send_error(HTTPStatus.NOT_FOUND, "the metrics are at /metrics")
            return
        content = self.page.fresh()
        if content is None:
            said = f"the run has said nothing for {STALE_SECONDS:.0f} s or longer"
            self.send_error(HTTPStatus.SERVICE_UNAVAILABLE, said)
            return
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", CONTENT_TYPE)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Say nothing of each request."""


def main(listening: int) -> None:
    """Serve at an inherited socket until stdin ends."""
    page = _Handler.page = Page()
    inherited_socket = socket.socket(fileno=listening)
    server = ThreadingHTTPServer(inherited_socket.getsockname(), _Handler, bind_and_activate=False)
    server.socket.close()
    server.socket = inherited_socket
    # until there is a page, a connection waits
    if page.read_one(sys.stdin.buffer):
        threading.Thread(target=server.serve_forever, daemon=True).start()
        sys.stdout.write("ready\n")
        sys.stdout.flush()
    while page.read_one(sys.stdin.buffer):
        pass


if __name__ == "__main__":
    main(int(sys.argv[1]))
