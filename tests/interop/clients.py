"""RocketMQ's own consumers, run against a server of ours, and that server."""

from __future__ import annotations

import contextlib
import queue
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import IO, NamedTuple, Self, cast

from tests.interop import harnessjvm
from tests.interop.maven import HarnessError

WAIT_SECONDS = 60.0


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

        `kind`: concurrent, orderly, broadcasting, failing, subscribe, assign or pull.
        """
        arguments = ["consume", namesrv, kind, topic, group, filter, start_from]
        self._process, self._home = harnessjvm.spawn(
            arguments, stdin=subprocess.PIPE, client=client, properties=properties
        )
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._is_stopped = False
        reader = threading.Thread(
            target=harnessjvm.read_lines, args=(self._process.stdout, self._lines), daemon=True
        )
        reader.start()

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
        try:
            line = self._lines.get(timeout=timeout)
        except queue.Empty:
            line = None
            text = f"the consumer said nothing in {timeout:.0f} s"
        else:
            text = "the consumer ended"
        if line is None:
            raise HarnessError(f"{text}\n{harnessjvm.last_words(self._home)}")
        return line

    @staticmethod
    def _message(line: str | None) -> Consumed:
        return Consumed(*map(int, (line or "").split()))


class Server:
    """A running ``reput serve``, or ``reput run --serve``."""

    def __init__(self, process: subprocess.Popen[str], namesrv: str, lines: list[str]) -> None:
        self.process = process
        self.namesrv = namesrv
        self.log = lines
        """Lines of stderr so far."""


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
    process = subprocess.Popen(
        [sys.executable, "-m", "reput", *map(str, arguments)],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, encoding="utf-8",
    )  # fmt: skip
    stderr = cast(IO[str], process.stderr)
    lines: list[str] = []
    try:
        namesrv = _address(stderr, lines)
        reader = threading.Thread(target=lambda: lines.extend(stderr), daemon=True)
        reader.start()
        yield Server(process, namesrv, lines)
        if process.poll() is None:
            process.terminate()
        found = process.wait(WAIT_SECONDS)
        reader.join(WAIT_SECONDS)
        assert found == exit_code, "".join(lines)
    finally:
        process.kill()
        process.wait()
        stderr.close()


def _address(stderr: IO[str], lines: list[str]) -> str:
    """Read lines, which are added to ``lines``, up to the one with the server's address."""
    for line in stderr:
        lines.append(line)
        found = re.search(r"serving .* at [0-9.]+:(\d+)$", line)
        if found:
            return f"127.0.0.1:{found[1]}"
    raise HarnessError("the server ended: " + "".join(lines))
