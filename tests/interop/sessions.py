"""Short commands, run one after another in one JVM for each release.

Why: starting a JVM, and loading and compiling what RocketMQ uses, is most of the cost of such a
command, and a test run has hundreds of them.

Invariants: a JVM ends with the test run, at the end of its stdin. A JVM whose command failed is not
used again. A command that opens a store ends when none of the store's threads is left, so that
nothing goes on in its files. Commands that tests ask for at the same time get a JVM each.

Not done here: commands that a test kills or runs beside others (`rocketmq.start_send`).
"""

from __future__ import annotations

import json
import queue
import subprocess
import threading
from collections import defaultdict
from collections.abc import Sequence
from typing import IO, Any, cast

from tests.interop.harnessjvm import (
    CALL_TIMEOUT_SECONDS,
    current_release,
    last_words,
    lines_of,
    spawn,
)
from tests.interop.maven import HarnessError


class Session:
    """A JVM that runs subcommands of `Harness`."""

    def __init__(self, client: str) -> None:
        self._process, self._home = spawn(
            ["session"], heap="512m", stdin=subprocess.PIPE, client=client
        )
        self._lines = lines_of(self._process)

    def ask(self, arguments: Sequence[str], timeout: float) -> dict[str, Any]:
        """Return the one object that a subcommand prints. Raises HarnessError if it fails."""
        stdin = cast(IO[str], self._process.stdin)
        stdin.write(json.dumps(arguments) + "\n")
        stdin.flush()
        try:
            line = self._lines.get(timeout=timeout)
        except queue.Empty:
            raise self._error(arguments, f"did not answer within {timeout:.0f} s") from None
        if line is None:
            raise self._error(arguments, "ended")
        found = cast(dict[str, Any], json.loads(line))
        if "failed" in found:
            raise self._error(arguments, f"failed\n{found['failed']}")
        return found

    def _error(self, arguments: Sequence[str], problem: str) -> HarnessError:
        """Name the subcommand and its store or name server, and add the JVM's last words."""
        self._process.kill()
        self._process.wait()
        return HarnessError(f"{' '.join(arguments[:2])} {problem}\n{last_words(self._home)}")


_idle: defaultdict[tuple[str, str], list[Session]] = defaultdict(list)
_lock = threading.Lock()


def ask(
    arguments: Sequence[str], timeout: float = CALL_TIMEOUT_SECONDS, client: str = ""
) -> dict[str, Any]:
    """Have a JVM of the current release run a subcommand; one is started if none is idle.

    `client`: another release of it, OLD_CLIENT.
    """
    idle = _idle[current_release(), client]
    with _lock:
        session = idle.pop() if idle else None
    session = session or Session(client)
    found = session.ask(arguments, timeout)
    with _lock:
        idle.append(session)
    return found
