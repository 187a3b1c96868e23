"""RocketMQ's own consumers, run against a server of ours, and that server."""

from __future__ import annotations

import contextlib
import re
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NamedTuple, Self, cast

from tests.interop import harnessjvm
from tests.interop.maven import HarnessError
from tests.support.childruns import ChildRun
from tests.support.cli import REPUT

WAIT_SECONDS = 60.0
SERVING = re.compile(r"serving .* at [0-9.]+:(\d+)\n")


class Consumed(NamedTuple):
    """One message as a listener received it."""

    queue_id: int
    queue_offset: int
    body_crc: int
    reconsume_times: int


class Consumer:
    """One consumer in a JVM of its own; a context manager, which stops it cleanly."""

    def __init__(
        self,
        namesrv: str,
        kind: str,
        topic: str,
        group: str,
        *,
        filter: str = "tags:*",
        start_from: str = "CONSUME_FROM_FIRST_OFFSET",
        client: str = "",
        properties: Mapping[str, str] | None = None,
    ) -> None:
        """`client`: another release of it, OLD_CLIENT.

        `kind`: concurrent, orderly, broadcasting, failing, subscribe, assign or pull; givingup and
        orderlygivingup never consume a message, and have three attempts.
        """
        arguments = ["consume", namesrv, kind, topic, group, filter, start_from]
        self._process, self._home = harnessjvm.spawn(
            arguments, stdin=subprocess.PIPE, client=client, properties=properties
        )
        self._lines = harnessjvm.lines_of(self._process)
        self._is_stopped = False

    def __enter__(self) -> Self:
        """Wait until the consumer is ready."""
        if self._line() != "READY":
            raise HarnessError(f"the consumer is not ready\n{harnessjvm.last_words(self._home)}")
        return self

    def __exit__(self, kind: type[BaseException] | None, *_error: object) -> None:
        try:
            if kind is None and not self._is_stopped:
                self.stop()
        finally:
            self.kill()

    def take(self, count: int, timeout: float = WAIT_SECONDS) -> list[Consumed]:
        """Return the next messages."""
        return [self._message(self._line(timeout)) for _ in range(count)]

    def stop(self) -> list[Consumed]:
        """Stop the consumer, so that it commits; return the messages that were not taken."""
        self._is_stopped = True
        cast(IO[str], self._process.stdin).close()
        rest = []
        while (line := self._line()) != "STOPPED":
            rest.append(self._message(line))
        return rest

    def kill(self) -> list[Consumed]:
        """Kill the consumer; return the messages that were not taken."""
        self._is_stopped = True
        self._process.kill()
        self._process.wait()
        rest = []
        while (line := self._lines.get(timeout=WAIT_SECONDS)) not in (None, "STOPPED"):
            rest.append(self._message(line))
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                cast(IO[str], pipe).close()
        self._lines.put(None)
        return rest

    def _line(self, timeout: float = WAIT_SECONDS) -> str:
        return harnessjvm.next_line(self._lines, timeout, "consumer", self._home)

    @staticmethod
    def _message(line: str | None) -> Consumed:
        return Consumed(*map(int, (line or "").split()))


class Server(ChildRun):
    """A running ``reput serve``, or ``reput run --serve``."""

    @property
    def namesrv(self) -> str:
        """Its address."""
        return f"127.0.0.1:{SERVING.findall(self.stderr)[0]}"


@contextmanager
def serving(
    *arguments: object, listen: str = "127.0.0.1:0", exit_code: int = 0
) -> Iterator[Server]:
    """Serve stores during the block, and then check the exit code."""
    with served_by("serve", *arguments, "--listen", listen, exit_code=exit_code) as server:
        yield server


@contextmanager
def served_by(*arguments: object, exit_code: int = 0) -> Iterator[Server]:
    """Run a command that serves during the block, and then check its exit code."""
    with (
        tempfile.TemporaryDirectory() as directory,
        Server(Path(directory) / "log", [*REPUT, *arguments]) as server,
    ):
        server.wait_until(lambda: SERVING.search(server.stderr), WAIT_SECONDS)
        yield server
        if server.is_alive:
            server.process.terminate()
        assert server.process.wait(WAIT_SECONDS) == exit_code, server.stderr
