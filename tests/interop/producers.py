"""RocketMQ's own producers of transactions, in a JVM each."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Sequence
from typing import IO, NamedTuple, Self, cast

from tests.interop import harnessjvm
from tests.interop.maven import HarnessError

WAIT_SECONDS = 90.0


class Asked(NamedTuple):
    """One check of a transaction, as its producer got it and answers it."""

    number: int
    outcome: str
    topic: str
    queue_id: int


class Producer:
    """A producer that answers when it is asked (TransactCommand); a context manager."""

    def __init__(
        self,
        namesrv: str,
        topic: str,
        group: str,
        outcomes: Sequence[str] = (),
        *,
        client: str = "",
    ) -> None:
        """It first leaves a transaction open for each of `outcomes`. `client`: another release of
        it, OLD_CLIENT."""
        arguments = ["transact", namesrv, topic, group, *outcomes]
        self._process, self._home = harnessjvm.spawn(
            arguments, stdin=subprocess.PIPE, client=client
        )
        self._lines = harnessjvm.lines_of(self._process)

    def __enter__(self) -> Self:
        """Wait until all that it sends is stored."""
        if self._line() != "READY":
            raise HarnessError(f"the producer is not ready\n{harnessjvm.last_words(self._home)}")
        return self

    def __exit__(self, *_error: object) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                cast(IO[str], pipe).close()

    def take(self, count: int) -> list[Asked]:
        """Return the next checks."""
        return [_asked(self._line()) for _ in range(count)]

    def stop(self) -> list[Asked]:
        """Stop the producer; return the checks that were not taken."""
        cast(IO[str], self._process.stdin).close()
        rest = []
        while (line := self._line()) != "STOPPED":
            rest.append(_asked(line))
        return rest

    def _line(self) -> str:
        return harnessjvm.next_line(self._lines, WAIT_SECONDS, "producer", self._home)


def _asked(line: str) -> Asked:
    number, outcome, topic, queue_id = line.split()
    return Asked(int(number), outcome, topic, int(queue_id))
