"""A server that speaks S3, with one empty bucket: ``python -m tests.support.s3`` prints its address
and ends with its stdin. A process of its own, since deltalake waits for answers with Python's lock.

Each line of its stdin is a number and a pattern of requests, ``METHOD /path``. Of the requests that
fit, the one with that number, from 1, is carried out, and its connection is cut in place of an
answer. The line is answered by the number of those that fitted the line before.
"""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tests.support.cli import ROOT
from tests.support.processes import module_command

BUCKET = "bucket"
PROCESS_TIMEOUT = 60.0


@dataclass(frozen=True)
class S3Server:
    """A server that runs."""

    environment: dict[str, str]
    """It tells object store libraries of the server."""
    process: subprocess.Popen[str]

    def lose(self, number: int, pattern: str = "") -> int:
        """Lose an answer from now on, 0 for none; the number of requests that fitted so far."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{number} {pattern}\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())


@contextmanager
def running_server() -> Iterator[S3Server]:
    """Start one."""
    command = module_command("tests.support.s3")
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=ROOT,
        text=True,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield S3Server(
            {
                "AWS_ENDPOINT_URL": process.stdout.readline().strip(),
                "AWS_ALLOW_HTTP": "true",
                "AWS_REGION": "us-east-1",
                "AWS_ACCESS_KEY_ID": "tests",
                "AWS_SECRET_ACCESS_KEY": "tests",
            },
            process,
        )
    finally:
        process.stdin.close()
        process.wait(PROCESS_TIMEOUT)
        process.stdout.close()


Application = Callable[[dict[str, Any], Any], Iterable[bytes]]


class LossyApplication:
    """Passes requests on to another WSGI application, and loses the answer of one."""

    def __init__(self, application: Application) -> None:
        self._application = application
        self._lock = threading.Lock()
        self._pattern = re.compile("")
        self._number = self._count = 0

    def lose(self, number: int, pattern: str) -> int:
        """Lose the answer of another one; the number of requests counted so far."""
        with self._lock:
            count, self._count = self._count, 0
            self._number, self._pattern = number, re.compile(pattern)
        return count

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        """Answer one request. Raises ConnectionResetError in place of the one that is lost."""
        answer = self._application(environ, start_response)
        with self._lock:
            request = f"{environ['REQUEST_METHOD']} {environ['PATH_INFO']}"
            fits = self._pattern.match(request) is not None
            self._count += fits
            is_lost = fits and self._count == self._number
        if is_lost:
            environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
            raise ConnectionResetError
        return answer


def main() -> None:
    """Serve."""
    from moto.server import ThreadedMotoServer  # noqa: PLC0415

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    assert server._server is not None
    application = server._server.app = LossyApplication(server._server.app)
    host, port = server.get_host_and_port()
    request = urllib.request.Request(f"http://{host}:{port}/{BUCKET}", method="PUT")
    urllib.request.urlopen(request).close()
    print(f"http://{host}:{port}", flush=True)
    for line in sys.stdin:
        number, _, pattern = line.rstrip("\n").partition(" ")
        print(application.lose(int(number), pattern), flush=True)
    server.stop()


if __name__ == "__main__":
    main()
